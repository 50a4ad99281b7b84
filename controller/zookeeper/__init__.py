"""ZooKeeper, as the rest of the project may use it: a port, and what stands behind it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from controller.zookeeper.broker_writes import BrokerDataWrites, BrokerIdInUse, BrokerWrites
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.memory.server import InMemoryConnection, InMemoryZooKeeper
from controller.zookeeper.operations import ConnectionListener, ZooKeeperConnection
from controller.zookeeper.row_writes import RowsWritten

if TYPE_CHECKING:
    from controller.zookeeper.blocking import ThreadClock
    from controller.zookeeper.embedded import (
        DataDirectoryError,
        EmbeddedServerUnavailable,
        EmbeddedZooKeeper,
        JarsNotFound,
        JavaNotFound,
    )
    from controller.zookeeper.kazoo_connection import KazooConnection

_EMBEDDED = ("DataDirectoryError", "EmbeddedServerUnavailable", "EmbeddedZooKeeper", "JarsNotFound", "JavaNotFound")
_LOADED_WHEN_USED = {
    **dict.fromkeys(_EMBEDDED, "controller.zookeeper.embedded"),
    "KazooConnection": "controller.zookeeper.kazoo_connection",
    "ThreadClock": "controller.zookeeper.blocking",
}
"""What brings kazoo and its sockets, or child processes: the simulated host and the core do without them."""


def __getattr__(name: str) -> Any:
    if name in _LOADED_WHEN_USED:
        return getattr(import_module(_LOADED_WHEN_USED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BrokerDataWrites",
    "BrokerIdInUse",
    "BrokerWrites",
    "ConnectionListener",
    "DataDirectoryError",
    "EmbeddedServerUnavailable",
    "EmbeddedZooKeeper",
    "InMemoryConnection",
    "InMemoryZooKeeper",
    "JarsNotFound",
    "JavaNotFound",
    "KazooConnection",
    "Leadership",
    "RowsWritten",
    "ThreadClock",
    "ZooKeeperClient",
    "ZooKeeperConnection",
]
