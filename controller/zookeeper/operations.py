"""The values that go to ZooKeeper and come back: operations, stats, rows, watch events, session states."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from controller.quick import quick

ANY_VERSION = -1
"""Named where a write or check means "whatever the version is"; the version is never left out by default."""

PERM_READ, PERM_WRITE, PERM_CREATE, PERM_DELETE, PERM_ADMIN, PERM_ALL = 1, 2, 4, 8, 16, 31


@dataclass(frozen=True, slots=True)
class ACL:
    permissions: int
    scheme: str
    id: str


OPEN_ACL: tuple[ACL, ...] = (ACL(PERM_ALL, "world", "anyone"),)


@dataclass(frozen=True, slots=True)
class Create:
    """Creates a znode. `data` None and b"" are different to ZooKeeper, and both are kept. The result is the path
    as created (with its sequence number, if `sequential`). `acl` None means the connection's default ACL."""

    path: str
    data: bytes | None
    ephemeral: bool = False
    sequential: bool = False
    acl: tuple[ACL, ...] | None = None


@dataclass(frozen=True, slots=True)
class SetData:
    """The result is the new Stat."""

    path: str
    data: bytes | None
    version: int


quick(SetData)


@dataclass(frozen=True, slots=True)
class Delete:
    """The result is None."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
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


@dataclass(frozen=True, slots=True)
class Znode:
    """One znode as read."""

    path: str
    data: bytes | None
    stat: Stat


quick(Znode)

NOT_READABLE = b"(no permission to read)"
"""Stands for the data of a znode that this client may not read. No codec accepts it."""
NOT_WRITABLE = b"(no permission to write)"
"""As NOT_READABLE, for a znode that this client may not write."""
UNKNOWN_VERSION = -2
"""The version of a stand-in. No write at it succeeds."""


def stand_in(path: str, data: bytes) -> Znode:
    """A row for a znode that is there and is closed to this client; its stat is not known."""
    return Znode(path, data, Stat(0, 0, 0, 0, UNKNOWN_VERSION, 0, 0, 0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The reply to one read: a row (None where there is no node) for each path asked for, in order, all as of
    `zxid` or later."""

    rows: tuple[Znode | None, ...]
    zxid: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The reply to one listing: the children's names, sorted (None where there is no node), for each path."""

    children: tuple[tuple[str, ...] | None, ...]
    zxid: int


@dataclass(frozen=True, slots=True)
class Columns:
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
        cls,
        datas: Sequence[bytes | None],
        versions: npt.NDArray[np.int32],
        mzxids: npt.NDArray[np.int64],
        zxid: int,
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


@dataclass(frozen=True, slots=True)
class WatchEvent:
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
