"""A broker's metrics in the Prometheus text format (0.0.4).

Names are those that Kafka's metrics have where the JMX exporter shows them (in lower case, `_total` for what Kafka
counts PerSec, quantiles as labels), so that dashboards made for Kafka show this broker too. Called on the broker's
thread, at any time; what the controller's thread keeps is read as it published it. The cost depends on the number of
metrics, not on the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.broker.node import Node
from controller.broker.quotas.clients import QuotaType
from controller.core.leadership import Reason
from controller.core.metrics import ControllerState, Histogram
from controller.timer.purgatory import Purgatory
from controller.timer.wheel import WheelCounts
from statemachines.log_segment import SegmentState


class _Collected(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def text_of(metrics: Iterable[Metric]) -> str:
    return generate_latest(_Collected(metrics)).decode()


_CONTROLLER = "kafka_controller_kafkacontroller"
_STATS = "kafka_controller_controllerstats"
_MANAGER = "kafka_controller_controllereventmanager"
_CHANNELS = "kafka_controller_controllerchannelmanager"
_PURGATORY = "kafka_server_delayedoperationpurgatory"
_TIMER = "camerlengo_timer"
_LOG_CLEANER = "kafka_log_logcleaner"
_SESSION = "kafka_server_sessionexpirelistener"
_REQUESTS = "kafka_network_requestmetrics"


def metrics_of(node: Node, now_ms: float) -> Iterator[Metric]:
    yield from _controller(node)
    yield from _events(node, now_ms)
    yield from _channels(node)
    yield from _purgatories(node)
    yield from _transactions(node)
    yield from _session(node)
    yield from _log_cleaner(node, now_ms)
    yield from _tiers(node)
    yield from _quotas(node, now_ms)


CLIENTS_MAX = 100
"""Clients with a quota of one kind that are shown: those that used it last."""
_OF_QUOTAS = {
    QuotaType.PRODUCE: ("produce", "byte_rate", "Bytes a second that clients with a quota produce"),
    QuotaType.FETCH: ("fetch", "byte_rate", "Bytes a second that clients with a quota consume"),
    QuotaType.REQUEST: ("request", "request_time", "Percent of the broker's thread that clients with a quota use"),
    QuotaType.CONTROLLER_MUTATION: (
        "controllermutation",
        "mutation_rate",
        "Partitions a second that clients with a quota create and delete",
    ),
}


def _quotas(node: Node, now_ms: float) -> Iterator[Metric]:
    """Of clients that have a quota, by user and client id; empty: all of them together."""
    for kind, manager in node.access.quotas.managers.items():
        if not manager.enabled:
            continue
        name, what, about = _OF_QUOTAS[kind]
        labels = ["user", "client_id"]
        rates = GaugeMetricFamily(f"kafka_server_{name}_{what}", about, labels=labels)
        about = "The average of their throttle times that were not 0, in ms"
        throttles = GaugeMetricFamily(f"kafka_server_{name}_throttle_time", about, labels=labels)
        for one in manager.shown(int(now_ms), CLIENTS_MAX):
            rates.add_metric(list(one.tags), one.per_s)
            throttles.add_metric(list(one.tags), one.throttle_time_ms)
        yield rates
        yield throttles


def _tiers(node: Node) -> Iterator[Metric]:
    """Of a broker with log directories on SSDs and HDDs."""
    if node.tiers is None or node.services is None or not (homes := node.services.logs.ssd_directories()):
        return
    counts, name = node.tiers.counts, "camerlengo_tier"
    for what, value, about in (
        ("copied_bytes", counts.copied_bytes, "Bytes of segments copied from SSDs to HDDs"),
        ("copied_segments", counts.copied_segments, "Segments copied from SSDs to HDDs"),
        ("cancelled_copies", counts.cancelled_copies, "Copies given up: a truncation or a deletion, or no HDD online"),
        ("failed_copies", counts.failed_copies, "Copies that an error ended"),
        ("evicted_bytes", counts.evicted_bytes, "Bytes of copied segments removed from SSDs"),
        ("evicted_segments", counts.evicted_segments, "Copied segments removed from SSDs"),
        ("refused_appends", sum(home.ssd.refused for home in homes), "Appends refused because the SSD was full"),
    ):
        yield CounterMetricFamily(f"{name}_{what}", about, float(value))
    yield _gauge(f"{name}_copy_rate_bytes", "The rate of copies now, bytes a second", node.tiers.rate.rate)
    used = GaugeMetricFamily(f"{name}_ssd_used_bytes", "What is used of an SSD, as last measured", labels=["directory"])
    size = GaugeMetricFamily(f"{name}_ssd_capacity_bytes", "What may be used of an SSD", labels=["directory"])
    for home in homes:
        used.add_metric([home.path], float(home.ssd.used_bytes))
        size.add_metric([home.path], float(home.ssd.capacity_bytes))
    yield used
    yield size
    segments = GaugeMetricFamily(f"{name}_segments", "Segments of logs on two tiers, by state", labels=["state"])
    states = node.tiers.states
    for state in SegmentState:
        segments.add_metric([state.name], float(states[state]))
    yield segments


def timer_metrics(wakes: int, counts: WheelCounts) -> Iterator[Metric]:
    """A process's timing wheel: `wakes`, how often its driver was woken. A simulated broker has none."""
    for name, value, about in (
        ("wakeups", wakes, "How often the loop was woken for the wheel of timers"),
        ("bucket_polls", counts.polls, "Buckets of the wheel taken off the queue of buckets"),
        ("empty_bucket_polls", counts.empty_polls, "Of those, buckets in which every timer was cancelled"),
        ("advances", counts.advances, "How often the wheel's clock moved to a bucket that held timers"),
        ("advances_saved", counts.advances_saved, "Ticks of 1 ms over which the clock jumped"),
    ):
        yield CounterMetricFamily(f"{_TIMER}_{name}", about, float(value))


