"""The errors of ZooKeeper requests, from the server or from the connection."""

from __future__ import annotations


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
