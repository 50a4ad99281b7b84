"""Request and response headers.

A request's header is flexible (a section of tagged fields at its end) where its message is, a response's too, except
that of ApiVersions: its client doesn't know yet what the broker speaks. The client id keeps its int16 length in all
versions, for the same reason. ControlledShutdown version 0 has no client id at all.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache

from controller.protocol.api_keys import ApiKey
from controller.protocol.errors import MalformedFrame, ProtocolError, UnencodableValue, UnknownApi
from controller.protocol.messages import MESSAGES
from controller.protocol.primitives import read_tags, read_text, write_text
from controller.quick import maker, quick

_HEAD = struct.Struct(">hhi")
_CORRELATION = struct.Struct(">i")
_API_KEYS = {int(key): key for key in ApiKey}


@dataclass(frozen=True, slots=True)
class RequestHeader:
    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None


class UnsupportedVersion(ProtocolError):
    """The API is spoken here, but not in the header's version. To an ApiVersions the answer is
    `codec.unsupported_api_versions`; for any other the connection is closed."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"{header.api_key.name} version {header.api_version} is not spoken here")
        self.header = header


def read_request_header(frame: bytes, served: Container[int]) -> tuple[RequestHeader, int]:
    """The header and where the body begins. MalformedFrame, UnknownApi for what is not among `served`,
    UnsupportedVersion."""
    if len(frame) < _HEAD.size:
        raise MalformedFrame(f"a frame of {len(frame)} bytes has no request header")
    key, version, correlation = _HEAD.unpack_from(frame)
    if key not in served or key not in MESSAGES:
        raise UnknownApi(key)
    api_key, has_client_id, is_spoken, is_flexible = _form(key, version)
    client_id: str | None = None
    pos = _HEAD.size
    try:
        if has_client_id:
            client_id, pos = read_text(frame, pos, len(frame), False)
        header = _header(api_key, version, correlation, None if client_id is None else sys.intern(client_id))
        if not is_spoken:
            raise UnsupportedVersion(header)
        if is_flexible:
            pos = pos + 1 if frame[pos] == 0 else read_tags(frame, pos, len(frame))[1]
    except (struct.error, IndexError):
        raise MalformedFrame(f"{api_key.name} version {version}: the frame ends within its header") from None
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"{api_key.name} version {version}: client id is not UTF-8: {error.reason}") from None
    return header, pos


@lru_cache(maxsize=1_000)
def _form(key: int, version: int) -> tuple[ApiKey, bool, bool, bool]:
    """Of a request's header: the API, whether a client id is in it, whether the version is spoken, whether it is
    flexible."""
    api_key = _API_KEYS[key]
    request = MESSAGES[api_key].request
    has_client_id = not (api_key is ApiKey.CONTROLLED_SHUTDOWN and version == 0)
    return api_key, has_client_id, request.first <= version <= request.last, version >= request.flexible


def write_request_header(header: RequestHeader) -> bytes:
    return request_header(header.api_key, header.api_version, header.correlation_id, header.client_id)


def request_header(api_key: ApiKey, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """As `write_request_header`, without a RequestHeader object. Raises UnencodableValue."""
    try:
        return _HEAD.pack(api_key, version, correlation_id) + _after_ids(api_key, version, client_id)
    except (struct.error, UnicodeEncodeError) as error:
        header = RequestHeader(api_key, version, correlation_id, client_id)
        raise UnencodableValue(f"{header}: {error}") from error


@lru_cache(maxsize=1_000)  # a connection's requests differ in their correlation ids alone
def _after_ids(api_key: ApiKey, version: int, client_id: str | None) -> bytes:
    out = bytearray()
    if not (api_key is ApiKey.CONTROLLED_SHUTDOWN and version == 0):
        write_text(out, client_id, False)
    if version >= MESSAGES[api_key].request.flexible:
        out.append(0)
    return bytes(out)


def read_response_header(api_key: ApiKey, version: int, frame: bytes) -> tuple[int, int]:
    """The correlation id and where the body begins. MalformedFrame."""
    try:
        (correlation,) = _CORRELATION.unpack_from(frame)
        pos = _CORRELATION.size
        if _flexible_response(api_key, version):
            pos = pos + 1 if frame[pos] == 0 else read_tags(frame, pos, len(frame))[1]
    except (struct.error, IndexError):
        raise MalformedFrame(f"{api_key.name} version {version}: a response that ends within its header") from None
    return correlation, pos


def write_response_header(api_key: ApiKey, version: int, correlation_id: int) -> bytes:
    tags = b"\x00" if _flexible_response(api_key, version) else b""
    return _CORRELATION.pack(correlation_id) + tags


@lru_cache(maxsize=1_000)
def _flexible_response(api_key: ApiKey, version: int) -> bool:
    return api_key is not ApiKey.API_VERSIONS and version >= MESSAGES[api_key].response.flexible


quick(RequestHeader)
_header = maker(RequestHeader)