def stage_metrics(stages: Mapping[str, Mapping[str, tuple[Mapping[float, float], int, float]]]) -> Iterator[Metric]:
    """A server's requests: by stage and request, quantiles in ms, how many there were, and their sum in ms."""
    for stage, requests in stages.items():
        name = f"{_REQUESTS}_{stage.lower()}timems"
        metric = Metric(name, f"{stage}TimeMs of the requests", "summary")
        for request, (quantiles, count, total_ms) in requests.items():
            for one, value in quantiles.items():
                metric.add_sample(name, {"request": request, "quantile": f"{one:g}"}, value)
            metric.add_sample(f"{name}_count", {"request": request}, float(count))
            metric.add_sample(f"{name}_sum", {"request": request}, total_ms)
        yield metric


def _controller(node: Node) -> Iterator[Metric]:
    figures = node.controller.measures.figures
    for name, value, about in (
        ("activecontrollercount", figures.active, "1 on the broker that is the active controller, 0 on the others"),
        ("controllerstate", node.controller.measures.state.number, "What the controller is doing, by Kafka's number"),
        ("offlinepartitionscount", figures.offline_partitions, "Partitions without a leader"),
        (
            "preferredreplicaimbalancecount",
            figures.preferred_replica_imbalance,
            "Partitions that are not led by their preferred leader",
        ),
        ("activebrokercount", figures.brokers, "Registered brokers"),
        ("globaltopiccount", figures.topics, "Topics"),
        ("globalpartitioncount", figures.partitions, "Partitions"),
        ("topicstodeletecount", figures.topics_to_delete, "Topics that are to be deleted"),
        (
            "topicsineligibletodeletecount",
            figures.topics_ineligible_to_delete,
            "Of those, topics that can't be deleted now",
        ),
        ("replicastodeletecount", figures.replicas_to_delete, "Replicas that are to be deleted"),
        (
            "replicasineligibletodeletecount",
            figures.replicas_ineligible_to_delete,
            "Of those, replicas that can't be deleted now",
        ),
    ):
        yield _gauge(f"{_CONTROLLER}_{name}", about, float(value))
    yield _gauge(
        "camerlengo_controller_paused", "1 while the controller moves nothing by choice", float(figures.paused)
    )
    yield _gauge(
        "camerlengo_controller_quarantined_znodes",
        "Znodes that the controller can't use; it serves everything else",
        float(figures.quarantined),
    )
    yield _gauge(
        "camerlengo_controller_id",
        "Id of the controller that this broker knows, -1 if none",
        float(node.controller.active_controller_id),
    )
    obstacle = node.controller.obstacle
    yield _labelled_gauge(
        "camerlengo_controller_election_blocked",
        "1 for what is in the way of every election, as far as this broker has seen",
        "reason",
        {one.value: float(obstacle is not None and obstacle.reason is one) for one in Reason},
    )
    yield CounterMetricFamily(
        f"{_STATS}_uncleanleaderelections",
        "Elections of a leader that was not in sync",
        float(figures.unclean_elections),
    )


