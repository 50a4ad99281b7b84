"""The simulated host: a whole cluster in one thread and virtual time, from one seed. This is its library's face.

`Simulation` builds a world, steps it and looks into it (docs/embedding.md); the happenings are what a plan file may
say. It imports neither kazoo nor any of the extras. A name is loaded when it is used: the in-process host
(`controller.testing`) uses the disk and the process of this package, and nothing else of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.scenarios.faults import (
        AddPartitions,
        AskIsr,
        BreakDisk,
        BreakLogDirectory,
        ChangeRegistration,
        CreateTopic,
        Cut,
        CutZooKeeper,
        DeleteController,
        DeleteTopic,
        Depose,
        Drift,
        EditController,
        EditControllerEpoch,
        ElectLeaders,
        ElectZooKeeper,
        Expire,
        HostileClient,
        Isolate,
        Kill,
        KillZooKeeper,
        LosePower,
        LoseReply,
        Lossy,
        Pause,
        PauseController,
        Reassign,
        Reset,
        ResetZooKeeper,
        SetConfig,
        Shut,
        Slow,
        SlowDisk,
        SlowZooKeeper,
        SpoilZnode,
        StepWall,
        Stop,
    )
    from controller.scenarios.host import PartitionView
    from controller.simulator.custom_node import CustomNode
    from controller.simulator.safety_checker import Violation
    from controller.simulator.simulation import BrokenInvariant, NotInTime, Simulation
    from controller.trace_records import TraceRecord

__all__ = [
    "AddPartitions",
    "AskIsr",
    "BreakDisk",
    "BreakLogDirectory",
    "BrokenInvariant",
    "ChangeRegistration",
    "CreateTopic",
    "CustomNode",
    "Cut",
    "CutZooKeeper",
    "DeleteController",
    "DeleteTopic",
    "Depose",
    "Drift",
    "EditController",
    "EditControllerEpoch",
    "ElectLeaders",
    "ElectZooKeeper",
    "Expire",
    "HostileClient",
    "Isolate",
    "Kill",
    "KillZooKeeper",
    "LosePower",
    "LoseReply",
    "Lossy",
    "NotInTime",
    "PartitionView",
    "Pause",
    "PauseController",
    "Reassign",
    "Reset",
    "ResetZooKeeper",
    "SetConfig",
    "Shut",
    "Simulation",
    "Slow",
    "SlowDisk",
    "SlowZooKeeper",
    "SpoilZnode",
    "StepWall",
    "Stop",
    "TraceRecord",
    "Violation",
]

_ELSEWHERE = {
    "PartitionView": "controller.scenarios.host",
    "CustomNode": "controller.simulator.custom_node",
    "Violation": "controller.simulator.safety_checker",
    "BrokenInvariant": "controller.simulator.simulation",
    "NotInTime": "controller.simulator.simulation",
    "Simulation": "controller.simulator.simulation",
    "TraceRecord": "controller.trace_records",
}
"""Where a name is; all others are faults."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "controller.scenarios.faults")), name)
