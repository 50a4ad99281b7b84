"""The simulated host: a whole cluster in one thread and virtual time, from one seed. This is its library's face.

`Simulation` builds a world, steps it and looks into it (docs/embedding.md); the happenings are what a plan file may
say. It imports neither kazoo nor any of the extras. A name is loaded when it is used.
"""

from typing import TYPE_CHECKING

from controller.lazy_names import lazy_names

if TYPE_CHECKING:
    from controller.scenarios.faults import AddPartitions as AddPartitions
    from controller.scenarios.faults import AskIsr as AskIsr
    from controller.scenarios.faults import BreakDisk as BreakDisk
    from controller.scenarios.faults import BreakLogDirectory as BreakLogDirectory
    from controller.scenarios.faults import ChangeMember as ChangeMember
    from controller.scenarios.faults import ChangeProducer as ChangeProducer
    from controller.scenarios.faults import ChangeRegistration as ChangeRegistration
    from controller.scenarios.faults import CreateTopic as CreateTopic
    from controller.scenarios.faults import Cut as Cut
    from controller.scenarios.faults import CutZooKeeper as CutZooKeeper
    from controller.scenarios.faults import DeleteController as DeleteController
    from controller.scenarios.faults import DeleteTopic as DeleteTopic
    from controller.scenarios.faults import Depose as Depose
    from controller.scenarios.faults import Drift as Drift
    from controller.scenarios.faults import EditController as EditController
    from controller.scenarios.faults import EditControllerEpoch as EditControllerEpoch
    from controller.scenarios.faults import ElectLeaders as ElectLeaders
    from controller.scenarios.faults import ElectZooKeeper as ElectZooKeeper
    from controller.scenarios.faults import Expire as Expire
    from controller.scenarios.faults import HostileClient as HostileClient
    from controller.scenarios.faults import Isolate as Isolate
    from controller.scenarios.faults import Kill as Kill
    from controller.scenarios.faults import KillZooKeeper as KillZooKeeper
    from controller.scenarios.faults import LosePower as LosePower
    from controller.scenarios.faults import LoseReply as LoseReply
    from controller.scenarios.faults import Lossy as Lossy
    from controller.scenarios.faults import Pause as Pause
    from controller.scenarios.faults import PauseController as PauseController
    from controller.scenarios.faults import Reassign as Reassign
    from controller.scenarios.faults import ReplaceCertificate as ReplaceCertificate
    from controller.scenarios.faults import Reset as Reset
    from controller.scenarios.faults import ResetZooKeeper as ResetZooKeeper
    from controller.scenarios.faults import SetConfig as SetConfig
    from controller.scenarios.faults import Shut as Shut
    from controller.scenarios.faults import Slow as Slow
    from controller.scenarios.faults import SlowDevice as SlowDevice
    from controller.scenarios.faults import SlowDisk as SlowDisk
    from controller.scenarios.faults import SlowZooKeeper as SlowZooKeeper
    from controller.scenarios.faults import SpoilZnode as SpoilZnode
    from controller.scenarios.faults import StepWall as StepWall
    from controller.scenarios.faults import Stop as Stop
    from controller.scenarios.host import PartitionView as PartitionView
    from controller.simulator.custom_node import CustomNode as CustomNode
    from controller.simulator.safety_checker import Violation as Violation
    from controller.simulator.simulation import BrokenInvariant as BrokenInvariant
    from controller.simulator.simulation import NotInTime as NotInTime
    from controller.simulator.simulation import Simulation as Simulation
    from controller.trace_records import TraceRecord as TraceRecord
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
