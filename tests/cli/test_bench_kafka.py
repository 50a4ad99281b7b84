"""`camerlengo bench kafka`: turns, ratios and tables, without a Kafka; and what the consumer of both is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controller.cli.main import main
from tests.benchmarks import broker_worker
from tests.benchmarks.broker import Setup, Work
from tests.benchmarks.kafka import HEAD, KAFKAS, OURS, compare, notes, page_table, setting, table


class Bench:
    """Takes part in `calls` with its name; each of its runs takes `seconds`."""

    def __init__(self, name: str, seconds: float, calls: list[tuple[str, str]]) -> None:
        self._name = name
        self._seconds = seconds
        self._calls = calls

    @contextmanager
    def topic(self, setup: Setup) -> Iterator[str]:
        yield str(setup)

    def work(self, kind: str, **given: Any) -> Work:
        self._calls.append((self._name, kind))
        if kind == "consume":
            assert given["config"] == {"fetch.min.bytes": "2"}
        return Work(self._seconds, requests=10, cpu_s=0.1, client_cpu_s=0.2)


def compared() -> tuple[dict[str, Any], list[tuple[str, str]]]:
    calls: list[tuple[str, str]] = []
    benches: Any = {OURS: Bench(OURS, 1.0, calls), KAFKAS: Bench(KAFKAS, 2.0, calls)}
    arguments = argparse.Namespace(sizes=(100,), megabytes=0.1, runs=2, consumer=[("fetch.min.bytes", "2")])
    found = {
        "runs": 2,
        "megabytes": 0.1,
        "partitions": 3,
        "producer": {"linger.ms": 5},
        "consumer": {"enable.auto.commit": False, "fetch.min.bytes": "2"},
        "circumstances": "A machine.",
        "rows": compare(benches, arguments),
    }
    return found, calls


def test_the_clusters_take_turns_and_the_first_run_of_each_does_not_count() -> None:
    found, calls = compared()
    first = [name for name, kind in calls if kind == "produce"]
    assert first == [*(OURS, KAFKAS) * 2, *(KAFKAS, OURS) * 2, *(OURS, KAFKAS) * 2]
    row = found["rows"][0]
    assert row["consume"][OURS]["records_per_s"] == {"median": 1_000, "min": 1_000, "max": 1_000}
    assert row["produce"][KAFKAS]["cpu_us_a_record"] == 100.0


def test_the_tables_have_the_ratio_and_the_clients_settings() -> None:
    found, _ = compared()
    lines = page_table(found)
    assert lines[0] == f"| {' | '.join(HEAD)} |"
    cells = "| RF 1 acks=1 | 100 | 1,000 (1k to 1k) | 500 (0k to 0k) | 2.00 |"
    assert lines[2].startswith(cells)
    assert lines[-3:] == notes(found)
    assert "Consumer, both: `enable.auto.commit=false`, `fetch.min.bytes=2`." in lines[-2]
    assert "RF 3 acks=all" in table(found)


def test_without_a_kafka_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    assert main(["bench", "kafka"]) == 3
    assert "KAFKA_HOME must name the folder of a Kafka 2.8" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "fetch.min.bytes", "=2"])
def test_a_setting_of_the_consumer_has_a_name_and_a_value(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected NAME=VALUE"):
        setting(text)


class Message:
    def error(self) -> None:
        return None


class Consumer:
    """Has `records` in all; `consume` would wait for those that it does not have."""

    asked: list[int]
    config: dict[str, Any]

    def __init__(self, config: dict[str, Any]) -> None:
        type(self).asked, type(self).config = [], config

    def list_topics(self, topic: str, timeout_s: float) -> None: ...

    def assign(self, partitions: list[Any]) -> None: ...

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        self.asked.append(count)
        return [Message()] * count

    def close(self) -> None: ...


def test_the_consumer_is_not_asked_for_more_records_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_worker, "Consumer", Consumer)
    broker_worker.consume("localhost:1", "t", 3, 25_000, {"fetch.queue.backoff.ms": "7"})
    assert Consumer.asked[:3] == [10_000, 10_000, 5_000]
    assert Consumer.config["fetch.queue.backoff.ms"] == "7"
