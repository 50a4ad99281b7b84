"""Brokers that acknowledge at once, for `camerlengo bench controller`: they receive a request, parse its header and
send a response without errors. They run in their own process, so that their cost is not in the benchmark's figures.

    python -m tests.benchmarks.acknowledging BROKERS

prints the ports as one JSON object, by broker id, and serves until its standard input ends.
"""

from __future__ import annotations

import json
import socket
import sys
import threading

from controller.protocol.client import ApiVersion, ApiVersionsResponse
from controller.protocol.codec import RequestHeader, encode_response, read_request_header
from controller.protocol.control import LeaderAndIsrResponse, StopReplicaResponse, UpdateMetadataResponse
from controller.protocol.framing import SIZE_BYTES, frame_size, framed
from controller.protocol.messages import SUPPORTED, ApiKey
from controller.protocol.schema import ResponseValue

PIECE_BYTES = 1 << 20
HEADER_BYTES = 128
"""More than the header of any request of a controller takes."""
CONTROL = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA)
SERVED = frozenset({*CONTROL, ApiKey.API_VERSIONS})


def answer(header: RequestHeader) -> ResponseValue:
    """No error, of the whole and of any part."""
    if header.api_key is ApiKey.API_VERSIONS:
        return ApiVersionsResponse(
            0, tuple(ApiVersion(key, SUPPORTED[key].first, SUPPORTED[key].last) for key in CONTROL)
        )
    if header.api_key is ApiKey.LEADER_AND_ISR:
        return LeaderAndIsrResponse(0)
    if header.api_key is ApiKey.STOP_REPLICA:
        return StopReplicaResponse(0)
    return UpdateMetadataResponse(0)


class AcknowledgingBroker:
    """One broker: a port on loopback, and a thread a connection, which mostly waits for bytes to throw away."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        room = memoryview(bytearray(PIECE_BYTES))
        with connection:
            while _fill(connection, room[:SIZE_BYTES]):
                left = frame_size(bytes(room[:SIZE_BYTES]))
                head = min(left, HEADER_BYTES)
                if not _fill(connection, room[:head]):
                    return
                header, _ = read_request_header(bytes(room[:head]), SERVED)
                left -= head
                while left:
                    got = connection.recv_into(room[: min(left, PIECE_BYTES)])
                    if not got:
                        return
                    left -= got
                connection.sendall(framed(encode_response(header, answer(header))))


def _fill(connection: socket.socket, room: memoryview) -> bool:
    """False when the other end closed the connection first."""
    got = 0
    while got < len(room):
        try:
            count = connection.recv_into(room[got:])
        except ConnectionResetError:
            return False
        if not count:
            return False
        got += count
    return True


def main(brokers: int) -> None:
    serving = {broker: AcknowledgingBroker() for broker in range(1, brokers + 1)}
    print(json.dumps({broker: one.port for broker, one in serving.items()}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
