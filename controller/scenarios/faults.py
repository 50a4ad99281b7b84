"""Scenario steps for faults that only a simulated cluster can have: of links, clocks, disks and replies.

Each has the name and fields that it has in a plan (docs/swarm.md), except for the time: a step begins when the scenario
reaches it. The fault lasts for `for_ms`, or with 0 until a step `mend`; the scenario continues at once. The kinds that
both hosts support (`kill`, `cut` and so on) are in `language.py`.
"""

from __future__ import annotations

import math
from typing import Literal

from controller.scenarios.step import NodeName, Step


class InjectedFault(Step, frozen=True, kw_only=True):
    """The base of all faults."""


class _Brief(InjectedFault, frozen=True, kw_only=True):
    """Over as it happens."""


class _Lasting(InjectedFault, frozen=True, kw_only=True):
    for_ms: float = 0.0


class _Node(_Lasting, frozen=True, kw_only=True):
    node: NodeName


class _Way(_Lasting, frozen=True, kw_only=True):
    """The direction from `source` to `target`, whichever of them opened the connection."""

    source: NodeName
    target: NodeName


# -- machines


class Drift(_Node, frozen=True, kw_only=True, tag="drift"):
    """Its clock goes at `rate` times the world's pace."""

    rate: float


class StepWall(_Brief, frozen=True, kw_only=True, tag="step-wall"):
    """Its wall clock is set `by_ms` forward, or back."""

    node: NodeName
    by_ms: int


# -- the way to ZooKeeper


class CutZooKeeper(_Node, frozen=True, kw_only=True, tag="cut-zookeeper"):
    """Like `cut`, or in one direction: `way` is "both", "to" (requests) or "from" (responses and notifications)."""

    way: str = "both"


class SlowZooKeeper(_Node, frozen=True, kw_only=True, tag="slow-zookeeper"):
    slower: float


class ResetZooKeeper(_Brief, frozen=True, kw_only=True, tag="reset-zookeeper"):
    """Its connection breaks, with what was on its way."""

    node: NodeName


class LoseReply(_Brief, frozen=True, kw_only=True, tag="lose-reply"):
    """Its next write breaks the connection instead of being answered: `applied`, or not."""

    node: NodeName
    applied: bool


class DeleteController(_Brief, frozen=True, kw_only=True, tag="delete-controller"):
    """Somebody deletes /controller; its owner's session lives on."""


class Depose(_Lasting, frozen=True, kw_only=True, tag="depose"):
    """Like `delete-controller`, and the owner is paused meanwhile."""


class EditController(_Node, frozen=True, kw_only=True, tag="edit-controller"):
    """An administrator rewrites /controller: it names broker `node`, or broker -1, or holds no JSON; or a persistent
    znode that names `node` replaces it, which is deleted after `for_ms`."""

    how: Literal["another", "nobody", "garbage", "persistent"]


class EditControllerEpoch(_Lasting, frozen=True, kw_only=True, tag="edit-controller-epoch"):
    """An administrator deletes /controller_epoch, or rewrites it: with no number, a negative one, 1, 2^31-2 or 2^31-1.
    One that can't be read is deleted after `for_ms`."""

    how: Literal["deleted", "garbage", "negative", "lowered", "raised", "highest"]


class SpoilZnode(_Node, frozen=True, kw_only=True, tag="spoil-znode"):
    """A znode gets a value that decodes but is invalid. When the fault ends, it gets its former value again.

    `what`: "state" (of the partition), "registration" (of the node) or "topic" (a topic that was never created, on the
    node).
    """

    what: str
    topic: str = ""
    partition: int = 0


class ChangeRegistration(_Brief, frozen=True, kw_only=True, tag="change-registration"):
    """The broker's registration is written again with another rack, in the same session."""

    node: NodeName
    rack: str


class HostileClient(_Node, frozen=True, kw_only=True, tag="hostile-client"):
    """A client acts against the broker `rate` times a second (0 < `rate` <= 1000).

    `kind`: "requests" (well-formed and senseless), "operations" (of that sort, to the controller), "frames"
    (malformed), "connections" (opened, and nothing sent) or "drops" (many requests, and the connection closed before
    the answers).
    """

    kind: Literal["requests", "operations", "frames", "connections", "drops"]
    rate: float = 50.0


class ElectZooKeeper(_Brief, frozen=True, kw_only=True, tag="elect-zookeeper"):
    """The ensemble loses its leader and elects: no service meanwhile."""


