"""Checkers: rules that every run must obey, each written once, whatever feeds it.

A checker receives what happened, in order. The simulator's `SafetyChecker` feeds it while the run goes on: each event
of the trace, and the states that ZooKeeper applies. `invariants.py` feeds it the merged trace of a run that has ended,
on either host. A checker calls `violated` with the invariant, the nodes that caused or show it, and a description. What
only one host can observe (the transactions of the in-memory ZooKeeper, the inside of a node) is checked there, and
remains unknown elsewhere. The numbers in docstrings are those of the list in `docs/scenarios.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from controller.trace import (
    ControllerElected,
    ControllerResigned,
    FaultInjected,
    PartitionStateWritten,
    RequestAnswered,
    RequestSent,
    StepEnded,
    StepStarted,
)
from controller.trace_records import TraceRecord

if TYPE_CHECKING:
    from controller.scenarios.host import PartitionView

Violated = Callable[[str, Sequence[int], str], None]
OnEvent = Callable[[float, int, Any], None]
"""At that time, in ms, that node recorded an event."""
NO_BROKER = -1
KEPT_ALIKE = 10_000
"""How many values that are alike are kept: writes that are known to be in order, contents of state znodes."""
Term = tuple[int, int]
"""A controller's node and epoch."""


class Checker:
    """One rule, or several over the same facts."""

    invariants: tuple[str, ...] = ()

    def __init__(self, violated: Violated) -> None:
        self._violated = violated

    def on_event(self) -> Mapping[type, OnEvent]:
        """Return the method for each type of event that the checker needs."""
        return {}

    def on_commit(self, write: StateWrite) -> None:
        """Check a partition's state that was written."""

    def died(self, node: int) -> None:
        """The broker's process has ended."""

    def at_rest(self, nodes: Collection[int]) -> None:
        """Check what must hold in the end, for the nodes that are observed and not paused."""


class RequestOrder(Checker):
    """(5) A broker answers a term's requests in the order in which they were queued for it, each with an answer of its
    kind."""

    invariants = ("requests-in-order",)

    def __init__(self, violated: Violated) -> None:
        super().__init__(violated)
        self._numbers: dict[tuple[type, int, int, int], int] = {}
        self._asked: dict[tuple[int, int, int, int], str] = {}

    def on_event(self) -> Mapping[type, OnEvent]:
        return {ControllerElected: self._elected, RequestSent: self._sent, RequestAnswered: self._answered}

    def _elected(self, at_ms: float, node: int, event: ControllerElected) -> None:
        """An epoch that was lowered by hand comes again: what is known of the earlier term does not apply to it."""
        epoch = event.controller_epoch
        self._numbers = {key: last for key, last in self._numbers.items() if key[1:3] != (node, epoch)}
        self._asked = {key: api for key, api in self._asked.items() if key[:2] != (node, epoch)}

    def _sent(self, at_ms: float, node: int, event: RequestSent) -> None:
        self._in_order(node, event)
        self._asked[node, event.controller_epoch, event.to_broker, event.sequence] = event.api

    def _answered(self, at_ms: float, node: int, event: RequestAnswered) -> None:
        self._in_order(node, event)
        api = self._asked.pop((node, event.controller_epoch, event.to_broker, event.sequence), event.api)
        if api != event.api:
            self._violated(
                "requests-in-order",
                [node, event.to_broker],
                f"request number {event.sequence} was {api}, and the answer in its turn is to {event.api}",
            )

    def _in_order(self, node: int, event: RequestSent | RequestAnswered) -> None:
        key = (type(event), node, event.controller_epoch, event.to_broker)
        last = self._numbers.get(key, -1)
        if event.sequence <= last:
            self._violated(
                "requests-in-order",
                [node, event.to_broker],
                f"epoch {event.controller_epoch}, broker {event.to_broker}: {key[0].__name__} {event.api} number"
                f" {event.sequence} after {last}",
            )
        self._numbers[key] = event.sequence