def _events(node: Node, now_ms: float) -> Iterator[Metric]:
    yield _gauge(f"{_MANAGER}_eventqueuesize", "Events that wait for the controller", float(len(node.events)))
    yield _summary(
        f"{_MANAGER}_eventqueuetimems", "How long events waited before they were handled", node.events.waited_ms, now_ms
    )
    timers: Mapping[ControllerState, Histogram] = node.controller.measures.timers
    for state, timer in timers.items():
        if state.timer is not None:
            about = f"How often and how long events of the state {state.name} were handled"
            yield _summary(f"{_STATS}_{state.timer.lower()}", about, timer, now_ms)


def _channels(node: Node) -> Iterator[Metric]:
    term = node.controller.term
    waiting = {} if term is None else term.requests.by_broker()
    yield _gauge(f"{_CHANNELS}_totalqueuesize", "Requests to brokers without an answer", float(sum(waiting.values())))
    yield _labelled_gauge(
        f"{_CHANNELS}_queuesize",
        "Requests to one broker without an answer",
        "broker_id",
        {str(broker): float(count) for broker, count in sorted(waiting.items())},
    )


def _purgatories(node: Node) -> Iterator[Metric]:
    found: dict[str, Purgatory[Any, Any]] = {
        "ElectLeader": node.broker.elections.purgatory,
        "topic": node.broker.topic_waits.purgatory,
    }
    if node.broker.data is not None:
        found["Produce"] = node.broker.data.produces
        found["Fetch"] = node.broker.data.fetches
        found["DeleteRecords"] = node.broker.data.deletions
    for name, about, size in (
        ("purgatorysize", "Entries of waiting requests, those that have ended and were not purged included", "watched"),
        ("numdelayedoperations", "Requests that wait", "delayed"),
    ):
        sizes = {which: float(getattr(purgatory, size)) for which, purgatory in sorted(found.items())}
        yield _labelled_gauge(f"{_PURGATORY}_{name}", about, "delayedoperation", sizes)


def _transactions(node: Node) -> Iterator[Metric]:
    transactions = node.broker.transactions
    about = "Transactions that are decided and whose markers are being written"
    ending = 0 if transactions is None else transactions.markers.under_way
    yield _gauge("camerlengo_transactions_ending", about, float(ending))


def _log_cleaner(node: Node, now_ms: float) -> Iterator[Metric]:
    cleaner, data = node.log_cleaner, node.broker.data
    if cleaner is None or data is None:
        return
    figures = cleaner.figures
    for name, value, about in (
        ("manager_max_dirty_percent", figures.max_dirty_percent, "The dirty share of the log that has most of it"),
        ("manager_time_since_last_run_ms", now_ms - figures.last_run_ms, "Since the log cleaner looked for a log"),
        ("_max_clean_time_secs", figures.clean_time_ms / 1000, "How long the last cleaning took"),
        ("_cleaner_recopy_percent", figures.recopy_percent, "Bytes that the last cleaning kept"),
        ("_max_buffer_utilization_percent", figures.buffer_utilization_percent, "How full its map of keys was"),
        ("_max_compaction_delay_secs", figures.max_compaction_delay_ms / 1000, "Beyond max.compaction.lag.ms"),
    ):
        yield _gauge(f"{_LOG_CLEANER}{name}", about, float(value))
    uncleanable = dict.fromkeys((directory.path for directory in data.logs.directories), 0.0)
    for key in figures.uncleanable:
        directory = data.logs.directory_of(*key)
        if directory is not None:
            uncleanable[directory.path] += 1
    about = "Logs that the log cleaner can't clean"
    yield _labelled_gauge(f"{_LOG_CLEANER}manager_uncleanable_partitions_count", about, "logdirectory", uncleanable)


def _session(node: Node) -> Iterator[Metric]:
    session = node.session_status
    about = "1 for what the ZooKeeper connection last said of itself"
    yield _labelled_gauge(f"{_SESSION}_sessionstate", about, "state", {session.state.upper(): 1.0})
    for name, count in (
        ("zookeepersyncconnects", session.connects),
        ("zookeeperdisconnects", session.disconnects),
        ("zookeeperexpires", session.expires),
    ):
        about = "How often the ZooKeeper session's connection was made, lost, or ended with its session"
        yield CounterMetricFamily(f"{_SESSION}_{name}", about, float(count))


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value)


def _labelled_gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=[label])
    for of, value in values.items():
        family.add_metric([of], value)
    return family


def _summary(name: str, about: str, histogram: Histogram, now_ms: float) -> Metric:
    metric = Metric(name, about, "summary")
    for one, value in histogram.quantiles(now_ms).items():
        metric.add_sample(name, {"quantile": f"{one:g}"}, value)
    metric.add_sample(f"{name}_count", {}, float(histogram.count))
    metric.add_sample(f"{name}_sum", {}, histogram.total)
    return metric
