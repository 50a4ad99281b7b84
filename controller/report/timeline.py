"""A run's timeline as values, from its trace alone: lanes, controller terms, elections, offline partitions, the client.

Each collector takes the records by time in one pass, with constant work for each, and keeps only what changed: a trace
of a hundred thousand events gives a timeline of a few hundred values. Times are milliseconds from the scenario's start;
a span that had not ended ends with the run, and says so.

The state in ZooKeeper comes from the observer outside the cluster, where it saw the change. A broker's own report of
the end of its session may come much later (the broker was paused or cut off); both times are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from controller.scenarios.host_stalls import HostStall, host_stalls_of
from controller.trace import (
    BrokerRegistered,
    ControllerElected,
    ControllerResigned,
    EphemeralSeen,
    FailoverCompleted,
    FailoverPhase,
    FaultInjected,
    MetadataSeen,
    Noted,
    PartitionMoved,
    PartitionStateWritten,
    SessionEnded,
    SessionStarted,
    StepEnded,
    StepStarted,
)
from controller.trace_records import TraceRecord


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
class TermSpan:
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
    terms: tuple[TermSpan, ...]
    disputed_epochs: tuple[int, ...]
    holders: tuple[Holder, ...]
    faults: tuple[FaultMark, ...]
    errors: tuple[ErrorMark, ...]
    elections: tuple[Election, ...]
    offline: tuple[OfflinePoint, ...]
    client: tuple[ClientSpan, ...]
    standstills: tuple[HostStall, ...] = ()


_IDS = "/brokers/ids/"

_CLOSING = (Life.STOPPING, Life.RESTARTING)
"""States in which a broker ends its session itself. It knows of that end, whichever report comes first."""


_PLANNED = re.compile(r"(?:^|\s)(?:node|source)=(\d+)(?:\s|$)")
"""The broker in the target of a plan's fault: its node, or the near end of a link."""


def struck_process(target: str) -> str | None:
    """Return the broker id, or the name of a ZooKeeper server, whose process or link a fault concerns. None for a fault
    in the cluster's state, and for an operation of an administrator."""
    near = target.partition("->")[0]
    if near.isdigit() or near.startswith("zookeeper"):
        return near
    planned = _PLANNED.search(target)
    return planned[1] if planned else None


def lane_name(target: str) -> str:
    """Broker ids and what else a fault may name, as one kind of name."""
    return f"broker {target}" if target.isdigit() else target


@dataclass(slots=True)
class _Session:
    from_ms: float
    gone_ms: float | None = None
    """When the observer saw its registration go."""
    reported_ms: float | None = None
    """When the broker itself knew that it was over."""
    registrations: list[Registration] = field(default_factory=list)
    registered_ms: float | None = None
    broker_epoch: int | None = None

    def register(self, at_ms: float) -> None:
        self.gone_ms = None
        if self.registered_ms is None:
            self.registered_ms = at_ms

    def unregister(self, at_ms: float, *, ended: bool) -> None:
        if self.registered_ms is not None:
            self.registrations.append(Registration(self.registered_ms, at_ms, self.broker_epoch, ended))
            self.registered_ms = None
        if ended:
            self.gone_ms = at_ms


@dataclass(slots=True)
class _Lane:
    broker: int | None
    state: Life | None = None
    since_ms: float = 0.0
    struck_dead: bool = False
    """Killed or stopped: a record written just before, and stamped just after, does not bring it back."""
    stopping_step: int | None = None
    life: list[LifeSpan] = field(default_factory=list)
    sessions: dict[int, _Session] = field(default_factory=dict)
    cut_ms: dict[str, float] = field(default_factory=dict)
    cuts: list[CutSpan] = field(default_factory=list)

    def become(self, state: Life | None, at_ms: float) -> None:
        if state is self.state:
            return
        if self.state is not None:
            self.life.append(LifeSpan(self.since_ms, at_ms, self.state))
        self.state, self.since_ms = state, at_ms


