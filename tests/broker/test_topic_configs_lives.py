"""Configs that change while topics come and go, connections break and sessions end: after a calm the broker goes by
what ZooKeeper holds. What is planted into the watch is found."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from controller.broker.topic_configs import ConfigWatch
from controller.clock import spawn
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.codecs import ConfigZnode, encode_config
from controller.zookeeper.operations import ANY_VERSION, Create, Delete
from tests.broker.test_topic_configs import Watching
from tests.zookeeper.client_bench import Bench

SEEDS = 30
STEPS = 40
TOPICS = ("a", "b", "c")
CALM_MS = 30_000.0


class Life:
    """`values`: each topic's retention.ms in ZooKeeper; `here`: those with a replica here."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bench = Bench()
        self.watching = Watching(self.bench, latency_ms=5.0)
        self.others = BrokerDataWrites(self.bench.node().client)
        self.values: dict[str, int] = {}
        self.here: set[str] = set()
        self.count = 0

    def next_value(self) -> int:
        self.count += 1
        return 1_000 + self.count

    def create(self, topic: str) -> None:
        """As a topic's creation does: no notice."""
        self.values[topic] = self.next_value()
        data = encode_config(ConfigZnode({"retention.ms": str(self.values[topic])}))
        self.bench.other.multi([Create(paths.config_topic(topic), data)])
        self.take_role(topic)

    def take_role(self, topic: str) -> None:
        self.here.add(topic)
        self.watching.watch.wanted([topic])

    def delete(self, topic: str) -> None:
        if topic in self.here:
            self.here.discard(topic)
            self.watching.watch.topic_removed(topic)
        del self.values[topic]
        self.bench.other.multi([Delete(paths.config_topic(topic), ANY_VERSION)])

    def alter(self, topic: str) -> None:
        value = self.values[topic] = self.next_value()
        changed = spawn(
            self.others.change_config(
                paths.config_topic(topic), f"topics/{topic}", lambda _config: {"retention.ms": str(value)}
            )
        )
        self.bench.until(lambda: changed.done)

    def step(self) -> None:
        topic = self.rng.choice(TOPICS)
        if topic not in self.values:
            self.create(topic)
        else:
            doing = self.rng.choice((self.alter, self.alter, self.alter, self.delete))
            doing(topic)
        fault = self.rng.randrange(12)
        if fault == 0:
            self.watching.node.connection.reset()
        elif fault == 1:
            with suppress(KeyError):  # it has ended, and its client has not heard of it yet
                self.bench.server.expire(self.watching.node.client.session())
        self.hear(self.rng.choice((0.5, 3.0, 20.0, 500.0)))

    def hear(self, for_ms: float) -> None:
        self.bench.settle(for_ms)
        if "look" in self.watching.node.events.take():
            self.watching.watch.check()

    def calm(self) -> None:
        for _ in range(50):
            self.hear(3.0)
        for _ in range(100):
            self.hear(CALM_MS / 100)

    def check(self) -> None:
        found = {topic: self.watching.retention(topic) for topic in sorted(self.here)}
        assert found == {topic: self.values[topic] for topic in sorted(self.here)}
        assert self.watching.trace.notes("error") == []


def play(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.calm()
    life.check()


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_after_a_calm_the_broker_goes_by_what_zookeeper_holds(first: int) -> None:
    for seed in range(first, first + 10):
        play(seed)


def found_by_a_seed() -> bool:
    for seed in range(SEEDS):
        try:
            play(seed)
        except AssertionError:
            return True
    return False


def test_a_look_that_is_not_made_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what comes while the watch is reading is dropped."""
    check = ConfigWatch.check

    def forgetful(self: ConfigWatch) -> None:
        if not self._checking:
            check(self)

    monkeypatch.setattr(ConfigWatch, "check", forgetful)
    assert found_by_a_seed()


def test_a_new_session_that_is_not_noticed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: notices are all that is ever read, though they may be gone by then."""

    def purge(self: Life) -> None:
        rows = [row for row in self.bench.server.rows() if row.path.startswith(f"{paths.CONFIG_CHANGES}/")]
        if rows:
            self.bench.other.multi([Delete(row.path, ANY_VERSION) for row in rows])

    read = ConfigWatch._read

    def of_one_session(
        self: ConfigWatch, _session: int, last: int, here: tuple[str, ...], wanted: tuple[str, ...]
    ) -> object:
        return read(self, self._client.session(), last, here, wanted)

    step = Life.step

    def step_and_purge(self: Life) -> None:
        step(self)
        purge(self)

    monkeypatch.setattr(Life, "step", step_and_purge)
    play(0)
    monkeypatch.setattr(ConfigWatch, "_read", of_one_session)
    assert found_by_a_seed()


def test_a_notice_that_is_counted_and_not_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConfigWatch, "_entity", lambda _self, _row: None)
    assert found_by_a_seed()


def test_a_topic_of_an_earlier_life_that_is_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what was known of a deleted topic is known of the next of its name, which is not read."""
    wanted = ConfigWatch.wanted
    monkeypatch.setattr(ConfigWatch, "topic_removed", lambda _self, _topic: None)
    monkeypatch.setattr(
        ConfigWatch,
        "wanted",
        lambda self, topics: wanted(self, [one for one in topics if not self._configs.known(one)]),
    )
    assert found_by_a_seed()
