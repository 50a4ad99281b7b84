"""What a broker goes by for a topic: configs over each other, read at the right moments, told by notices."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from controller.broker.topic_configs import (
    MORE_THAN_ANY_ISR,
    NOTICE_LIFE_MS,
    RETRY_MS,
    ConfigWatch,
    TopicConfigs,
    notice_number,
)
from controller.clock import Future
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.codecs import ConfigZnode, encode_config
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, NoAuth, SetData
from tests.broker.harness import KeptTrace, settings
from tests.zookeeper.client_bench import Bench, Node

BROKER_1 = paths.config_broker(1)


def configs_of(**given: str) -> TopicConfigs:
    return TopicConfigs(settings(**given), KeptTrace())


# -- what comes of configs


def test_a_topics_own_value_comes_before_the_brokers_and_that_before_all_brokers() -> None:
    configs = configs_of(min_insync_replicas="2", log_retention_ms="1000")

    def now() -> tuple[int, int]:
        return configs.min_insync("t"), configs.log_settings("t").retention_ms

    configs.learn_topics({"t": {}})
    assert now() == (2, 1_000)
    configs.learn_brokers({}, {"min.insync.replicas": "3", "log.retention.ms": "2000"})
    assert now() == (3, 2_000)
    configs.learn_brokers({"min.insync.replicas": "4", "log.retention.ms": "3000"}, configs.default)
    assert now() == (4, 3_000)
    configs.learn_topics({"t": {"min.insync.replicas": "5", "retention.ms": "4000"}})
    assert now() == (5, 4_000)
    configs.learn_topics({"t": {"min.insync.replicas": "5"}})
    assert now() == (5, 3_000)
    configs.learn_brokers({}, {})
    assert now() == (5, 1_000)


def test_a_topic_whose_config_is_not_read_yet_loses_nothing() -> None:
    configs = configs_of(min_insync_replicas="1", log_retention_ms="1000", log_segment_bytes="5000")
    found = configs.log_settings("t")
    assert (found.retention_ms, found.retention_bytes, found.segment_bytes) == (-1, -1, 5_000)
    assert configs.min_insync("t") == MORE_THAN_ANY_ISR
    assert not configs.known("t")
    configs.learn_topics({"t": {}})
    assert configs.log_settings("t").retention_ms == 1_000
    configs.forget_topic("t")
    assert configs.log_settings("t").retention_ms == -1


@pytest.mark.parametrize(
    ("given", "config", "retention_ms"),
    [
        ({}, {}, 1_000),
        ({}, {"cleanup.policy": "delete"}, 1_000),
        ({}, {"cleanup.policy": "compact"}, -1),
        ({}, {"cleanup.policy": "compact,delete"}, 1_000),
        ({"log_cleanup_policy": "compact"}, {}, -1),
        ({"log_cleanup_policy": "compact"}, {"cleanup.policy": "delete"}, 1_000),
    ],
)
def test_what_is_not_to_be_deleted_stays(
    given: Mapping[str, str], config: Mapping[str, str], retention_ms: int
) -> None:
    configs = configs_of(log_retention_ms="1000", **given)
    configs.learn_topics({"t": config})
    assert configs.log_settings("t").retention_ms == retention_ms


def test_a_value_that_others_wrote_and_that_is_none_is_told_and_passed_over() -> None:
    trace = KeptTrace()
    configs = TopicConfigs(settings(), trace)
    configs.learn_topics(
        {"t": {"segment.bytes": "3", "retention.ms": "7", "min.insync.replicas": "x", "of.kafka.9": "1"}}
    )
    configs.learn_brokers({"log.segment.bytes": "-1", "ssl.keystore.type": "JKS"}, {})
    assert configs.log_settings("t").retention_ms == 7
    assert configs.log_settings("t").segment_bytes == 1024**3
    assert configs.min_insync("t") == 1
    warnings = trace.notes("warning")
    assert [name in warning for warning, name in zip(warnings, ("segment", "min.insync", "segment"), strict=True)]
    assert len(warnings) == 3


def test_changes_are_told_once_and_no_change_is_none() -> None:
    told: list[Collection[str] | None] = []
    configs = TopicConfigs(settings(), KeptTrace(), told.append)
    configs.learn_topics({"t": {"flush.ms": "5"}})
    configs.learn_topics({"t": {"flush.ms": "5"}})
    configs.learn_topics({"t": {"flush.ms": "6"}})
    configs.learn_brokers({}, {})
    configs.learn_brokers({}, {"log.flush.interval.ms": "7"})
    assert told == [["t"], ["t"], None]


# -- reading them


class Watching:
    """One broker's watch over the in-memory ZooKeeper; `look` is called as its node would."""

    def __init__(self, bench: Bench, latency_ms: float = 1.0) -> None:
        self.bench = bench
        self.node: Node = bench.node(latency=lambda: latency_ms)
        self.trace = KeptTrace()
        self.configs = TopicConfigs(settings(), self.trace)
        self.writes = BrokerDataWrites(self.node.client)
        bench.run(self.writes.ensure_persistent_paths())
        self.watch = ConfigWatch(1, self.node.client, self.configs, bench.clock, self.trace)
        bench.wait(self.node.client.keep_watching_children(paths.CONFIG_CHANGES, "look"))

    def settle(self) -> None:
        """Hands on what the watch puts, until all is quiet."""
        for _ in range(20):
            self.bench.settle(10.0)
            if "look" in self.node.events.take():
                self.watch.check()

    def put(self, path: str, **config: str) -> None:
        """A config without a notice, as a topic's creation writes it."""
        data = encode_config(ConfigZnode({name.replace("_", "."): text for name, text in config.items()}))
        there = self.bench.row(path) is not None
        self.bench.change(SetData(path, data, ANY_VERSION) if there else Create(path, data))

    def notify(self, data: bytes) -> None:
        self.bench.change(Create(f"{paths.CONFIG_CHANGES}/config_change_", data, sequential=True))

    def retention(self, topic: str = "t") -> int:
        return self.configs.log_settings(topic).retention_ms


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def watching(bench: Bench) -> Watching:
    return Watching(bench)