class Lanes:
    """Takes every record of a trace, by time; `finish` gives the lanes."""

    def __init__(self) -> None:
        self.faults: list[FaultMark] = []
        self.errors: list[ErrorMark] = []
        self._lanes: dict[str, _Lane] = {}
        self._by_node: dict[int, _Lane] = {}
        self._steps: dict[int, StepStarted] = {}
        self._step: int | None = None

    def take(self, record: TraceRecord) -> None:
        if record.node >= 0:
            lane = self._of_broker(record.node)
            if lane.state is Life.STARTING or (lane.state is None and not lane.struck_dead):
                lane.become(Life.RUNNING, record.at_ms)
        match record.event:
            case StepStarted() as step:
                self._step_started(record.at_ms, step)
            case StepEnded() as step:
                self._step_ended(record.at_ms, step)
            case FaultInjected() as fault:
                self._fault(record.at_ms, fault)
            case SessionStarted(session):
                self._session_started(record, session)
            case SessionEnded(session):
                self._session(record.node, session, record.at_ms).reported_ms = record.at_ms
            case BrokerRegistered() as event:
                self._session(event.broker, event.session, record.at_ms).broker_epoch = event.broker_epoch
            case EphemeralSeen() as seen if seen.path.startswith(_IDS):
                known = self._session(seen.broker, seen.session, record.at_ms)
                if seen.present:
                    known.register(record.at_ms)
                else:
                    known.unregister(record.at_ms, ended=True)
            case Noted("error", message):
                where = lane_name(str(record.node)) if record.node >= 0 else None
                self.errors.append(ErrorMark(record.at_ms, where, message))

    def finish(self, end_ms: float) -> tuple[Lane, ...]:
        order = sorted(self._lanes.items(), key=lambda item: (item[1].broker is None, item[1].broker or 0, item[0]))
        return tuple(_finished_lane(name, lane, end_ms) for name, lane in order)

    def _lane(self, target: str) -> _Lane:
        name = lane_name(target)
        lane = self._lanes.get(name)
        if lane is None:
            broker = int(target) if target.isdigit() else None
            lane = self._lanes[name] = _Lane(broker)
            if broker is None:
                lane.state = Life.RUNNING  # no event reports its start
        return lane

    def _of_broker(self, node: int) -> _Lane:
        lane = self._by_node.get(node)
        if lane is None:
            lane = self._by_node[node] = self._lane(str(node))
        return lane

    def _session(self, node: int, session: int, at_ms: float) -> _Session:
        return self._of_broker(node).sessions.setdefault(session, _Session(at_ms))

    def _session_started(self, record: TraceRecord, session: int) -> None:
        lane = self._of_broker(record.node)
        lane.sessions.setdefault(session, _Session(record.at_ms))
        if lane.state in (None, Life.RESTARTING):
            lane.become(Life.RUNNING, record.at_ms)

    def _step_started(self, at_ms: float, step: StepStarted) -> None:
        self._steps[step.index] = step
        self._step = step.index
        if step.step == "start":
            # The trace has no event for a process's start but the step, which names the brokers in its text.
            for node in re.findall(r"\d+", step.text):
                self._lane(node).become(Life.STARTING, at_ms)

    def _step_ended(self, at_ms: float, step: StepEnded) -> None:
        for lane in self._lanes.values():
            if lane.state is Life.STOPPING and lane.stopping_step == step.index:
                lane.struck_dead = True
                lane.become(None, at_ms)
        if not step.ok:
            started = self._steps.get(step.index)
            self.errors.append(ErrorMark(at_ms, None, f"{started.text if started else step.step}: {step.detail}"))

    def _fault(self, at_ms: float, event: FaultInjected) -> None:
        process = struck_process(event.target)
        self.faults.append(FaultMark(at_ms, event.fault, event.target, "" if process is None else lane_name(process)))
        if process is None:
            return
        lane = self._lane(process)
        match event.fault:
            case "kill":
                lane.struck_dead = True
                lane.become(None, at_ms)
            case "stop":
                lane.stopping_step = self._step
                lane.become(Life.STOPPING, at_ms)
            case "restart":
                lane.become(Life.RESTARTING, at_ms)
            case "pause":
                lane.become(Life.PAUSED, at_ms)
            case "resume" | "start":
                lane.become(Life.RUNNING, at_ms)
            case "cut" if "->" in event.target:
                lane.cut_ms.setdefault(event.target, at_ms)
            case "heal" if event.target in lane.cut_ms:
                lane.cuts.append(CutSpan(event.target, lane.cut_ms.pop(event.target), at_ms, True))


