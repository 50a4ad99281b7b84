"""What a trace says of the cluster as a whole: controller terms, elections, offline partitions, the client's view.

Each class takes the records by time, constant work a record, and keeps only what changed: a trace of a hundred
thousand events gives a timeline of a few hundred values.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from controller.scenarios.timeline_model import ClientSpan, ClientView, Election, Holder, OfflinePoint, Phase, Term
from controller.trace import (
    ControllerElected,
    ControllerResigned,
    EphemeralSeen,
    FailoverCompleted,
    FailoverPhase,
    FaultInjected,
    MetadataSeen,
    PartitionMoved,
    PartitionStateWritten,
)
from controller.trace_records import TraceRecord

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

    def finish(self, end_ms: float) -> tuple[tuple[Term, ...], tuple[Holder, ...]]:
        if self._holder is not None:
            broker, since_ms = self._holder
            self._holders.append(Holder(broker, since_ms, end_ms))
        return tuple(_finished(term, end_ms) for term in self._terms), tuple(self._holders)


def _finished(term: _Term, end_ms: float) -> Term:
    to_ms = end_ms if term.to_ms is None else term.to_ms
    return Term(
        term.epoch,
        term.broker,
        term.from_ms,
        to_ms,
        term.ending or "until the end of the run",
        to_ms if term.unbacked_ms is None else max(term.from_ms, min(to_ms, term.unbacked_ms)),
        tuple(term.phases),
        term.completed_ms,
    )


def disputed_epochs(terms: tuple[Term, ...]) -> tuple[int, ...]:
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
