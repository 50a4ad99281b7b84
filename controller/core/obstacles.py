"""Obstacles to an election, and wrong znodes of the controller.

These are administrators' mistakes on /controller, /controller_epoch and /cluster/id, each with the remedy. Pure: the
input is rows, the output findings.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from controller.zookeeper.codecs import decode_cluster_id, decode_controller, decode_controller_epoch
from controller.zookeeper.operations import DamagedZnode, Znode
from controller.zookeeper.paths import CLUSTER_ID, CONTROLLER_EPOCH

HIGHEST_EPOCH = 2**31 - 1 - 1_000_000
"""The highest controller epoch that an election uses. Epochs are int32 in Kafka's protocol, and every broker refuses
requests of an epoch below the highest one that it has seen: a term near the end of the range would be one of the last
until all brokers are restarted."""
SHELL = "zookeeper-shell.sh ZOOKEEPER"
SHOWN_BYTES = 120


class Reason(Enum):
    """The reason why no election is possible. The values are labels of a metric."""

    CONTROLLER_PERSISTENT = "controller-persistent"
    CONTROLLER_UNREADABLE = "controller-unreadable"
    NO_ACCESS = "no-access"
    EPOCH_UNREADABLE = "controller-epoch-unreadable"
    EPOCH_EXHAUSTED = "controller-epoch-exhausted"
    ZOOKEEPER_WIPED = "zookeeper-wiped"
    ANOTHER_CLUSTER = "another-cluster"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """`why`: the znode and its content; `change`: what an administrator can do, with the command to run."""

    reason: Reason
    path: str
    why: str
    change: str

    def __str__(self) -> str:
        return f"{self.why}. To repair it: {self.change}"

    @property
    def concerns_cluster(self) -> bool:
        """Return whether the broker's own registration is in doubt too."""
        return self.reason in (Reason.ZOOKEEPER_WIPED, Reason.ANOTHER_CLUSTER)


def shown(data: bytes | None) -> str:
    """Return a znode's content as a log line can hold it."""
    return repr(data if data is None or len(data) <= SHOWN_BYTES else data[:SHOWN_BYTES] + b"...")


def in_controller(row: Znode | None, session: int = 0) -> Obstacle | None:
    """Return what is wrong with a /controller that does not belong to `session`, or None.

    A session's own znode is never in its way: the election replaces its content.
    """
    if row is None or (session and row.stat.ephemeral_owner == session):
        return None
    if not row.stat.ephemeral_owner:
        delete = "deleteall" if row.stat.num_children else "delete"
        return Obstacle(
            Reason.CONTROLLER_PERSISTENT,
            row.path,
            f"{row.path} is a persistent znode with {shown(row.data)}: no controller made it, and it does not go by"
            " itself",
            f"delete it ({SHELL} {delete} {row.path})",
        )
    if named_in(row) is None:
        return Obstacle(
            Reason.CONTROLLER_UNREADABLE,
            row.path,
            f"{row.path} names no broker: expected the controller's broker id, found {shown(row.data)},"
            f" owned by session 0x{row.stat.ephemeral_owner:x}",
            f"delete it ({SHELL} delete {row.path}), or end that session",
        )
    return None


def named_in(row: Znode) -> int | None:
    """Return the broker id in /controller, or None if it holds none."""
    try:
        return decode_controller(row.path, row.data).broker_id
    except DamagedZnode:
        return None


def in_epoch(row: Znode | None) -> Obstacle | None:
    """Return what is wrong with an unreadable /controller_epoch, or None. One that is missing is created anew."""
    if row is None or epoch_in(row) is not None:
        return None
    return Obstacle(
        Reason.EPOCH_UNREADABLE,
        row.path,
        f"{row.path} holds no epoch: expected a controller epoch in digits, found {shown(row.data)}",
        f"delete it ({SHELL} delete {row.path}): the next election creates it above every epoch in use",
    )


def epoch_in(row: Znode) -> int | None:
    """Return the epoch in /controller_epoch, or None if it holds none."""
    try:
        return decode_controller_epoch(row.path, row.data)
    except DamagedZnode:
        return None


def no_access(path: str) -> Obstacle:
    """Return the obstacle that the ACL of `path` excludes the broker."""
    return Obstacle(
        Reason.NO_ACCESS,
        path,
        f"{path}: its ACL does not allow this broker to read and write it",
        f"give the brokers all permissions on it ({SHELL} setAcl {path} ...), or start the brokers with the credentials"
        " that it names",
    )


def exhausted(epoch: int) -> Obstacle:
    """Return the obstacle that `epoch`, which brokers or partition states know, is above `HIGHEST_EPOCH`."""
    return Obstacle(
        Reason.EPOCH_EXHAUSTED,
        CONTROLLER_EPOCH,
        f"controller epoch {epoch} is in use, and an election raises epochs to {HIGHEST_EPOCH} at most",
        f"stop every broker, lower controller_epoch in the partition states that have it, delete {CONTROLLER_EPOCH}"
        f" ({SHELL} delete {CONTROLLER_EPOCH}), and start the brokers",
    )


def in_cluster_id(expected: str | None, row: Znode | None, *, others_there: bool) -> Obstacle | None:
    """Return the obstacle that ZooKeeper no longer holds the cluster `expected`, or None.

    Args:
        expected: the cluster's id as the broker read it at its start; None if it knows none.
        row: /cluster/id.
        others_there: whether ZooKeeper holds anything else of the cluster; then a missing id alone is no obstacle.
    """
    if expected is None or (row is None and others_there):
        return None
    if row is not None:
        try:
            found = decode_cluster_id(row.path, row.data).id
        except DamagedZnode:
            return None
        return None if found == expected else another_cluster(expected, found)
    return wiped(expected)


def wiped(expected: str) -> Obstacle:
    return Obstacle(
        Reason.ZOOKEEPER_WIPED,
        CLUSTER_ID,
        f"ZooKeeper has lost the data of cluster {expected}: {CLUSTER_ID}, {CONTROLLER_EPOCH} and /brokers are gone"
        " while this broker runs",
        "restore ZooKeeper from a snapshot; if the cluster was deleted on purpose, stop this broker",
    )


def another_cluster(expected: str, found: str) -> Obstacle:
    return Obstacle(
        Reason.ANOTHER_CLUSTER,
        CLUSTER_ID,
        f"ZooKeeper holds cluster {found}, and this broker belongs to cluster {expected}",
        "restore ZooKeeper's data of that cluster, or stop this broker and start it with the zookeeper.connect of its"
        " own cluster",
    )
