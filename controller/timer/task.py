"""A task is its own list node; a bucket is the sentinel of a ring of tasks.

Nothing is allocated beside a task when it is started, and it is unlinked without a search. Who may touch the links:
the wheel, and a purgatory on a wheel, which links and unlinks as that does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

T = TypeVar("T")

COMPILED: Final = not __file__.endswith(".py")
"""Whether this is mypyc's build, which makes instances cheaply."""

if TYPE_CHECKING:
    from mypy_extensions import i64

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # only the compiler, which brings it, listens to what is said with it

    def mypyc_attr(*attrs: str, **kwattrs: object) -> Callable[[T], T]:
        return lambda cls: cls


@mypyc_attr(allow_interpreted_subclasses=True)
class TimerTask:
    """Something to be done once, later. Give it a callback, or override `run`; a timer may call a callback without
    asking `run`.

    It may be started again (on any timer) once it has run or been cancelled, and it may be in one timer at a time.
    """

    __slots__ = ("_callback", "_due_ms", "_next", "_previous")
    # Not set until the task is started: a fifth of what it costs to make one and start it. Nor is their type said in
    # `__init__`, where the interpreter would do something for it.
    _due_ms: i64
    _previous: TimerTask  # `NOWHERE` again while the task is in no timer, lest it keep its neighbour

    def __init__(self, callback: Callable[[], None] | None = None) -> None:
        self._callback = callback
        self._next: TimerTask | None = None  # None exactly while the task is in no timer

    def run(self) -> None:
        """Called once for each start that was not cancelled; the task is in no timer then, and may be started again."""
        if self._callback is not None:
            self._callback()

    @property
    def pending(self) -> bool:
        """Started, and neither run nor cancelled."""
        return self._next is not None

    @property
    def due_ms(self) -> int:
        """When it is due, on its timer's clock, before clipping to a tick; when it was, if it is pending no more.
        AttributeError before its first start."""
        return self._due_ms


NOWHERE: Final = TimerTask()
"""Before a task that is in no timer."""


@mypyc_attr(free_list_len=1)
class CallbackTask(TimerTask):
    """What a timer makes itself, for a callback. Compiled, the memory of one that is over is kept for the next."""

    __slots__ = ()


# In Python, an __init__ of its own is a third of the cost of making a task and starting it: this has object's again.
BareTask: type[CallbackTask] = (
    CallbackTask
    if COMPILED
    else type("CallbackTask", (CallbackTask,), {"__slots__": (), "__init__": object.__init__, "__module__": __name__})
)


DUE_BEFORE_ALL_MS: Final = -(1 << 62)


class Bucket(TimerTask):
    """A ring of tasks. It is due before any of them, which ends an iteration over tasks that are due together."""

    __slots__ = ("level", "queued")

    def __init__(self, level: int) -> None:
        super().__init__()
        self._previous = self
        self._next = self
        self._due_ms = DUE_BEFORE_ALL_MS
        self.level = level
        self.queued = False  # in the queue of buckets; one that holds tasks always is

    @property
    def empty(self) -> bool:
        return self._next is self

    def count(self) -> int:
        counted = 0
        task = self._next
        while task is not None and task is not self:
            counted += task.count() if isinstance(task, Bundle) else 1
            task = task._next
        return counted


IN_BUNDLE: Final = TimerTask()
"""On either side of a task that is in a timer by way of a bundle. To unlink it from there is to say that it is in no
timer, and changes nothing else."""
IN_BUNDLE._next = IN_BUNDLE._previous = IN_BUNDLE

IN_COHORT: Final = TimerTask()
"""The same, of one that is in a timer with a thread by way of a cohort, for which `controller.timer.threaded` cares.
Whether it is pending there it says itself."""
IN_COHORT._next = IN_COHORT._previous = IN_COHORT


@mypyc_attr(allow_interpreted_subclasses=True)
class Bundle(TimerTask):
    """Several tasks that are due at once, as one in a bucket; each is `IN_BUNDLE`. They run where the bundle stands, in
    their order: `VirtualTimer` alone can do that, so it may be started in no other. This one holds none."""

    __slots__ = ()

    def count(self) -> int:
        """How many there are still to be run."""
        return 0

    def fire(self, on_error: Callable[[TimerTask, Exception], None]) -> int:
        """Run the tasks and return their number. `on_error` is called for one that raised."""
        return 0
