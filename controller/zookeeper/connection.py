"""The interface of one client connection to ZooKeeper.

There are two implementations: the kazoo connection to a real server, and a client of the in-memory model. Everything
that is a rule (standing watches, the fence, the lease, retries) is written once above this, in `client.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from controller.pending import Pending
from controller.zookeeper.operations import (
    Columns,
    Listing,
    ReadResult,
    SessionState,
    WatchEvent,
    Write,
    WriteResults,
)


class ConnectionListener(Protocol):
    """Receives a connection's states and watch events.

    Called on the connection's threads: must not block, must not wait for a request (KAFKA-6879), must not raise.
    """

    def session_state(self, state: SessionState) -> None: ...

    def watch_fired(self, event: WatchEvent) -> None: ...


class ZooKeeperConnection(Protocol):
    """One session at a time; requests are carried out in the order they were made, and so answered.

    A read answers `ConnectionLost`, a write `UnknownOutcome`, when the connection breaks under it; both answer
    `SessionGone` when made, or still waiting, as the session ends. A request made while not connected waits for the
    *same* session's reconnection, and never goes out in a later session.
    """

    @property
    def session_timeout_ms(self) -> int:
        """As negotiated with the server, once connected."""

    def listen(self, listener: ConnectionListener) -> None:
        """Sets the one listener. Before `start`."""

    def start(self) -> Pending[int]:
        """Begins to connect, and goes on for as long as it takes. Answered with the first session's id."""

    def close(self) -> Pending[None]:
        """Ends the session (ephemerals go at once) and answers everything pending with SessionGone. No session is
        made after (KAFKA-8121)."""

    def session(self) -> int:
        """The id of the session that requests now belong to; 0 while there is none."""

    def acknowledged_sent_ms(self) -> float:
        """When the latest request or ping of this session that has been *answered* was *sent* (`Clock.now_ms`);
        minus infinity while none was."""

    def last_zxid(self) -> int:
        """The highest zxid seen in a reply; 0 at first."""

    def read(self, paths: Sequence[str]) -> Pending[ReadResult]:
        """One multi-read of data and stats. At most `BATCH` paths."""

    def read_columns(self, paths: Sequence[str]) -> Pending[Columns]:
        """As `read`, for znodes that hold JSON, without an object a row. At most `LONGEST_READ` paths."""

    def children(self, paths: Sequence[str]) -> Pending[Listing]:
        """One multi-read of children. At most `BATCH` paths."""

    def multi(self, operations: Sequence[Write]) -> Pending[WriteResults]:
        """All or nothing. Fails with MultiFailed(index, error)."""

    def set_watches(
        self, since_zxid: int, data: Sequence[str], exists: Sequence[str], children: Sequence[str]
    ) -> Pending[None]:
        """Arms one-shot watches in one request. What has changed after `since_zxid` (data: the node gone, or its
        mzxid later; exists: the node there; children: the node gone, or its pzxid later) fires at once instead."""

    def watch(self, nodes: Sequence[str], children: Sequence[str]) -> Pending[None]:
        """Arms one-shot watches as of now, for nodes whether or not they exist. A children watch on a node that is
        not there is not armed. Several requests, pipelined in order with the rest."""

    def sync(self, path: str) -> Pending[None]:
        """Answered when the server has caught up with the leader."""


BATCH = 500
"""Operations a request: where the gain from batching has levelled off, far below jute.maxbuffer."""
LONGEST_READ = 2_000
"""Paths of one `read_columns`, which is for znodes that are many and small. With Kafka's longest paths (300 bytes) the
request has some 600 kB, below jute.maxbuffer (1 MB); a reply has no such limit."""
