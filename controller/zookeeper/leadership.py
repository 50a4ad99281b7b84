"""Leadership as a value: what every write made as controller must show. No I/O; nothing but the value lives here."""

from __future__ import annotations

from dataclasses import dataclass

from controller.zookeeper.paths import CONTROLLER, CONTROLLER_EPOCH


@dataclass(frozen=True, slots=True)
class ElectionPaths:
    """The znodes of a cluster's leader election: Kafka's, unless another controller names its own.

    Both are children of one znode, which exists before the first election. Raises ValueError if they are not.
    """

    controller: str = CONTROLLER
    """Ephemeral: names the leader."""
    epoch: str = CONTROLLER_EPOCH
    """Persistent: the number of the term, and by its version the fence of the term's writes."""

    def __post_init__(self) -> None:
        if self.controller.rpartition("/")[0] != self.epoch.rpartition("/")[0] or self.controller == self.epoch:
            raise ValueError(f"{self.controller} and {self.epoch}: expected two children of one znode")

    @property
    def parent(self) -> str:
        return self.epoch.rpartition("/")[0] or "/"


KAFKA_PATHS = ElectionPaths()


@dataclass(frozen=True, slots=True)
class Leadership:
    """One term as controller.

    It is void once `session` is not the connection's session any more, or the lease has run out, or
    /controller_epoch has left `epoch_zk_version`, whichever is first. A session that still exists after a resignation
    may win again: that is another term, with another epoch and version.
    """

    session: int
    """The ZooKeeper session that owns /controller."""
    epoch: int
    """What the election wrote into /controller_epoch."""
    epoch_zk_version: int
    """The version of /controller_epoch that this write made: the fence of every later write."""
    epoch_path: str = CONTROLLER_EPOCH
    """The znode that is called /controller_epoch here."""
