"""The world of a `Simulation`: its construction, the passage of its time, and what can be observed of it.

Nothing here changes the world except by letting time pass; requests and fault injection are in `simulation.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from controller.broker.node import Node
from controller.clock import VirtualClock
from controller.pending import Pending
from controller.protocol.versions import control_versions
from controller.scenarios.host import ClusterSpec, PartitionView, Workload
from controller.simulator import hostile_clients
from controller.simulator.administrator import Administrator
from controller.simulator.columns import log_text
from controller.simulator.custom_node import CustomNode
from controller.simulator.host import SimulatedHost
from controller.simulator.injector import Injector
from controller.simulator.inspection import inside
from controller.simulator.liveness_checker import LivenessChecker
from controller.simulator.observer import controller_epoch, partitions
from controller.simulator.plan import PROTOCOL, UNCLEAN, Plan
from controller.simulator.process import ProcessState
from controller.simulator.run import trace_hash
from controller.simulator.safety_checker import SafetyChecker, Violation
from controller.trace_records import TraceRecord
from controller.zookeeper.drive import drive
from controller.zookeeper.memory.server import InMemoryZooKeeper

BOOT_LIMIT_MS = 10_000.0
WITHIN_MS = 60_000.0
LOOK_MS = 20.0
"""How often it is looked whether a world is at rest."""

Subscriber = Callable[[TraceRecord], None]


class NotInTime(Exception):
    """What was waited for did not come about. The message says what, and when the waiting ended."""


class BrokenInvariant(AssertionError):
    """Something that must hold at every moment does not. Nothing that follows means anything."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