def _finished_lane(name: str, lane: _Lane, end_ms: float) -> Lane:
    lane.become(None, end_ms)
    cuts = [*lane.cuts, *(CutSpan(link, since_ms, end_ms, False) for link, since_ms in lane.cut_ms.items())]
    life = tuple(lane.life)
    starts = sorted(session.from_ms for session in lane.sessions.values())

    def next_start_ms(at_ms: float) -> float:
        return next((start_ms for start_ms in starts if start_ms > at_ms), end_ms)

    sessions = [
        _finished_session(number, session, life, next_start_ms, end_ms) for number, session in lane.sessions.items()
    ]
    return Lane(
        name,
        lane.broker,
        life,
        tuple(sorted(sessions, key=lambda session: session.from_ms)),
        tuple(sorted(cuts, key=lambda cut: cut.from_ms)),
    )


def _finished_session(
    number: int, session: _Session, life: tuple[LifeSpan, ...], next_start_ms: Callable[[float], float], end_ms: float
) -> SessionSpan:
    ends = [at_ms for at_ms in (session.gone_ms, session.reported_ms) if at_ms is not None]
    # A new session of the same broker ends this one, if no other event reported the end.
    to_ms = min(ends, default=next_start_ms(session.from_ms))
    session.unregister(to_ms, ended=bool(ends))
    believed_ms = session.reported_ms if session.reported_ms is not None else next_start_ms(session.from_ms)
    believed_ms = min(believed_ms, _process_end_ms(life, session.from_ms, end_ms))
    if any(span.state in _CLOSING and span.from_ms <= to_ms <= span.to_ms for span in life):
        believed_ms = to_ms
    return SessionSpan(
        number,
        session.from_ms,
        to_ms,
        bool(ends) or to_ms < end_ms,
        max(to_ms, believed_ms),
        tuple(session.registrations),
    )


def _process_end_ms(life: tuple[LifeSpan, ...], at_ms: float, end_ms: float) -> float:
    """Return the time when the process that ran at `at_ms` ended, or `end_ms` if its states do not show it."""
    until_ms: float | None = None
    for span in life:
        if span.state in (Life.STARTING, Life.RESTARTING) or (until_ms is not None and span.from_ms > until_ms):
            if until_ms is not None:
                break
            continue
        if span.to_ms >= at_ms or until_ms is not None:
            until_ms = span.to_ms
    return end_ms if until_ms is None else until_ms


ELECTED_FOR = ("initial", "offline", "controlled shutdown", "reassigned", "preferred")
"""Why a state is written that elects; the others keep or only take away the leader."""

TOGETHER_MS = 100.0
"""Elections of one kind closer than this are one moment, of at most LONGEST_MOMENT_MS."""

LONGEST_MOMENT_MS = 1_000.0


@dataclass(slots=True)
class _Term:
    epoch: int
    broker: int
    session: int
    from_ms: float
    to_ms: float | None = None
    ending: str = ""
    unbacked_ms: float | None = None
    completed_ms: float | None = None
    phases: list[Phase] = field(default_factory=list)


