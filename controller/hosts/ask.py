"""One metadata request to one broker and no other, with a blocking socket: what that broker itself believes."""

from __future__ import annotations

import socket

from controller.broker.setting_types import Address
from controller.protocol.api_keys import ApiKey
from controller.protocol.client_values import MetadataRequest, MetadataResponse
from controller.protocol.codec import decode_response, encode_request
from controller.protocol.framing import SIZE_BYTES, frame_size, framed
from controller.protocol.headers import RequestHeader

_VERSION = 9


def ask_metadata(address: Address, timeout_s: float) -> MetadataResponse:
    """OSError if the broker can't be reached or does not answer in time, MalformedFrame for an answer that is none."""
    header = RequestHeader(ApiKey.METADATA, _VERSION, 1, "camerlengo")
    frame = encode_request(header, MetadataRequest(None, allow_auto_topic_creation=False))
    with socket.create_connection(address, timeout_s) as connection:
        connection.sendall(framed(frame))
        size = frame_size(_read(connection, SIZE_BYTES))
        _, answer = decode_response(ApiKey.METADATA, _VERSION, _read(connection, size))
    assert isinstance(answer, MetadataResponse)
    return answer


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the broker closed the connection")
        parts += part
    return bytes(parts)
