"""One broker of a cluster for tests, over all of its incarnations: its process, its links and its disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from controller.testing.host import ClusterHost, Target

if TYPE_CHECKING:
    from controller.testing.cluster import Kafka


class BrokerControl:
    """One broker of a cluster, over all of its incarnations; made by `Kafka`.

    A call that the cluster's host can't carry out raises UnsupportedByHost.
    """

    def __init__(self, cluster: Kafka, broker_id: int, address: str) -> None:
        self.id = broker_id
        self._cluster = cluster
        self.address = address
        """Where clients reach it, over all of its incarnations."""

    @property
    def running(self) -> bool:
        """True from its start to its end, also while it is paused."""
        return self._cluster._host.running(self.id)

    @property
    def paused(self) -> bool:
        return self._cluster._host.paused(self.id)

    # -- its process

    def kill(self, *, expire: bool = True) -> None:
        """Kill the broker (SIGKILL). What it has written stays.

        Args:
            expire: end its ZooKeeper session at once, so that the controller acts now; False: after the session
                timeout, as after a real kill (see `Kafka.clock`). On a host without the ability "sessions" it ends
                after the session timeout in any case.
        """
        self._do(lambda host: host.kill(self.id, expire=expire))

    def stop(self) -> None:
        """Stop the broker (SIGTERM): a controlled shutdown moves its leaders first. Wait for its end."""
        self._do(lambda host: host.begin_stop(self.id))
        self._cluster._wait(lambda: not self.running, f"broker {self.id} has stopped")

    def start(self) -> None:
        """Start the broker again, with its disk and at its address. Wait until it is registered and knows the running
        brokers."""
        self._do(lambda host: host.begin_start(self.id))
        self._cluster._wait(lambda: self._cluster._host.started(self.id), f"broker {self.id} is registered")

    def pause(self) -> None:
        """Pause the broker (SIGSTOP): it accepts connections and answers nothing. Its session expires by time."""
        self._do(lambda host: host.pause(self.id))

    def resume(self) -> None:
        """Let a paused broker continue (SIGCONT)."""
        self._do(lambda host: host.resume(self.id))

    def expire_session(self) -> None:
        """End its ZooKeeper session at once. The broker learns of it and registers again, unless it is paused."""
        self._do(lambda host: host.expire_session(self.id))

    # -- its links

    def partition_from(self, other: Target) -> None:
        """Cut the link to another broker, both ways, or to ZooKeeper, until `heal`. Nothing is refused: messages
        wait for the end of the cut, so that requests time out."""
        if other == self.id:
            raise ValueError(f"broker {other} can't be partitioned from itself")
        if other != "zookeeper":
            self._cluster.broker(other)
        self._do(lambda host: host.cut(self.id, other))

    def heal(self, other: Target | None = None) -> None:
        """End a partition from another broker or from ZooKeeper, or all of this broker's (None)."""
        self._do(lambda host: host.heal(self.id, other))

    def slow(self, ms: float) -> None:
        """Let each message to and from the broker take `ms` milliseconds longer; 0 ends it."""
        if ms < 0:
            raise ValueError(f"slow by {ms} ms: expected 0 or more")
        self._do(lambda host: host.slow(self.id, ms))

    # -- its disk

    def fill_disk(self) -> None:
        """Let the disk be full: a write fails with ENOSPC. The log directory is then offline, and within 5 s of its
        clock the broker ends, as Kafka's does. It can't start before `free_disk`. Raises ValueError where records are
        in a directory."""
        self._do(lambda host: host.fill_disk(self.id))

    def free_disk(self) -> None:
        """End `fill_disk`; what was written before is there. The broker has to be started."""
        self._do(lambda host: host.free_disk(self.id))

    def lose_disk(self) -> None:
        """Lose the disk with all records on it: the broker ends if it runs, and has an empty disk when it is started.
        Raises ValueError where a cluster in memory keeps records in a directory."""
        self._do(lambda host: host.lose_disk(self.id))

    def _do(self, action: Callable[[ClusterHost], None]) -> None:
        cluster = self._cluster
        cluster._call(lambda: action(cluster._host))