class Terms:
    """Terms and whom /controller named."""

    def __init__(self) -> None:
        self._terms: list[_Term] = []
        self._latest: dict[tuple[int, int], _Term] = {}
        self._of_broker: dict[int, _Term] = {}
        self._holders: list[Holder] = []
        self._holder: tuple[int, float] | None = None

    def take(self, record: TraceRecord) -> None:
        match record.event:
            case ControllerElected() as won:
                term = _Term(won.controller_epoch, record.node, won.session, record.at_ms)
                self._terms.append(term)
                self._latest[won.controller_epoch, record.node] = self._of_broker[record.node] = term
            case ControllerResigned(epoch, reason):
                if (ended := self._latest.get((epoch, record.node))) is not None:
                    ended.to_ms, ended.ending = record.at_ms, f"resigned: {reason}"
            case FailoverPhase(epoch, phase, duration_ms, items):
                if (running := self._latest.get((epoch, record.node))) is not None:
                    running.phases.append(Phase(phase, record.at_ms - duration_ms, record.at_ms, items))
            case FailoverCompleted(epoch):
                if (through := self._latest.get((epoch, record.node))) is not None:
                    through.completed_ms = record.at_ms
            case FaultInjected("kill" | "restart" as fault, target) if target.isdigit():
                # A soft restart resigns a little later, and then that is the end.
                leading = self._of_broker.get(int(target))
                if leading is not None and leading.to_ms is None:
                    leading.to_ms, leading.ending = record.at_ms, "killed" if fault == "kill" else "restarted"
            case EphemeralSeen("/controller") as seen:
                self._seen(record.at_ms, seen)

    def _seen(self, at_ms: float, seen: EphemeralSeen) -> None:
        if self._holder is not None:
            broker, since_ms = self._holder
            self._holders.append(Holder(broker, since_ms, at_ms))
        self._holder = (seen.broker, at_ms) if seen.present else None
        if not seen.present:
            term = self._of_broker.get(seen.broker)
            if term is not None and term.session == seen.session and term.unbacked_ms is None:
                term.unbacked_ms = at_ms

    def finish(self, end_ms: float) -> tuple[tuple[TermSpan, ...], tuple[Holder, ...]]:
        if self._holder is not None:
            broker, since_ms = self._holder
            self._holders.append(Holder(broker, since_ms, end_ms))
        return tuple(_finished_term(term, end_ms) for term in self._terms), tuple(self._holders)


def _finished_term(term: _Term, end_ms: float) -> TermSpan:
    to_ms = end_ms if term.to_ms is None else term.to_ms
    return TermSpan(
        term.epoch,
        term.broker,
        term.from_ms,
        to_ms,
        term.ending or "until the end of the run",
        to_ms if term.unbacked_ms is None else max(term.from_ms, min(to_ms, term.unbacked_ms)),
        tuple(term.phases),
        term.completed_ms,
    )


def disputed_epochs(terms: tuple[TermSpan, ...]) -> tuple[int, ...]:
    claims = Counter(term.controller_epoch for term in terms)
    return tuple(sorted(epoch for epoch, count in claims.items() if count > 1))


@dataclass(slots=True)
class _Moment:
    from_ms: float
    to_ms: float
    leaders: Counter[int] = field(default_factory=Counter)


class Elections:
    def __init__(self) -> None:
        self._open: dict[tuple[int, str, bool], _Moment] = {}
        self._done: list[Election] = []

    def take(self, record: TraceRecord) -> None:
        event = record.event
        if not isinstance(event, PartitionStateWritten) or event.why not in ELECTED_FOR or event.leader == -1:
            return
        key = (event.controller_epoch, event.why, event.unclean)
        moment = self._open.get(key)
        at_ms = record.at_ms
        if moment is None or at_ms - moment.to_ms > TOGETHER_MS or at_ms - moment.from_ms > LONGEST_MOMENT_MS:
            if moment is not None:
                self._close(key, moment)
            moment = self._open[key] = _Moment(at_ms, at_ms)
        moment.to_ms = at_ms
        moment.leaders[event.leader] += 1

    def _close(self, key: tuple[int, str, bool], moment: _Moment) -> None:
        epoch, why, unclean = key
        leaders = tuple(sorted(moment.leaders.items()))
        self._done.append(Election(moment.from_ms, moment.to_ms, why, epoch, unclean, leaders))

    def finish(self) -> tuple[Election, ...]:
        for key, moment in self._open.items():
            self._close(key, moment)
        self._open.clear()
        return tuple(sorted(self._done, key=lambda election: (election.from_ms, election.why, election.unclean)))


