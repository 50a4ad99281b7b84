"""The public names of camerlengo, in one place.

    from camerlengo import Kafka

A name is loaded when it is used: `import camerlengo` loads nothing else. The packages `controller` and `statemachines`
hold the code, and may be imported as well.
"""

from typing import TYPE_CHECKING

from controller.lazy_names import lazy_names

if TYPE_CHECKING:
    from controller.hosts.local_cluster import LocalCluster as LocalCluster
    from controller.hosts.secured import ClientSettings as ClientSettings
    from controller.hosts.secured import Security as Security
    from controller.simulator.simulation import Simulation as Simulation
    from controller.testing.brokers import BrokerControl as BrokerControl
    from controller.testing.cluster import ClusterTimeout as ClusterTimeout
    from controller.testing.cluster import Kafka as Kafka
    from controller.testing.cluster import TopicNotCreated as TopicNotCreated
    from controller.testing.host import UnsupportedByHost as UnsupportedByHost
    from controller.testing.zookeeper import ZooKeeper as ZooKeeper
    from controller.timer.wheel import TimerTask as TimerTask
    from controller.timer.wheel import TimingWheel as TimingWheel
    from controller.zookeeper.embedded import EmbeddedZooKeeper as EmbeddedZooKeeper
    from controller.zookeeper.memory.server import InMemoryZooKeeper as InMemoryZooKeeper
    from statemachines.leader_election import elect_offline as elect_offline
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
