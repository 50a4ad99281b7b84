"""One broker of an in-process cluster, over all of its incarnations: its process, its links and its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from controller.simulator.process import ProcessState
from controller.storage.disk import Disk
from controller.testing.disks import InProcessDisk
from controller.testing.incarnation import Incarnation
from controller.trace import FaultInjected
from controller.trace_records import OBSERVER

if TYPE_CHECKING:
    from controller.testing.cluster import Kafka

HOST = "127.0.0.1"


class BrokerControl:
    """One broker of a cluster, over all of its incarnations; made by `Kafka`."""

    def __init__(self, cluster: Kafka, broker_id: int, disk: Disk) -> None:
        self.id = broker_id
        self._cluster = cluster
        self._disk = disk
        self._incarnation: Incarnation | None = None
        self._without_zookeeper = False
        port = cluster._reserved[broker_id].getsockname()[1]
        self.address = f"{HOST}:{port}"
        """Where clients reach it, over all of its incarnations."""

    @property
    def running(self) -> bool:
        """True from its start to its end, also while it is paused."""
        return self._incarnation is not None

    @property
    def paused(self) -> bool:
        incarnation = self._incarnation
        return incarnation is not None and incarnation.process.state is ProcessState.PAUSED

    # -- its process

    def kill(self, *, expire: bool = True) -> None:
        """Kill the broker (SIGKILL). What it has written stays.

        Args:
            expire: end its ZooKeeper session at once, so that the controller acts now; False: after the session
                timeout, as after a real kill (see `Kafka.clock`).
        """

        def kill() -> None:
            self._require_running()
            self._inject("kill")
            self._end(expire=expire)

        self._cluster._call(kill)

    def stop(self) -> None:
        """Stop the broker (SIGTERM): a controlled shutdown moves its leaders first. Wait for its end."""

        def stop() -> Incarnation:
            incarnation = self._require_running()
            self._inject("stop")
            incarnation.shut_down(self._end)
            return incarnation

        stopping = self._cluster._call(stop)
        self._cluster._wait(lambda: not stopping.process.alive, f"broker {self.id} has stopped")

    def start(self) -> None:
        """Start the broker again, with its disk and at its address. Wait until it is registered and knows the running
        brokers."""

        def start() -> Incarnation:
            if self._incarnation is not None:
                raise RuntimeError(f"broker {self.id} runs")
            self._inject("restart")
            return self._begin()

        started = self._cluster._call(start)
        self._cluster._wait(lambda: self._serves(started), f"broker {self.id} is registered")

    def _serves(self, started: Incarnation) -> bool:
        if not started.process.alive:
            raise RuntimeError(f"broker {self.id} ended while it was started")
        return started.node.registered.done and self.id in started.node.broker.metadata.snapshot.brokers

    def pause(self) -> None:
        """Pause the broker (SIGSTOP): it accepts connections and answers nothing. Its session expires by time."""

        def pause() -> None:
            incarnation = self._require_running()
            self._inject("pause")
            incarnation.pause()

        self._cluster._call(pause)

    def resume(self) -> None:
        """Let a paused broker continue (SIGCONT)."""

        def resume() -> None:
            incarnation = self._require_running()
            if incarnation.process.state is ProcessState.PAUSED:
                self._inject("resume")
                incarnation.resume()

        self._cluster._call(resume)

    def expire_session(self) -> None:
        """End its ZooKeeper session at once. The broker learns of it and registers again, unless it is paused."""

        def expire() -> None:
            session = self._require_running().connection.session()
            if session not in self._cluster._zookeeper.sessions():
                raise RuntimeError(f"broker {self.id} has no ZooKeeper session")
            self._inject("expire")
            self._cluster._zookeeper.expire(session)

        self._cluster._call(expire)

    # -- its links

    def partition_from(self, other: int | Literal["zookeeper"]) -> None:
        """Cut the link to another broker, both ways, or to ZooKeeper, until `heal`. Nothing is refused: messages
        wait for the end of the cut, so that requests time out."""

        def cut() -> None:
            if other == "zookeeper":
                self._require_running().connection.cut()
                self._without_zookeeper = True
            else:
                if other == self.id:
                    raise ValueError(f"broker {other} can't be partitioned from itself")
                self._cluster.broker(other)
                self._cluster._shared.links.cut(self.id, other)
            self._inject("cut", f"{self.id}->{other}")
            if other != "zookeeper":
                self._inject("cut", f"{other}->{self.id}")

        self._cluster._call(cut)

    def heal(self, other: int | Literal["zookeeper"] | None = None) -> None:
        """End a partition from another broker or from ZooKeeper, or all of this broker's (None)."""

        def heal() -> None:
            links = self._cluster._shared.links
            if other in (None, "zookeeper") and self._incarnation is not None and self._without_zookeeper:
                self._without_zookeeper = False
                self._inject("heal", f"{self.id}->zookeeper")
                self._incarnation.connection.heal()
            for one in links.cut_from(self.id) if other is None else [other]:
                if isinstance(one, int):
                    self._inject("heal", f"{self.id}->{one}")
                    self._inject("heal", f"{one}->{self.id}")
                    links.heal(self.id, one)

        self._cluster._call(heal)

    def slow(self, ms: float) -> None:
        """Let each message to and from the broker take `ms` milliseconds longer; 0 ends it."""
        if ms < 0:
            raise ValueError(f"slow by {ms} ms: expected 0 or more")

        def slow() -> None:
            slow_ms = self._cluster._shared.links.slow_ms
            if ms or self.id in slow_ms:
                self._inject("slow", f"broker {self.id} by {ms:g} ms")
            slow_ms[self.id] = ms
            if not ms:
                del slow_ms[self.id]

        self._cluster._call(slow)

    # -- its disk

    def fill_disk(self) -> None:
        """Let the disk be full: a write fails with ENOSPC. The log directory is then offline, and within 5 s of its
        clock the broker ends, as Kafka's does. It can't start before `free_disk`. Raises ValueError where records are
        in a directory."""

        def fill() -> None:
            self._memory().full = True
            self._inject("fill disk")

        self._cluster._call(fill)

    def free_disk(self) -> None:
        """End `fill_disk`; what was written before is there. The broker has to be started."""

        def free() -> None:
            disk = self._memory()
            if disk.full:
                disk.full = False
                self._inject("free disk")

        self._cluster._call(free)

    def lose_disk(self) -> None:
        """Lose the disk with all records on it: the broker ends if it runs, and has an empty disk when it is started.
        Raises ValueError where records are in a directory."""

        def lose() -> None:
            self._memory()
            self._inject("lose disk")
            self._disk = InProcessDisk()
            self._end(expire=True)

        self._cluster._call(lose)

    def _memory(self) -> InProcessDisk:
        if not isinstance(self._disk, InProcessDisk):
            raise ValueError(f"broker {self.id} keeps its records in a directory: expected them in memory")
        return self._disk

    # -- on the cluster's thread

    def _inject(self, fault: str, target: str | None = None) -> None:
        self._cluster._shared.emit(OBSERVER, FaultInjected(fault, target or str(self.id)))

    def _require_running(self) -> Incarnation:
        if self._incarnation is None:
            raise RuntimeError(f"broker {self.id} does not run")
        return self._incarnation

    def _begin(self) -> Incarnation:
        self._incarnation = incarnation = Incarnation(
            self._cluster._shared, self._cluster._settings_of(self.id), self._disk
        )
        incarnation.start()
        return incarnation

    def _end(self, *, expire: bool = False) -> None:
        incarnation, self._incarnation = self._incarnation, None
        self._without_zookeeper = False
        if incarnation is None:
            return
        session = incarnation.kill()
        if isinstance(self._disk, InProcessDisk):
            self._disk.process_ended()
        zookeeper = self._cluster._zookeeper
        if expire and session in zookeeper.sessions():
            zookeeper.expire(session)