class SimulatedWorld:
    """See `Simulation`."""

    def _build(self, plan: Plan, racks: tuple[str, ...]) -> None:
        """In place of a constructor: booted, with nothing begun."""
        cluster = plan.cluster
        self._brokers = cluster.nodes
        self.safety_checker = SafetyChecker(
            clean=cluster.settings.get(UNCLEAN, "false") != "true",
            leaders_write=control_versions(cluster.settings.get(PROTOCOL, "2.8")).alter_isr is None,
        )
        self.safety_checker.unclean_topics = plan.unclean_topics
        if plan.has_hostile_clients:
            self.safety_checker.unclean_topics |= hostile_clients.TOPIC_NAMES
            self.safety_checker.terms_last = plan.terms_last
        self.host = SimulatedHost(plan.seed, self.safety_checker, kills_forget=False)
        settings = tuple(sorted(cluster.settings.items()))
        spec = ClusterSpec(
            cluster.brokers, cluster.zookeeper_servers, cluster.session_timeout_ms, racks=racks, settings=settings
        )
        booted = drive(self.host.boot(spec, Workload(plan.metadata_interval_ms)))
        self.host.clock.run_until(lambda: booted.done, BOOT_LIMIT_MS)
        booted.result()
        world = self.host.world
        self.safety_checker.attach(world.zookeeper, self.host.clock.now_ms)
        self.safety_checker.is_paused = self._is_paused
        self.administrator = Administrator(
            self.host.connection, self.host.clock, world.streams.stream("administrator"), world.addresses
        )
        self.injector = Injector(plan, self.host, self.safety_checker, self.administrator)
        self._custom_nodes: dict[int, CustomNode] = {}
        self._incarnations: dict[int, int] = {}

    def _is_paused(self, node: int) -> bool:
        process = self.host.processes.get(node)
        return process is not None and process.process.state is ProcessState.PAUSED

    # -- time

    @property
    def clock(self) -> VirtualClock:
        """The world's clock. `clock.call_later` schedules the user's own callbacks."""
        return self.host.clock

    @property
    def now_ms(self) -> float:
        return self.clock.now_ms()

    @property
    def next_ms(self) -> float | None:
        """When the next thing happens; None if nothing ever will."""
        return self.clock.next_due_ms()

    def step(self) -> bool:
        """Moves to the next thing that happens, and lets it. False: there is none."""
        stepped = self.clock.step()
        self._raise_if_broken()
        return stepped

    def run_until(self, what: float | Callable[[], bool], within_ms: float = WITHIN_MS) -> None:
        """To a moment (everything due up to and at it has happened then), or until a condition holds, which is looked
        at after each step; NotInTime if it does not within `within_ms`."""
        broken = self._is_broken
        if isinstance(what, int | float):
            self.clock.run_until(broken, what)
            self._raise_if_broken()
            self.clock.advance_to(what)
            return
        limit_ms = self.now_ms + within_ms
        came = self.clock.run_until(lambda: what() or broken(), limit_ms)
        self._raise_if_broken()
        if not came:
            self.clock.advance_to(limit_ms)
            raise NotInTime(f"not within {within_ms:g} ms, at {self.now_ms:g} ms: {_name(what)}")

    def run_for(self, ms: float) -> None:
        self.run_until(self.now_ms + ms)

    def run_until_rest(self, within_ms: float = WITHIN_MS) -> None:
        """Until nothing is missing of a cluster at rest among the brokers that run (`unrest`). NotInTime."""
        limit_ms = self.now_ms + within_ms
        while (problem := self.unrest()) is not None:
            if self.now_ms >= limit_ms:
                raise NotInTime(f"not at rest within {within_ms:g} ms: {problem}")
            self.run_for(LOOK_MS)

    def answer(self, pending: Pending[Any], within_ms: float = WITHIN_MS) -> Any:
        """Runs until there is an answer, and gives it; raises the error that it is. NotInTime."""
        self.run_until(lambda: pending.done, within_ms)
        return pending.result()

    def _is_broken(self) -> bool:
        return self.safety_checker.violation is not None

    def _raise_if_broken(self) -> None:
        if self.safety_checker.violation is not None:
            raise BrokenInvariant(self.safety_checker.violation)

    # -- what is so

    @property
    def zookeeper(self) -> InMemoryZooKeeper:
        """To look into: `row(path)`, `children(path)`, `sessions()`."""
        return self.host.world.zookeeper

    @property
    def running(self) -> tuple[int, ...]:
        """The brokers whose processes run, or stand still."""
        return tuple(node for node in self._brokers if self._alive(node))

    @property
    def paused(self) -> tuple[int, ...]:
        state = ProcessState.PAUSED
        return tuple(node for node in self.running if self.host.processes[node].process.state is state)

    @property
    def registered(self) -> dict[int, int]:
        """Broker to session, as /brokers/ids has them."""
        return self._liveness_checker().registered()

    @property
    def controller(self) -> int | None:
        """Whom /controller names."""
        controller = self._liveness_checker().controller()
        return None if controller == -1 else controller

    @property
    def controller_epoch(self) -> int:
        return controller_epoch(self.zookeeper)

    def partitions(self) -> dict[tuple[str, int], PartitionView]:
        """(topic, partition) to leader, ISR, assignment and epochs, as ZooKeeper has them."""
        return partitions(self.zookeeper)

    def metadata(self, broker: int) -> dict[tuple[str, int], PartitionView] | None:
        """As `partitions`, as this broker would tell a client; None while it does not run."""
        node = self.node(broker)
        if node is None:
            return None
        return {
            (topic, number): PartitionView(
                state.leader, tuple(state.isr), tuple(state.replicas), state.leader_epoch, state.controller_epoch
            )
            for topic, states in sorted(node.broker.metadata.snapshot.topics.items())
            for number, state in sorted(states.items())
        }

    def node(self, broker: int) -> Node | None:
        """The node that runs in a broker's process, to look at; None while it does not run."""
        self._known(broker)
        return self.host.processes[broker].node if self._alive(broker) else None

    def inside(self, broker: int) -> str:
        """All that is in a broker at this moment, for reading (`--show`)."""
        return inside(self.host.processes.get(self._known(broker)), self.zookeeper)

    def unrest(self) -> str | None:
        """What a cluster at rest would not miss, in words: every broker that runs registered, one controller that all
        know, every partition led that can be, ISRs whole, context and metadata ZooKeeper's, watches set, nothing
        unanswered. None: it is at rest."""
        if not self.running:
            return "no broker runs"
        found = self._liveness_checker().first_unmet()
        return None if found is None else f"{found.invariant}: {found.detail}"

    @property
    def records(self) -> Sequence[TraceRecord]:
        """The trace so far: every event with its time and node, in order."""
        return self.safety_checker.records

    @property
    def trace_hash(self) -> str:
        """Of the trace so far: equal for equal runs."""
        return trace_hash(self.safety_checker.records)

    def log(self) -> str:
        """The trace so far for reading: a node a column, an event a line."""
        return log_text(self.safety_checker.records, [*self._brokers, *sorted(self._custom_nodes)])

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with each event, before anything else happens; return a function that unsubscribes.

        The subscriber may inspect the world but must not step it: to act, it sets a timer (`clock.call_later(0, ...)`).
        """
        subscribers = self.safety_checker.subscribers
        subscribers.append(subscriber)

        def end() -> None:
            if subscriber in subscribers:
                subscribers.remove(subscriber)

        return end

    def _liveness_checker(self) -> LivenessChecker:
        return LivenessChecker(self.host, self.running, self.safety_checker, self.administrator)

    def _alive(self, broker: int) -> bool:
        process = self.host.processes.get(broker)
        return process is not None and process.alive

    def _known(self, broker: int) -> int:
        if broker not in self._brokers:
            raise ValueError(f"broker {broker}: expected 1 to {len(self._brokers)}")
        return broker


def _name(condition: Callable[[], bool]) -> str:
    return getattr(condition, "__qualname__", repr(condition))
