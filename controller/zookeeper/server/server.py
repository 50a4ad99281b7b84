"""A ZooKeeper server in Python: its sessions, the thread that serves them, and fault injection.

    with ZooKeeperServer() as server:
        client = KazooClient(server.connect_string)

One thread runs an asyncio event loop and does everything; the methods for other threads hand their work to it and
wait. Without a data directory, data is in memory: it is lost with the object, and kept over `stop` and `start`. With
one, `start` reads what is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from controller.clock import Timer
from controller.distinguished_names import distinguished_name
from controller.zookeeper.blocking import ThreadClock
from controller.zookeeper.row_writes import REQUEST_BYTES_MAX
from controller.zookeeper.server.connection import ServedConnection
from controller.zookeeper.server.core import CONTAINER_CHECK_MS, ZooKeeperCore
from controller.zookeeper.server.files import DataDirectory
from controller.zookeeper.server.storage import SNAPSHOT_TRANSACTIONS, Storage

T = TypeVar("T")

LOOPBACK: Final = "127.0.0.1"
HANDSHAKE_LIMIT_S: Final = 10.0
_ANSWER_SECONDS = 30.0


class AsyncioClock(ThreadClock):
    """The machine's clock, with the timers of the event loop that the caller runs on."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        loop = asyncio.get_running_loop()
        return loop.call_later(delay_ms / 1_000.0, callback) if delay_ms > 0 else loop.call_soon(callback)


class _TcpConnection(ServedConnection, asyncio.Protocol):
    """A connection with a socket. While its client does not read, what it sends stays in its socket."""

    _socket: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        peer = transport.get_extra_info("peername") or (LOOPBACK, 0)  # none of a client that has gone already
        self.opened(transport, peer[:2])
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.identity.over_tls = True
            if certificate := tls.getpeercert():
                self.identity.certificate = distinguished_name(certificate["subject"])  # type: ignore[arg-type]

    def connection_lost(self, error: Exception | None) -> None:
        self._socket = None
        super().connection_lost(error)

    def throttle(self) -> None:
        if self._socket is None:
            return
        if self.throttled:
            self._socket.pause_reading()
        else:
            self._socket.resume_reading()


