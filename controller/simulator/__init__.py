"""The simulated host: a whole cluster in one thread and virtual time, from one seed. This is its library's face.

`Simulation` builds a world, steps it and looks into it (docs/embedding.md); the happenings are what a plan file may
say. It imports neither kazoo nor any of the extras.
"""

from controller.scenarios.host import PartitionView
from controller.simulator.own_node import OwnNode
from controller.simulator.plan import (
    AddPartitions,
    CreateTopic,
    Cut,
    CutZooKeeper,
    DeleteController,
    DeleteTopic,
    Depose,
    Drift,
    ElectZooKeeper,
    Expire,
    Isolate,
    Kill,
    KillZooKeeper,
    LoseReply,
    Lossy,
    Pause,
    Reset,
    ResetZooKeeper,
    Shut,
    Slow,
    SlowZooKeeper,
    StepWall,
    Stop,
)
from controller.simulator.sentinel import Violation
from controller.simulator.simulation import BrokenInvariant, NotInTime, Simulation
from controller.trace_records import TraceRecord

__all__ = [
    "AddPartitions",
    "BrokenInvariant",
    "CreateTopic",
    "Cut",
    "CutZooKeeper",
    "DeleteController",
    "DeleteTopic",
    "Depose",
    "Drift",
    "ElectZooKeeper",
    "Expire",
    "Isolate",
    "Kill",
    "KillZooKeeper",
    "LoseReply",
    "Lossy",
    "NotInTime",
    "OwnNode",
    "PartitionView",
    "Pause",
    "Reset",
    "ResetZooKeeper",
    "Shut",
    "Simulation",
    "Slow",
    "SlowZooKeeper",
    "StepWall",
    "Stop",
    "TraceRecord",
    "Violation",
]
