"""The host on real processes, where a test can stand in for them: what it waits for before a scenario goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.chaos import live_host
from controller.chaos.host import RealHost
from controller.chaos.live_host import HEARD_LIMIT_MS
from controller.clock import Future, spawn
from controller.scenarios.host import PartitionView, TopicSpec

TOPIC = TopicSpec("t", 2, 3)
LED = PartitionView(1, (1,), (1, 2, 3))


class Clock:
    """Time passes by sleeping alone."""

    def __init__(self) -> None:
        self.at_ms = 0.0

    def now_ms(self) -> float:
        return self.at_ms

    def sleep(self, delay_ms: float) -> Future[None]:
        self.at_ms += delay_ms
        return Future.resolved(None)


class Cluster:
    """Brokers 1 to 3 by the look at which each has heard of every partition, None: never. 3 is not registered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, heard_at: Mapping[int, int | None]) -> None:
        self.heard_at = heard_at
        self.looks = dict.fromkeys(heard_at, 0)
        self.expected: list[tuple[Sequence[TopicSpec], Mapping[int, int]]] = []
        self.host = RealHost(folder=folder)
        self.clock = Clock()
        stand_ins: dict[str, Any] = {
            "clock": self.clock,
            "_connect": {},
            "_client": SimpleNamespace(expect=lambda topics: self.expected.append((topics, dict(self.looks)))),
            "_observer": SimpleNamespace(now=lambda: ({1: 7, 2: 7}, 1)),
            "running": lambda: tuple(heard_at),
            "_port": lambda node: node,
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(self.host, name, stand_in, raising=False)
        monkeypatch.setattr(live_host, "create_topics", lambda bootstrap, topics: None)
        monkeypatch.setattr(live_host, "metadata_of", self.metadata_of)

    def metadata_of(
        self, host: str, port: int, timeout_s: float, secure: object
    ) -> dict[tuple[str, int], PartitionView]:
        self.looks[port] += 1
        heard_at = self.heard_at[port]
        if heard_at is None:
            raise TimeoutError("it does not answer")
        known = {("t", 0): LED}  # the second partition's request comes later
        return known | {("t", 1): LED} if self.looks[port] >= heard_at else known


def test_topics_are_expected_once_every_registered_broker_has_heard_of_all_their_partitions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster(monkeypatch, tmp_path, {1: 1, 2: 4, 3: 1})
    spawn(cluster.host.create_topics([TOPIC])).result()
    assert cluster.expected == [([TOPIC], {1: 1, 2: 4, 3: 0})]


def test_a_broker_that_never_hears_of_them_is_not_waited_for_any_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster(monkeypatch, tmp_path, {1: 2, 2: None})
    spawn(cluster.host.create_topics([TOPIC])).result()
    assert [topics for topics, _ in cluster.expected] == [[TOPIC]]
    assert cluster.looks[1] == 2
    assert HEARD_LIMIT_MS <= cluster.clock.at_ms < HEARD_LIMIT_MS + 100.0
