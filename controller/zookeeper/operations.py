"""The port to ZooKeeper: its operations, results, watch events, session states and errors, and one client connection.

There are two implementations of `ZooKeeperConnection`: the kazoo connection to a real server, and a client of the
in-memory model. Everything that is a rule (standing watches, the fence, the lease, retries) is written once above this,
in `client.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from controller.clock import Future


class ZooKeeperError(Exception):
    """Any answer of ZooKeeper's that is not a result, and any failure to get one."""


class PathError(ZooKeeperError):
    """An answer about one path."""

    def __init__(self, path: str, message: str | None = None) -> None:
        super().__init__(message or f"{type(self).__name__}: {path}")
        self.path = path


class NoNode(PathError):
    pass


class NodeExists(PathError):
    pass


class BadVersion(PathError):
    """The znode's version was not the one that the write or check named."""


class NotEmpty(PathError):
    """A delete of a znode that has children."""


class NoChildrenForEphemerals(PathError):
    pass


class NoAuth(PathError):
    pass


class InvalidACL(PathError):
    pass


class BadArguments(PathError):
    """The server refuses the request for what it names: the root, or a znode of ZooKeeper's own, can't be deleted."""


class MultiFailed(ZooKeeperError):
    """A multi in which nothing was applied, because the operation at `index` failed with `error`."""

    def __init__(self, index: int, error: ZooKeeperError) -> None:
        super().__init__(f"multi failed at operation {index}: {error}")
        self.index = index
        self.error = error


class ControllerMoved(ZooKeeperError):
    """The fence failed: /controller_epoch is no longer at the version this term wrote. Nothing was applied."""

    def __init__(self, epoch: int, epoch_zk_version: int, epoch_path: str = "/controller_epoch") -> None:
        super().__init__(
            f"controller epoch {epoch} is over: {epoch_path} has left version {epoch_zk_version}; nothing was written"
        )
        self.epoch = epoch


class UnknownOutcome(ZooKeeperError):
    """The connection broke while a write was in flight: it was applied, or it was not, or it still may be."""


class ConnectionLost(ZooKeeperError):
    """The connection broke while a read was in flight. The client port reads again; a bare Connection raises this."""


class SessionGone(ZooKeeperError):
    """The session that this belonged to has ended (or was closed). Its ephemerals are gone or going."""

    def __init__(self, session: int) -> None:
        super().__init__(f"session 0x{session:x} has ended")
        self.session = session


class LeaseExpired(ZooKeeperError):
    """No request or ping was acknowledged for two thirds of the session timeout: nothing more may be sent as
    controller, though the session may live on."""


class RequestTooLarge(ZooKeeperError):
    """The request has more bytes than a server accepts (jute.maxbuffer). It was not sent."""


class AuthenticationFailed(ZooKeeperError):
    """The server refused the connection's credentials; it does not connect again."""


class UnsupportedOperation(ZooKeeperError):
    """The server is too old for this request."""


class WrongCluster(ZooKeeperError):
    """ZooKeeper holds cluster `found` (None: no cluster at all), and the broker belongs to cluster `expected`."""

    def __init__(self, expected: str, found: str | None) -> None:
        held = "no cluster any more" if found is None else f"cluster {found}"
        super().__init__(f"ZooKeeper holds {held}, expected cluster {expected}")
        self.expected = expected
        self.found = found


class DamagedZnode(ZooKeeperError):
    """A znode whose bytes are not what a Kafka cluster keeps there."""

    def __init__(self, path: str, expected: str, data: bytes | None) -> None:
        shown = repr(data if data is None or len(data) <= 120 else data[:120] + b"...")
        super().__init__(f"{path}: expected {expected}, found {shown}")
        self.path = path
        self.expected = expected
        self.data = data


ANY_VERSION = -1
"""Named where a write or check means "whatever the version is"; the version is never left out by default."""

PERM_READ, PERM_WRITE, PERM_CREATE, PERM_DELETE, PERM_ADMIN, PERM_ALL = 1, 2, 4, 8, 16, 31


class ACL(msgspec.Struct, frozen=True):
    permissions: int
    scheme: str
    id: str


OPEN_ACL: tuple[ACL, ...] = (ACL(PERM_ALL, "world", "anyone"),)


class Create(msgspec.Struct, frozen=True, gc=False):
    """Creates a znode. `data` None and b"" are different to ZooKeeper, and both are kept. The result is the path
    as created (with its sequence number, if `sequential`). `acl` None means the connection's default ACL."""

    path: str
    data: bytes | None
    ephemeral: bool = False
    sequential: bool = False
    acl: tuple[ACL, ...] | None = None


class SetData(msgspec.Struct, frozen=True, gc=False):
    """The result is the new Stat."""

    path: str
    data: bytes | None
    version: int


class Delete(msgspec.Struct, frozen=True, gc=False):
    """The result is None."""

    path: str
    version: int


class Check(msgspec.Struct, frozen=True, gc=False):
    """Holds if the znode exists at `version`. The result is None."""

    path: str
    version: int


Write: TypeAlias = Create | SetData | Delete | Check


class Stat(NamedTuple):
    """A tuple, which costs a tenth of a frozen dataclass to make: thousands come with each batch that is written."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


WriteResult: TypeAlias = str | Stat | None
WriteResults: TypeAlias = Sequence[WriteResult]
"""Of a multi's operations, in their order."""


class Znode(msgspec.Struct, frozen=True):
    """One znode as read."""

    path: str
    data: bytes | None
    stat: Stat


