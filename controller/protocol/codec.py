"""Conversion of frames to values and back: the entry points of this package.

A frame is what a connection carries after the four bytes of its size (`framing`): a header and a body. Decoding
raises MalformedFrame, UnknownApi or UnsupportedVersion, whatever the bytes are, and nothing else; a frame has to be
used up exactly (see `REST_ALLOWED`). Encoding raises UnencodableValue for a value that its version can't hold.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from dataclasses import dataclass
from functools import cache, lru_cache

from controller.protocol.admin_schemas import DESCRIBE_CONFIGS_RESPONSE, DESCRIBED_RESULT
from controller.protocol.admin_values import DescribeConfigsResult
from controller.protocol.api_keys import ApiKey
from controller.protocol.client_schemas import METADATA_PARTITION, METADATA_RESPONSE
from controller.protocol.client_values import ApiVersion, ApiVersionsResponse, MetadataResponsePartition
from controller.protocol.compiler import Entries, Writer, compile_struct, layout
from controller.protocol.errors import ErrorCode, UnencodableValue
from controller.protocol.fetch_values import FetchResponse
from controller.protocol.headers import (
    RequestHeader,
    read_request_header,
    read_response_header,
    write_request_header,
    write_response_header,
)
from controller.protocol.messages import CLUSTER_MESSAGES, MESSAGES, RequestValue, ResponseValue
from controller.protocol.records import Part, joined
from controller.quick import maker, quick

SHORT_BYTES = 24
"""Bodies of responses up to here may be decoded once for all that are the same."""
REST_ALLOWED = frozenset({ApiKey.METADATA})
"""Requests that real clients send with bytes after their end: librdkafka writes "all topics" in Metadata 9 and later
as a count of four bytes where one is read, and Kafka ignores what a request leaves over."""


@dataclass(frozen=True, slots=True)
class Request:
    header: RequestHeader
    value: RequestValue


quick(Request)
_request = maker(Request)


def decode_request(
    frame: bytes, served: Container[int] = CLUSTER_MESSAGES, entries: Entries | None = None, entries_max: int = 0
) -> Request:
    """MalformedFrame, UnknownApi, UnsupportedVersion (with the header).

    `served`: the API keys that the receiver answers; of any other the body is not looked at. By default the data plane
    is none of them. Records in the value are views into `frame`. `entries`: TooManyEntries for a request whose arrays
    have more than `entries_max` elements together; see `Entries`.
    """
    header, pos = read_request_header(frame, served)
    if entries is not None:
        entries.left = entries_max
    value: RequestValue = layout(MESSAGES[header.api_key].request, header.api_version, entries).read(
        frame, pos, rest_allowed=header.api_key in REST_ALLOWED
    )
    return _request(header, value)


def request_head(header: RequestHeader) -> bytes:
    """A request's bytes before its body, so that one body can go out under many headers."""
    return write_request_header(header)


def encode_request_body(api_key: ApiKey, version: int, value: RequestValue) -> bytes:
    return layout(MESSAGES[api_key].request, version).write(value)


def encode_request(header: RequestHeader, value: RequestValue) -> bytes:
    return joined(layout(MESSAGES[header.api_key].request, header.api_version).write_parts(value, request_head(header)))


def encode_response_body(api_key: ApiKey, version: int, value: ResponseValue) -> bytes:
    """What follows the header, of a response without records."""
    return layout(MESSAGES[api_key].response, version).write(value)


def encode_described_resource(version: int, value: DescribeConfigsResult) -> bytes:
    """One result of a DescribeConfigs answer, for `written`. UnencodableValue."""
    out = bytearray()
    try:
        _described_resource_writer(version)(value, out)
    except (struct.error, TypeError, AttributeError) as error:
        raise UnencodableValue(f"DescribeConfigs version {version}: {error}") from error
    return bytes(out)


@cache
def _described_resource_writer(version: int) -> Writer:
    return compile_struct(DESCRIBED_RESULT, version, version >= DESCRIBE_CONFIGS_RESPONSE.flexible).write