class PauseController(_Lasting, frozen=True, kw_only=True, tag="pause-controller"):
    """The controller, whichever broker it is, must make no optional moves.

    With `for_ms` 0 the pause is permanent: it is an operator's order, and `mend` does not revoke it.
    """


# -- the network


class Shut(_Way, frozen=True, kw_only=True, tag="shut"):
    """Messages from `source` to `target` are lost; the other direction works."""


class Slow(_Way, frozen=True, kw_only=True, tag="slow"):
    slower: float
    more_ms: float = 0.0


class Lossy(_Way, frozen=True, kw_only=True, tag="lossy"):
    loss: float


class Reset(_Brief, frozen=True, kw_only=True, tag="reset"):
    """The connections that `source` opened to `target` break. With `late_ms` they break for `source` alone, and bytes
    that it had sent arrive that much later."""

    source: NodeName
    target: NodeName
    late_ms: float = 0.0


class Isolate(_Node, frozen=True, kw_only=True, tag="isolate"):
    """The links between the broker and all other brokers are cut; its link to ZooKeeper is unaffected."""


# -- disks, of brokers that hold logs


class LosePower(_Node, frozen=True, kw_only=True, tag="lose-power"):
    """Like `kill`, and the machine loses data that was not synced. The broker starts after `for_ms`, or by `start`."""


class BreakDisk(_Node, frozen=True, kw_only=True, tag="break-disk"):
    """Every change to the broker's disk fails; when the disk works again, the broker is restarted."""


class BreakLogDirectory(_Node, frozen=True, kw_only=True, tag="break-log-directory"):
    """Every change to one of the broker's log directories, as `log.dirs` names it, fails.

    When the directory works again, the broker is restarted. With `for_ms` 0 the fault is permanent; `mend` does not end
    it.
    """

    directory: str


class SlowDisk(_Node, frozen=True, kw_only=True, tag="slow-disk"):
    a_change_ms: float


class HealAll(Step, frozen=True, kw_only=True, tag="mend"):
    """Ends every lasting fault, including those of `cut` and `pause`. Dead brokers stay dead."""


SimulatedFault = (
    Drift | StepWall
    | CutZooKeeper | SlowZooKeeper | ResetZooKeeper | LoseReply | DeleteController | Depose | ElectZooKeeper
    | EditController | EditControllerEpoch
    | PauseController | SpoilZnode | ChangeRegistration | HostileClient
    | Shut | Slow | Lossy | Reset | Isolate
    | LosePower | BreakDisk | BreakLogDirectory | SlowDisk
)  # fmt: skip


def kind_of(step: Step) -> str:
    """Return the step's `do`."""
    tag = step.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def fault_error(fault: InjectedFault) -> str | None:
    """Return the error in a fault's fields, or None."""
    for name, (least, most, expected) in _RANGES.items():
        value = getattr(fault, name, None)
        if value is not None and not least <= value <= most:
            return f"{name}: expected {expected}, found {value:g}"
    if isinstance(fault, HostileClient) and fault.rate > HOSTILE_RATE_MAX:
        return f"rate: expected at most {HOSTILE_RATE_MAX:g} a second, found {fault.rate:g}"
    if isinstance(fault, CutZooKeeper) and fault.way not in ("both", "to", "from"):
        return f"way: expected both, to or from, found {fault.way!r}"
    if isinstance(fault, SpoilZnode):
        return spoil_trouble(fault.what, fault.topic)
    return None


def spoil_trouble(what: str, topic: str) -> str | None:
    """Return the error in the fields of a `spoil-znode`, or None."""
    if what not in ("state", "registration", "topic"):
        return f"what: expected state, registration or topic, found {what!r}"
    return "topic: expected a name" if what != "registration" and not topic else None


HOSTILE_RATE_MAX = 1_000.0
_ABOVE_0 = 1e-9
_RANGES = {
    "rate": (_ABOVE_0, math.inf, "more than 0"),
    "slower": (_ABOVE_0, math.inf, "more than 0"),
    "loss": (0.0, 0.999, "0 to below 1"),
    "for_ms": (0.0, math.inf, "0 or more"),
    "more_ms": (0.0, math.inf, "0 or more"),
    "late_ms": (0.0, math.inf, "0 or more"),
    "a_change_ms": (0.0, math.inf, "0 or more"),
}
