"""What the broker may ask of its host besides what the controller may: requests to other brokers, and long work."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias

from controller.clock import Future
from controller.core.channels import PeerConnection

OffLoop: TypeAlias = Callable[[Generator[int, None, None], Callable[[Exception | None], None]], None]
"""(work, then): does long work away from where requests are handled, and calls `then` there once it is done, with what
the work raised. The work is a generator; before each piece it yields an estimate of the microseconds the piece takes.
It must not touch what the broker changes."""


def at_once(work: Generator[int, None, None], then: Callable[[Exception | None], None]) -> None:
    """An OffLoop that does the work here and now, for a simulator and for tests."""
    for _ in work:
        pass
    then(None)


class Peers(Protocol):
    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Future[bytes]:
        """Sends one request and answers with the response's body (after the response header). Fails with
        PeerUnreachable or PeerTimedOut. Never sent again."""

    def connect(self, host: str, port: int, client_id: str | None = None) -> PeerConnection:
        """Sends nothing yet. `client_id`: what the requests are signed with, the broker's id by default."""