def encode_metadata_partition(version: int, value: MetadataResponsePartition) -> bytes:
    """One partition of a Metadata answer's topic, for `written`. UnencodableValue."""
    out = bytearray()
    try:
        _metadata_partition_writer(version)(value, out)
    except (struct.error, TypeError) as error:
        raise UnencodableValue(f"Metadata version {version}: {error}") from error
    return bytes(out)


@cache
def _metadata_partition_writer(version: int) -> Writer:
    return compile_struct(METADATA_PARTITION, version, version >= METADATA_RESPONSE.flexible).write


def encode_response(header: RequestHeader, value: ResponseValue) -> bytes:
    """The frame that answers the request with this header, in its version. Ranges of records are read."""
    return joined(encode_response_parts(header, value))


def encode_response_parts(header: RequestHeader, value: ResponseValue) -> list[Part]:
    """The same frame in parts: bytes, and between them the records as they stand in the value, neither copied nor read,
    so that a server can send them from their file. `framing.framed_parts` puts the size before."""
    head = write_response_header(header.api_key, header.api_version, header.correlation_id)
    if isinstance(value, FetchResponse) and not value.responses:
        return [head + _nothing_fetched(header.api_version, value)]
    return layout(MESSAGES[header.api_key].response, header.api_version).write_parts(value, head)


@lru_cache(maxsize=128)
def _nothing_fetched(version: int, value: FetchResponse) -> bytes:
    """The same in each answer to a session's fetches, as long as its partitions are idle."""
    return encode_response_body(ApiKey.FETCH, version, value)


def response_body(api_key: ApiKey, version: int, frame: bytes) -> tuple[int, bytes]:
    """A response's correlation id and body, which is not looked at. MalformedFrame."""
    correlation_id, pos = read_response_header(api_key, version, frame)
    return correlation_id, frame[pos:]


def decode_response_body(api_key: ApiKey, version: int, body: bytes) -> ResponseValue:
    """As `decode_response`, of what follows the header."""
    if len(body) <= SHORT_BYTES and isinstance(body, bytes):
        return _read_short(api_key, version, body)
    return _read_response(api_key, version, body, 0)


@lru_cache(maxsize=128)
def _read_short(api_key: ApiKey, version: int, body: bytes) -> ResponseValue:
    """What says next to nothing says it again and again, as the answers to fetches of idle partitions do."""
    return _read_response(api_key, version, body, 0)


def decode_response(api_key: ApiKey, version: int, frame: bytes) -> tuple[int, ResponseValue]:
    """A response's correlation id and value, in which records are views into `frame`. MalformedFrame.

    An ApiVersions response is read in version 0 when it carries UNSUPPORTED_VERSION, since a broker that does not know
    the version asked for answers so.
    """
    correlation_id, pos = read_response_header(api_key, version, frame)
    return correlation_id, _read_response(api_key, version, frame, pos)


def _read_response(api_key: ApiKey, version: int, frame: bytes, pos: int) -> ResponseValue:
    if api_key is ApiKey.API_VERSIONS and frame[pos : pos + 2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
        version = 0
    value: ResponseValue = layout(MESSAGES[api_key].response, version).read(frame, pos)
    return value


def unsupported_api_versions(header: RequestHeader) -> bytes:
    """The answer to an ApiVersions of a version that is not spoken here: version 0 with error 35 and the versions of
    ApiVersions itself, from which the client picks the one to ask again with (KIP-511)."""
    if header.api_key is not ApiKey.API_VERSIONS:
        raise ValueError(f"{header.api_key.name} has no answer to an unsupported version")
    own = MESSAGES[ApiKey.API_VERSIONS].request
    value = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, (ApiVersion(ApiKey.API_VERSIONS, own.first, own.last),))
    body = layout(MESSAGES[ApiKey.API_VERSIONS].response, 0).write(value)
    return write_response_header(ApiKey.API_VERSIONS, 0, header.correlation_id) + body
