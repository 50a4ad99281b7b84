"""A well-behaved client in its own process, for `camerlengo bench hostile`: sends small requests to each broker, again
and again, and reports their latencies.

    python -m tests.benchmarks.hostile_probe HOST:PORT,...

For each line on its input it prints, as one line of JSON, what it has measured since the last one.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Sequence

from controller.broker.settings import address
from controller.protocol.client import MetadataRequest
from controller.protocol.codec import RequestHeader, encode_request
from controller.protocol.framing import SIZE_BYTES, framed
from controller.protocol.messages import ApiKey

INTERVAL_S = 0.01
LIMIT_S = 120.0


class Probe:
    """One broker's client. `took_ms`: how long each answer took; one that is due counts with its age."""

    def __init__(self, at: str) -> None:
        self._address = address(at)
        self._frame = framed(encode_request(RequestHeader(ApiKey.METADATA, 9, 1, "probe"), MetadataRequest(())))
        self._lock = threading.Lock()
        self._took_ms: list[float] = []
        self._asked_s: float | None = None
        self._failures = 0

    def run(self) -> None:
        while True:
            try:
                with socket.create_connection(self._address, LIMIT_S) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    while True:
                        self._ask(connection)
                        time.sleep(INTERVAL_S)
            except OSError:
                with self._lock:
                    self._failures += 1
                    self._asked_s = None
                time.sleep(INTERVAL_S)

    def _ask(self, connection: socket.socket) -> None:
        began_s = self._asked_s = time.perf_counter()
        connection.sendall(self._frame)
        size = int.from_bytes(_read(connection, SIZE_BYTES), "big")
        _read(connection, size)
        with self._lock:
            self._took_ms.append((time.perf_counter() - began_s) * 1_000.0)
            self._asked_s = None

    def taken(self) -> tuple[list[float], int]:
        with self._lock:
            took_ms, self._took_ms = self._took_ms, []
            failures, self._failures = self._failures, 0
            if self._asked_s is not None:
                took_ms.append((time.perf_counter() - self._asked_s) * 1_000.0)
        return took_ms, failures


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def main(arguments: Sequence[str]) -> int:
    probes = [Probe(at) for at in arguments[0].split(",")]
    for probe in probes:
        threading.Thread(target=probe.run, daemon=True).start()
    for _ in sys.stdin:
        took_ms: list[float] = []
        failures = 0
        for probe in probes:
            some, failed = probe.taken()
            took_ms += some
            failures += failed
        took_ms.sort()
        found = {
            "requests": len(took_ms),
            "failures": failures,
            "p50_ms": round(took_ms[len(took_ms) // 2], 2) if took_ms else None,
            "worst_ms": round(took_ms[-1], 1) if took_ms else None,
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
