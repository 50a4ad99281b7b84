"""What the hosts of scenarios in real time have in common: real clients, on sockets, and what is seen from outside.

Brokers and ZooKeeper are the matter of a subclass: processes (`RealHost`), or incarnations in this process
(`controller/testing/scenario_host.py`). One thread runs the scenario and blocks in what it asks for; clients and the
observer have threads of their own and only add to the trace.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar, Protocol

from controller.chaos.client import Connect, MetadataClient, create_topics, metadata_of
from controller.chaos.clock import HostStallWatch, ScenarioClock
from controller.chaos.record_clients import RecordClients
from controller.clock import Coro
from controller.hosts.local_cluster import Secure
from controller.hosts.secured import ClusterSecurity
from controller.scenarios.faults import (
    ChangeMember,
    ChangeProducer,
    Fault,
    HostFailure,
    Implementations,
    Isolate,
    Link,
    Operation,
    ReplaceCertificate,
    unsupported,
)
from controller.scenarios.host import Observation, PartitionView, Snapshot, TopicSpec, Workload
from controller.scenarios.language import ClusterSpec
from controller.scenarios.records.history import History
from controller.scenarios.records.workload import PartitionName, RecordWorkload, TransactionStage
from controller.system import LOOPBACK
from controller.trace import MetadataSeen, TraceEvent
from controller.trace_records import OBSERVER, TraceRecord

HEARD_LIMIT_MS = 5_000.0
"""How long brokers may take to learn of new topics. A broker that is cut off never learns of them."""
HEARD_LOOK_MS = 20.0
HEARD_ANSWER_S = 1.0


class ClusterObserver(Protocol):
    """Reads the cluster's ZooKeeper from outside; used by the scenario's thread."""

    def now(self) -> tuple[Mapping[int, int], int]:
        """Return the registered brokers with their sessions, and the controller's id (-1: none)."""

    def partitions(self) -> Mapping[tuple[str, int], PartitionView]:
        """Return every partition that has a state, as ZooKeeper has it now."""

    def controller_epoch(self) -> int: ...

    def close(self) -> None: ...


LiveFaults = Implementations[Callable[[Any, Any], Coro[None]]]