NOT_READABLE = b"(no permission to read)"
"""Stands for the data of a znode that this client may not read. No codec accepts it."""
NOT_WRITABLE = b"(no permission to write)"
"""As NOT_READABLE, for a znode that this client may not write."""
UNKNOWN_VERSION = -2
"""The version of a stand-in. No write at it succeeds."""


def stand_in(path: str, data: bytes) -> Znode:
    """A row for a znode that is there and is closed to this client; its stat is not known."""
    return Znode(path, data, Stat(0, 0, 0, 0, UNKNOWN_VERSION, 0, 0, 0, 0, 0, 0))


class ReadResult(msgspec.Struct, frozen=True):
    """The reply to one read: a row (None where there is no node) for each path asked for, in order, all as of
    `zxid` or later."""

    rows: tuple[Znode | None, ...]
    zxid: int


class Listing(msgspec.Struct, frozen=True):
    """The reply to one listing: the children's names, sorted (None where there is no node), for each path."""

    children: tuple[tuple[str, ...] | None, ...]
    zxid: int


class Columns(msgspec.Struct, frozen=True):
    """Many znodes holding JSON, with no object made for each: `json` is one JSON array with an element for each
    path in order (`null` where there is no node or it holds nothing), `versions` their versions and `mzxids` the
    transactions that wrote them last (both -1 where there is no node). `ends` says where in `json` each element ends,
    so that one that is no JSON costs only itself."""

    json: bytes
    versions: npt.NDArray[np.int32]
    mzxids: npt.NDArray[np.int64]
    zxid: int
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls, datas: Sequence[bytes | None], versions: npt.NDArray[np.int32], mzxids: npt.NDArray[np.int64], zxid: int
    ) -> Columns:
        """From each znode's data (None where there is no node)."""
        elements = [data or b"null" for data in datas]
        lengths = np.fromiter(map(len, elements), dtype=np.int64, count=len(elements))
        return cls(b"[" + b",".join(elements) + b"]", versions, mzxids, zxid, np.cumsum(lengths + 1))

    def pick(self, rows: npt.NDArray[np.intp]) -> Columns:
        """These rows alone, in this order."""
        ends = self.ends.tolist()
        elements = [self.json[ends[row - 1] + 1 if row else 1 : ends[row]] for row in rows.tolist()]
        return Columns.of(elements, self.versions[rows], self.mzxids[rows], self.zxid)

    @classmethod
    def of_rows(cls, rows: Sequence[Znode | None], zxid: int) -> Columns:
        """From znodes that were read one by one."""
        versions = np.fromiter((-1 if row is None else row.stat.version for row in rows), np.int32, len(rows))
        mzxids = np.fromiter((-1 if row is None else row.stat.mzxid for row in rows), np.int64, len(rows))
        return cls.of([None if row is None else row.data for row in rows], versions, mzxids, zxid)


class WatchKind(enum.Enum):
    CREATED = "created"
    DELETED = "deleted"
    DATA = "data changed"
    CHILDREN = "children changed"


class WatchEvent(msgspec.Struct, frozen=True):
    kind: WatchKind
    path: str


class SessionState(enum.Enum):
    """The states that a connection reports.

    CONNECTED is reported for each established connection, with a new session or the same one: compare `session()`. The
    end of a session is reported as EXPIRED before the CONNECTED of the next one.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


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

    def start(self) -> Future[int]:
        """Begins to connect, and goes on for as long as it takes. Answered with the first session's id."""

    def close(self) -> Future[None]:
        """Ends the session (ephemerals go at once) and answers everything pending with SessionGone. No session is
        made after (KAFKA-8121)."""

    def session(self) -> int:
        """The id of the session that requests now belong to; 0 while there is none."""

    def acknowledged_sent_ms(self) -> float:
        """When the latest request or ping of this session that has been *answered* was *sent* (`Clock.now_ms`);
        minus infinity while none was."""

    def last_zxid(self) -> int:
        """The highest zxid seen in a reply; 0 at first."""

    def read(self, paths: Sequence[str]) -> Future[ReadResult]:
        """One multi-read of data and stats. At most `BATCH` paths."""

    def read_columns(self, paths: Sequence[str]) -> Future[Columns]:
        """As `read`, for znodes that hold JSON, without an object a row. At most `LONGEST_READ` paths."""

    def children(self, paths: Sequence[str]) -> Future[Listing]:
        """One multi-read of children. At most `BATCH` paths."""

    def multi(self, operations: Sequence[Write]) -> Future[WriteResults]:
        """All or nothing. Fails with MultiFailed(index, error)."""

    def set_watches(
        self, since_zxid: int, data: Sequence[str], exists: Sequence[str], children: Sequence[str]
    ) -> Future[None]:
        """Arms one-shot watches in one request. What has changed after `since_zxid` (data: the node gone, or its
        mzxid later; exists: the node there; children: the node gone, or its pzxid later) fires at once instead."""

    def watch(self, nodes: Sequence[str], children: Sequence[str]) -> Future[None]:
        """Arms one-shot watches as of now, for nodes whether or not they exist. A children watch on a node that is
        not there is not armed. Several requests, pipelined in order with the rest."""

    def sync(self, path: str) -> Future[None]:
        """Answered when the server has caught up with the leader."""


BATCH = 500
"""Operations a request: where the gain from batching has levelled off, far below jute.maxbuffer."""
LONGEST_READ = 2_000
"""Paths of one `read_columns`, which is for znodes that are many and small. With Kafka's longest paths (300 bytes) the
request has some 600 kB, below jute.maxbuffer (1 MB); a reply has no such limit."""