class ZooKeeperServer:
    """A standalone ZooKeeper server, reachable over TCP by any client of ZooKeeper 3.4 to 3.9.

    Args:
        host, port: where to listen; port 0 takes a free one.
        data_dir: where transactions and snapshots are kept (see `storage`). None keeps everything in memory.
        fsync: answer a write when it is on the disk. Without, a crash of the machine may lose acknowledged writes;
            the end of the process loses none.
        snapshot_transactions: how many transactions there are from one snapshot to the next (snapCount).
        tls: if given, everything is over TLS (ZooKeeper's secureClientPort). A client's certificate is checked if the
            context asks for one, and its subject is then the identity `x509:NAME`.
        sasl_users: passwords of those who may log in by DIGEST-MD5, which gives them the identity `sasl:USER`.

    The others are those of `ZooKeeperCore`.
    """

    def __init__(
        self,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        tick_ms: int = 500,
        min_session_timeout_ms: int | None = None,
        max_session_timeout_ms: int | None = None,
        max_request_bytes: int = REQUEST_BYTES_MAX,
        max_connections_per_address: int = 0,
        extended_types: bool = True,
        container_check_ms: int = CONTAINER_CHECK_MS,
        data_dir: Path | str | None = None,
        fsync: bool = True,
        snapshot_transactions: int = SNAPSHOT_TRANSACTIONS,
        tls: ssl.SSLContext | None = None,
        sasl_users: Mapping[str, str] | None = None,
    ) -> None:
        if snapshot_transactions <= 0:
            raise ValueError(f"snapshot_transactions {snapshot_transactions}: expected more than 0")
        self.host = host
        self.port = port
        self.core = ZooKeeperCore(
            AsyncioClock(),
            tick_ms=tick_ms,
            min_session_timeout_ms=min_session_timeout_ms,
            max_session_timeout_ms=max_session_timeout_ms,
            max_request_bytes=max_request_bytes,
            max_connections_per_address=max_connections_per_address,
            extended_types=extended_types,
            container_check_ms=container_check_ms,
        )
        self.core.sasl_users = dict(sasl_users or {})
        self.failure: Exception | None = None
        """The error of the log that has stopped the server."""
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._fsync = fsync
        self._snapshot_transactions = snapshot_transactions
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def connect_string(self) -> str:
        """What a client takes as its hosts."""
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the server serves. It stops by itself if its log can't be written: `failure` says why."""
        return self._thread is not None and self._thread.is_alive() and self.failure is None

    @property
    def warnings(self) -> Sequence[str]:
        """What `start` cut off or passed over in the data directory, and snapshots that failed."""
        storage = self.core.storage
        return () if storage is None else tuple(storage.warnings)

    # Life cycle, from any thread.

    def start(self) -> None:
        """Listen and serve. Sessions get their whole timeout again.

        Raises OSError if the port can't be had or the data directory not used, DataDirectoryInUse if another server
        has that, DamagedDataFile if its files are not what a server wrote.
        """
        if self.running:
            return
        self.stop()
        self.failure = None
        if self._data_dir is not None:
            self.core.restore(
                Storage(
                    DataDirectory(self._data_dir),
                    fsync=self._fsync,
                    snapshot_transactions=self._snapshot_transactions,
                    post=self._post,
                    on_failure=self._fail,
                )
            )
        started = threading.Event()
        failed: list[OSError] = []
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(started, failed)), name="zookeeper-server", daemon=True
        )
        self._thread.start()
        started.wait()
        if failed:
            self._thread.join()
            self._thread = None
            self._close_storage()
            raise failed[0]

    def _post(self, work: Callable[[], None]) -> None:
        """Do `work` on the server's thread, soon; nothing if that has ended."""
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(work)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._stopping.set()

    def _close_storage(self) -> None:
        storage = self.core.storage
        if storage is not None:
            storage.close()
            self.core.processor.storage = None

    def stop(self) -> None:
        """Break all connections and stop listening; data and sessions are kept for the next `start`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._post(self._stopping.set)
            thread.join()

    close = stop

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _main(self, started: threading.Event, failed: list[OSError]) -> None:
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        try:
            make = partial(_TcpConnection, self.core)
            limit_s = None if self._tls is None else HANDSHAKE_LIMIT_S
            listener = await loop.create_server(
                make, self.host, self.port, ssl=self._tls, ssl_handshake_timeout=limit_s
            )
        except OSError as error:
            failed.append(error)
            started.set()
            return
        self._loop = loop
        self.port = self.core.port = listener.sockets[0].getsockname()[1]
        self.core.start()
        started.set()
        await self._stopping.wait()
        listener.close()
        self.core.stop()
        await asyncio.sleep(0)  # the transports' ends
        self._close_storage()
        self._loop = None

    def _call(self, work: Callable[[], T]) -> T:
        """Do `work` on the server's thread and return what it returned."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("the server is not running")

        async def done() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(done(), loop).result(_ANSWER_SECONDS)

    # Faults, from any thread.

    def pause(self) -> None:
        """Serve nothing, as a stopped process: requests and connections wait, no session ends."""
        self._call(self.core.pause)

    def resume(self) -> None:
        """Serve what has come meanwhile. A session whose timeout has passed ends at the next tick."""
        self._call(self.core.resume)

    def partition(self, session: int) -> None:
        """Cut a session's client off, both ways: what it sends and what it is sent waits, also after a reconnect."""
        self._call(lambda: self.core.partition(session))

    def heal(self, session: int) -> None:
        """Undo `partition`; what waited arrives."""
        self._call(lambda: self.core.heal(session))

    def expire(self, session: int) -> None:
        """End a session now. Raises KeyError if there is none."""
        self._call(lambda: self.core.expire(session))

    def lose_reply(self, session: int, *, applied: bool) -> None:
        """Break the session's connection instead of answering its next write, which is applied before, or is not."""
        self._call(lambda: self.core.lose_reply(session, applied=applied))

    def slow(self, delay_ms: float) -> None:
        """Send every reply and event `delay_ms` later; 0 ends it."""
        self._call(lambda: self.core.slow(delay_ms))

    def drop_connection(self, session: int) -> None:
        """Break a session's connection; the session stays. Raises KeyError if there is no session."""
        self._call(lambda: self.core.drop_connection(session))
