"""Trying again what is safe to try again: bounded, jittered, and in the clock's own time.

Tenacity holds the rules; the waiting goes through the clock port and the jitter comes from a seed, so that a retry
takes no wall time under a virtual clock and the same seed gives the same delays. Which requests are safe is the
caller's to say: reads, registrations and idempotent creations are, a write with an unknown outcome is not.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tenacity import AsyncRetrying, IterState, RetryCallState, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_base

from controller.backoff import backoff_ms
from controller.clock import Clock
from controller.pending import Pending

T = TypeVar("T")

FIRST_DELAY_MS = 10.0
LONGEST_DELAY_MS = 1_000.0
ATTEMPTS = 30
"""With the delays above some 20 s of trying: longer than a session outlives the last connection that it had, so that
in practice the session's end is the limit, and this one stops only a request that breaks each connection it is
sent on."""


class JitteredBackoff(wait_base):
    """Doubles from `first_ms` up to `longest_ms`; each wait is between half of that and all of it."""

    def __init__(self, rng: random.Random, first_ms: float, longest_ms: float) -> None:
        self._rng = rng
        self._first_ms = first_ms
        self._longest_ms = longest_ms

    def __call__(self, retry_state: RetryCallState) -> float:
        full_ms = backoff_ms(retry_state.attempt_number, self._first_ms, self._longest_ms)
        return full_ms * self._rng.uniform(0.5, 1.0) / 1_000.0


class OneCall(AsyncRetrying):
    """Goes on wherever it is resumed. Tenacity keeps what it knows of a call for each thread, and a coroutine of ours
    that is answered runs on, on the thread that answers: there tenacity would know nothing (KeyError: 'idle_for')."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(**rules)
        self._statistics: dict[str, Any] = {}
        self._iter_state = IterState()

    @property
    def statistics(self) -> dict[str, Any]:
        return self._statistics

    @property
    def iter_state(self) -> IterState:
        return self._iter_state


class Retrier:
    """Makes an attempt again over the named errors. One a client: the jitter's sequence is its own."""

    def __init__(self, clock: Clock, seed: int) -> None:
        self._clock = clock
        self._rng = random.Random(seed)

    async def call(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        over: tuple[type[Exception], ...],
        attempts: int = ATTEMPTS,
        first_delay_ms: float = FIRST_DELAY_MS,
        longest_delay_ms: float = LONGEST_DELAY_MS,
    ) -> T:
        """Return or raise the outcome of the first attempt that does not raise one of `over`.

        After `attempts` attempts the last one's error is raised. BaseExceptions (a resignation thrown in) end the call
        at once.
        """

        # Tenacity's objects refer to each other. The collector's pass over those of some thousand calls stops all
        # threads for 70 ms, so a call that succeeds at once makes none.
        failure: Exception | None = None
        try:
            return await attempt()
        except over as error:
            failure = error

        async def again() -> T:
            nonlocal failure
            if failure is not None:
                first, failure = failure, None
                raise first
            return await attempt()

        retrying = OneCall(
            sleep=self._sleep,
            stop=stop_after_attempt(attempts),
            wait=JitteredBackoff(self._rng, first_delay_ms, longest_delay_ms),
            retry=retry_if_exception_type(over),
            reraise=True,
        )
        result: T = await retrying(again)
        return result

    def _sleep(self, seconds: float) -> Pending[None]:
        return self._clock.sleep(seconds * 1_000.0)
