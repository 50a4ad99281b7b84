"""The public names of camerlengo, in one place.

    from camerlengo import Kafka

A name is loaded when it is used: `import camerlengo` loads nothing else. The packages `controller` and `statemachines`
hold the code, and may be imported as well.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.hosts.local_cluster import LocalCluster
    from controller.simulator.simulation import Simulation
    from controller.testing.brokers import BrokerControl
    from controller.testing.cluster import ClusterTimeout, Kafka, TopicNotCreated
    from controller.timer.wheel import TimerTask, TimingWheel
    from controller.zookeeper.embedded import EmbeddedZooKeeper
    from controller.zookeeper.memory.server import InMemoryZooKeeper
    from statemachines.leader_election import elect_offline

_MODULES = {
    "BrokerControl": "controller.testing.brokers",
    "ClusterTimeout": "controller.testing.cluster",
    "EmbeddedZooKeeper": "controller.zookeeper.embedded",
    "InMemoryZooKeeper": "controller.zookeeper.memory.server",
    "Kafka": "controller.testing.cluster",
    "LocalCluster": "controller.hosts.local_cluster",
    "Simulation": "controller.simulator.simulation",
    "TimerTask": "controller.timer.wheel",
    "TimingWheel": "controller.timer.wheel",
    "TopicNotCreated": "controller.testing.cluster",
    "elect_offline": "statemachines.leader_election",
}

__all__ = [
    "BrokerControl",
    "ClusterTimeout",
    "EmbeddedZooKeeper",
    "InMemoryZooKeeper",
    "Kafka",
    "LocalCluster",
    "Simulation",
    "TimerTask",
    "TimingWheel",
    "TopicNotCreated",
    "elect_offline",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return __all__
