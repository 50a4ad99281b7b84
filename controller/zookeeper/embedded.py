"""A real ZooKeeper on loopback, of one server or three, for tests, demonstrations and chaos.

    with EmbeddedZooKeeper(servers=3) as zookeeper:
        client = KazooClient(zookeeper.connect_string)
        zookeeper.servers[zookeeper.leader()].kill()

Nothing of it outlives the process that made it (see `launch.py`). Blocking calls, each with a deadline; no client of
ZooKeeper is used or needed.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from controller.zookeeper.embedded_server import ServerDied, ServerProcess, ServerSettings
from controller.zookeeper.jars import find_jars, find_java
from controller.zookeeper.ports import HeldPorts
from controller.zookeeper.request_size import REQUEST_BYTES_MAX

START_DEADLINE_SECONDS = 60.0
_PORT_ATTEMPTS = 5
_PORTS_PER_SERVER = 3


class DataDirectoryError(Exception):
    """The data directory can't be used: another ensemble's, or in use; names it."""


class EmbeddedZooKeeper:
    """Started by `start` or a `with`; ended by `close`, which also removes a temporary data directory.

    `data_dir` is kept if given. `tick_ms` sets the grain of session timeouts: the server grants nothing below
    `min_session_timeout_ms` (2 ticks by default) and counts expiry in ticks; 500 suits timeouts from 1.5 to 6 s.
    `max_request_bytes` is jute.maxbuffer, by default a production server's. `fsync` False trades durability over a
    machine's crash (never over a killed server's) for speed. `jars` is a directory; by default PySpark's are used.

    The constructor raises ValueError, JavaNotFound, JarsNotFound and DataDirectoryError, and starts nothing.
    """

    def __init__(
        self,
        servers: int = 1,
        *,
        data_dir: Path | str | None = None,
        jars: Path | str | None = None,
        tick_ms: int = 500,
        min_session_timeout_ms: int | None = None,
        max_session_timeout_ms: int = 120_000,
        fsync: bool = True,
        max_request_bytes: int = REQUEST_BYTES_MAX,
        java_options: Sequence[str] = (),
    ) -> None:
        if servers not in (1, 3):
            raise ValueError(f"servers is {servers}: an embedded ZooKeeper has 1 server or 3")
        settings = ServerSettings(
            java=find_java(),
            class_path=find_jars(jars).class_path(),
            tick_ms=tick_ms,
            min_session_timeout_ms=2 * tick_ms if min_session_timeout_ms is None else min_session_timeout_ms,
            max_session_timeout_ms=max_session_timeout_ms,
            fsync=fsync,
            max_request_bytes=max_request_bytes,
            java_options=tuple(java_options),
        )
        if not 0 < settings.min_session_timeout_ms <= max_session_timeout_ms:
            raise ValueError(
                f"session timeouts from {settings.min_session_timeout_ms} to {max_session_timeout_ms} ms: no such range"
            )
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="camerlengo-zookeeper-") if data_dir is None else data_dir)
        self._lock = _lock_directory(self.data_dir.absolute(), servers)
        self.data_dir = self.data_dir.absolute()
        self._ports: HeldPorts | None = None
        self.servers = tuple(
            ServerProcess(index, self.data_dir / f"server-{index + 1}", settings) for index in range(servers)
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """`HOST:PORT` of each server, the same for as long as this object lives."""
        return tuple(server.address for server in self.servers)

    @property
    def connect_string(self) -> str:
        """The value for `zookeeper.connect`."""
        return ",".join(self.hosts)

    def start(self, deadline_seconds: float = START_DEADLINE_SECONDS) -> None:
        """Starts what is not running and waits until every server serves (so an ensemble has its quorum). Raises
        ServerDied or ServerTimedOut, with everything stopped."""
        deadline = time.monotonic() + deadline_seconds
        try:
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                self._configure()
                try:
                    self._start_servers(deadline)
                    return
                except ServerDied as died:
                    if not died.address_in_use or attempt == _PORT_ATTEMPTS:
                        raise
                    self.kill()
                    self._release_ports()
        except BaseException:
            self.kill()
            raise

    def _configure(self) -> None:
        if self._ports is not None:
            return
        count = len(self.servers)
        self._ports = HeldPorts(_PORTS_PER_SERVER * count)
        numbers = self._ports.numbers
        peers = {index + 1: (numbers[count + 2 * index], numbers[count + 2 * index + 1]) for index in range(count)}
        for server in self.servers:
            server.configure(numbers[server.index], peers if count > 1 else {})

    def _start_servers(self, deadline: float) -> None:
        for server in self.servers:
            server.start()
        serving = False
        while not serving:  # one that served may have left its leader while the next was waited for
            for server in self.servers:
                server.await_serving(deadline)
            serving = None not in self.modes()

    def leader(self) -> int | None:
        """The index of the server that leads the ensemble (0 for a server that stands alone); None while none does."""
        return next((server.index for server in self.servers if server.mode() in ("leader", "standalone")), None)

    def modes(self) -> tuple[str | None, ...]:
        """Return the mode that each server reports: see `ServerProcess.mode`."""
        return tuple(server.mode() for server in self.servers)

    def restart(self, index: int, deadline_seconds: float = START_DEADLINE_SECONDS) -> None:
        """Stops one server, if it runs, and starts it on the same port and data. Waits until it serves."""
        server = self.servers[index]
        server.stop()
        server.start()
        server.await_serving(time.monotonic() + deadline_seconds)

    def stop(self) -> None:
        """Ends every server in good order. `start` brings them back on the same ports."""
        for server in self.servers:
            server.stop()

    def kill(self) -> None:
        """SIGKILL to every server."""
        for server in self.servers:
            server.kill()

    def pause(self) -> None:
        """SIGSTOP to every server."""
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        for server in self.servers:
            server.resume()

    def close(self) -> None:
        """Ends the servers and lets go of everything. Safe to call twice."""
        self.kill() if self._temporary else self.stop()
        self._release_ports()
        self._lock.close()
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _release_ports(self) -> None:
        if self._ports is not None:
            self._ports.release()
            self._ports = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _lock_directory(directory: Path, servers: int) -> IO[str]:
    """Keeps a second ensemble out of the directory, and one of another size: a lone server started on one member's
    data would lose what the other two had agreed on."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "servers").open("a+", encoding="ascii")
    except OSError as error:
        raise DataDirectoryError(f"{directory}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.seek(0)
        held = lock.read().strip()
        if held not in ("", str(servers)):
            raise DataDirectoryError(f"{directory} holds the data of {held} server(s), not of {servers}")
        if not held:
            lock.write(f"{servers}\n")
            lock.flush()
    except BlockingIOError as error:
        lock.close()
        raise DataDirectoryError(f"{directory} is in use by another embedded ZooKeeper") from error
    except DataDirectoryError:
        lock.close()
        raise
    return lock
