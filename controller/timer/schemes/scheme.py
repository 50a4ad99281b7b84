"""What a timer scheme does, as Varghese and Lauck put it: START_TIMER, STOP_TIMER, PER_TICK_BOOKKEEPING and
EXPIRY_PROCESSING ("Hashed and Hierarchical Timing Wheels", 1987 and 1997).

Time is a count of ticks that moves when `tick` is called. A scheme holds no lock and reads no clock.

A tick has two halves. The bookkeeping gathers every timer that is due in one list; then each of them is taken off that
list and its action called. So an action finds the scheme's structure whole: it may start, stop or restart any timer,
its own and its neighbours of the same tick too. Within a tick, timers expire in the order in which they were started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from controller.timer.schemes.links import Link, append, unlink


class IntervalError(ValueError):
    """An interval that a scheme can't take; `interval` in ticks."""

    def __init__(self, interval: int, message: str) -> None:
        super().__init__(message)
        self.interval = interval


class IntervalTooShort(IntervalError):
    def __init__(self, interval: int) -> None:
        super().__init__(interval, f"interval {interval}: expected 1 tick or more")


class IntervalTooLong(IntervalError):
    """Beyond the `maximum` (in ticks) of a scheme whose memory bounds its intervals."""

    def __init__(self, scheme: str, interval: int, maximum: int) -> None:
        super().__init__(interval, f"{scheme}: interval {interval} is beyond its maximum of {maximum} ticks")
        self.maximum = maximum


class TickFromAction(RuntimeError):
    """`tick` was called by an expiry action: the tick that it runs in has not ended."""

    def __init__(self, scheme: str, now_tick: int) -> None:
        super().__init__(f"{scheme}: tick called by an expiry action of tick {now_tick}")


class SchemeTimer(Link):
    """One timer of one scheme, from `start` on.

    `due_tick`: when it expires, or did, or would have. `pending`: neither expired nor stopped. `number`: how many had
    been started before. `place`: the scheme's own note (rounds left, index in a heap).
    """

    __slots__ = ("action", "due_tick", "number", "pending", "place")

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action
        self.due_tick = 0
        self.number = 0
        self.pending = False
        self.place = 0


class Scheme(ABC):
    """Subclasses keep the pending timers in a structure of their own: `_insert`, `_remove` and `_collect`."""

    def __init__(self) -> None:
        self.now_tick = 0
        self._outstanding = 0
        self._started = 0
        self._expired = Link()
        self._expiring = False

    def __len__(self) -> int:
        """Timers that are pending."""
        return self._outstanding

    def start(self, interval: int, action: Callable[[], object]) -> SchemeTimer:
        """Calls `action` once, `interval` ticks (1 or more) from now. Raises IntervalError."""
        timer = self._new(action)
        self.restart(timer, interval)
        return timer

    def stop(self, timer: SchemeTimer) -> bool:
        """True if the action was yet to come, and now won't; False if it has been called or was stopped before."""
        if not timer.pending:
            return False
        timer.pending = False
        self._outstanding -= 1
        if self._expiring and timer.due_tick == self.now_tick:
            unlink(timer)
        else:
            self._remove(timer)
        return True

    def restart(self, timer: SchemeTimer, interval: int) -> None:
        """The timer anew, `interval` ticks (1 or more) from now, whether it is pending or not. Raises IntervalError,
        and then the timer is as it was."""
        self._check(interval)
        if timer.pending:
            self.stop(timer)
        timer.due_tick = self.now_tick + interval
        timer.number = self._started
        self._started += 1
        timer.pending = True
        self._outstanding += 1
        self._insert(timer, interval)

    def tick(self) -> int:
        """One tick passes: the number of timers that expired in it.

        Raises ExceptionGroup with what actions raised, after all that were due have been called.
        """
        if self._expiring:
            raise TickFromAction(type(self).__name__, self.now_tick)
        self.now_tick += 1
        self._collect()
        return self._expire() if self._expired.next is not self._expired else 0

    def advance_to(self, tick: int) -> int:
        """Tick by tick until `now_tick` is `tick`: the number of timers that expired. As `tick`, and if that raises,
        time stands at the tick that did."""
        fired = 0
        while self.now_tick < tick:
            fired += self.tick()
        return fired

    def _expire(self) -> int:
        expired, fired = self._expired, 0
        errors: list[Exception] = []
        self._expiring = True
        try:
            # The head anew each time: the action may stop the timer that was to be next.
            while (timer := expired.next) is not expired:
                assert isinstance(timer, SchemeTimer)
                unlink(timer)
                timer.pending = False
                self._outstanding -= 1
                fired += 1
                try:
                    timer.action()
                except Exception as error:  # noqa: BLE001 - raised below, when the others have had their turn
                    errors.append(error)
        finally:
            self._expiring = False
        if errors:
            raise ExceptionGroup(f"{type(self).__name__}: actions of tick {self.now_tick}", errors)
        return fired

    def _due(self, timer: SchemeTimer) -> None:
        """For `_collect`: a timer that the structure has let go joins those that expire in this tick."""
        append(self._expired, timer)

    def _new(self, action: Callable[[], object]) -> SchemeTimer:
        return SchemeTimer(action)

    def _check(self, interval: int) -> None:
        if interval < 1:
            raise IntervalTooShort(interval)

    @abstractmethod
    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        """Takes in a timer whose `due_tick` is `interval` ticks away."""

    @abstractmethod
    def _remove(self, timer: SchemeTimer) -> None:
        """Lets go of a timer that was inserted and not collected."""

    @abstractmethod
    def _collect(self) -> None:
        """Hands every timer due at `now_tick` to `_due`, out of the structure, in the order of their numbers."""
