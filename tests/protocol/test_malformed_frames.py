"""Whatever the bytes are: a value, or the protocol's own error, at a cost in proportion to the frame."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from controller.protocol import (
    RECORD_MESSAGES,
    SUPPORTED,
    ApiKey,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    ControlledShutdownRequest,
    ErrorCode,
    MalformedFrame,
    MetadataRequest,
    RequestHeader,
    UnknownApi,
    UnsupportedVersion,
    decode_request,
    decode_response,
    decode_response_body,
    encode_request,
    unsupported_api_versions,
)
from controller.protocol.codec import MESSAGES
from controller.protocol.compiler import layout
from controller.protocol.primitives import read_varint
from tests.protocol.recording import recorded
from tests.protocol.strategies import values

REFUSALS = (MalformedFrame, UnknownApi, UnsupportedVersion)
MANY = settings(
    max_examples=600, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)

SOME = settings(MANY, max_examples=400)


def head(api_key: int, version: int, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", api_key, version, 1, -1) + (b"\x00" if flexible else b"")


def outcome(decode: Callable[[Any], object], frame: bytes | memoryview) -> object:
    try:
        return decode(frame)
    except REFUSALS as refusal:
        return type(refusal), str(refusal)


def assert_read_from_a_view_too(decode: Callable[[Any], object], frame: bytes) -> None:
    """As what is received into memory that is used again."""
    assert outcome(decode, memoryview(bytearray(frame)).toreadonly()) == outcome(decode, frame)


def taken(frame: bytes) -> bool:
    """Whether the frame is decoded; then it must say the same once encoded and decoded again."""
    if frame[:2] == bytes(2):  # Produce
        assert_read_from_a_view_too(lambda one: decode_request(one, SUPPORTED), frame)
    try:
        request = decode_request(frame, SUPPORTED)
    except REFUSALS:
        return False
    assert decode_request(encode_request(request.header, request.value), SUPPORTED) == request
    return True


@st.composite
def mutated(draw: st.DrawFn, whole: bytes) -> bytes:
    """The frame with one to three wounds: a changed byte, an extreme number, bytes taken out or put in."""
    frame = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(frame) - 1)))
        match draw(st.integers(0, 3)):
            case 0:
                frame[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                frame[at : at + 4] = draw(st.sampled_from((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0")))
            case 2:
                del frame[at : at + draw(st.integers(1, 8))]
            case _:
                frame[at:at] = draw(st.binary(min_size=1, max_size=8))
    return bytes(frame)


@MANY
@given(st.binary(max_size=200))
@example(b"")
def test_random_bytes_are_refused_or_taken(frame: bytes) -> None:
    taken(frame)


@MANY
@given(st.sampled_from(sorted(SUPPORTED)), st.integers(-1, 12), st.booleans(), st.binary(max_size=120))
def test_random_bodies_under_good_heads_are_refused_or_taken(
    api_key: ApiKey, version: int, flexible: bool, body: bytes
) -> None:
    taken(head(api_key, version, flexible) + body)
    for known in (SUPPORTED[api_key].first, SUPPORTED[api_key].last):
        with contextlib.suppress(MalformedFrame):
            decode_response(api_key, known, body)


@MANY
@given(st.data())
def test_mutated_real_frames_are_refused_or_taken(data: st.DataObject) -> None:
    exchange = data.draw(st.sampled_from(recorded()))
    taken(data.draw(mutated(exchange.request)))
    if exchange.response is not None:
        cut = exchange.response[: data.draw(st.integers(0, len(exchange.response) - 1))]
        with pytest.raises(MalformedFrame):
            decode_response(exchange.api_key, exchange.version, cut)


@SOME
@given(st.data())
def test_mutated_frames_of_every_version_are_refused_or_taken(data: st.DataObject) -> None:
    api_key = data.draw(st.sampled_from(sorted(SUPPORTED)))
    version = data.draw(st.integers(SUPPORTED[api_key].first, SUPPORTED[api_key].last))
    request, response = MESSAGES[api_key].request, MESSAGES[api_key].response
    frame = encode_request(RequestHeader(api_key, version, 1, "c"), data.draw(values(request, version)))
    taken(data.draw(mutated(frame)))
    body = data.draw(mutated(layout(response, version).write(data.draw(values(response, version)))))
    with contextlib.suppress(MalformedFrame):
        decode_response_body(api_key, version, body)
    if api_key is ApiKey.FETCH:
        assert_read_from_a_view_too(partial(decode_response_body, api_key, version), body)


@SOME
@given(st.data())
def test_records_are_read_from_a_view_as_from_bytes(data: st.DataObject) -> None:
    version = data.draw(st.integers(SUPPORTED[ApiKey.FETCH].first, SUPPORTED[ApiKey.FETCH].last))
    response = MESSAGES[ApiKey.FETCH].response
    body = layout(response, version).write(data.draw(values(response, version)))
    assert_read_from_a_view_too(partial(decode_response_body, ApiKey.FETCH, version), data.draw(mutated(body)))
    asked = data.draw(st.integers(SUPPORTED[ApiKey.PRODUCE].first, SUPPORTED[ApiKey.PRODUCE].last))
    value = data.draw(values(MESSAGES[ApiKey.PRODUCE].request, asked))
    taken(data.draw(mutated(encode_request(RequestHeader(ApiKey.PRODUCE, asked, 1, "c"), value))))


METADATA_9 = head(3, 9, flexible=True)
REFUSED = {
    "nothing": (b"", "no request header"),
    "half a head": (b"\x00\x03\x00", "no request header"),
    "head that ends in the client id": (struct.pack(">hhih", 3, 0, 1, 20) + b"kafka", "can't be in"),
    "client id of a length below null": (struct.pack(">hhih", 3, 0, 1, -2), "string length -2"),
    "client id that is not UTF-8": (struct.pack(">hhih", 3, 0, 1, 1) + b"\xff" + bytes(4), "not UTF-8"),
    "array longer than the frame": (head(3, 1) + b"\x7f\xff\xff\xff", "can't be in"),
    "array of a length below null": (head(3, 1) + b"\xff\xff\xff\xfe", "array length -2"),
    "null where there is no null": (head(3, 0) + b"\xff\xff\xff\xff", "topics is null"),
    "null name": (head(3, 1) + b"\x00\x00\x00\x01\xff\xff", "name is null"),
    "null compact name": (METADATA_9 + b"\x02\x00\x00\x01\x00\x00\x00", "name is null"),
    "name cut off": (head(3, 1) + b"\x00\x00\x00\x01\x00\x05ord", "can't be in"),
    "name that is not UTF-8": (head(3, 1) + b"\x00\x00\x00\x01\x00\x01\xff", "not UTF-8"),
    "varint without end": (METADATA_9 + b"\xff" * 400_000, "varint of more than 5 bytes"),
    "tagged fields cut off": (METADATA_9 + b"\x00\x01\x00\x00\x01\x09\x05ab", "tagged field 9"),
    "tagged field twice": (METADATA_9 + b"\x00\x01\x00\x00\x02\x09\x00\x09\x00", "tagged field 9"),
    "more tagged fields than bytes": (METADATA_9 + b"\x00\x01\x00\x00\xff\xff\x7f", "tagged fields at byte"),
    "bytes after the end": (head(7, 1) + b"\x00\x00\x00\x01\x00", "1 bytes after its end"),
    "ids cut off": (head(56, 0, True) + bytes(12) + b"\x02\x02t\x02" + bytes(8) + b"\x05\x00\x00", "can't be in"),
}


@pytest.mark.parametrize(("frame", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_said(frame: bytes, reason: str) -> None:
    with pytest.raises(MalformedFrame, match=reason):
        decode_request(frame)


def test_what_librdkafka_sends_for_all_topics_is_taken() -> None:
    frame = bytes.fromhex("0003000b00000003000772646b61666b61" + "00" + "00000000" + "010000")
    assert decode_request(frame).value == MetadataRequest(topics=None, allow_auto_topic_creation=False)


def test_a_varint_is_read_no_further_than_five_bytes() -> None:
    assert read_varint(b"\xff\xff\xff\xff\x0f" + b"\xff" * 10, 0) == (2**32 - 1, 5)
    with pytest.raises(MalformedFrame):
        read_varint(b"\xff\xff\xff\xff\xff\x01", 0)


def test_an_array_is_not_begun_that_the_frame_can_not_hold() -> None:
    # A thousand topics need two bytes each at least; 1,999 bytes can't hold them, whatever they are.
    with pytest.raises(MalformedFrame, match="array of 1000"):
        decode_request(METADATA_9 + b"\xe9\x07" + bytes(1999))


@pytest.mark.parametrize("api_key", [-1, 38, 55, 999])
def test_an_api_that_is_not_spoken_is_unknown(api_key: int) -> None:
    for served in (SUPPORTED, (api_key,)):
        with pytest.raises(UnknownApi) as refused:
            decode_request(head(api_key, 0), served)
        assert refused.value.api_key == api_key


@pytest.mark.parametrize("api_key", sorted(RECORD_MESSAGES))
def test_the_data_plane_is_unknown_to_who_does_not_say_that_it_is_served(api_key: ApiKey) -> None:
    frame = head(api_key, 0) + b"\xff not looked at"
    for served in (SUPPORTED.keys() - {api_key}, ()):
        with pytest.raises(UnknownApi, match=f"API key {api_key:d} "):
            decode_request(frame, served)
    with pytest.raises(UnknownApi):
        decode_request(frame)
    with pytest.raises(MalformedFrame):
        decode_request(frame, [api_key])


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(key, version) for key, spoken in SUPPORTED.items() for version in (-1, spoken.last + 1, 32767)],
)
def test_a_version_that_is_not_spoken_is_refused_with_the_header(api_key: ApiKey, version: int) -> None:
    frame = struct.pack(">hhih", api_key, version, 42, 5) + b"kafka" + b"\xff whatever comes then"
    with pytest.raises(UnsupportedVersion) as refused:
        decode_request(frame, SUPPORTED)
    assert refused.value.header == RequestHeader(api_key, version, 42, "kafka")


def test_an_unsupported_api_versions_is_answered_in_version_0_with_error_35() -> None:
    with pytest.raises(UnsupportedVersion) as refused:
        decode_request(struct.pack(">hhih", 18, 99, 42, -1))
    frame = unsupported_api_versions(refused.value.header)
    assert frame == struct.pack(">ihihhh", 42, 35, 1, 18, 0, 3)
    for asked in range(4):
        correlation_id, value = decode_response(ApiKey.API_VERSIONS, asked, frame)
        assert correlation_id == 42
        assert value == ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, (ApiVersion(ApiKey.API_VERSIONS, 0, 3),))
    with pytest.raises(ValueError, match="METADATA"):
        unsupported_api_versions(RequestHeader(ApiKey.METADATA, 99, 1, None))


def test_unknown_tagged_fields_are_passed_over() -> None:
    plain = encode_request(RequestHeader(ApiKey.CONTROLLED_SHUTDOWN, 3, 5, "2"), ControlledShutdownRequest(2, 67))
    assert plain[-1] == 0
    tagged = plain[:11] + b"\x01\x07\x02ab" + plain[12:-1] + b"\x02\x03\x00\x85\x01\x03xyz"
    assert plain[11] == 0
    assert decode_request(tagged) == decode_request(plain)


def test_a_known_tagged_field_must_fill_its_size() -> None:
    codec = layout(MESSAGES[ApiKey.API_VERSIONS].response, 3)
    good = b"\x00\x00\x01\x00\x00\x00\x00\x01\x01\x08" + struct.pack(">q", 9)
    assert codec.read(good, 0).finalized_features_epoch == 9
    with pytest.raises(MalformedFrame, match="longer than what it holds"):
        codec.read(good.replace(b"\x01\x01\x08", b"\x01\x01\x09") + b"\x00", 0)
    with pytest.raises(MalformedFrame, match="ends too early"):
        codec.read(good.replace(b"\x01\x01\x08", b"\x01\x01\x07")[:-1], 0)


def test_controlled_shutdown_0_has_no_client_id() -> None:
    frame = struct.pack(">hhii", 7, 0, 9, 3)
    request = decode_request(frame)
    assert request.header == RequestHeader(ApiKey.CONTROLLED_SHUTDOWN, 0, 9, None)
    assert request.value == ControlledShutdownRequest(3)
    assert encode_request(request.header, request.value) == frame


def test_a_client_id_keeps_its_long_length_in_flexible_versions() -> None:
    frame = encode_request(RequestHeader(ApiKey.API_VERSIONS, 3, 1, "ab"), ApiVersionsRequest("kcat", "1"))
    assert frame[8:12] == b"\x00\x02ab"
