"""The in-process host of scenarios: the brokers of `MemoryHost`, in this process, with the real clients of chaos runs.

Clients are those of `controller/chaos`: librdkafka, on the brokers' sockets, in processes of their own where they are
to die or to stand still. Time is the machine's. A killed broker's session ends after its timeout, as on real processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from controller.broker.settings import BadSettings
from controller.chaos.live_host import LiveHost, live_faults
from controller.clock import spawn
from controller.hosts.secured import Security
from controller.scenarios.faults import (
    IN_PROCESS,
    ZOOKEEPER,
    Cut,
    Expire,
    HostFailure,
    Kill,
    Link,
    Pause,
    Stop,
)
from controller.scenarios.host import PartitionView, Workload
from controller.scenarios.language import ClusterSpec
from controller.simulator.observer import MembershipObserver, controller_epoch, partitions
from controller.testing.host import ClusterOptions, UnansweredCall
from controller.testing.memory_host import MemoryHost
from controller.trace import EphemeralSeen, FaultInjected
from controller.trace_records import OBSERVER, TraceRecord

T = TypeVar("T")
CALL_S = 30.0
OBSERVER_SESSION_MS = 30_000

IN_PROCESS_FAULTS = live_faults(IN_PROCESS)


class _Observer:
    """Watches the in-memory ZooKeeper, on the cluster's thread."""

    def __init__(self, memory: MemoryHost, seen: Callable[[EphemeralSeen], None]) -> None:
        self._memory = memory
        started = threading.Event()

        def start() -> MembershipObserver:
            server = memory.zookeeper
            observer = MembershipObserver(server.connect(OBSERVER_SESSION_MS), memory.clock, 0, seen)
            spawn(observer.start()).on_done(started.set)
            return observer

        self._observer = memory.call(start)
        if not started.wait(CALL_S):
            raise HostFailure(f"the observer had no answer of ZooKeeper in {CALL_S:g} s")

    def now(self) -> tuple[Mapping[int, int], int]:
        return self._memory.call(self._observer.now)

    def partitions(self) -> Mapping[tuple[str, int], PartitionView]:
        return self._memory.call(lambda: partitions(self._memory.zookeeper))

    def controller_epoch(self) -> int:
        return self._memory.call(lambda: controller_epoch(self._memory.zookeeper))

    def close(self) -> None:
        """It ends with the cluster."""


class InProcessHost(LiveHost):
    """One run's cluster. `folder` gets the logs of clients; a temporary one is removed by `close`."""

    name = IN_PROCESS
    faults = IN_PROCESS_FAULTS

    def __init__(self, *, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._memory: MemoryHost | None = None
        self._begun: set[int] = set()  # asked whether it holds a node, and sorted
        self._cut_off: set[int] = set()  # from ZooKeeper; asked whether it holds a node

    async def boot(self, cluster: ClusterSpec, workload: Workload) -> None:
        self._cluster = cluster
        self.folder.mkdir(parents=True, exist_ok=True)
        self._standstills.start()
        options = ClusterOptions(
            cluster.brokers,
            cluster.properties,
            None,
            cluster.session_timeout_ms,
            None,
            CALL_S,
            Security() if cluster.secure else None,
            cluster.racks,
        )
        memory = MemoryHost(options)
        try:
            memory.open()
        except ModuleNotFoundError as error:
            raise HostFailure(str(error)) from error
        self._memory = memory
        self._observer = _Observer(memory, self.take)
        servers = ",".join(memory.address(node) for node in cluster.nodes)
        self._security = security = memory.security
        connect = {"bootstrap.servers": servers} if security is None else security.client(servers).confluent
        self._ask_for_metadata(connect, workload)

    # -- brokers

    @property
    def _brokers(self) -> MemoryHost:
        assert self._memory is not None
        return self._memory

    def _call(self, action: Callable[[], T]) -> T:
        """Raises HostFailure for what the cluster refuses."""
        try:
            return self._brokers.call(action)
        except (BadSettings, RuntimeError, UnansweredCall, ValueError) as error:
            raise HostFailure(str(error)) from error

    async def start(self, node: int) -> None:
        if node in self.running():
            raise HostFailure(f"broker {node} is running already")
        self._call(lambda: self._brokers.begin_start(node))
        self._begun.add(node)
        if node in self._cut_off:
            self._call(lambda: self._brokers.cut(node, "zookeeper"))
        assert self._client is not None
        self._client.begin()

    @IN_PROCESS_FAULTS.of(Kill)
    async def _kill(self, fault: Kill) -> None:
        self._end(fault.broker, lambda: self._brokers.kill(fault.broker, expire=False))

    @IN_PROCESS_FAULTS.of(Stop)
    async def _stop(self, fault: Stop) -> None:
        node = fault.broker
        self._end(node, lambda: self._brokers.begin_stop(node))
        if not self._brokers.wait(lambda: not self._brokers.running(node), CALL_S):
            raise HostFailure(f"broker {node} did not stop within {CALL_S:g} s")

    def _end(self, node: int, end: Callable[[], None]) -> None:
        self._begun.discard(node)
        self._call(end)

    @IN_PROCESS_FAULTS.of(Pause)
    async def _pause(self, fault: Pause) -> None:
        self._call(lambda: self._brokers.pause(fault.broker))

    async def resume(self, node: int) -> None:
        self._call(lambda: self._brokers.resume(node))

    @IN_PROCESS_FAULTS.of(Expire)
    async def _expire(self, fault: Expire) -> None:
        self._call(lambda: self._brokers.expire_session(fault.broker))

    @IN_PROCESS_FAULTS.of(Cut)
    async def _cut(self, fault: Cut) -> None:
        source = fault.link.source
        if fault.link.target != ZOOKEEPER:
            self._set_link(fault.link, cut=True)
            return
        self._cut_off.add(source)
        if source in self.running():
            self._call(lambda: self._brokers.cut(source, "zookeeper"))

    async def heal(self, link: Link) -> None:
        if link.target != ZOOKEEPER:
            self._set_link(link, cut=False)
            return
        self._cut_off.discard(link.source)
        self._call(lambda: self._brokers.heal(link.source, "zookeeper"))

    def _set_link(self, link: Link, *, cut: bool) -> None:
        links = self._brokers.links
        self._call(lambda: (links.cut if cut else links.heal)(link.source, link.target))

    def running(self) -> tuple[int, ...]:
        """Raises HostFailure for a broker that ended of itself: nothing that follows would mean anything."""
        running = tuple(node for node in sorted(self._begun) if self._brokers.running(node))
        ended = sorted(self._begun - set(running))
        if ended:
            raise HostFailure(f"broker {ended[0]} ended of itself: the trace says why")
        return running

    # -- ZooKeeper: one server, which no step kills

    async def zookeeper_leader(self) -> int:
        return 1

    def zookeepers_running(self) -> tuple[int, ...]:
        return (1,)

    async def start_zookeeper(self, server: int) -> None:
        raise HostFailure(f"ZooKeeper server {server} is running already")

    # -- clients, and the end

    def _port(self, node: int) -> int:
        return int(self._brokers.address(node).rpartition(":")[2])

    def _close_cluster(self) -> None:
        memory, self._memory, self._security = self._memory, None, None
        if memory is None:
            return
        memory.stop()
        zero_ms = self.clock.zero_ms
        for record in memory.records():
            # Faults are in the trace already: the runner takes them.
            if record.node != OBSERVER or not isinstance(record.event, FaultInjected):
                self._records.append(TraceRecord(record.at_ms - zero_ms, record.node, record.event))
