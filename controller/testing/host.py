"""What runs the brokers of a cluster for tests: the interface between `Kafka` and memory, processes or containers.

A host carries out faults and answers questions about the cluster's state. `Kafka` and `BrokerControl` decide everything
that is the same on all hosts: what is asked of whom, when a cluster is healthy, and what an error says.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from controller.hosts.secured import PROTOCOL, ClusterSecurity, Security
from controller.protocol.client import CreateTopicsRequest, CreateTopicsResponse
from controller.testing.request_faults import RequestFault
from controller.trace import FaultInjected, TraceEvent
from controller.trace_records import OBSERVER, TraceRecord

T = TypeVar("T")

Target = int | Literal["zookeeper"]
"""The other end of a broker's link."""

ABILITIES: Mapping[str, str] = {
    "clock": "advance the cluster's clock",
    "disks": "fill a disk",
    "lost-disks": "lose a disk",
    "links": "cut the link between two brokers",
    "requests": "inject faults into requests of clients",
    "security": "secure its listeners",
    "seed": "repeat the brokers' random decisions",
    "sessions": "end a ZooKeeper session",
    "slow": "slow the messages of a broker",
    "zookeeper-links": "cut a broker off from ZooKeeper",
}
"""What not every host can do."""


class UnsupportedByHost(RuntimeError):
    """The host of a cluster can't do what a test asks for; `ability` is the name for `Kafka.requires`."""

    def __init__(self, host: str, ability: str) -> None:
        super().__init__(
            f"a cluster on the host {host!r} can't {ABILITIES[ability]}: expected a host with the ability {ability!r}"
            f" (memory has all), or kafka.requires({ability!r}) in the test, which skips it elsewhere"
        )
        self.ability = ability


class UnansweredCall(TimeoutError):
    """The host did not answer a call in the cluster's time limit; `Kafka` says what was asked."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What a cluster is like; see `Kafka`."""

    brokers: int
    settings: Mapping[str, str]
    directory: Path | None
    session_timeout_ms: int
    seed: int | None
    timeout_s: float
    security: Security | None = None
    racks: Sequence[str] = ()
    """Dealt out to the brokers in turn. In memory alone."""

    def settings_beside(self, own: Collection[str]) -> Mapping[str, str]:
        """Return the settings, with those of consumer groups that fit a test's cluster: a group does not wait for more
        members, and its topic has few partitions.

        Raises:
            ValueError: the cluster sets one of them itself.
        """
        taken = sorted(self.settings.keys() & set(own))
        if taken:
            raise ValueError(f"settings: {', '.join(taken)}: set by the cluster itself")
        groups = {
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "100",
            "offsets.topic.num.partitions": "3",
            "offsets.topic.replication.factor": str(min(3, self.brokers)),
            "transaction.state.log.num.partitions": "3",
            "transaction.state.log.replication.factor": str(min(3, self.brokers)),
            "transaction.state.log.min.isr": str(min(2, self.brokers)),
        }
        return {**groups, **self.settings}


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """A partition as one broker describes it to clients; `leader` -1: none."""

    leader: int
    replicas: tuple[int, ...]


