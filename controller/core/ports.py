"""The ports of the controller besides ZooKeeper: channels to brokers, and an event sink.

The controller's handlers are coroutines over these ports and over `controller.zookeeper.client.ZooKeeperClient`; each
host implements them. Nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controller.pending import Pending


class Resign(BaseException):
    """Thrown by the host into the handler that is running, at its current await, when its term is void: the lease
    ran out or the session ended. Not an Exception, so that no handler's `except Exception` holds it up."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one broker incarnation, which `broker_epoch` (its registration's czxid) identifies."""

    broker: int
    broker_epoch: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One request of the controller to one broker.

    On the wire the request header is followed by `body` and then `rest`. `rest` is one object that all brokers share
    where they are sent the same content: the sender must not keep a copy of it.

    `response_event` turns the response's body (after the response header) into the event to queue; None: no event.
    It runs on the channel's thread and must only decode.
    """

    api_key: int
    api_version: int
    body: bytes
    response_event: Callable[[bytes], Any] | None = None
    rest: bytes = b""


class PeerError(Exception):
    """Another broker did not answer. Whether it got the request is not known."""


class PeerUnreachable(PeerError):
    """No connection could be made, or it broke before the answer."""


class PeerTimedOut(PeerError):
    """There was no answer in time."""


class PeerConnection(Protocol):
    """A lasting connection to a broker, for one request at a time. It is opened with the first request. After an error
    it is closed, and every request fails: a new connection is needed."""

    def request(self, api_key: int, api_version: int, body: bytes, timeout_ms: float) -> Pending[bytes]:
        """Answers with the response's body (after the response header). Fails with PeerUnreachable or PeerTimedOut;
        the time for opening counts. RuntimeError while another request is unanswered."""

    def close(self) -> None:
        """Close; unanswered requests fail with PeerUnreachable, perhaps only after this has returned. Idempotent."""


class ChannelConnection(Protocol):
    """A `PeerConnection` that is opened before the first request, whose requests may have two parts."""

    def open(self, timeout_ms: float) -> Pending[None]:
        """Answered once it is open. Fails with PeerUnreachable, also when it takes too long."""

    def request(
        self, api_key: int, api_version: int, body: bytes, timeout_ms: float, rest: bytes = b""
    ) -> Pending[bytes]:
        """As `PeerConnection.request`; `rest` follows `body` and is not copied where it is long."""

    def close(self) -> None: ...


class Channels(Protocol):
    """One ordered channel to each broker: a request is answered before the next is sent, and sent again, in its
    place, over a new connection when the old one broke (KAFKA-1738). Requests to a broker that can't be reached
    wait until it is announced no more."""

    def announce(self, brokers: Sequence[Endpoint]) -> None:
        """Set the current brokers. A channel to a broker incarnation that is not among them is closed and its queue
        dropped; the other channels keep their queues."""

    def send(self, broker: int, request: ControlRequest) -> None:
        """Queue a request. Raises KeyError if the broker was not announced."""

    def close(self) -> None:
        """End the term's channels: drop queued requests and close all connections; no response becomes an event."""


class EventSink(Protocol):
    def put(self, event: Any) -> None:
        """Queues an event, from any thread. Equal pending events that coalesce are queued once."""


EVENT_HANDLER = (
    "events",
    "process",
    "controller",
    "controller.void_reason",
    "controller.lease_until_ms",
    "controller.resign",
)


def require_event_handler(handler: object) -> None:
    """Raise TypeError for an object that can't be driven: it names what an `EventHandler` has and this has not."""
    missing = [name for name in EVENT_HANDLER if not _has(handler, name)]
    if missing:
        raise TypeError(
            f"{type(handler).__name__} can't be driven: expected an EventHandler; it has no {', '.join(missing)}"
        )


def _has(node: object, dotted: str) -> bool:
    for name in dotted.split("."):
        if not hasattr(node, name):
            return False
        node = getattr(node, name)
    return True
