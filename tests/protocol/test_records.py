"""Records go through the codec as they are: views on the way in, parts on the way out, ranges that nobody reads."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.protocol import (
    RECORD_MESSAGES,
    SUPPORTED,
    ApiKey,
    MalformedFrame,
    Part,
    Records,
    RequestHeader,
    UnencodableValue,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    encode_response_parts,
    framed,
    framed_parts,
)
from controller.protocol.compiler import layout
from controller.protocol.fetch import (
    EpochEndOffset,
    FetchPartitionData,
    FetchResponse,
    FetchTopicData,
    LeaderIdAndEpoch,
)
from controller.protocol.produce import ACKS_ALL, ProducePartition, ProduceRequest, ProduceTopic
from tests.protocol.recording import recorded
from tests.protocol.strategies import values

FEW = settings(max_examples=8, deadline=None, derandomize=True, database=None)
FETCH_12 = RequestHeader(ApiKey.FETCH, 12, 7, "2")
VERSIONS = [
    (api_key, version)
    for api_key, exchange in RECORD_MESSAGES.items()
    for version in range(exchange.request.first, exchange.request.last + 1)
]


@dataclass(frozen=True, slots=True)
class Range:
    """Records in a file, which was cut where `data` has not the length. `readable`: whether somebody may read them."""

    data: bytes
    length: int
    readable: bool = True

    def read(self) -> bytes:
        assert self.readable, "nobody should read this"
        return self.data


def fetched(*records: Records | None) -> FetchResponse:
    partitions = tuple(FetchPartitionData(index, 0, 9, one) for index, one in enumerate(records))
    return FetchResponse((FetchTopicData("pay", partitions),))


def records_of(value: Any) -> list[Any]:
    if isinstance(value, ProduceRequest):
        return [partition.records for topic in value.topic_data for partition in topic.partition_data]
    return [partition.records for topic in value.responses for partition in topic.partitions]


def test_a_real_clusters_records_are_views_into_their_frames() -> None:
    seen = 0
    for exchange in recorded():
        if exchange.api_key is ApiKey.PRODUCE:
            frame = exchange.request
            value: Any = decode_request(frame, SUPPORTED).value
        elif exchange.api_key is ApiKey.FETCH and exchange.response is not None:
            frame = exchange.response
            value = decode_response(ApiKey.FETCH, exchange.version, frame)[1]
        else:
            continue
        for records in records_of(value):
            assert isinstance(records, memoryview)
            assert records.readonly
            if records:
                assert records.obj is frame
                base_offset, length, _epoch, magic = struct.unpack_from(">qiib", records)
                assert (magic, base_offset >= 0) == (2, True)
                assert length + 12 <= len(records)
                seen += 1
    assert seen > 15


def test_records_go_out_as_the_same_objects() -> None:
    one, two = b"a" * 5_000, memoryview(b"b" * 5_000)
    parts = encode_response_parts(FETCH_12, fetched(one, None, two, b""))
    assert [part for part in parts if part is one or part is two] == [one, two]
    assert b"".join(part for part in parts if isinstance(part, bytes | memoryview)) == encode_response(
        FETCH_12, fetched(bytes(one), None, bytes(two), b"")
    )


def test_a_range_is_announced_and_not_read() -> None:
    unread = Range(b"", 3_000_000, readable=False)
    parts: list[Part] = list(framed_parts(encode_response_parts(FETCH_12, fetched(unread, b"in memory", unread))))
    assert [part for part in parts if isinstance(part, Range)] == [unread, unread]
    assert [type(part) for part in parts] == [bytes, Range, bytes, Range, bytes]
    assert isinstance(parts[0], bytes)
    in_memory = sum(len(part) for part in parts if isinstance(part, bytes))
    assert int.from_bytes(parts[0][:4], "big") == in_memory - 4 + 2 * unread.length


def test_parts_are_the_frame_once_their_ranges_are_put_between() -> None:
    held = (b"x" * 70_000, b"y", b"z" * 300)
    whole = framed(encode_response(FETCH_12, fetched(*held)))
    ranges = [Range(data, len(data)) for data in held]
    for value in (fetched(*ranges), fetched(held[0], ranges[1], memoryview(held[2])), fetched(*held)):
        ready = framed_parts(encode_response_parts(FETCH_12, value))
        assert b"".join(part if isinstance(part, bytes) else part.read() for part in ready) == whole
        assert framed(encode_response(FETCH_12, value)) == whole
    assert framed_parts(encode_response_parts(FETCH_12, fetched(*held))) == [whole]


def test_parts_of_what_has_no_records_are_the_frame() -> None:
    for exchange in recorded():
        if exchange.response is not None:
            header = decode_request(exchange.request, SUPPORTED).header
            _, value = decode_response(exchange.api_key, exchange.version, exchange.response)
            assert framed_parts(encode_response_parts(header, value)) == [framed(exchange.response)]


@pytest.mark.parametrize("data", [b"", b"cu", b"not cut"])
def test_a_range_that_has_not_its_length_is_not_sent_as_if_it_had(data: bytes) -> None:
    with pytest.raises(UnencodableValue, match=f"range of 3 bytes of records gives {len(data)}"):
        encode_response(FETCH_12, fetched(Range(data, 3)))


def test_more_than_four_bytes_can_say_is_refused() -> None:
    half = Range(b"", 2**30, readable=False)
    parts = encode_response_parts(FETCH_12, fetched(half, half))
    with pytest.raises(UnencodableValue, match="four bytes can say 2147483647"):
        framed_parts(parts)


def test_a_produce_request_keeps_its_records() -> None:
    batch = bytes(range(256)) * 40
    value = ProduceRequest(ACKS_ALL, 30_000, (ProduceTopic("pay", (ProducePartition(3, batch),)),))
    for version in range(10):
        frame = encode_request(RequestHeader(ApiKey.PRODUCE, version, 1, "c"), value)
        assert frame.count(batch) == 1
        decoded = decode_request(frame, SUPPORTED).value
        assert decoded == value
        assert encode_request(RequestHeader(ApiKey.PRODUCE, version, 1, "c"), decoded) == frame


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_no_frame_of_the_data_plane_is_taken_that_is_cut_or_too_long(api_key: ApiKey, version: int) -> None:
    exchange = RECORD_MESSAGES[api_key]
    header = RequestHeader(api_key, version, 1, "c")

    @FEW
    @given(values(exchange.request, version), values(exchange.response, version), st.floats(0, 1, exclude_max=True))
    def refused(request: Any, response: Any, where: float) -> None:
        frame = encode_request(header, request)
        answer = encode_response(header, response)
        for wrong in (frame[: int(where * len(frame))], frame + b"\0"):
            with pytest.raises(MalformedFrame):
                decode_request(wrong, SUPPORTED)
        for wrong in (answer[: int(where * len(answer))], answer + b"\0"):
            with pytest.raises(MalformedFrame):
                decode_response(api_key, version, wrong)

    refused()


PRODUCE_3 = struct.pack(">hhihhhi", 0, 3, 1, -1, -1, -1, 1_000)
PRODUCE_9 = struct.pack(">hhihbbhi", 0, 9, 1, -1, 0, 0, -1, 1_000)
ONE_PARTITION = b"\0\0\0\1" + b"\0\3pay" + b"\0\0\0\1" + b"\0\0\0\0"
COMPACT_PARTITION = b"\2" + b"\4pay" + b"\2" + b"\0\0\0\0"
DESCRIBE_CONFIGS_0 = struct.pack(">hhih", 32, 0, 1, -1) + b"\0\0\0\1\2\0\1t"
REFUSED = {
    "records longer than the frame": (PRODUCE_3 + ONE_PARTITION + b"\0\0\0\5abcd", "of 5 at byte"),
    "records of 2 GiB": (PRODUCE_3 + ONE_PARTITION + b"\x7f\xff\xff\xffabcd", "of 2147483647 at byte"),
    "records of a length below null": (PRODUCE_3 + ONE_PARTITION + b"\xff\xff\xff\xfe", "length -2"),
    "compact records longer than the frame": (PRODUCE_9 + COMPACT_PARTITION + b"\6abcd", "of 5 at byte"),
    "compact records of 4 GiB": (PRODUCE_9 + COMPACT_PARTITION + b"\xff\xff\xff\xff\x0fab", "of 4294967294 at byte"),
    "records without an end to their length": (PRODUCE_9 + COMPACT_PARTITION + b"\xff" * 9, "varint of more than"),
    "a million partitions in no bytes": (PRODUCE_3 + b"\0\0\0\1\0\3pay\0\x0f\x42\x40", "array of 1000000"),
    "null where a key must be": (DESCRIBE_CONFIGS_0 + b"\0\0\0\1\xff\xff", "null in an array of strings"),
    "more keys than bytes": (DESCRIBE_CONFIGS_0 + b"\0\0\0\5\0\0\0\0\0\0\0\0", "array of 5"),
}


@pytest.mark.parametrize(("frame", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_said(frame: bytes, reason: str) -> None:
    with pytest.raises(MalformedFrame, match=reason):
        decode_request(frame, SUPPORTED)


def test_the_frames_that_were_spoilt_are_sound() -> None:
    value: Any = decode_request(PRODUCE_3 + ONE_PARTITION + b"\0\0\0\4abcd", SUPPORTED).value
    assert value == ProduceRequest(-1, 1_000, (ProduceTopic("pay", (ProducePartition(0, b"abcd"),)),))
    assert decode_request(PRODUCE_9 + COMPACT_PARTITION + b"\5abcd" + bytes(3), SUPPORTED).value == value
    described: Any = decode_request(DESCRIBE_CONFIGS_0 + b"\0\0\0\1\0\1k", SUPPORTED).value
    assert described.resources[0].configuration_keys == ("k",)


DIVERGED = FetchPartitionData(0, 0, 9, b"", diverging_epoch=EpochEndOffset(3, 40))


@pytest.mark.parametrize(
    ("partition", "tags"),
    [
        (FetchPartitionData(0, 0, 9, b""), b"\0"),
        (DIVERGED, b"\1\0\x0d" + struct.pack(">iq", 3, 40) + b"\0"),
        (
            FetchPartitionData(0, 6, 9, b"", current_leader=LeaderIdAndEpoch(2, 5)),
            b"\1\1\x09" + struct.pack(">ii", 2, 5) + b"\0",
        ),
    ],
)
def test_a_divergence_and_a_leader_are_told_in_tagged_fields(partition: FetchPartitionData, tags: bytes) -> None:
    value = FetchResponse((FetchTopicData("pay", (partition,)),))
    frame = encode_response(FETCH_12, value)
    assert frame.endswith(b"\1" + tags + b"\0\0")
    assert decode_response(ApiKey.FETCH, 12, frame) == (7, value)


def test_unknown_tagged_fields_of_a_partition_are_passed_over() -> None:
    codec = layout(RECORD_MESSAGES[ApiKey.FETCH].response, 12)
    body = codec.write(FetchResponse((FetchTopicData("pay", (DIVERGED,)),)))
    known = b"\1\0\x0d" + struct.pack(">iq", 3, 40) + b"\0"
    assert body.count(known) == 1
    assert codec.read(body.replace(known, b"\2" + known[1:] + b"\x63\2xy"), 0) == codec.read(body, 0)
    with pytest.raises(MalformedFrame, match="longer than what it holds"):
        codec.read(body.replace(known, b"\1\0\x0e" + known[3:] + b"\0"), 0)
