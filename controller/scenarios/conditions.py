"""The conditions of `wait` steps, over what an outside observer sees.

Each is a function of a `View` that returns None if the condition holds, and otherwise a description of what is missing,
for the message when the deadline passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controller.scenarios.host import Observation, PartitionView


@dataclass(frozen=True, slots=True)
class View:
    """The state that a condition is evaluated on.

    `since_ms`: when the wait began, or when the last fault was injected if that was later than the step before. A
    response received before that time does not count. `node`: the step's own, or None. `former`: the session that a
    broker had when it was last killed, stopped, restarted or expired. `starting`: brokers that were started, or whose
    session was expired, and that have not been registered since.
    """

    now: Observation
    since_ms: float
    running: tuple[int, ...]
    node: int | None
    other_than: tuple[int, ...]
    partitions: Mapping[tuple[str, int], PartitionView] | None
    former: Mapping[int, int] = field(default_factory=dict)
    starting: tuple[int, ...] = ()
    wanted: WantedState | None = None


@dataclass(frozen=True, slots=True)
class WantedState:
    """What `partition-state` requires of a partition; None: any leader, or any ISR."""

    topic: str
    partition: int
    leader: int | None
    isr: tuple[int, ...] | None


Missing = str | None
"""None where the condition holds, else what is missing."""


@dataclass(frozen=True, slots=True)
class Condition:
    check: Callable[[View], Missing]
    needs_node: bool = False
    needs_partitions: bool = False
    needs_topic: bool = False


def is_registered(node: int, now: Observation, former: Mapping[int, int]) -> bool:
    """Whether a broker is registered, in another session than before the last fault that ended it."""
    return now.registered.get(node, 0) not in (0, former.get(node))


def _registered(view: View) -> Missing:
    """Require a session that the broker did not have before the fault: the old session may not have expired yet, or
    the observer may not have seen its end."""
    nodes = view.running if view.node is None else (view.node,)
    absent = [node for node in nodes if not is_registered(node, view.now, view.former)]
    if not absent:
        return None
    return f"broker {absent[0]} is not registered" if view.node is not None else f"brokers {absent} are not registered"


def _gone(view: View) -> Missing:
    return f"broker {view.node} is still registered" if view.node in view.now.registered else None


def _controller(view: View) -> Missing:
    if view.now.controller == -1:
        return "there is no controller"
    if view.now.controller in view.other_than:
        return f"the controller is still {view.now.controller}"
    return None


def _brokers(view: View) -> Missing:
    """The client sees exactly the brokers that are registered, and a controller among them: so that controller has
    taken them in, and places partitions on them."""
    seen = view.now.metadata
    if seen is None or view.now.metadata_at_ms < view.since_ms:
        return "no answer to a metadata request yet"
    if seen.error:
        return f"the client's last metadata request failed: {seen.error}"
    if sorted(seen.brokers) != sorted(view.now.registered):
        return f"the client sees brokers {sorted(seen.brokers)}, registered are {sorted(view.now.registered)}"
    if seen.controller not in seen.brokers or seen.controller in view.other_than:
        return f"the client sees controller {seen.controller}"
    return None


def _metadata(view: View) -> Missing:
    """Like `brokers`, and the client sees a leader for every partition."""
    missing, seen = _brokers(view), view.now.metadata
    if missing is not None or seen is None:
        return missing
    if not seen.partitions_expected:
        return "there are no topics yet whose partitions the client could see led"
    if seen.partitions_led < seen.partitions_expected:
        return f"the client sees {seen.partitions_led} of {seen.partitions_expected} partitions led"
    return None


def _leaders(view: View) -> Missing:
    """Every partition with a registered ISR member has a registered leader."""
    live = view.now.registered
    for (topic, partition), state in sorted((view.partitions or {}).items()):
        if state.leader not in live and any(member in live for member in state.isr):
            return f"{topic}-{partition} has leader {state.leader}, ISR {list(state.isr)}, registered {sorted(live)}"
    return None


def _full_isr(view: View) -> Missing:
    """Every broker that was started is registered, and every partition's ISR has every registered replica of its
    assignment. Without the first, the next fault could take the only replica in sync."""
    if view.starting:
        return f"brokers {list(view.starting)} have been started and are not registered"
    live = view.now.registered
    for (topic, partition), state in sorted((view.partitions or {}).items()):
        outside = [replica for replica in state.assignment if replica in live and replica not in state.isr]
        if outside:
            return f"{topic}-{partition} has ISR {list(state.isr)}, without {outside} of {list(state.assignment)}"
    return None


def _partition_state(view: View) -> Missing:
    """The partition has the wanted leader, and the wanted ISR in that order."""
    wanted = view.wanted
    if wanted is None:
        return "no partition is named"
    name = f"{wanted.topic}-{wanted.partition}"
    state = (view.partitions or {}).get((wanted.topic, wanted.partition))
    if state is None:
        return f"{name} has no state"
    if wanted.leader is not None and state.leader != wanted.leader:
        return f"{name} has leader {state.leader}, expected {wanted.leader}"
    if wanted.isr is not None and tuple(state.isr) != wanted.isr:
        return f"{name} has ISR {list(state.isr)}, expected {list(wanted.isr)}"
    return None


def _failure_noticed(view: View) -> Missing:
    """No broker that was killed, stopped, restarted or expired is registered in the session that it had then."""
    lingering = sorted(node for node, session in view.former.items() if view.now.registered.get(node, 0) == session)
    return f"broker {lingering[0]} is still registered in the session that it had before" if lingering else None


MILESTONES: dict[str, Callable[[View], Missing]] = {"failure-noticed": _failure_noticed}
"""What a wait may be put off until. Right after a kill everything is still registered, and every client's answer still
complete, so that a condition such as `metadata` holds at once, before anything has happened."""


CONDITIONS: dict[str, Condition] = {
    "registered": Condition(_registered),
    "gone": Condition(_gone, needs_node=True),
    "controller": Condition(_controller),
    "brokers": Condition(_brokers),
    "metadata": Condition(_metadata),
    "leaders": Condition(_leaders, needs_partitions=True),
    "full-isr": Condition(_full_isr, needs_partitions=True),
    "partition-state": Condition(_partition_state, needs_partitions=True, needs_topic=True),
}