class LiveHost(ABC):
    """One run's cluster, in real time. `folder` gets the logs of clients, and what else the brokers' host writes; a
    temporary one is removed by `close`."""

    name: ClassVar[str]
    faults: ClassVar[LiveFaults]
    seed: int | None = None

    def __init__(self, folder: Path | None) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="camerlengo-chaos-")) if folder is None else folder
        self.clock = ScenarioClock()
        self._records: list[TraceRecord] = []
        self._observer: ClusterObserver | None = None
        self._client: MetadataClient | None = None
        self._record_clients: RecordClients | None = None
        self._connect: Connect = {}
        self._security: ClusterSecurity | None = None
        self._cluster = ClusterSpec()
        self._standstills = HostStallWatch(self.clock.now_ms, self.take)
        self._lock = threading.Lock()
        self._metadata: tuple[MetadataSeen | None, float] = (None, 0.0)

    # -- of the brokers' host

    @abstractmethod
    def boot(self, cluster: ClusterSpec, workload: Workload) -> Coro[None]: ...

    @abstractmethod
    def start(self, node: int) -> Coro[None]: ...

    @abstractmethod
    def resume(self, node: int) -> Coro[None]: ...

    @abstractmethod
    def heal(self, link: Link) -> Coro[None]: ...

    @abstractmethod
    def _set_link(self, link: Link, *, cut: bool) -> None:
        """Cut the link between two brokers, or heal it."""

    @abstractmethod
    def zookeeper_leader(self) -> Coro[int]: ...

    @abstractmethod
    def zookeepers_running(self) -> tuple[int, ...]: ...

    @abstractmethod
    def start_zookeeper(self, server: int) -> Coro[None]: ...

    @abstractmethod
    def running(self) -> tuple[int, ...]:
        """Raises HostFailure for a broker that ended of itself: nothing that follows would mean anything."""

    @abstractmethod
    def _port(self, node: int) -> int:
        """Return where a broker listens for clients."""

    @abstractmethod
    def _close_cluster(self) -> None:
        """Stop the brokers and ZooKeeper, and add what they traced to the records. Safe to call twice."""

    async def inject(self, step: Fault | Operation) -> None:
        problem = unsupported(step, self.name)
        if problem is not None:
            raise HostFailure(problem)
        await self.faults[step](self, step)

    async def replace_certificate(self, fault: ReplaceCertificate) -> None:
        if self._security is None:
            raise HostFailure("replace-certificate: expected a cluster with secure = true")
        self._security.replace_certificate(fault.broker)

    @property
    def _secure(self) -> Secure | None:
        """How to connect to a secured cluster; None for another."""
        return None if self._security is None else self._security.connect

    # -- what is seen

    def take(self, event: TraceEvent) -> None:
        self._records.append(TraceRecord(self.clock.now_ms(), OBSERVER, event))

    def _ask_for_metadata(self, connect: Connect, workload: Workload) -> None:
        """Make the client that asks for metadata, from `begin` on."""
        self._connect = connect
        self._client = MetadataClient(connect, workload.metadata_interval_ms, self._see_metadata)

    def _see_metadata(self, seen: MetadataSeen) -> None:
        with self._lock:
            self._metadata = (seen, self.clock.now_ms())
        self.take(seen)

    def observe(self) -> Observation:
        assert self._observer is not None
        registered, controller = self._observer.now()
        with self._lock:
            seen, seen_at_ms = self._metadata
        return Observation(registered, controller, seen, seen_at_ms)

    async def leaders(self) -> Mapping[tuple[str, int], PartitionView]:
        assert self._observer is not None
        return self._observer.partitions()

    async def snapshot(self) -> Snapshot:
        assert self._observer is not None
        registered, controller = self._observer.now()
        metadata = {}
        for node in sorted(registered):
            try:
                metadata[node] = metadata_of(LOOPBACK, self._port(node), secure=self._secure)
            except OSError:
                continue  # the checker sees a registered broker without metadata
        partitions = self._observer.partitions()
        return Snapshot(partitions, tuple(sorted(registered)), controller, self._observer.controller_epoch(), metadata)

    def records(self) -> Sequence[TraceRecord]:
        return sorted(self._records, key=lambda record: record.at_ms)

    # -- clients

    async def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        assert self._client is not None
        create_topics(self._connect, topics)
        await self._until_heard({(topic.name, number) for topic in topics for number in range(topic.partitions)})
        self._client.expect(topics)

    async def _until_heard(self, partitions: Set[tuple[str, int]]) -> None:
        """The controller's own broker knows of them by now. Until the others do, they tell clients that there are none,
        which is no gap that a fault has made."""
        assert self._observer is not None
        registered, _ = self._observer.now()
        deaf = [node for node in self.running() if node in registered]
        deadline_ms = self.clock.now_ms() + HEARD_LIMIT_MS
        while deaf := [node for node in deaf if not self._has_heard(node, partitions)]:
            if self.clock.now_ms() >= deadline_ms:
                return
            await self.clock.sleep(HEARD_LOOK_MS)

    def _has_heard(self, node: int, partitions: Set[tuple[str, int]]) -> bool:
        try:
            return partitions <= metadata_of(LOOPBACK, self._port(node), HEARD_ANSWER_S, self._secure).keys()
        except OSError:
            return False

    async def produce(self, workload: RecordWorkload, partitions: Sequence[PartitionName]) -> None:
        self._record_clients = RecordClients(self._connect, workload, partitions, self.clock, self.folder)

    async def change_member(self, fault: ChangeMember) -> None:
        """As in simulation, a change that makes no sense now does nothing."""
        group = None if self._record_clients is None else self._record_clients.group
        if group is None:
            raise HostFailure("change-member: expected members in workload.records, and the step produce before it")
        undo = group.change(fault)
        if undo is not None and fault.for_ms:
            self.clock.call_later(fault.for_ms, undo)

    async def change_producer(self, fault: ChangeProducer) -> None:
        writers = {} if self._record_clients is None else self._record_clients.writers
        if fault.producer not in writers:
            raise HostFailure(f"change-producer: producer {fault.producer}: expected one of {sorted(writers)}")
        undo = writers[fault.producer].change(fault)
        if undo is not None and fault.for_ms:
            self.clock.call_later(fault.for_ms, undo)

    async def hold_transaction(self, client: int, stage: TransactionStage, deadline_ms: float) -> bool:
        if self._record_clients is None:
            raise HostFailure("hold-transaction: expected the step produce before it")
        return self._record_clients.stops(client).hold(stage, deadline_ms)

    def release_transaction(self, client: int) -> None:
        if self._record_clients is not None:
            self._record_clients.stops(client).release()

    async def quiesce(self, deadline_ms: float) -> None:
        assert self._record_clients is not None
        self._record_clients.quiesce(deadline_ms)

    def history(self) -> History | None:
        """Ends the clients, if they were not quiesced."""
        if self._record_clients is None:
            return None
        self._record_clients.close()
        return self._record_clients.history()

    async def isolate(self, fault: Isolate) -> None:
        """Cut the broker off from the others, both ways, for its time."""
        if not fault.for_ms:
            raise HostFailure("isolate: expected for_ms above 0, which only simulation can do without")
        others = [node for node in self._cluster.nodes if node != fault.broker]
        links = [link for node in others for link in (Link(node, fault.broker), Link(fault.broker, node))]
        for link in links:
            self._set_link(link, cut=True)

        def end() -> None:
            with self._lock:
                for link in links if self._observer is not None else ():
                    self._set_link(link, cut=False)

        self.clock.call_later(fault.for_ms, end)

    async def heal_all(self) -> None:
        raise HostFailure("heal-all is supported only in simulation")

    # -- the end

    async def shut_down(self) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything that was started: clients before the servers that they use. Safe to call twice."""
        self._standstills.close()
        if self._record_clients is not None:
            self._record_clients.close()
        if self._client is not None:
            self._client.close()
        with self._lock:
            self._close_cluster()
            self._client = self._observer = None
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


def live_faults(host: str) -> LiveFaults:
    """A host's table of faults, with those that `LiveHost` carries out itself."""
    faults = LiveFaults(host)
    faults.of(ChangeMember)(LiveHost.change_member)
    faults.of(ChangeProducer)(LiveHost.change_producer)
    faults.of(Isolate)(LiveHost.isolate)
    faults.of(ReplaceCertificate)(LiveHost.replace_certificate)
    return faults
