"""A request that is being answered: once, by whoever has the answer, on whichever thread that is."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeAlias

from controller.broker.refusals import refusal
from controller.protocol.codec import Request, encode_response
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.protocol.messages import ResponseValue

Respond: TypeAlias = Callable[[bytes | None], None]
"""Takes the response's frame; None closes the connection. May be called on any thread."""


class Exchange:
    """A request that is being answered."""

    __slots__ = ("_note", "_request", "_respond", "answered", "header", "listener")

    def __init__(self, request: Request, respond: Respond, listener: str, note: Callable[[str, str], None]) -> None:
        self.header = request.header
        self.listener = listener
        self.answered = False
        self._request = request
        self._respond = respond
        self._note = note

    def answer(self, value: ResponseValue) -> None:
        """Exactly once; RuntimeError for a second answer. A value that can't be encoded is a fault of its maker's,
        who may be the controller on its own thread: told here, where the request is known, and answered as such."""
        if self.answered:
            raise RuntimeError(f"{self.header}: answered twice")
        self.answered = True
        try:
            frame: bytes | None = encode_response(self.header, value)
        except ProtocolError:
            self._note("error", f"{self.header.api_key.name}: no answer was {value!r}\n{traceback.format_exc()}")
            frame = self._refused()
        self._respond(frame)

    def _refused(self) -> bytes | None:
        """None, which closes the connection, if what was asked can't even be refused in its version."""
        try:
            return encode_response(self.header, refusal(self._request.value, ErrorCode.UNKNOWN_SERVER_ERROR))
        except ProtocolError:
            return None