class TermEnds(Checker):
    """(1) A term that was resigned writes and sends nothing more; a term that another followed was resigned, with a
    reason, unless its process ended in it."""

    invariants = ("no-write-after-resignation", "old-terms-resigned")

    def __init__(self, violated: Violated) -> None:
        super().__init__(violated)
        self._sessions: dict[Term, int] = {}
        self._latest = 0
        self._ended: dict[Term, str] = {}  # why
        self._silent: set[Term] = set()  # resigned without a reason; asked whether it holds a term, never walked

    def on_event(self) -> Mapping[type, OnEvent]:
        return {
            ControllerElected: self._elected,
            ControllerResigned: self._resigned,
            RequestSent: self._acted,
            PartitionStateWritten: self._acted,
        }

    def died(self, node: int) -> None:
        for term in self._sessions:
            if term[0] == node:
                self._ended.setdefault(term, "its process ended")
                self._silent.discard(term)

    def open_terms(self) -> Iterator[tuple[Term, int]]:
        """Yield each term that has not ended, and its session."""
        return (
            (term, session)
            for term, session in self._sessions.items()
            if term not in self._ended or term in self._silent
        )

    def session(self, term: Term) -> int:
        """Return the session of a term, 0 if it is not known."""
        return self._sessions.get(term, 0)

    def _elected(self, at_ms: float, node: int, event: ControllerElected) -> None:
        term = (node, event.controller_epoch)
        self._latest = event.controller_epoch
        self._sessions[term] = event.session
        self._ended.pop(term, None)  # an epoch that was lowered by hand comes again
        self._silent.discard(term)

    def _resigned(self, at_ms: float, node: int, event: ControllerResigned) -> None:
        term = (node, event.controller_epoch)
        self._ended[term] = f"resigned at {at_ms:.1f} ms: {event.reason or 'without a reason'}"
        if not event.reason:
            self._silent.add(term)

    def _acted(self, at_ms: float, node: int, event: RequestSent | PartitionStateWritten) -> None:
        term = (node, event.controller_epoch)
        if term in self._ended:
            what = event.api if isinstance(event, RequestSent) else "a partition's state"
            detail = f"{node}: {what} in epoch {term[1]} at {at_ms:.1f} ms: {self._ended[term]}"
            self._violated("no-write-after-resignation", [node], detail)

    def unresigned(self, nodes: Collection[int], latest: int) -> Iterator[tuple[int, str]]:
        """Yield the nodes of terms that have not ended, except for the latest, with a description."""
        for (node, epoch), _ in self.open_terms():
            if node in nodes and epoch != latest:
                yield node, f"epoch {epoch} was never resigned"

    def at_rest(self, nodes: Collection[int]) -> None:
        if self._sessions:
            for node, problem in self.unresigned(nodes, self._latest):
                self._violated("old-terms-resigned", [node], f"{problem} by broker {node}")


