"""The simulated host: a whole cluster in one thread and virtual time, from one seed. This is its library's face.

`Simulation` builds a world, steps it and looks into it (docs/embedding.md); the happenings are what a plan file may
say. It imports neither kazoo nor any of the extras.
"""

from controller.scenarios.host import PartitionView
from controller.simulator.own_node import OwnNode
from controller.simulator.plan import (
    AddPartitions,
    BreakDisk,
    BreakLogDirectory,
    CreateTopic,
    Cut,
    CutZooKeeper,
    DeleteController,
    DeleteTopic,
    Depose,
    Drift,
    ElectLeaders,
    ElectZooKeeper,
    Expire,
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
    StepWall,
    Stop,
)
from controller.simulator.sentinel import Violation
from controller.simulator.simulated_world import BrokenInvariant, NotInTime
from controller.simulator.simulation import Simulation
from controller.trace_records import TraceRecord

__all__ = [
    "AddPartitions",
    "BreakDisk",
    "BreakLogDirectory",
    "BrokenInvariant",
    "CreateTopic",
    "Cut",
    "CutZooKeeper",
    "DeleteController",
    "DeleteTopic",
    "Depose",
    "Drift",
    "ElectLeaders",
    "ElectZooKeeper",
    "Expire",
    "Isolate",
    "Kill",
    "KillZooKeeper",
    "LosePower",
    "LoseReply",
    "Lossy",
    "NotInTime",
    "OwnNode",
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
    "StepWall",
    "Stop",
    "TraceRecord",
    "Violation",
]
