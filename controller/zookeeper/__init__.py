"""ZooKeeper, as the rest of the project may use it: a port, and what stands behind it."""

from controller.zookeeper.embedded import DataDirectoryError, EmbeddedZooKeeper
from controller.zookeeper.jars import EmbeddedServerUnavailable, JarsNotFound, JavaNotFound
from controller.zookeeper.memory import InMemoryZooKeeper
from controller.zookeeper.memory_connection import InMemoryConnection

__all__ = [
    "DataDirectoryError",
    "EmbeddedServerUnavailable",
    "EmbeddedZooKeeper",
    "InMemoryConnection",
    "InMemoryZooKeeper",
    "JarsNotFound",
    "JavaNotFound",
]
