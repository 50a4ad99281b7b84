"""ZooKeeper, as the rest of the project may use it: a port, and what stands behind it."""

from controller.zookeeper.memory import InMemoryZooKeeper
from controller.zookeeper.memory_connection import InMemoryConnection

__all__ = ["InMemoryConnection", "InMemoryZooKeeper"]
