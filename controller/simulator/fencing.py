"""Fencing: every write that a controller makes outside its election is a multi whose first operation checks
/controller_epoch at the version that its own election made (S01, S03).

`Fencing.unfenced` judges one applied multi. Only the writes of `broker_writes.py` may
go without the check; they are listed here by operation and path, so that a new write is refused until it is fenced or
listed. Used by the simulator's safety checker and by the controller's tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.zookeeper import paths
from controller.zookeeper.operations import ANY_VERSION, Check, Create, Delete, SetData, Write
from controller.zookeeper.row_writes import FencedSets

NO_SESSION = 0
_OWN_NODES = frozenset(
    [*paths.PERSISTENT_PATHS, paths.CLUSTER, paths.CLUSTER_ID, paths.CONTROLLER_EPOCH, paths.CONFIG_BROKER_DEFAULT]
)
_OWN_CHILDREN = {
    Create: (
        paths.BROKER_IDS,
        paths.CONFIG_TOPICS,
        paths.CONFIG_BROKERS,
        paths.CONFIG_CHANGES,
        paths.LOG_DIR_EVENT_NOTIFICATION,
        paths.ISR_CHANGE_NOTIFICATION,
    ),
    SetData: (paths.BROKER_IDS, paths.CONFIG_TOPICS, paths.CONFIG_BROKERS),
    Delete: (paths.BROKER_IDS, paths.CONFIG_CHANGES),
}
_OWN_DATA = frozenset([paths.BROKER_SEQUENCE, paths.PRODUCER_ID_BLOCK, paths.CONFIG_BROKER_DEFAULT])


class Fencing:
    """`leaders_write`: whether leaders set the states of their partitions (inter-broker protocol below 2.7)."""

    def __init__(self, *, leaders_write: bool = False) -> None:
        self._leaders_write = leaders_write
        self._winner = NO_SESSION

    def unfenced(self, session: int, operations: Sequence[Write]) -> str | None:
        """What is wrong with a multi that was applied for a broker's session; None if nothing is."""
        first = operations[0]
        if isinstance(first, Check) and first.path == paths.CONTROLLER_EPOCH and first.version != ANY_VERSION:
            self._follow(session, operations)
            return None if session == self._winner else "fenced with the epoch of another session's term"
        wrong = None
        if any(one.path == paths.CONTROLLER_EPOCH and isinstance(one, SetData) for one in operations):
            claims = isinstance(first, Create | SetData) and first.path == paths.CONTROLLER
            elects = claims and all(one.path == paths.CONTROLLER for one in operations[:-1])
            if not elects and not _creates_epoch(operations):
                wrong = "/controller_epoch raised outside the election's multi"
        else:
            wrong = next((f"{one} is not fenced" for one in operations if not self._is_own(one)), None)
        self._follow(session, operations)
        return wrong

    def followed(self, session: int, operations: Sequence[Write]) -> None:
        """A multi of somebody who is no broker: not judged."""
        self._follow(session, operations)

    def _is_own(self, write: Write) -> bool:
        if isinstance(write, Check):
            return True
        if write.path.startswith(paths.ACLS):
            return True  # `acl_znodes.py`: any broker may change ACLs, at the version that it read
        parent, _, _ = write.path.rpartition("/")
        if parent in _OWN_CHILDREN[type(write)]:
            return True
        if isinstance(write, Create):
            return write.path in _OWN_NODES
        if isinstance(write, SetData):
            if self._leaders_write and write.version != ANY_VERSION and paths.partition_of(write.path) is not None:
                return True
            return write.path in _OWN_DATA
        # A candidate that finds an election impossible deletes the /controller of its own session, as it read it.
        return write.path == paths.CONTROLLER and write.version != ANY_VERSION

    def _follow(self, session: int, operations: Sequence[Write]) -> None:
        if isinstance(operations, FencedSets):
            return  # states alone, thousands of them
        if any(one.path == paths.CONTROLLER_EPOCH and isinstance(one, SetData) for one in operations):
            self._winner = session


def _creates_epoch(operations: Sequence[Write]) -> bool:
    """Whether a missing /controller_epoch is created, at a version above those of earlier terms."""
    return isinstance(operations[0], Create) and all(one.path == paths.CONTROLLER_EPOCH for one in operations)
