"""Writes a second that ZooKeeper servers acknowledge: the one in Python, with and without its log, and Apache's.

    python -m tests.zookeeper.server_bench --seconds 5 --runs 3

Each server is a process of its own with an empty directory. Each connection keeps a number of sets of 100 bytes in
flight; the replies are counted. The runs of the servers alternate. Without a Java runtime or its jars, Apache's is left
out. For the server in Python the average group is counted in its log: transactions that one fsync made durable.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controller.zookeeper.embedded import EmbeddedServerUnavailable, EmbeddedZooKeeper
from controller.zookeeper.jute import INT, buffer, string
from controller.zookeeper.launch import launch
from controller.zookeeper.server.log import LOG_MAGIC, read_frames
from controller.zookeeper.server.transactions import GROUPS
from controller.zookeeper.server.wire import frame

LOADS = ((1, 1), (4, 32), (32, 32))
"""Connections, and writes that each has in flight."""
PYTHON = {
    "Python, in memory": None,
    "Python, log without fsync": ["--no-fsync"],
    "Python, log": [],
}
APACHE = {"Apache, log without fsync": False, "Apache, log": True}
_HEADER = struct.Struct("!ii")
_SET, _CREATE, _OPEN = 5, 1, INT.pack(1) + INT.pack(31) + string("world") + string("anyone")


class Connection:
    """A session that keeps writes in flight."""

    def __init__(self, port: int, path: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30.0)
        self._left = b""
        self.replies = 0
        self.socket.sendall(frame(INT.pack(0), bytes(8), INT.pack(30_000), bytes(8), buffer(bytes(16)), b"\0"))
        self._wait(1)
        self.socket.sendall(frame(_HEADER.pack(1, _CREATE), string(path), buffer(b""), _OPEN, INT.pack(0)))
        self._wait(2)
        self.set = frame(_HEADER.pack(2, _SET), string(path), buffer(bytes(100)), INT.pack(-1))

    def take(self) -> int:
        """Return how many replies have arrived; waits for some bytes."""
        data = self._left + self.socket.recv(1 << 18)
        at = arrived = 0
        while at + 4 <= len(data) and at + 4 + (size := INT.unpack_from(data, at)[0]) <= len(data):
            at += 4 + size
            arrived += 1
        self._left = data[at:]
        self.replies += arrived
        return arrived

    def _wait(self, replies: int) -> None:
        while self.replies < replies:
            self.take()


def rate(port: int, connections: int, in_flight: int, seconds: float) -> float:
    """Return the writes a second that were acknowledged."""
    clients = [Connection(port, f"/bench-{time.time_ns()}-{number}") for number in range(connections)]
    acknowledged = 0
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.socket.sendall(client.set * in_flight)
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            for key, _ in selector.select(1.0):
                arrived = key.data.take()
                acknowledged += arrived
                key.data.socket.sendall(key.data.set * arrived)
    for client in clients:
        client.socket.close()
    return acknowledged / (now - began)


@contextmanager
def python_server(data: Path | None, options: list[str]) -> Iterator[int]:
    kept = [] if data is None else ["--data", str(data)]
    process = launch([sys.executable, "-m", "controller.zookeeper.server", *kept, *options], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline().rpartition(b":")[2])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def groups(data: Path) -> float:
    """Return the transactions a group that the logs of a directory have."""
    counts = [
        len(GROUPS.decode(payload))
        for log in data.glob("log.*")
        if (frames := read_frames(log.name, log.read_bytes(), LOG_MAGIC)) is not None
        for _, payload in frames.payloads
    ]
    return sum(counts) / max(len(counts), 1)


def measure(name: str, connections: int, in_flight: int, seconds: float) -> tuple[float, float | None]:
    """Return the rate of one server, and the average group of its log."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        if name in APACHE:
            with EmbeddedZooKeeper(kind="java", data_dir=data, fsync=APACHE[name]) as apache:
                return rate(int(apache.connect_string.rpartition(":")[2]), connections, in_flight, seconds), None
        options = PYTHON[name]
        with python_server(None if options is None else data, options or []) as port:
            found = rate(port, connections, in_flight, seconds)
        return found, None if options is None else groups(data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    names = [*PYTHON, *APACHE]
    for connections, in_flight in LOADS:
        found: dict[str, list[tuple[float, float | None]]] = {name: [] for name in names}
        for _ in range(arguments.runs):
            for name in list(names):
                try:
                    found[name].append(measure(name, connections, in_flight, arguments.seconds))
                except EmbeddedServerUnavailable as error:
                    print(f"{name}: left out: {error}", file=sys.stderr)
                    names.remove(name)
        print(f"{connections} connections, {in_flight} writes in flight each")
        for name in names:
            rates = [each for each, _ in found[name]]
            sizes = [size for _, size in found[name] if size is not None]
            grouped = f", {statistics.median(sizes):,.1f} transactions a group" if sizes else ""
            print(f"  {name:<28}{statistics.median(rates):>9,.0f} /s (worst {min(rates):,.0f}){grouped}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
