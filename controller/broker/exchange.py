"""A request in progress, which is answered exactly once, from any thread."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TypeAlias

from controller.broker.refusals import refusal
from controller.broker.steps import Drive, Job, Steps, finish
from controller.protocol.codec import Request, encode_response_parts
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.protocol.headers import write_response_header
from controller.protocol.messages import RequestValue, ResponseValue
from controller.protocol.records import Part

Respond: TypeAlias = Callable[[Sequence[Part] | None], None]
"""Takes the parts of the response's frame, none of them where the request has no response (Produce with acks=0); None
closes the connection. May be called on any thread."""


class Exchange:
    """A request that is being answered. `heavy`: its answer may be large, and is encoded by a job of its own."""

    __slots__ = ("_drive", "_note", "_respond", "_value", "answered", "header", "heavy", "listener")

    def __init__(
        self,
        request: Request,
        respond: Respond,
        listener: str,
        note: Callable[[str, str], None],
        drive: Drive = finish,
        *,
        heavy: bool = False,
    ) -> None:
        self.heavy = heavy
        self._drive = drive
        self.header = request.header
        self.listener = listener
        self.answered = False
        self._value: RequestValue | None = request.value
        self._respond = respond
        self._note = note

    def answer(self, value: ResponseValue) -> None:
        """Send the answer. A value that can't be encoded is a bug of the caller, which may be the controller on its own
        thread; it is logged here, where the request is known, and answered with an error.

        Raises: RuntimeError on a second call."""
        self._take_turn()
        if self.heavy:
            self._drive(self._respond_with(value))
        else:
            self._respond(self._encoded(value))

    def answer_made(self, make: Callable[[], ResponseValue]) -> None:
        """Send the answer that `make` returns. A job may call `make`, so it may only read what does not change."""
        self._take_turn()
        if self.heavy:
            self._drive(self._respond_made(make))
        else:
            self._respond(self._made(make))

    def refuse(self, request: RequestValue, error: ErrorCode, message: str | None = None) -> None:
        """In place of `answer`: the same error for everything that was asked."""
        self.answer_made(lambda: refusal(request, error, message))

    def _respond_with(self, value: ResponseValue) -> Steps:
        self._respond((yield Job(lambda: self._encoded(value))))

    def _respond_made(self, make: Callable[[], ResponseValue]) -> Steps:
        self._respond((yield Job(lambda: self._made(make))))

    def _made(self, make: Callable[[], ResponseValue]) -> Sequence[Part] | None:
        try:
            value = make()
        except Exception:  # noqa: BLE001 - a bug in `make`, logged here, where the request is known
            self._note("error", f"{self.header.api_key.name}: no answer was made\n{traceback.format_exc()}")
            return self._refused()
        return self._encoded(value)

    def _encoded(self, value: ResponseValue) -> Sequence[Part] | None:
        try:
            return encode_response_parts(self.header, value)
        except ProtocolError:
            self._note("error", f"{self.header.api_key.name}: no answer was {value!r:.2000}\n{traceback.format_exc()}")
            return self._refused()

    __call__ = answer

    def let_go(self, instead: RequestValue | None = None) -> None:
        """The request is not held while it waits for its answer. `instead`: one of its kind, of whose refusal as much
        would be true; without it a fault in the answer closes the connection."""
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
        """Close the connection in place of an answer, so that the client looks for the leader again."""
        self._take_turn()
        self._respond(None)

    def _take_turn(self) -> None:
        if self.answered:
            raise RuntimeError(f"{self.header}: answered twice")
        self.answered = True

    def _refused(self) -> Sequence[Part] | None:
        """None, which closes the connection, if what was asked can't even be refused in its version."""
        if self._value is None:
            return None
        try:
            return encode_response_parts(self.header, refusal(self._value, ErrorCode.UNKNOWN_SERVER_ERROR))
        except ProtocolError:
            return None
