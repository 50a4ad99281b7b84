"""What a timeline shows, as values: lanes of spans, controller terms, marks. No trace, no picture.

`timeline.py` makes them from a trace, `timeline_svg.py` draws them. Times are milliseconds from the scenario's start;
a span that had not ended ends with the run, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from controller.scenarios.host_stalls import HostStall


class Life(Enum):
    """What a process was doing. A time in no span: it did not run."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    RESTARTING = "restarting"


@dataclass(frozen=True, slots=True)
class LifeSpan:
    from_ms: float
    to_ms: float
    state: Life


@dataclass(frozen=True, slots=True)
class Registration:
    """The time for which /brokers/ids/N was seen; `broker_epoch` None where the broker never said it."""

    from_ms: float
    to_ms: float
    broker_epoch: int | None
    ended: bool


@dataclass(frozen=True, slots=True)
class SessionSpan:
    """A ZooKeeper session as ZooKeeper had it. `believed_until_ms` is later than `to_ms` where the broker went on
    for longer, paused or cut off, without knowing that the session was over."""

    session: int
    from_ms: float
    to_ms: float
    ended: bool
    believed_until_ms: float
    registrations: tuple[Registration, ...]


@dataclass(frozen=True, slots=True)
class CutSpan:
    link: str
    from_ms: float
    to_ms: float
    healed: bool


@dataclass(frozen=True, slots=True)
class Lane:
    """One broker, or another process that was the target of a fault (`broker` None, `name` as in the fault)."""

    name: str
    broker: int | None
    life: tuple[LifeSpan, ...]
    sessions: tuple[SessionSpan, ...]
    cuts: tuple[CutSpan, ...]


@dataclass(frozen=True, slots=True)
class FaultMark:
    """`lane`: the name of the one that it stands on, "" for a fault of no process; a cut or heal stands on the lane
    that opens the link. `crosses`: its time is marked on all rows."""

    at_ms: float
    fault: str
    target: str
    lane: str

    @property
    def crosses(self) -> bool:
        return self.lane != "" and self.fault != "end"


@dataclass(frozen=True, slots=True)
class ErrorMark:
    """A step that failed (`lane` None), or an error that a broker noted."""

    at_ms: float
    lane: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    from_ms: float
    to_ms: float
    items: int


@dataclass(frozen=True, slots=True)
class Term:
    """A controller's term as its holder had it. `backed_until_ms` is earlier than `to_ms` where /controller was gone
    before the holder knew: a zombie's time. `ending` in words; `completed_at_ms`: when its failover was through."""

    controller_epoch: int
    broker: int
    from_ms: float
    to_ms: float
    ending: str
    backed_until_ms: float
    phases: tuple[Phase, ...]
    completed_at_ms: float | None


@dataclass(frozen=True, slots=True)
class Holder:
    """The broker that /controller named, and for how long. At a time in no span there was no controller."""

    broker: int
    from_ms: float
    to_ms: float


@dataclass(frozen=True, slots=True)
class Election:
    """Leaders elected in one go: for one reason, in one epoch, all clean or all unclean. `leaders`: broker and how
    many partitions it got, in broker order."""

    from_ms: float
    to_ms: float
    why: str
    controller_epoch: int
    unclean: bool
    leaders: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        return sum(count for _, count in self.leaders)


@dataclass(frozen=True, slots=True)
class OfflinePoint:
    """From `at_ms` on, `offline` of `partitions` had no leader that was registered."""

    at_ms: float
    offline: int
    partitions: int


class ClientView(Enum):
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class ClientSpan:
    """Answers of one kind in a row. `least_led` of `expected`: the worst of them; `error`: the last one's."""

    from_ms: float
    to_ms: float
    view: ClientView
    answers: int
    least_led: int
    expected: int
    error: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything by time; `lanes` brokers first, by id. `disputed_epochs`: claimed by more than one term."""

    duration_ms: float
    lanes: tuple[Lane, ...]
    terms: tuple[Term, ...]
    disputed_epochs: tuple[int, ...]
    holders: tuple[Holder, ...]
    faults: tuple[FaultMark, ...]
    errors: tuple[ErrorMark, ...]
    elections: tuple[Election, ...]
    offline: tuple[OfflinePoint, ...]
    client: tuple[ClientSpan, ...]
    standstills: tuple[HostStall, ...] = ()

    def offline_at(self, at_ms: float) -> int:
        """How many partitions were offline at a moment."""
        return next((point.offline for point in reversed(self.offline) if point.at_ms <= at_ms), 0)
