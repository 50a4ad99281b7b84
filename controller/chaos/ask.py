"""One metadata request to one broker and no other: what that broker believes, which a real client, free to ask
whichever broker it likes, can't tell."""

from __future__ import annotations

import socket
import struct

from controller.protocol import (
    ApiKey,
    MetadataRequest,
    MetadataResponse,
    RequestHeader,
    decode_response,
    encode_request,
)
from controller.scenarios.host import PartitionView

TIMEOUT_S = 5.0
_VERSION = 9
_CLIENT = "camerlengo-observer"


def ask_metadata(host: str, port: int) -> dict[tuple[str, int], PartitionView]:
    """The broker's view of every partition. OSError if it can't be reached or does not answer in TIMEOUT_S."""
    header = RequestHeader(ApiKey.METADATA, _VERSION, 1, _CLIENT)
    frame = encode_request(header, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", _read(connection, 4))
        _, answer = decode_response(ApiKey.METADATA, _VERSION, _read(connection, size))
    assert isinstance(answer, MetadataResponse)
    return {
        (topic.name, partition.partition_index): PartitionView(
            partition.leader_id, tuple(partition.isr_nodes), tuple(partition.replica_nodes), partition.leader_epoch
        )
        for topic in answer.topics
        for partition in topic.partitions
    }


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the broker closed the connection")
        parts += part
    return bytes(parts)
