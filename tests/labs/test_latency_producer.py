"""The asyncio producer: what a batch has, when it is sent, and that each record is answered once."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from controller.protocol.codec import MESSAGES, ApiKey, RequestHeader, decode_request, encode_response
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import framed
from controller.protocol.produce import ProducePartitionResult, ProduceResponse, ProduceTopicResult
from controller.storage.batches import HEADER_BYTES, Record
from controller.testing import Kafka
from tests.benchmarks.latency_producer import (
    RECORD_OVERHEAD_BYTES,
    RETRIES,
    VERSION,
    AsyncioProducer,
    PendingBatch,
    ProducerLink,
    Producers,
    Settings,
    settings_of,
)


class Loop:
    """Runs what is called soon at once, and keeps what is called later."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.later: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon_threadsafe(self, action: Callable[[], object]) -> None:
        action()

    def call_later(self, delay_s: float, action: Callable[..., object], *words: Any) -> Any:
        self.later.append((self.now_s + delay_s, action, words))
        return SimpleNamespace(cancel=lambda: None)

    def advance(self, to_s: float) -> None:
        self.now_s = to_s
        due, self.later = [one for one in self.later if one[0] <= to_s], [one for one in self.later if one[0] > to_s]
        for _, action, words in due:
            action(*words)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[PendingBatch]:
    found: list[PendingBatch] = []
    monkeypatch.setattr(AsyncioProducer, "_send", lambda _self, batch: found.append(batch))
    return found


def producer(settings: Settings) -> tuple[AsyncioProducer, Loop, Callable[..., None]]:
    loop = Loop()
    owner: Any = SimpleNamespace(settings=settings, loop=loop, counts={"t": 5}, leaders={})
    made = AsyncioProducer(owner, Random(1))

    def send(partition: int = 0, key: bytes | None = None) -> None:
        made.produce("t", b"v" * 10, key, partition, on_delivery=lambda _error, _message: None)

    return made, loop, send


def test_a_batch_is_due_when_it_is_full_or_has_lingered(sent: list[PendingBatch]) -> None:
    a_record = 10 + RECORD_OVERHEAD_BYTES
    _, loop, send = producer(Settings(linger_s=0.005, batch_bytes=2 * a_record + HEADER_BYTES))
    send()
    send(1)
    assert not sent
    send()
    assert [(one.place, len(one.records)) for one in sent] == [(("t", 0), 2)]
    send()
    loop.advance(0.004)
    assert len(sent) == 1
    loop.advance(0.005)
    assert [(one.place, len(one.records)) for one in sent[1:]] == [(("t", 1), 1), (("t", 0), 1)]


def test_a_flush_sends_what_lingers(sent: list[PendingBatch]) -> None:
    made, _, send = producer(Settings(linger_s=10.0))
    send()
    assert made.flush(0.0) == 1
    assert len(sent) == 1


@pytest.mark.parametrize("settings", [Settings(linger_s=0.0, sticky_s=2.0), Settings(linger_s=1.0)])
def test_a_record_without_a_partition_sticks_or_goes_by_its_key(settings: Settings, sent: list[PendingBatch]) -> None:
    """For twice the linger if nothing else is set."""
    _, loop, send = producer(settings)
    for at in range(40):
        loop.advance(float(at))
        send(-1)
    loop.advance(50.0)
    send(-1, b"key")
    loop.advance(60.0)
    *places, by_key = [one.place[1] for one in sent]
    assert [places[at] == places[at + 1] for at in range(0, 40, 2)] == [True] * 20
    assert set(places) == {0, 1, 2, 3, 4}
    assert by_key == zlib.crc32(b"key") % 5


def test_settings_have_librdkafkas_names_and_others_are_refused() -> None:
    config = {"acks": "1", "linger.ms": "20", "batch.size": "16384", "max.in.flight": "5", "compression.type": "lz4"}
    assert settings_of(config) == Settings(1, 0.02, 16_384, 5, lz4=True)
    for name, value in (("enable.idempotence", "true"), ("acks", "0"), ("compression.type", "zstd")):
        with pytest.raises(ValueError, match=name):
            settings_of({name: value})


def batch() -> PendingBatch:
    made = PendingBatch(("t", 3))
    made.add(None, bytes(2_000), 1, lambda _error, _message: None)
    return made


def answer(number: int, error: ErrorCode) -> bytes:
    result = ProduceResponse((ProduceTopicResult("t", (ProducePartitionResult(3, error),)),))
    return framed(encode_response(RequestHeader(ApiKey.PRODUCE, VERSION, number, None), result))


def test_a_connection_has_its_limit_in_flight_and_answers_each_batch_once() -> None:
    answered: list[ErrorCode] = []
    written: list[bytes] = []
    link = ProducerLink(Settings(in_flight=2, lz4=True), lambda _batch, error: answered.append(error))
    for _ in range(4):
        link.send(batch())
    transport: Any = SimpleNamespace(write=written.append, abort=lambda: None)
    link.connection_made(transport)
    assert len(written) == 2
    request = decode_request(written[0][4:], MESSAGES).value
    assert len(request.topic_data[0].partition_data[0].records) < 200  # type: ignore[attr-defined]  # packed
    link.data_received(answer(1, ErrorCode.NONE) + answer(2, ErrorCode.REQUEST_TIMED_OUT))
    assert len(written) == 4
    link.connection_lost(None)
    assert answered == [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2]


def test_what_does_not_get_smaller_is_not_packed() -> None:
    made = PendingBatch(("t", 3))
    made.add(None, Random(1).randbytes(500), 1, lambda _error, _message: None)
    assert made.encoded(lz4=True) == made.encoded(lz4=False)
    assert made.records == [Record(0, 1, None, made.records[0].value)]


def test_records_arrive_and_what_is_left_at_the_end_fails() -> None:
    errors: list[object] = []
    with Kafka(1) as kafka:
        kafka.create_topic("t", partitions=2)
        with Producers(kafka.bootstrap_servers, {"linger.ms": "1"}, 3) as made:
            for number in range(60):
                one = made.producers[number % 3]
                one.produce("t", b"v%d" % number, None, number % 2, on_delivery=lambda error, _: errors.append(error))
            assert [one.flush(20.0) for one in made.producers] == [0, 0, 0]
            assert errors == [None] * 60
            made.leaders = {}
            made.producers[0].produce("t", b"v", None, 0, on_delivery=lambda error, _: errors.append(error))
        assert errors[60:] == ["LEADER_NOT_AVAILABLE"]


def test_a_batch_that_keeps_failing_is_given_up() -> None:
    failed: list[object] = []
    made, loop, _ = producer(Settings())
    one = PendingBatch(("t", 0))
    one.add(None, b"v", 1, lambda error, _message: failed.append(error))
    for _ in range(RETRIES):
        made._answered(one, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(loop.later) == RETRIES
    assert not failed
    made._answered(one, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert failed == ["NOT_LEADER_OR_FOLLOWER"]
