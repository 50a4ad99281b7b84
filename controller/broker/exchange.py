"""A request that is being answered: once, by whoever has the answer, on whichever thread that is."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TypeAlias

from controller.broker.refusals import refusal
from controller.protocol.codec import Request, encode_response_parts
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.protocol.headers import write_response_header
from controller.protocol.messages import RequestValue, ResponseValue
from controller.protocol.records import Part

Respond: TypeAlias = Callable[[Sequence[Part] | None], None]
"""Takes the parts of the response's frame, none of them where the request has no response (Produce with acks=0); None
closes the connection. May be called on any thread."""


class Exchange:
    """A request that is being answered."""

    __slots__ = ("_note", "_respond", "_value", "answered", "header", "listener")

    def __init__(self, request: Request, respond: Respond, listener: str, note: Callable[[str, str], None]) -> None:
        self.header = request.header
        self.listener = listener
        self.answered = False
        self._value = request.value
        self._respond = respond
        self._note = note

    def answer(self, value: ResponseValue) -> None:
        """Exactly once; RuntimeError for a second answer. A value that can't be encoded is a fault of its maker's,
        who may be the controller on its own thread: told here, where the request is known, and answered as such."""
        self._take_turn()
        try:
            parts: Sequence[Part] | None = encode_response_parts(self.header, value)
        except ProtocolError:
            self._note("error", f"{self.header.api_key.name}: no answer was {value!r}\n{traceback.format_exc()}")
            parts = self._refused()
        self._respond(parts)

    __call__ = answer

    def let_go(self, instead: RequestValue) -> None:
        """The request is not held while it waits for its answer. `instead`: one of its kind, of whose refusal as much
        would be true."""
        self._value = instead

    def answer_body(self, body: bytes) -> None:
        """In place of `answer`: what follows the response's header, encoded already."""
        self._take_turn()
        header = self.header
        self._respond([write_response_header(header.api_key, header.api_version, header.correlation_id), body])

    def answer_nothing(self) -> None:
        """In place of `answer`, to a request that has no response."""
        self._take_turn()
        self._respond(())

    def close(self) -> None:
        """In place of `answer`: closes the connection, which tells a client that it has to ask anew who leads."""
        self._take_turn()
        self._respond(None)

    def _take_turn(self) -> None:
        if self.answered:
            raise RuntimeError(f"{self.header}: answered twice")
        self.answered = True

    def _refused(self) -> Sequence[Part] | None:
        """None, which closes the connection, if what was asked can't even be refused in its version."""
        try:
            return encode_response_parts(self.header, refusal(self._value, ErrorCode.UNKNOWN_SERVER_ERROR))
        except ProtocolError:
            return None