class StateView(Protocol):
    """What the checkers need of a partition's state, as a znode or an event of the trace has it."""

    @property
    def leader(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def isr(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class StateWrite:
    """A state of a partition that a node wrote over the last one of the same incarnation.

    `assignment`: None if it is unknown. `clean`: leaders come only from the last ISR. `why`: the reason of the write,
    if it is known: then only a change of the ISR may leave the leader epoch as it is.
    """

    where: str
    node: int
    state: StateView
    last: StateView | None
    assignment: Sequence[int] | None
    clean: bool = False
    why: str | None = None


def _empty_isr(write: StateWrite) -> str | None:
    isr = write.state.isr
    return None if isr and len(set(isr)) == len(isr) else f"the ISR is {list(isr) or 'empty'}"


def _leader_outside_isr(write: StateWrite) -> str | None:
    state = write.state
    if state.leader == NO_BROKER or state.leader in state.isr:
        return None
    return f"leader {state.leader} is not in the ISR {list(state.isr)}"


def _isr_outside_assignment(write: StateWrite) -> str | None:
    if write.assignment is None or set(write.state.isr).issubset(write.assignment):
        return None
    return f"the ISR {list(write.state.isr)} is not within the assignment {list(write.assignment)}"


def _leader_epoch_back(write: StateWrite) -> str | None:
    if write.last is None:
        return None
    grown = write.state.leader_epoch - write.last.leader_epoch
    if grown > 0 or (grown == 0 and write.why in (None, "alter isr")):
        return None
    return f"leader epoch {write.state.leader_epoch} after {write.last.leader_epoch}"


def _two_leaders(write: StateWrite) -> str | None:
    state, last = write.state, write.last
    if last is None or state.leader == last.leader or state.leader_epoch > last.leader_epoch:
        return None
    return f"leader {state.leader} after {last.leader}, both in leader epoch {state.leader_epoch}"


def _unclean_leader(write: StateWrite) -> str | None:
    state, last = write.state, write.last
    if not write.clean or last is None or state.leader in (NO_BROKER, last.leader) or state.leader in last.isr:
        return None
    return f"leader {state.leader} was elected from outside the ISR {list(last.isr)}"


UNCLEAN_LEADER = "a leader from outside the ISR"
STATE_RULES: Mapping[str, Callable[[StateWrite], str | None]] = {
    "an empty ISR": _empty_isr,
    "a leader outside its ISR": _leader_outside_isr,
    "an ISR outside the assignment": _isr_outside_assignment,
    "a leader epoch that went back": _leader_epoch_back,
    "two leaders in a leader epoch": _two_leaders,
    UNCLEAN_LEADER: _unclean_leader,
}
"""(2) What must not be written, and a function that describes it, or returns None."""


class StateSoundness(Checker):
    """(2) Leader epochs only grow; a leader is in the ISR, or -1 with an ISR that is not empty; the ISR is within the
    assignment (`STATE_RULES`)."""

    invariants = ("partition-states-sound",)

    def on_commit(self, write: StateWrite) -> None:
        for rule in STATE_RULES.values():
            problem = rule(write)
            if problem is not None:
                self._violated("partition-states-sound", [write.node], f"{write.where}: {problem}")


TWO_WRITERS = "two writers in a controller epoch"
CONTROLLER_EPOCH_BACK = "a controller epoch that did not grow"


class EpochWriters:
    """(1) An epoch is won once, epochs only grow, and only the node that won one writes in it.

    By what nodes recorded. The simulator checks the same by the sessions of ZooKeeper's transactions, which also tell
    an epoch that was edited by hand (`SafetyChecker._committed`). `complete`: every election is recorded; otherwise the
    first node that writes in an epoch is taken for its winner.
    """

    def __init__(self, *, complete: bool) -> None:
        self._complete = complete
        self._owners: dict[int, int] = {}
        self._highest: int | None = None

    def elected(self, node: int, epoch: int) -> Iterator[tuple[str, str]]:
        """Yield what an election violates: the rule, and a description."""
        owner = self._owners.setdefault(epoch, node)
        if owner != node:
            yield TWO_WRITERS, f"epoch {epoch} won by {owner} and by {node}"
        if self._highest is not None and epoch <= self._highest:
            yield CONTROLLER_EPOCH_BACK, f"epoch {epoch} won after epoch {self._highest}, by {node}"
        self._highest = epoch if self._highest is None else max(self._highest, epoch)

    def wrote(self, node: int, epoch: int) -> str | None:
        """Return what a write in an epoch violates (`TWO_WRITERS`), described."""
        owner = self._owners.get(epoch)
        if owner is None and not self._complete:
            self._owners[epoch] = owner = node
        if owner == node:
            return None
        return f"written by {node} in epoch {epoch}, which was won by {'no controller' if owner is None else owner}"


ELECTIONS_FROM_ISR = ("offline", "controlled shutdown", "reassigned", "preferred")


class ElectionOrder(Checker):
    """(2) The elected leader is the first replica of the assignment that is live and in the ISR before the election
    (a new partition: the first live one; an unclean election: the first live one, when no live replica is in the ISR).
    A filtered ISR keeps its order."""

    invariants = ("leaders-in-assignment-order",)

    def __init__(self, violated: Violated) -> None:
        super().__init__(violated)
        self._in_order: set[object] = set()  # asked whether it holds a write, never walked

    def on_event(self) -> Mapping[type, OnEvent]:
        return {PartitionStateWritten: self._written}

    def _written(self, at_ms: float, node: int, event: PartitionStateWritten) -> None:
        seen = (event.why, event.leader, event.isr, event.assignment, event.previous_isr, event.live, event.unclean)
        if seen in self._in_order:
            return
        problems = list(election_errors(event))
        for problem in problems:
            self._violated("leaders-in-assignment-order", [node], problem)
        if not problems:
            if len(self._in_order) >= KEPT_ALIKE:
                self._in_order.clear()
            self._in_order.add(seen)


def election_errors(state: PartitionStateWritten) -> Iterator[str]:
    """Yield the errors of one write: in the choice of the leader, and in the ISR."""
    where = f"{state.topic}-{state.partition} ({state.why})"
    expected = _rightful(state)
    if expected is not None and state.leader != expected:
        yield (
            f"{where}: elected {state.leader}, expected {expected}: assignment"
            f" {list(state.assignment)}, ISR {list(state.previous_isr)}, live {list(state.live)}"
        )
    in_sync = [replica for replica in state.assignment if replica in state.live and replica in state.previous_isr]
    if state.unclean and in_sync:
        yield f"{where}: an unclean election, and {in_sync} live and are in sync"
    if state.why in (*ELECTIONS_FROM_ISR, "replica offline") and not state.unclean:
        kept = [member for member in state.previous_isr if member in state.isr]
        if kept != list(state.isr):
            yield f"{where}: ISR {list(state.isr)} from {list(state.previous_isr)}: expected its order kept"


def _rightful(state: PartitionStateWritten) -> int | None:
    """Return the broker that must lead after this write, or None if the write was not an election."""
    if state.why not in (*ELECTIONS_FROM_ISR, "initial"):
        return None
    live = [replica for replica in state.assignment if replica in state.live]
    if state.why == "initial" or state.unclean:
        return live[0] if live else NO_BROKER
    return next((replica for replica in live if replica in state.previous_isr), NO_BROKER)


# -- a merged trace, after the run

Key = tuple[str, int]
"""A topic and the number of a partition."""
V = TypeVar("V")


def metadata_differences(shown: Mapping[Key, V], held: Mapping[Key, V]) -> Iterator[str]:
    """(7) Yield the partitions whose state in a broker's metadata is not the one that ZooKeeper holds.

    A value is what the host can observe of a state, in a form in which states that agree are equal.
    """
    for key in sorted(shown.keys() | held.keys()):
        if shown.get(key) != held.get(key):
            yield f"{key[0]}-{key[1]}: it shows {_said(shown.get(key))}, ZooKeeper {_said(held.get(key))}"


def _said(value: object) -> str:
    return "nothing" if value is None else str(value)


def leaderless(held: Mapping[Key, PartitionView], serves: Callable[[int, str, int], bool]) -> Iterator[str]:
    """(8) Yield the partitions that have no live leader, though a live replica is in the ISR.

    `serves` returns whether a broker is live and its replica of a partition can be used.
    """
    for (topic, partition), state in held.items():
        if serves(state.leader, topic, partition):
            continue
        able = [one for one in state.assignment if one in state.isr and serves(one, topic, partition)]
        if able:
            rightful = f"{able[0]} is live and in the ISR {list(state.isr)}"
            yield f"{topic}-{partition}: leader {state.leader}, though {rightful}"


def feed(checker: Checker, records: Sequence[TraceRecord]) -> None:
    """Feed a checker with a merged trace, by time; states by the versions of their znodes.

    A broker dies by a fault; what it recorded by its own clock is in its own order. The fault is recorded before the
    signal is sent, and a real process runs until the signal reaches it: it is dead when the fault's step ends.
    """
    handlers = checker.on_event()
    nodes: dict[int, None] = {}
    paused: set[int] = set()  # asked whether it holds a node, never walked
    in_a_step, dying = False, list[int]()
    for at_ms, node, event in records:
        nodes[node] = None
        handler = handlers.get(type(event))
        if handler is not None:
            handler(at_ms, node, event)
        if isinstance(event, FaultInjected) and event.target.isdigit():
            target = int(event.target)
            dying += [target] if event.fault in ("kill", "restart") else []
            paused = paused | {target} if event.fault == "pause" else paused - {target}
        in_a_step = isinstance(event, StepStarted) or (in_a_step and not isinstance(event, StepEnded))
        while dying and not in_a_step:
            checker.died(dying.pop(0))
    for target in dying:
        checker.died(target)
    for write in _state_writes(records):
        checker.on_commit(write)
    checker.at_rest([node for node in nodes if node not in paused])


def histories(records: Sequence[TraceRecord]) -> Iterator[list[tuple[int, PartitionStateWritten]]]:
    """Yield the states of each incarnation of a partition with the nodes that wrote them, by the znode's version."""
    found: dict[tuple[str, int], list[list[tuple[int, PartitionStateWritten]]]] = {}
    for _, node, event in records:
        if isinstance(event, PartitionStateWritten):
            incarnations = found.setdefault((event.topic, event.partition), [])
            if event.why == "initial" or not incarnations:
                incarnations.append([])
            incarnations[-1].append((node, event))
    for incarnations in found.values():
        for states in incarnations:
            yield sorted(states, key=lambda each: each[1].zk_version)


def _state_writes(records: Sequence[TraceRecord]) -> Iterator[StateWrite]:
    for states in histories(records):
        pairs = [(None, states[0]), *pairwise(states)]
        for last, (node, state) in pairs:
            where = f"{state.topic}-{state.partition} version {state.zk_version} ({state.why})"
            before = None if last is None else last[1]
            yield StateWrite(where, node, state, before, state.assignment, why=state.why)
