"""Count the responses to each request of a broker: every request has exactly one, in time.

This check sits between a listener and the broker. The broker's own guard raises at a second response; this one also
works where that guard is defective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.broker.exchange import Respond
from controller.clock import Clock
from controller.protocol.api_keys import ApiKey
from controller.protocol.records import Part
from controller.simulator.network import Frame
from controller.simulator.server import Receiver


@dataclass(frozen=True, slots=True)
class Unanswered:
    api: str
    waiting_ms: float


class _Awaited:
    """A request that was not answered yet, called with the answer."""

    __slots__ = ("_answers", "_head", "_respond", "at_ms")

    def __init__(self, answers: Answers, head: bytes, at_ms: float, respond: Respond) -> None:
        self._answers = answers
        self._head = head
        self._respond = respond
        self.at_ms = at_ms

    @property
    def api(self) -> str:
        name = _NAMES.get(self._head)
        return f"API {int.from_bytes(self._head, 'big', signed=True)}" if name is None else name

    def __call__(self, parts: Sequence[Part] | None) -> None:
        if self._answers.is_first_to(self):
            self._respond(parts)


class Answers:
    """`twice` is called with a request that was answered a second time; the second response is dropped."""

    def __init__(self, receiver: Receiver, clock: Clock, twice: Callable[[str], None]) -> None:
        self._receiver = receiver
        self._clock = clock
        self._twice = twice
        self._waiting: dict[_Awaited, None] = {}

    def __len__(self) -> int:
        """How many requests wait for their answer."""
        return len(self._waiting)

    def receive(self, frame: Frame, respond: Respond) -> None:
        head = frame if isinstance(frame, bytes) else frame.head
        awaited = _Awaited(self, head[:2], self._clock.now_ms(), respond)
        self._waiting[awaited] = None
        self._receiver.receive(frame, awaited)

    def is_first_to(self, awaited: _Awaited) -> bool:
        """Whether it was not answered yet; it is from now on."""
        if awaited in self._waiting:
            del self._waiting[awaited]
            return True
        self._twice(f"a request {awaited.api} was answered twice")
        return False

    def unanswered(self) -> list[Unanswered]:
        """What waits for its answer now, the oldest first."""
        now_ms = self._clock.now_ms()
        return [Unanswered(awaited.api, now_ms - awaited.at_ms) for awaited in self._waiting]


_NAMES = {key.to_bytes(2, "big", signed=True): key.name for key in ApiKey}
