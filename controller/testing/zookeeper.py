"""A ZooKeeper for a test: the Python server in this process, kazoo clients, and faults.

    with ZooKeeper() as zookeeper:
        client = zookeeper.client()
        lock = client.Lock("/lock")
        lock.acquire()
        zookeeper.expire(client)

Any client of ZooKeeper 3.4 to 3.9 may use `connect_string`, from this process or another.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient

from controller.zookeeper.server.server import ZooKeeperServer

TICK_MS = 100
LONGEST_SESSION_MS = 60_000
START_S = 15.0


class ZooKeeper:
    """A standalone ZooKeeper server with its data in memory.

    A fault names its client by a kazoo client or by a session id. It is applied when the method returns; the client
    notices on its own thread: wait for a call of its state listener.

    Args:
        tick_ms: a session ends at the first tick after its timeout, which is two ticks or longer.
        max_session_timeout_ms: the longest timeout that the server grants.
    """

    def __init__(self, *, tick_ms: int = TICK_MS, max_session_timeout_ms: int = LONGEST_SESSION_MS) -> None:
        self._server = ZooKeeperServer(tick_ms=tick_ms, max_session_timeout_ms=max_session_timeout_ms)
        self._clients: list[Any] = []
        self._began_s = time.monotonic()
        self._events: list[tuple[float, str]] = []

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(self.timeline())
        self.close()

    def close(self) -> None:
        """Stop the server and the clients that `client` made. Safe to call twice."""
        clients, self._clients = self._clients, []
        self._server.stop()
        for client in clients:
            client.stop()
            client.close()

    @property
    def connect_string(self) -> str:
        """What a client takes as its hosts."""
        return self._server.connect_string

    def client(self, *, timeout: float = 10.0, **settings: Any) -> Any:
        """Return a kazoo client that is connected; it is stopped at the end of the test.

        Args:
            timeout: of its session, in seconds.
            settings: further arguments of `KazooClient`.
        """
        client = KazooClient(self.connect_string, timeout=timeout, **settings)
        number = len(self._clients) + 1
        self._clients.append(client)
        client.add_listener(lambda state: self._note(f"client {number}: {state}"))
        client.start(START_S)
        return client

    def sessions(self) -> tuple[int, ...]:
        """Return the ids of the sessions that are alive."""
        return tuple(self._server.core.sessions)

    # -- faults

    def expire(self, client: Any) -> None:
        """End a client's session now: its ephemeral znodes are deleted. kazoo reports SUSPENDED, LOST, CONNECTED."""
        session = self._inject("expire", client)
        self._server.expire(session)

    def drop_connection(self, client: Any) -> None:
        """Break a client's connection; its session goes on."""
        self._server.drop_connection(self._inject("drop connection", client))

    def partition(self, client: Any) -> None:
        """Cut a client off, both ways, until `heal`: nothing is refused, what is sent waits. Its session expires by
        time."""
        self._server.partition(self._inject("partition", client))

    def heal(self, client: Any) -> None:
        """End a `partition`. For a client that has got another session since, name the session that was cut off."""
        self._server.heal(self._inject("heal", client))

    def lose_reply(self, client: Any, *, applied: bool = True) -> None:
        """Break a client's connection instead of answering its next write, after it was applied or before."""
        self._server.lose_reply(self._inject(f"lose reply, applied={applied}", client), applied=applied)

    def pause(self) -> None:
        """Serve nothing, as a stopped process: requests and connections wait, no session ends."""
        self._note("FAULT pause the server")
        self._server.pause()

    def resume(self) -> None:
        """End a `pause`."""
        self._note("FAULT resume the server")
        self._server.resume()

    def slow(self, ms: float) -> None:
        """Send every reply and event `ms` milliseconds later; 0 ends it."""
        self._note(f"FAULT slow by {ms:g} ms")
        self._server.slow(ms)

    def stop(self) -> None:
        """Stop the server: connections break and new ones are refused, no session ends. See `start`."""
        self._note("FAULT stop the server")
        self._server.stop()

    def start(self) -> None:
        """Start the server after `stop`, with its data and sessions, at the same address."""
        self._note("FAULT start the server")
        self._server.start()

    def _inject(self, fault: str, client: Any) -> int:
        session = client if isinstance(client, int) else (client.client_id or (0,))[0]
        if not session:
            raise ValueError(f"{fault}: expected a client with a session, got {client!r}")
        self._note(f"FAULT {fault}: session {session:#x}")
        return int(session)

    # -- what happened

    def timeline(self) -> str:
        """Return what happened, one line each: faults, and the states of the clients that `client` made."""
        lines = [f"{at_ms:10.1f} ms  {text}" for at_ms, text in list(self._events)]
        return "\n".join(["Timeline of the ZooKeeper:", *lines])

    def _note(self, text: str) -> None:
        self._events.append(((time.monotonic() - self._began_s) * 1_000.0, text))

    def sections(self) -> list[tuple[str, str]]:
        """Return what the report of a failed test shows."""
        return [("ZooKeeper", self.timeline())]

    def write_pages(self, directory: Path, name: str) -> list[Path]:
        """Return no page: there is no drawing of a ZooKeeper alone."""
        return []