class Offline:
    """Counts partitions without a registered leader, by how many partitions each broker leads: a broker's coming or
    going costs one look-up, however many it leads. A broker that was never seen registered counts as there."""

    def __init__(self) -> None:
        self.points: list[OfflinePoint] = []
        self._state: dict[tuple[str, int], tuple[int, int]] = {}
        """Partition to its znode's version and leader."""
        self._led: Counter[int] = Counter()
        self._gone: set[int] = {-1}
        self._registered: dict[int, int] = {}
        self._offline = 0

    def take(self, record: TraceRecord) -> None:
        match record.event:
            case PartitionStateWritten() as written:
                self._written(written)
            case PartitionMoved(_, topic, partition, -1, _, "NonExistent"):
                _, leader = self._state.pop((topic, partition), (0, None))
                if leader is not None:
                    self._lead(leader, -1)
            case EphemeralSeen() as seen if seen.path.startswith("/brokers/ids/"):
                self._registration(seen)
            case _:
                return
        self._note(record.at_ms)

    def _written(self, event: PartitionStateWritten) -> None:
        key = (event.topic, event.partition)
        version, leader = self._state.get(key, (-1, None))
        # Version 0 of a known partition: its topic was deleted and made again.
        if event.zk_version <= version and event.zk_version != 0:
            return
        if leader is not None:
            self._lead(leader, -1)
        self._state[key] = (event.zk_version, event.leader)
        self._lead(event.leader, 1)

    def _lead(self, leader: int, change: int) -> None:
        self._led[leader] += change
        if leader in self._gone:
            self._offline += change

    def _registration(self, seen: EphemeralSeen) -> None:
        broker = seen.broker
        if seen.present:
            self._registered[broker] = seen.session
            if broker in self._gone:
                self._gone.discard(broker)
                self._offline -= self._led[broker]
        elif self._registered.get(broker, seen.session) == seen.session and broker not in self._gone:
            self._gone.add(broker)
            self._offline += self._led[broker]

    def _note(self, at_ms: float) -> None:
        point = OfflinePoint(at_ms, self._offline, len(self._state))
        last = self.points[-1] if self.points else OfflinePoint(-1.0, 0, 0)
        if (last.offline, last.partitions) == (point.offline, point.partitions):
            return
        if last.at_ms == at_ms:
            self.points[-1] = point
        else:
            self.points.append(point)


class Client:
    """An answer holds until the next one. One that failed also fills the time since the answer before it: the client
    had asked, and waited in vain."""

    def __init__(self) -> None:
        self._spans: list[ClientSpan] = []
        self._open: ClientSpan | None = None
        self._last_ms = 0.0

    def take(self, record: TraceRecord) -> None:
        seen = record.event
        if not isinstance(seen, MetadataSeen):
            return
        if seen.error:
            view = ClientView.FAILING
        elif 0 < seen.partitions_expected == seen.partitions_led:
            view = ClientView.COMPLETE
        else:
            view = ClientView.INCOMPLETE
        span, at_ms = self._open, record.at_ms
        if span is None or span.view is not view:
            from_ms = self._last_ms if span is not None and view is ClientView.FAILING else at_ms
            if span is not None:
                self._close(span, from_ms)
            self._open = ClientSpan(from_ms, at_ms, view, 1, seen.partitions_led, seen.partitions_expected, seen.error)
        else:
            least = min((span.least_led, span.expected), (seen.partitions_led, seen.partitions_expected))
            self._open = ClientSpan(span.from_ms, at_ms, view, span.answers + 1, *least, seen.error)
        self._last_ms = at_ms

    def _close(self, span: ClientSpan, to_ms: float) -> None:
        self._spans.append(
            ClientSpan(span.from_ms, to_ms, span.view, span.answers, span.least_led, span.expected, span.error)
        )

    def finish(self, end_ms: float) -> tuple[ClientSpan, ...]:
        if self._open is not None:
            self._close(self._open, end_ms)
        self._open = None
        return tuple(self._spans)


def timeline_of(records: Sequence[TraceRecord]) -> Timeline:
    """The timeline of `records`, which are by time."""
    lanes, terms, elections, offline, client = Lanes(), Terms(), Elections(), Offline(), Client()
    takers = (lanes.take, terms.take, elections.take, offline.take, client.take)
    for record in records:
        for take in takers:
            take(record)
    end_ms = max((record.at_ms for record in records), default=0.0)
    all_terms, holders = terms.finish(end_ms)
    return Timeline(
        duration_ms=end_ms,
        lanes=lanes.finish(end_ms),
        terms=all_terms,
        disputed_epochs=disputed_epochs(all_terms),
        holders=holders,
        faults=tuple(lanes.faults),
        errors=tuple(lanes.errors),
        elections=elections.finish(),
        offline=tuple(offline.points),
        client=client.finish(end_ms),
        standstills=host_stalls_of(records),
    )
