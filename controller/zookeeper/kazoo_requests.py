"""Requests of our own that go through kazoo's session: its request object and its async result in one.

kazoo sends `type` and `serialize()`, gives the reply to `deserialize` and then calls `set` or `set_exception`, all on
its connection thread. An exception out of `deserialize` would log the whole request, and one out of `set` end the
connection thread, so both hand errors on as values. Knows nothing of sessions or order; `RequestOwner` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    SessionExpiredError,
    ZookeeperError,
)

from controller.pending import Pending
from controller.zookeeper import errors

Parse = Callable[[bytes, int, int], Any]
"""(message, where its body starts, the reply's zxid) -> the result."""

NOT_FROM_THE_SERVER = (ConnectionLoss, SessionExpiredError, AuthFailedError, ConnectionClosedError)
SESSION_EXPIRED, SESSION_MOVED, UNIMPLEMENTED = -112, -118, -6

_PATH_ERRORS: dict[int, type[errors.PathError]] = {
    -8: errors.BadArguments,
    -101: errors.NoNode,
    -102: errors.NoAuth,
    -103: errors.BadVersion,
    -108: errors.NoChildrenForEphemerals,
    -110: errors.NodeExists,
    -111: errors.NotEmpty,
    -114: errors.InvalidACL,
}


class _UnlistedError(ZookeeperError):  # type: ignore[misc]
    """A server's error that kazoo does not list; meeting one it would end its connection thread."""


for _code in range(-130, 0):
    if _code not in EXCEPTIONS:
        EXCEPTIONS[_code] = type("_UnlistedError", (_UnlistedError,), {"code": _code})


def path_error(code: int, path: str) -> errors.ZooKeeperError:
    """A server's error code, about one path."""
    if code in _PATH_ERRORS:
        return _PATH_ERRORS[code](path)
    if code == UNIMPLEMENTED:
        return errors.UnsupportedOperation(f"{path}: the server does not know this request")
    return errors.ZooKeeperError(f"{path}: the server answered with error {code}")


class RequestOwner(Protocol):
    """The requests' view of the connection. Called on the connection thread."""

    def sent(self, request: KazooRequest) -> None: ...

    def reply_zxid(self) -> int:
        """The zxid of the reply that is being read."""

    def answered(self, request: KazooRequest) -> None:
        """The server has replied; `result` or `error` is set."""

    def failed(self, request: KazooRequest) -> None:
        """The connection or the session has gone; `error` is set."""


class KazooRequest:
    """One request. `path` is what it is about, for its error's sake (a batch's first)."""

    __slots__ = (
        "_body",
        "_parse",
        "claimed",
        "error",
        "owner",
        "path",
        "pending",
        "result",
        "sent_ms",
        "session",
        "type",
        "write",
    )

    def __init__(
        self,
        owner: RequestOwner,
        opcode: int,
        body: bytes,
        parse: Parse,
        *,
        path: str,
        session: int,
        write: bool = False,
    ) -> None:
        self.type = opcode
        self._body = body
        self._parse = parse
        self.owner = owner
        self.path = path
        self.session = session
        self.write = write
        self.pending: Pending[Any] = Pending()
        self.claimed = False
        self.sent_ms = 0.0
        self.result: Any = None
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<request {self.type} of {len(self._body)} bytes: {self.path}>"

    # What kazoo calls.

    def serialize(self) -> bytes:
        self.owner.sent(self)
        return self._body

    def deserialize(self, message: bytes, offset: int) -> list[Any]:
        # A list, because kazoo walks over the results of opcode 14.
        try:
            self.result = self._parse(message, offset, self.owner.reply_zxid())
        except errors.ZooKeeperError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - raising here would log the request; its awaiter gets the error
            self.error = errors.ZooKeeperError(f"{self!r}: the reply can't be read: {error!r}")
            self.error.__cause__ = error
        return []

    def set(self, _result: object) -> None:
        self.owner.answered(self)

    def set_exception(self, exception: Exception) -> None:
        code = getattr(exception, "code", None)
        if code == SESSION_EXPIRED:
            self.error = errors.SessionGone(self.session)
            self.owner.failed(self)
        elif isinstance(exception, NOT_FROM_THE_SERVER) or code is None or code == SESSION_MOVED:
            self.error = (
                errors.UnknownOutcome(f"the connection broke under {self!r}")
                if self.write
                else errors.ConnectionLost(f"the connection broke under {self!r}")
            )
            self.owner.failed(self)
        else:
            self.error = path_error(code, self.path)
            self.owner.answered(self)
