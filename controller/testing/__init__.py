"""A Kafka cluster inside the process of a test, and the fixtures of the pytest plugin (docs/testing-your-app.md).

A name is loaded when it is used, so that pytest can load the plugin of this package and little else.
"""

from typing import TYPE_CHECKING

from controller.lazy_names import lazy_names

if TYPE_CHECKING:
    from controller.testing.brokers import BrokerControl as BrokerControl
    from controller.testing.cluster import ClusterTimeout as ClusterTimeout
    from controller.testing.cluster import Kafka as Kafka
    from controller.testing.cluster import TopicNotCreated as TopicNotCreated
    from controller.testing.docker_host import DockerHost as DockerHost
    from controller.testing.host import UnsupportedByHost as UnsupportedByHost
    from controller.testing.runs import ChaosRuns as ChaosRuns
    from controller.testing.runs import RunFailed as RunFailed
    from controller.testing.runs import RunNotPossible as RunNotPossible
    from controller.testing.runs import SimulationRuns as SimulationRuns
    from controller.testing.zookeeper import ZooKeeper as ZooKeeper
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
