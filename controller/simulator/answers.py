"""Counts the answers to what a broker is asked: each request has one, and has it in time.

Stands between a listener and whoever answers. The broker's own guard raises at a second answer; this one holds even
where that guard is what is broken.
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


class Answers:
    """`twice` is told of a request that was answered a second time; that answer goes no further."""

    def __init__(self, receiver: Receiver, clock: Clock, twice: Callable[[str], None]) -> None:
        self._receiver = receiver
        self._clock = clock
        self._twice = twice
        self._waiting: dict[int, tuple[str, float]] = {}
        self._count = 0

    def receive(self, frame: Frame, respond: Respond) -> None:
        self._count += 1
        number, api = self._count, _api(frame)
        self._waiting[number] = (api, self._clock.now_ms())

        def answered(parts: Sequence[Part] | None) -> None:
            if self._waiting.pop(number, None) is None:
                self._twice(f"a request {api} was answered twice")
            else:
                respond(parts)

        self._receiver.receive(frame, answered)

    def unanswered(self) -> list[Unanswered]:
        """What waits for its answer now, the oldest first."""
        now_ms = self._clock.now_ms()
        return [Unanswered(api, now_ms - at_ms) for api, at_ms in self._waiting.values()]


def _api(frame: Frame) -> str:
    head = frame if isinstance(frame, bytes) else frame.head
    key = int.from_bytes(head[:2], "big", signed=True)
    try:
        return ApiKey(key).name
    except ValueError:
        return f"API {key}"
