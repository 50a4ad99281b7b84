"""A broker's metrics in the Prometheus text format (0.0.4).

Names are those that Kafka's metrics have where the JMX exporter shows them (in lower case, `_total` for what Kafka
counts PerSec, quantiles as labels), so that dashboards made for Kafka show this broker too. Called on the broker's
thread, at any time; what the controller's thread keeps is read as it published it. The cost depends on the number of
metrics, not on the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from controller.broker.node import Node
from controller.core.controller_states import ControllerState
from controller.core.measures import Histogram
from controller.core.obstacles import Reason
from controller.timer.purgatory import Purgatory


class MetricKind(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Sample:
    """`suffix`: what follows the metric's name (a summary's `_count` and `_sum`)."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: MetricKind
    about: str
    samples: tuple[Sample, ...]


def text_of(metrics: Iterable[Metric]) -> str:
    return "\n".join(line for metric in metrics for line in _lines(metric)) + "\n"


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.about}"
    yield f"# TYPE {metric.name} {metric.kind.value}"
    for sample in metric.samples:
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
        yield f"{metric.name}{sample.suffix}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


_CONTROLLER = "kafka_controller_kafkacontroller"
_STATS = "kafka_controller_controllerstats"
_MANAGER = "kafka_controller_controllereventmanager"
_CHANNELS = "kafka_controller_controllerchannelmanager"
_PURGATORY = "kafka_server_delayedoperationpurgatory"
_SESSION = "kafka_server_sessionexpirelistener"


def metrics_of(node: Node, now_ms: float) -> Iterator[Metric]:
    yield from _controller(node)
    yield from _events(node, now_ms)
    yield from _channels(node)
    yield from _purgatories(node)
    yield from _session(node)


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
    yield Metric(
        "camerlengo_controller_election_blocked",
        MetricKind.GAUGE,
        "1 for what is in the way of every election, as far as this broker has seen",
        tuple(Sample(float(obstacle is not None and obstacle.reason is one), {"reason": one.value}) for one in Reason),
    )
    yield Metric(
        f"{_STATS}_uncleanleaderelections_total",
        MetricKind.COUNTER,
        "Elections of a leader that was not in sync",
        (Sample(float(figures.unclean_elections)),),
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
    yield Metric(
        f"{_CHANNELS}_queuesize",
        MetricKind.GAUGE,
        "Requests to one broker without an answer",
        tuple(Sample(float(count), {"broker_id": str(broker)}) for broker, count in sorted(waiting.items())),
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
        yield Metric(
            f"{_PURGATORY}_{name}",
            MetricKind.GAUGE,
            about,
            tuple(
                Sample(float(getattr(purgatory, size)), {"delayedoperation": which})
                for which, purgatory in sorted(found.items())
            ),
        )


def _session(node: Node) -> Iterator[Metric]:
    session = node.session_status
    yield Metric(
        f"{_SESSION}_sessionstate",
        MetricKind.GAUGE,
        "1 for what the ZooKeeper connection last said of itself",
        (Sample(1.0, {"state": session.state.upper()}),),
    )
    for name, count in (
        ("zookeepersyncconnects", session.connects),
        ("zookeeperdisconnects", session.disconnects),
        ("zookeeperexpires", session.expires),
    ):
        yield Metric(
            f"{_SESSION}_{name}_total",
            MetricKind.COUNTER,
            "How often the ZooKeeper session's connection was made, lost, or ended with its session",
            (Sample(float(count)),),
        )


def _gauge(name: str, about: str, value: float) -> Metric:
    return Metric(name, MetricKind.GAUGE, about, (Sample(value),))


def _summary(name: str, about: str, histogram: Histogram, now_ms: float) -> Metric:
    quantiles = (Sample(value, {"quantile": f"{one:g}"}) for one, value in histogram.quantiles(now_ms).items())
    return Metric(
        name,
        MetricKind.SUMMARY,
        about,
        (*quantiles, Sample(float(histogram.count), suffix="_count"), Sample(histogram.total, suffix="_sum")),
    )