def test_a_config_is_read_when_a_log_is_made(watching: Watching) -> None:
    watching.put(paths.config_topic("t"), retention_ms="5")
    watching.put(BROKER_1, log_flush_interval_ms="6")
    watching.put(paths.CONFIG_BROKER_DEFAULT, log_flush_interval_ms="7", min_insync_replicas="2")
    watching.watch.wanted(["t", "without"])
    watching.settle()
    assert (watching.retention(), watching.retention("without")) == (5, 7 * 24 * 3600 * 1000)
    assert watching.configs.log_settings("t").flush_ms == 6
    assert watching.configs.min_insync("without") == 2


def test_what_a_notice_names_is_read_anew_and_applied(watching: Watching) -> None:
    watching.watch.wanted(["t", "u"])
    watching.settle()
    for topic in ("t", "u", "elsewhere"):
        watching.put(paths.config_topic(topic), retention_ms="5")
    watching.notify(b'{"version":2,"entity_path":"topics/t"}')
    watching.notify(b'{"version":2,"entity_path":"topics/elsewhere"}')
    watching.settle()
    assert (watching.retention(), watching.configs.known("elsewhere")) == (5, False)
    assert watching.retention("u") != 5, "nobody said so"
    watching.notify(b'{"version":1,"entity_type":"topics","entity_name":"u"}')
    watching.settle()
    assert watching.retention("u") == 5


@pytest.mark.parametrize("entity", ["brokers/1", "brokers/<default>"])
def test_dynamic_configs_of_brokers_are_read_at_their_notice(watching: Watching, entity: str) -> None:
    watching.watch.wanted(["t"])
    watching.settle()
    watching.put(f"{paths.CONFIG}/{entity}", log_retention_ms="5")
    watching.notify(b'{"version":2,"entity_path":"brokers/2"}')
    watching.settle()
    assert watching.retention() != 5
    watching.notify(b'{"version":2,"entity_path":"%s"}' % entity.encode())
    watching.settle()
    assert watching.retention() == 5


def test_each_notice_is_taken_once(watching: Watching) -> None:
    watching.watch.wanted(["t"])
    watching.settle()
    watching.put(paths.config_topic("t"), retention_ms="5")
    watching.notify(b'{"version":2,"entity_path":"topics/t"}')
    watching.settle()
    watching.put(paths.config_topic("t"), retention_ms="6")
    watching.notify(b'{"version":2,"entity_path":"topics/other"}')
    watching.settle()
    assert watching.retention() == 5, "the first notice is not read again"


