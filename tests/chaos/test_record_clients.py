"""Real clients of records, librdkafka played by scripts: how each operation ends, how far a final read comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from controller.chaos import record_clients
from controller.chaos.record_clients import FinalReader, ProducingClient, producer_config
from controller.scenarios.records.history import (
    ACKNOWLEDGED,
    FAILED,
    INDETERMINATE,
    PATIENCE_MS,
    SETTLE_MS,
    FinalRead,
    Reached,
    ReadLog,
)
from controller.scenarios.records.workload import ACKS_NONE, RecordWorkload
from tests.processes import eventually

PARTITIONS = (("t", 0), ("t", 1))


class _Message:
    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


class ScriptedProducer:
    """Answers each record when it is polled, with the next of `errors` (None: delivered), and tells its epochs."""

    errors: tuple[int | None, ...] = (None,)
    offset: int | None = 7
    refuses = False
    fatal = False
    breaks = False
    eos: Mapping[str, int] = {"epoch_cnt": 1, "producer_epoch": 0}

    def __init__(self, config: dict[str, Any]) -> None:
        self._tell: Callable[[str], None] = config["stats_cb"] if config["statistics.interval.ms"] else lambda _: None
        self._waiting: list[Callable[[Any, Any], None]] = []
        self._answered = 0

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, on_delivery: Callable[..., None]) -> None:
        assert (topic, partition) in PARTITIONS
        if self.refuses:
            raise BufferError("the queue is full")
        self._waiting.append(on_delivery)

    def poll(self, timeout_s: float) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            code = self.errors[self._answered % len(self.errors)]
            self._answered += 1
            answer(None if code is None else KafkaError(code), _Message(self.offset))
        self._tell(json.dumps({"eos": self.eos}))
        if self.fatal and waiting:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        if self.breaks and waiting:
            raise SystemError("exception <class 'str'> is not a BaseException subclass")


@dataclass
class Now:
    """Each look at the clock finds it later."""

    ms: float = 0.0
    step_ms: float = 0.05

    def __call__(self) -> float:
        self.ms += self.step_ms
        return self.ms


def produced(monkeypatch: pytest.MonkeyPatch, workload: RecordWorkload, **script: Any) -> ProducingClient:
    """What came of a few records."""
    monkeypatch.setattr(confluent_kafka, "Producer", type("Scripted", (ScriptedProducer,), script))
    client = ProducingClient(0, {"bootstrap.servers": "nowhere:1"}, workload, PARTITIONS, Now())
    eventually(lambda: len(client.log.key) >= 12 or client.error is not None, "records are sent")
    client.stop()
    assert client.join(10.0)
    assert client.log.open == 0
    return client


def test_a_record_ends_as_its_delivery_report_says(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = (None, KafkaError._MSG_TIMED_OUT, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.NOT_ENOUGH_REPLICAS)
    log = produced(monkeypatch, RecordWorkload(producers=1), errors=codes).log
    assert list(log.outcome[:4]) == [ACKNOWLEDGED, INDETERMINATE, FAILED, INDETERMINATE]
    assert list(log.offset[:4]) == [7, -1, -1, -1]
    assert log.partition[0] != log.partition[1]


def test_a_record_that_is_acknowledged_by_a_later_batch_has_no_known_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """As librdkafka does where the response was lost: a client that failed on it ended early, with a SystemError."""
    client = produced(monkeypatch, RecordWorkload(producers=1), offset=None)
    assert client.error is None
    assert set(client.log.outcome) == {ACKNOWLEDGED}
    assert set(client.log.offset) == {-1}


def test_what_never_came_into_the_queue_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = produced(monkeypatch, RecordWorkload(producers=1), refuses=True).log
    assert set(log.outcome) == {FAILED}
    assert "the queue is full" in log.errors


def test_with_acks_of_0_nothing_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = RecordWorkload(producers=1, acks=ACKS_NONE, idempotent=False)
    assert set(produced(monkeypatch, workload).log.outcome) == {INDETERMINATE}


@pytest.mark.parametrize(("producer_ids", "epoch", "renewed"), [(1, 0, False), (1, 1, True), (2, 0, True)])
def test_a_producer_that_goes_on_in_another_epoch_says_so(
    monkeypatch: pytest.MonkeyPatch, producer_ids: int, epoch: int, renewed: bool
) -> None:
    eos = {"epoch_cnt": producer_ids, "producer_epoch": epoch}
    assert produced(monkeypatch, RecordWorkload(producers=1), eos=eos).log.renewed is renewed


def test_a_fatal_error_ends_a_producer_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    client = produced(monkeypatch, RecordWorkload(producers=1), fatal=True)
    assert client.error is not None
    assert "producer 0" in client.error


def test_a_producer_whose_library_fails_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    client = produced(monkeypatch, RecordWorkload(producers=1), breaks=True)
    assert client.error is not None
    assert client.error.startswith("producer 0 ended early: SystemError")


def test_a_producers_settings_are_the_workloads() -> None:
    config = producer_config({"bootstrap.servers": "a:1"}, RecordWorkload(acks=1, idempotent=False, in_flight=2))
    assert (config["acks"], config["enable.idempotence"]) == (1, False)
    assert config["max.in.flight.requests.per.connection"] == 2


def test_an_idempotent_producer_of_the_library_has_one_request_in_flight() -> None:
    """Two make it begin a new epoch in every partition after a refusal in one, and write records again."""
    config = producer_config({"bootstrap.servers": "a:1"}, RecordWorkload(in_flight=5))
    assert config["max.in.flight.requests.per.connection"] == 1


@dataclass
class ScriptedReader:
    """Gives one record of each partition a turn up to `gives`; tells `ends`, or an error where there is none."""

    now: Now
    gives: list[int]
    ends: list[int | None]
    positions: list[int] = field(default_factory=lambda: [0, 0])
    log: ReadLog = field(default_factory=lambda: ReadLog(-1))

    @property
    def consumer(self) -> ScriptedReader:
        return self

    def close(self) -> None:
        pass

    def take(self, timeout_s: float) -> list[tuple[int, int]]:
        self.now.ms += 1000 * timeout_s
        taken = []
        for place, gives in enumerate(self.gives):
            if self.positions[place] < gives:
                taken.append((place, self.positions[place]))
                self.positions[place] += 1
        return taken

    def get_watermark_offsets(self, partition: Any, timeout_s: float) -> tuple[int, int]:
        end = self.ends[partition.partition]
        if end is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 0, end


def final(
    monkeypatch: pytest.MonkeyPatch, gives: list[int], ends: list[int | None], expected: list[int], deadline_ms: float
) -> tuple[list[FinalRead], Now]:
    now = Now(step_ms=0.0)
    monkeypatch.setattr(record_clients, "_Reader", lambda *_, committed: ScriptedReader(now, gives, ends))
    monkeypatch.setattr(record_clients, "_asker", lambda _connect, committed: ScriptedReader(now, gives, ends))
    return FinalReader({"bootstrap.servers": "nowhere:1"}, PARTITIONS, expected, now).read(deadline_ms), now


def test_a_final_read_ends_when_every_partition_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    finals, now = final(monkeypatch, [5, 0], [5, 0], [5, 0], 60_000.0)
    assert finals == [FinalRead(0, 5, Reached.END), FinalRead(0, 0, Reached.END)]
    assert now.ms < 2_000.0


def test_an_end_before_what_was_acknowledged_is_given_time_and_then_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    finals, now = final(monkeypatch, [5, 5], [5, 5], [5, 9], 60_000.0)
    assert [each.reached for each in finals] == [Reached.END, Reached.END]
    assert now.ms > SETTLE_MS


def test_a_partition_that_gives_nothing_more_is_not_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    finals, now = final(monkeypatch, [5, 3], [5, 5], [5, 5], 60_000.0)
    assert finals[1] == FinalRead(0, 5, Reached.NOTHING_MORE, "read to 3 of 5")
    assert now.ms > PATIENCE_MS


def test_a_partition_of_which_nobody_tells_the_end_is_not_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    finals, _ = final(monkeypatch, [5, 5], [5, None], [5, 5], 60_000.0)
    assert finals[1].reached is Reached.NOTHING_MORE
    assert "timed out" in finals[1].detail.lower()


def test_a_read_that_runs_out_of_time_has_seen_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    finals, _ = final(monkeypatch, [500, 5], [500, 5], [500, 5], 2_000.0)
    assert [each.reached for each in finals] == [Reached.PART, Reached.END]
