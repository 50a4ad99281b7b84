"""The interface of a host on which scenarios run.

There are three hosts: real processes with a ZooKeeper server (`controller.chaos`), the simulator, and the in-process
cluster with real clients (`controller.testing.scenario_host`). The runner, the
conditions and the checkers use only this interface. The host's own driver (`Coro`) runs every coroutine: a host on real
processes may block inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from controller.clock import Clock, Coro
from controller.scenarios.faults import Fault, Link, Operation
from controller.scenarios.language import ClusterSpec
from controller.scenarios.records.history import History
from controller.scenarios.records.workload import PartitionName, RecordWorkload, TransactionStage
from controller.trace import MetadataSeen, TraceEvent
from controller.trace_records import TraceRecord


@dataclass(frozen=True, slots=True)
class TopicSpec:
    name: str
    partitions: int
    replication_factor: int
    config: tuple[tuple[str, str], ...] = ()
    assignment: tuple[tuple[int, ...], ...] = ()
    """The replicas of each partition, in order; empty: the controller chooses them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`metadata_interval_ms`: how long a client waits between an answer and its next metadata request. `records`:
    whether any will be produced; a simulated cluster that needs to hold none has no logs."""

    metadata_interval_ms: float = 20.0
    records: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """The state that is visible from outside now, without a request: the observer's view of ZooKeeper, which watches
    keep current, and the client's latest response.

    `registered`: broker id to the session that owns /brokers/ids/N; `controller`: the id in /controller, -1 for none;
    `metadata`: the latest response and when it arrived.
    """

    registered: Mapping[int, int]
    controller: int
    metadata: MetadataSeen | None
    metadata_at_ms: float


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as ZooKeeper, or as one broker's metadata, shows it. `assignment` in its order; `isr` in its
    own order from ZooKeeper; what a view does not tell is -1 or empty."""

    leader: int
    isr: tuple[int, ...]
    assignment: tuple[int, ...]
    leader_epoch: int = -1
    controller_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster when it was quiet: ZooKeeper's partitions, who is registered, the controller and its epoch, and
    what each live broker answers to a metadata request."""

    partitions: Mapping[tuple[str, int], PartitionView]
    registered: tuple[int, ...]
    controller: int
    controller_epoch: int
    metadata: Mapping[int, Mapping[tuple[str, int], PartitionView]] = field(default_factory=dict)


class ScenarioHost(Protocol):
    @property
    def name(self) -> str:
        """ "real", "simulated" or "in-process"."""

    @property
    def seed(self) -> int | None: ...

    @property
    def clock(self) -> Clock:
        """Its zero is the scenario's start."""

    def take(self, event: TraceEvent) -> None:
        """Adds the runner's own event to the trace, as of now, from node OBSERVER."""

    def boot(self, cluster: ClusterSpec, workload: Workload) -> Coro[None]:
        """ZooKeeper up, the observer watching, the client ready (it begins to ask, for the topics created so far,
        when the first topics are). No broker yet."""

    def start(self, node: int) -> Coro[None]:
        """Starts a broker that is not running. Returns when its process runs, not when it is registered."""

    def resume(self, node: int) -> Coro[None]: ...

    def heal(self, link: Link) -> Coro[None]: ...

    def inject(self, step: Fault | Operation) -> Coro[None]:
        """Begin a fault, or carry out an operation, whose names are resolved. `stop` returns when the process
        has ended.

        Raises:
            HostFailure: it is impossible in the present state, or this host does not implement it.
        """

    def heal_all(self) -> Coro[None]:
        """End every lasting fault. Raises HostFailure on a host that has no such faults."""

    def zookeeper_leader(self) -> Coro[int]:
        """The number, from 1, of the server that leads the ensemble. HostFailure while there is none."""

    def zookeepers_running(self) -> tuple[int, ...]:
        """The servers that run, by number, in order."""

    def start_zookeeper(self, server: int) -> Coro[None]:
        """Starts a server that was killed. Returns when it serves, as part of the ensemble."""

    def create_topics(self, topics: Sequence[TopicSpec]) -> Coro[None]:
        """Asks the cluster as a client would. HostFailure with the cluster's error if one was refused."""

    def produce(self, workload: RecordWorkload, partitions: Sequence[PartitionName]) -> Coro[None]:
        """Begins to write to and read from these partitions. Asked for once a run."""

    def hold_transaction(self, client: int, stage: TransactionStage, deadline_ms: float) -> Coro[bool]:
        """Wait until that transactional client is at the stage of a transaction, where it stops; False if it did not
        come there in time. HostFailure without such a client."""

    def release_transaction(self, client: int) -> None:
        """Have a client that was held go on."""

    def quiesce(self, deadline_ms: float) -> Coro[None]:
        """Ends the writing, waits until every operation has ended, then reads every partition from its beginning to
        its end, for at most `deadline_ms`. Asked for once, after `produce`."""

    def history(self) -> History | None:
        """Return the history of the records so far, or None if none were requested. It is complete after `quiesce`."""

    def running(self) -> tuple[int, ...]:
        """The brokers whose processes run (paused ones too), in order."""

    def observe(self) -> Observation: ...

    def leaders(self) -> Coro[Mapping[tuple[str, int], PartitionView]]:
        """Every partition's state, read from ZooKeeper now."""

    def snapshot(self) -> Coro[Snapshot]: ...

    def shut_down(self) -> Coro[None]:
        """Ends everything that the host started. Safe after a failure at any point."""

    def records(self) -> Sequence[TraceRecord]:
        """All that was traced, by every node, ordered by time. Complete after `shut_down`."""