def test_a_damaged_notice_or_config_costs_only_itself(watching: Watching) -> None:
    watching.put(paths.config_topic("t"), retention_ms="5")
    watching.bench.change(Create(paths.config_topic("bad"), b"{"))
    watching.watch.wanted(["t", "bad"])
    watching.settle()
    watching.put(paths.config_topic("t"), retention_ms="6")
    watching.notify(b"?")
    watching.notify(b'{"version":2,"entity_path":"topics/t"}')
    watching.settle()
    assert watching.retention() == 6
    assert not watching.configs.known("bad"), "and so none of its records goes"
    assert len(watching.trace.notes("error")) == 2
    watching.put(paths.config_topic("bad"), retention_ms="7")
    watching.notify(b'{"version":2,"entity_path":"topics/bad"}')
    watching.settle()
    assert watching.retention("bad") == 7


def test_after_a_sessions_end_all_is_read_again(watching: Watching, bench: Bench) -> None:
    watching.watch.wanted(["t"])
    watching.settle()
    old = watching.node.client.session()
    bench.server.expire(old)
    watching.put(paths.config_topic("t"), retention_ms="5")
    watching.put(BROKER_1, min_insync_replicas="3")
    bench.until(lambda: watching.node.client.session() not in (0, old))
    watching.settle()
    assert (watching.retention(), watching.configs.min_insync("t")) == (5, 3)
    assert watching.trace.notes("error") == []


def test_what_is_wanted_while_there_is_no_session_is_read_in_the_next(watching: Watching, bench: Bench) -> None:
    watching.put(paths.config_topic("t"), retention_ms="5")
    old = watching.node.client.session()
    bench.server.expire(old)
    watching.watch.wanted(["t"])
    assert not watching.configs.known("t")
    bench.until(lambda: watching.node.client.session() not in (0, old))
    watching.settle()
    assert watching.retention() == 5


def test_a_change_while_reading_is_not_missed(bench: Bench) -> None:
    watching = Watching(bench)
    watching.put(paths.config_topic("t"), retention_ms="5")
    watching.watch.wanted(["t"])
    watching.bench.other.multi(
        [
            SetData(paths.config_topic("t"), encode_config(ConfigZnode({"retention.ms": "6"})), ANY_VERSION),
            Create(
                f"{paths.CONFIG_CHANGES}/config_change_", b'{"version":2,"entity_path":"topics/t"}', sequential=True
            ),
        ]
    )
    watching.settle()
    assert watching.retention() == 6


def test_a_topic_that_was_made_again_has_the_config_of_its_new_life(watching: Watching, bench: Bench) -> None:
    """Its creation leaves no notice."""
    watching.put(paths.config_topic("t"), retention_ms="5")
    watching.watch.wanted(["t"])
    watching.settle()
    watching.watch.wanted(["t"])  # a look at the old config is on its way
    watching.watch.topic_removed("t")
    path = paths.config_topic("t")
    bench.other.multi([Delete(path, ANY_VERSION), Create(path, encode_config(ConfigZnode({"retention.ms": "6"})))])
    watching.watch.wanted(["t"])
    watching.settle()
    assert watching.retention() == 6


def test_a_topic_that_is_gone_is_not_learnt(watching: Watching) -> None:
    watching.put(paths.config_topic("t"), retention_ms="5")
    watching.watch.wanted(["t"])
    watching.watch.topic_removed("t")
    watching.settle()
    assert not watching.configs.known("t")


def test_a_refusal_of_zookeepers_is_tried_again(watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    watching.put(paths.config_topic("t"), retention_ms="5")
    with monkeypatch.context() as patched:
        patched.setattr(watching.node.client, "children", lambda _paths: Future.failed(NoAuth(paths.CONFIG_CHANGES)))
        watching.watch.wanted(["t"])
        watching.settle()
    assert len(watching.trace.notes("warning")) == 1
    assert not watching.configs.known("t")
    watching.bench.settle(RETRY_MS)
    watching.settle()
    assert watching.retention() == 5


def test_notices_that_all_have_seen_are_deleted(watching: Watching, bench: Bench) -> None:
    watching.watch.wanted(["t"])
    watching.settle()
    watching.notify(b'{"version":2,"entity_path":"topics/t"}')
    watching.settle()
    bench.settle(NOTICE_LIFE_MS + 1)
    watching.notify(b'{"version":2,"entity_path":"topics/t"}')
    watching.settle()
    left = [row.path for row in bench.server.rows() if row.path.startswith(f"{paths.CONFIG_CHANGES}/")]
    assert left == [f"{paths.CONFIG_CHANGES}/config_change_0000000001"]


def test_notices_are_numbered() -> None:
    names = ["config_change_0000000012", "config_change_", "other_0000000001", "config_change_x"]
    assert [notice_number(name) for name in names] == [12, None, None, None]
