"""Brokers' lanes of a timeline, from a trace: process states, ZooKeeper sessions with registrations, and cut links.

One pass, with constant work for each record. The state in ZooKeeper comes from the observer outside the cluster, where
it saw the change. A broker's own report of the end of its session may come much later (the broker was paused or cut
off); both times are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.scenarios.timeline_model import (
    CutSpan,
    ErrorMark,
    FaultMark,
    Lane,
    Life,
    LifeSpan,
    Registration,
    SessionSpan,
)
from controller.trace import (
    BrokerRegistered,
    EphemeralSeen,
    FaultInjected,
    Noted,
    SessionEnded,
    SessionStarted,
    StepEnded,
    StepStarted,
)
from controller.trace_records import TraceRecord

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
        return tuple(_finished(name, lane, end_ms) for name, lane in order)

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


def _finished(name: str, lane: _Lane, end_ms: float) -> Lane:
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
    number: int,
    session: _Session,
    life: tuple[LifeSpan, ...],
    next_start_ms: Callable[[float], float],
    end_ms: float,
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
