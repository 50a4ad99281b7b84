"""ZooKeeper, as the rest of the project may use it: the port, its implementations and servers.

A name is loaded when it is used, so that a process imports only the part that it needs.
"""

from typing import TYPE_CHECKING

from controller.lazy_names import lazy_names

if TYPE_CHECKING:
    from controller.zookeeper.blocking import ThreadClock as ThreadClock
    from controller.zookeeper.broker_writes import BrokerDataWrites as BrokerDataWrites
    from controller.zookeeper.broker_writes import BrokerIdInUse as BrokerIdInUse
    from controller.zookeeper.broker_writes import BrokerWrites as BrokerWrites
    from controller.zookeeper.client import Leadership as Leadership
    from controller.zookeeper.client import ZooKeeperClient as ZooKeeperClient
    from controller.zookeeper.embedded import DataDirectoryError as DataDirectoryError
    from controller.zookeeper.embedded import EmbeddedServerUnavailable as EmbeddedServerUnavailable
    from controller.zookeeper.embedded import EmbeddedZooKeeper as EmbeddedZooKeeper
    from controller.zookeeper.embedded import JarsNotFound as JarsNotFound
    from controller.zookeeper.embedded import JavaNotFound as JavaNotFound
    from controller.zookeeper.kazoo_connection import KazooConnection as KazooConnection
    from controller.zookeeper.memory.server import InMemoryConnection as InMemoryConnection
    from controller.zookeeper.memory.server import InMemoryZooKeeper as InMemoryZooKeeper
    from controller.zookeeper.operations import ConnectionListener as ConnectionListener
    from controller.zookeeper.operations import ZooKeeperConnection as ZooKeeperConnection
    from controller.zookeeper.row_writes import RowsWritten as RowsWritten
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