class ClusterHost(ABC):
    """Brokers 1 to `options.brokers` and their ZooKeeper. What is not abstract here, some hosts can't do.

    The questions are asked in a function that `call` or `wait` runs, so that a host may run it on a thread of its own.
    """

    name: ClassVar[str]
    abilities: ClassVar[frozenset[str]]

    def __init__(self, options: ClusterOptions) -> None:
        if options.security is not None and "security" not in self.abilities:
            raise UnsupportedByHost(self.name, "security")
        self.options = options
        self.security: ClusterSecurity | None = None
        """Keys, users and passwords, from `start` to `stop`; None for a cluster without."""

    @property
    def protocol(self) -> str:
        """The security protocol of the listeners, which is the name of the clients' one."""
        return "PLAINTEXT" if self.options.security is None else PROTOCOL

    def make_security(self, directory: Path | None) -> None:
        """Make the keys of a secured cluster, in `directory` or a temporary one."""
        if self.options.security is not None:
            folder = directory or Path(tempfile.mkdtemp(prefix="camerlengo-keys-"))
            self.security = ClusterSecurity(folder, self.options.security, self.options.brokers)

    def remove_security(self) -> None:
        if self.security is not None:
            self.security.remove()

    # -- begin and end

    @abstractmethod
    def start(self) -> None:
        """Start ZooKeeper and all brokers. Return when `address` is known; `Kafka` waits for the rest."""

    @abstractmethod
    def stop(self) -> None:
        """End everything, whatever its state."""

    # -- threads and time

    @abstractmethod
    def call(self, action: Callable[[], T]) -> T:
        """Run `action` where the state may be read and changed, and return its result."""

    @abstractmethod
    def wait(self, condition: Callable[[], bool], limit_s: float, *, own_thread: bool = False) -> bool:
        """Wait until `condition` is true. Return False after `limit_s`.

        Args:
            own_thread: call the condition on the caller's thread, since it is the user's.
        """

    @abstractmethod
    def now_ms(self) -> float:
        """Return the cluster's monotonic time."""

    def advance(self, by_ms: float) -> None:
        raise UnsupportedByHost(self.name, "clock")

    # -- state, within `call` and `wait`

    @abstractmethod
    def controller(self) -> int | None:
        """Return the controller by ZooKeeper's account."""

    @abstractmethod
    def partition(self, topic: str, partition: int) -> tuple[int, tuple[int, ...]] | None:
        """Return the leader (-1: none) and the ISR by ZooKeeper's account, None for a partition that is not there."""

    @abstractmethod
    def partitions(self) -> Iterable[tuple[str, int]]:
        """Return every partition by ZooKeeper's account."""

    @abstractmethod
    def registered(self) -> frozenset[int]:
        """Return the brokers with a registration in ZooKeeper."""

    @abstractmethod
    def address(self, broker: int) -> str:
        """Return HOST:PORT for clients."""

    @abstractmethod
    def running(self, broker: int) -> bool:
        """Return whether the broker's process is there, paused or not."""

    @abstractmethod
    def paused(self, broker: int) -> bool:
        """Return whether the broker's process stands still."""

    @abstractmethod
    def known_brokers(self, broker: int) -> frozenset[int]:
        """Return the brokers that a broker describes to clients; none if it does not answer."""

    @abstractmethod
    def known_partition(self, broker: int, topic: str, partition: int) -> KnownPartition | None:
        """Return a partition as a broker describes it, None if it does not."""

    # -- topics

    @abstractmethod
    def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse | None:
        """Ask the controller, outside of `call`. None: there is none, or it did not answer."""

    # -- brokers. Each records its fault with `inject`; RuntimeError for a broker that does not run.

    @abstractmethod
    def kill(self, broker: int, *, expire: bool) -> None: ...

    @abstractmethod
    def begin_stop(self, broker: int) -> None:
        """Ask a broker to end; `running` is false once it has."""

    @abstractmethod
    def begin_start(self, broker: int) -> None:
        """Start a broker that does not run."""

    @abstractmethod
    def started(self, broker: int) -> bool:
        """Return whether the broker is registered and knows itself. RuntimeError if it has ended."""

    @abstractmethod
    def pause(self, broker: int) -> None: ...

    @abstractmethod
    def resume(self, broker: int) -> None: ...

    def expire_session(self, broker: int) -> None:
        raise UnsupportedByHost(self.name, "sessions")

    def cut(self, broker: int, other: Target) -> None:
        raise UnsupportedByHost(self.name, "zookeeper-links" if other == "zookeeper" else "links")

    def heal(self, broker: int, other: Target | None) -> None:  # noqa: B027 - a host without the fault has nothing to end
        """End a cut, or all of a broker (None)."""

    def slow(self, broker: int, ms: float) -> None:
        if ms:
            raise UnsupportedByHost(self.name, "slow")

    def fill_disk(self, broker: int) -> None:
        raise UnsupportedByHost(self.name, "disks")

    def free_disk(self, broker: int) -> None:  # noqa: B027 - a host without the fault has nothing to end
        """End `fill_disk`."""

    def lose_disk(self, broker: int) -> None:
        raise UnsupportedByHost(self.name, "lost-disks")

    # -- requests of clients

    def add_fault(self, fault: RequestFault) -> None:
        raise UnsupportedByHost(self.name, "requests")

    def clear_faults(self) -> None:  # noqa: B027 - a host without the fault has nothing to end
        """End all faults of requests."""

    # -- what happened

    @abstractmethod
    def emit(self, node: int, event: TraceEvent) -> None:
        """Record an event, at this moment."""

    @abstractmethod
    def records(self) -> tuple[TraceRecord, ...]:
        """Return all events so far, by time."""

    def inject(self, fault: str, target: object) -> None:
        """Record a fault, for the timeline."""
        self.emit(OBSERVER, FaultInjected(fault, str(target)))

    def logs(self) -> str:
        """Return what the brokers wrote last, for the report of a failed test; "" where the timeline has it all."""
        return ""
