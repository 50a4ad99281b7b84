"""What the broker may ask of its host besides what the controller may: one request to another broker."""

from __future__ import annotations

from typing import Protocol

from controller.pending import Pending


class PeerError(Exception):
    """Another broker did not answer. Whether it got the request is not known."""


class PeerUnreachable(PeerError):
    """No connection could be made, or it broke before the answer."""


class PeerTimedOut(PeerError):
    """There was no answer in time."""


class Peers(Protocol):
    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Pending[bytes]:
        """Sends one request and answers with the response's body (after the response header). Fails with
        PeerUnreachable or PeerTimedOut. Never sent again."""
