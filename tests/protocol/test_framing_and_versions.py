"""Sizes before frames, and which versions a setting means."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from controller.protocol import (
    FRAME_BYTES_MAX,
    SUPPORTED,
    ApiKey,
    FrameBuffer,
    MalformedFrame,
    control_versions,
    frame_size,
    framed,
)
from controller.protocol.framing import BLOCK_BEGIN, BLOCK_BYTES, BLOCK_BYTES_MAX, BLOCK_FROM_BYTES, BLOCKS, FrameMemory


def test_frames_come_out_however_the_stream_is_cut() -> None:
    frames = [b"", b"a", b"bc" * 40, b"def"]
    stream = b"".join(framed(frame) for frame in frames)
    for step in (1, 2, 3, 7, len(stream)):
        buffer = FrameBuffer()
        out = [frame for at in range(0, len(stream), step) for frame in buffer.feed(stream[at : at + step])]
        assert out == frames


class Stream:
    """The calls of a socket that has all of it at once, and gives at most `step` bytes of it."""

    def __init__(self, data: bytes, step: int) -> None:
        self._left = memoryview(data)
        self._step = step

    def recv(self, size: int) -> bytes:
        size = min(size, self._step)
        data, self._left = bytes(self._left[:size]), self._left[size:]
        return data

    def recv_into(self, room: memoryview) -> int:
        data = self.recv(len(room))
        room[: len(data)] = data
        return len(data)


Receiver: TypeAlias = Callable[[FrameBuffer, "Stream"], Iterator[bytes | memoryview]]


def received(buffer: FrameBuffer, stream: Stream) -> Iterator[bytes | memoryview]:
    with contextlib.suppress(EOFError):
        while True:
            yield from buffer.receive(stream, 2_048)


def received_into(buffer: FrameBuffer, stream: Stream) -> Iterator[bytes | memoryview]:
    """As asyncio reads for a `BufferedProtocol`."""
    while count := stream.recv_into(buffer.room or buffer.begin()):
        yield from buffer.arrived(count)


@pytest.mark.parametrize("step", [999, 70_000, 5_000_000])
@pytest.mark.parametrize("kept_each", [2, 5, 100])
@pytest.mark.parametrize("received", [received, received_into])
def test_a_large_frame_stays_as_it_is_for_as_long_as_a_view_of_it_is_kept(
    received: Receiver, step: int, kept_each: int
) -> None:
    memory = FrameMemory()
    sizes = [20_000, 30, 100_000, BLOCK_FROM_BYTES, 2 * BLOCK_BYTES, 17_000, BLOCK_BYTES_MAX + 1] * 6
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    kept: list[tuple[int, bytes | memoryview]] = []
    views = 0
    stream = Stream(b"".join(map(framed, frames)), step)
    for number, frame in enumerate(received(FrameBuffer(memory=memory), stream)):
        assert frame == frames[number]
        views += isinstance(frame, memoryview)
        if number % kept_each == 0:
            kept.append((number, frame))
    assert all(frame == frames[number] for number, frame in kept)
    assert number == len(frames) - 1
    assert views >= BLOCKS - 1  # of which one may be what frames begin in


@pytest.mark.parametrize("received", [received, received_into])
def test_memory_is_used_again_once_no_view_of_it_is_left(received: Receiver) -> None:
    stream = Stream(b"".join(framed(bytes(size)) for size in (20_000, 90_000, 50_000) * 3), 2_048)
    frames = received(FrameBuffer(memory=FrameMemory()), stream)
    blocks = [id(frame.obj) for frame in frames if isinstance(frame, memoryview)]
    assert len(blocks) == 9
    assert len(set(blocks)) <= 3  # the loop has one still, one is complete, and one has begun to come


def test_memory_is_given_from_the_middle_of_a_page_where_its_block_begins_one() -> None:
    memory = FrameMemory()
    for size in (1, BLOCK_BYTES_MAX):  # a new block, and one that is too small
        view = memory.take(size)
        assert view is not None
        assert len(view) == size
        first, given = (ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in (view.obj, view))
        assert given - first == BLOCK_BEGIN
        del view
    assert 1_024 <= BLOCK_BEGIN + 16 <= 3_072


def test_a_frame_that_comes_at_once_is_not_copied() -> None:
    memory = FrameMemory()
    buffer = FrameBuffer(memory=memory)
    data = framed(bytes(BLOCK_FROM_BYTES + 1))
    room = buffer.begin()
    room[: len(data)] = data
    (frame,) = buffer.arrived(len(data))
    assert frame.obj is room.obj


def test_where_the_next_large_frame_has_begun_to_come_its_size_is_known() -> None:
    buffer = FrameBuffer(memory=FrameMemory())
    stream = Stream(framed(bytes(90_000)) * 2, 5_000_000)
    assert [len(frame) for frame in buffer.receive(stream, 2_048)] == [90_000]
    assert (buffer.begun_bytes, buffer.arrived_bytes) == (90_000, 2_048 - 4)


@pytest.mark.parametrize("error", [BlockingIOError, ConnectionResetError])
def test_what_a_read_completed_is_kept_when_the_next_read_into_a_block_fails(error: type[OSError]) -> None:
    class Failing(Stream):
        def recv_into(self, room: memoryview) -> int:
            raise error

    buffer = FrameBuffer(memory=FrameMemory())
    stream = Failing(framed(b"first") + framed(bytes(90_000)), 5_000_000)
    assert buffer.receive(stream, 2_048) == [b"first"]
    assert buffer.begun_bytes == 90_000
    with pytest.raises(error):
        buffer.receive(stream, 2_048)


def test_only_so_much_memory_is_there_and_only_for_frames_that_begin_as_they_should() -> None:
    memory = FrameMemory()
    held = [memory.take(1) for _ in range(BLOCKS + 1)]
    assert [one is None for one in held] == [False] * BLOCKS + [True]
    for begins, large in ((b"\0\0", True), (b"\0\1", False)):
        buffer = FrameBuffer(memory=FrameMemory(), block_prefix=b"\0\0")
        assert buffer.feed(framed(begins + bytes(90_000))[:2_048]) == []
        assert (buffer.room is not None) is large
    assert memory.take(BLOCK_BYTES_MAX + 1) is None


@pytest.mark.parametrize("prefix", [b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x0b", b"\x00"])
def test_an_impossible_size_is_refused_before_its_frame_comes(prefix: bytes) -> None:
    with pytest.raises(MalformedFrame):
        frame_size(prefix, limit=10)
    if len(prefix) == 4:
        with pytest.raises(MalformedFrame):
            FrameBuffer(limit=10).feed(prefix)


def test_the_limit_is_kafkas() -> None:
    assert frame_size(FRAME_BYTES_MAX.to_bytes(4, "big")) == 104_857_600
    with pytest.raises(MalformedFrame, match="limit"):
        frame_size((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))


# Kafka 2.8's ControllerChannelManager and KafkaServer, by inter.broker.protocol.version:
# LeaderAndIsr, UpdateMetadata, StopReplica, ControlledShutdown, AlterIsr, topic ids.
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("2.8", (5, 7, 3, 3, 0, True)),
        ("2.8.2", (5, 7, 3, 3, 0, True)),
        ("2.8-IV1", (5, 7, 3, 3, 0, True)),
        ("2.8-IV0", (4, 6, 3, 3, 0, True)),
        ("2.7", (4, 6, 3, 3, 0, False)),
        ("2.7-IV1", (4, 6, 3, 3, None, False)),
        ("2.6", (4, 6, 3, 3, None, False)),
        ("2.5", (4, 6, 2, 3, None, False)),
        ("2.4", (4, 6, 2, 3, None, False)),
        ("2.4-IV0", (3, 5, 1, 2, None, False)),
        ("2.2", (2, 5, 1, 2, None, False)),
    ],
)
def test_control_versions_are_those_of_kafka(setting: str, expected: tuple[int | None, ...]) -> None:
    versions = control_versions(setting)
    assert (
        versions.leader_and_isr,
        versions.update_metadata,
        versions.stop_replica,
        versions.controlled_shutdown,
        versions.alter_isr,
        versions.topic_ids,
    ) == expected


# Kafka 2.8's ReplicaFetcherThread: Fetch, OffsetForLeaderEpoch, ListOffsets.
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("2.2-IV0", (10, 2, 4, False)),
        ("2.2", (10, 2, 5, False)),
        ("2.3-IV0", (10, 2, 5, False)),
        ("2.3", (11, 3, 5, False)),
        ("2.6", (11, 3, 5, False)),
        ("2.7-IV0", (11, 3, 5, False)),
        ("2.7-IV1", (12, 3, 5, True)),
        ("2.7", (12, 3, 5, True)),
        ("2.8-IV0", (12, 4, 6, True)),
        ("2.8", (12, 4, 6, True)),
    ],
)
def test_what_followers_ask_in_is_what_kafkas_ask_in(setting: str, expected: tuple[int, int, int, bool]) -> None:
    versions = control_versions(setting)
    assert (
        versions.fetch,
        versions.offset_for_leader_epoch,
        versions.list_offsets,
        versions.truncation_on_fetch,
    ) == expected


@pytest.mark.parametrize("setting", ["3.0", "2.1", "", "2", "2.8-IV9", "latest", "2.8 "])
def test_a_setting_that_is_not_known_is_named(setting: str) -> None:
    with pytest.raises(ValueError, match=r"known are 2\.2, 2\.3, 2\.4, 2\.5, 2\.6, 2\.7, 2\.8") as refused:
        control_versions(setting)
    assert repr(setting) in str(refused.value)


def test_supported_versions_are_those_of_a_2_8_broker_and_what_later_ones_ask_a_controller() -> None:
    assert {key: (spoken.first, spoken.last) for key, spoken in SUPPORTED.items()} == {
        ApiKey.PRODUCE: (0, 9),
        ApiKey.FETCH: (0, 12),
        ApiKey.LIST_OFFSETS: (0, 6),
        ApiKey.METADATA: (0, 11),
        ApiKey.LEADER_AND_ISR: (0, 5),
        ApiKey.STOP_REPLICA: (0, 3),
        ApiKey.UPDATE_METADATA: (0, 7),
        ApiKey.CONTROLLED_SHUTDOWN: (0, 3),
        ApiKey.FIND_COORDINATOR: (0, 3),
        ApiKey.API_VERSIONS: (0, 3),
        ApiKey.CREATE_TOPICS: (0, 7),
        ApiKey.DELETE_TOPICS: (0, 6),
        ApiKey.DELETE_RECORDS: (0, 2),
        ApiKey.INIT_PRODUCER_ID: (0, 4),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 4),
        ApiKey.DESCRIBE_CONFIGS: (0, 4),
        ApiKey.ALTER_CONFIGS: (0, 2),
        ApiKey.CREATE_PARTITIONS: (0, 3),
        ApiKey.ELECT_LEADERS: (0, 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.ALTER_ISR: (0, 3),
        ApiKey.UPDATE_FEATURES: (0, 1),
        ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0),
        ApiKey.ALTER_REPLICA_LOG_DIRS: (0, 2),
        ApiKey.DESCRIBE_LOG_DIRS: (0, 4),
        ApiKey.OFFSET_COMMIT: (0, 8),
        ApiKey.OFFSET_FETCH: (0, 7),
        ApiKey.JOIN_GROUP: (0, 7),
        ApiKey.HEARTBEAT: (0, 4),
        ApiKey.LEAVE_GROUP: (0, 4),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.DESCRIBE_GROUPS: (0, 5),
        ApiKey.LIST_GROUPS: (0, 4),
        ApiKey.DELETE_GROUPS: (0, 2),
        ApiKey.OFFSET_DELETE: (0, 0),
        ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
        ApiKey.ADD_OFFSETS_TO_TXN: (0, 3),
        ApiKey.END_TXN: (0, 3),
        ApiKey.WRITE_TXN_MARKERS: (0, 1),
        ApiKey.TXN_OFFSET_COMMIT: (0, 3),
        ApiKey.DESCRIBE_ACLS: (0, 2),
        ApiKey.CREATE_ACLS: (0, 2),
        ApiKey.DELETE_ACLS: (0, 2),
        ApiKey.SASL_HANDSHAKE: (0, 1),
        ApiKey.SASL_AUTHENTICATE: (0, 2),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    }
    assert list(SUPPORTED) == sorted(SUPPORTED)
