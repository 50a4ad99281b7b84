"""A simulated cluster as a library: build a world, step it from outside, look into it, strike it, hear its events.

The whole world (ZooKeeper, brokers with their controllers, network, disks, and user-defined nodes) is one object
without threads, in virtual time that passes only when it is stepped. Everything that chance decides comes from the
seed: the same calls give the same events, to the byte. What must hold at every moment is watched all the while, and
the first thing that does not raises `BrokenInvariant` out of whatever call stepped the world.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.broker.node import Node
from controller.clock import Future, VirtualClock, spawn
from controller.machine.process import ProcessState
from controller.protocol import SUPPORTED, ApiKey, decode_response_body, encode_request_body
from controller.protocol.codec import control_versions
from controller.scenarios.faults import (
    ZOOKEEPER,
    AddPartitions,
    CreateTopic,
    CutZooKeeper,
    DeleteTopic,
    Expire,
    Fault,
    Kill,
    Link,
    Operation,
    Pause,
    Stop,
)
from controller.scenarios.host import PartitionView, Workload
from controller.scenarios.language import PROTOCOL, UNCLEAN, ClusterSpec, Plan
from controller.simulator import hostile_clients
from controller.simulator.administrator import Administrator
from controller.simulator.columns import log_text
from controller.simulator.custom_node import CustomNode
from controller.simulator.host import PORT, SimulatedHost
from controller.simulator.injector import Injector
from controller.simulator.inspection import inside
from controller.simulator.liveness_checker import LivenessChecker
from controller.simulator.network import Address
from controller.simulator.observer import controller_epoch, partitions
from controller.simulator.run import trace_hash
from controller.simulator.safety_checker import SafetyChecker, Violation
from controller.trace_records import TraceRecord
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


class Simulation:
    """Brokers 1 to `brokers` (0: a world without any), which run from the start unless `start` says otherwise.

    `settings` are every broker's, as in server.properties; with `log.dirs` among them brokers hold logs, followers
    fetch and ISRs follow how far they have come; a kill leaves what was written, a `LosePower` only what was synced.
    `racks` are assigned in turn. Times are virtual milliseconds. With a `plan` the cluster is the plan's, and `start`
    begins what it has happen. With `zookeeper_lag_ms` each broker is at a ZooKeeper follower that applies transactions
    up to so much later than the leader, so that its reads are stale unless it calls `sync`.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        seed: int = 0,
        zookeeper_servers: int = 1,
        session_timeout_ms: int = 2_000,
        racks: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        start: bool = True,
        plan: Plan | None = None,
        zookeeper_lag_ms: float = 0.0,
    ) -> None:
        if brokers < 0 or zookeeper_servers < 1:
            raise ValueError(f"{brokers} brokers, {zookeeper_servers} ZooKeeper servers: expected 0 and 1 or more")
        if plan is None:
            cluster = ClusterSpec(
                brokers=brokers,
                zookeeper_servers=zookeeper_servers,
                session_timeout_ms=session_timeout_ms,
                racks=tuple(racks),
                settings=dict(settings or {}),
            )
            plan = Plan(name="simulation", seed=seed, cluster=cluster, core=tuple(cluster.nodes), calm_ms=math.inf)
        cluster = plan.cluster
        self._brokers = cluster.nodes
        self.safety_checker = SafetyChecker(
            clean=cluster.properties.get(UNCLEAN, "false") != "true",
            leaders_write=control_versions(cluster.properties.get(PROTOCOL, "2.8")).alter_isr is None,
        )
        self.safety_checker.unclean_topics = plan.unclean_topics
        if plan.has_hostile_clients:
            self.safety_checker.unclean_topics |= hostile_clients.TOPIC_NAMES
            self.safety_checker.terms_last = plan.terms_last
        self.host = SimulatedHost(plan.seed, self.safety_checker, kills_forget=False, zookeeper_lag_ms=zookeeper_lag_ms)
        booted = spawn(self.host.boot(cluster, Workload(plan.metadata_interval_ms)))
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
        if start:
            self.injector.begin()

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

    def answer(self, pending: Future[Any], within_ms: float = WITHIN_MS) -> Any:
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

    # -- what is asked of it

    def create_topic(
        self, topic: str, partitions: int, replication_factor: int, config: Mapping[str, str] | None = None
    ) -> Future[str]:
        """Asks the controller, as an administrator would, some times if need be. "done", or why not."""
        return self.inject(
            CreateTopic(
                at_ms=self.now_ms,
                topic=topic,
                partitions=partitions,
                replication_factor=replication_factor,
                config=dict(config or {}),
            )
        )

    def delete_topic(self, topic: str) -> Future[str]:
        return self.inject(DeleteTopic(at_ms=self.now_ms, topic=topic))

    def add_partitions(self, topic: str, partitions: int) -> Future[str]:
        """`partitions`: how many there are to be."""
        return self.inject(AddPartitions(at_ms=self.now_ms, topic=topic, partitions=partitions))

    def ask(self, broker: int, api_key: ApiKey, request: Any, timeout_ms: float = 5_000.0) -> Future[Any]:
        """One Kafka request from outside, in the latest version that is spoken here. Fails with a `PeerError`."""
        return spawn(self._ask(self._known(broker), api_key, request, timeout_ms))

    async def _ask(self, broker: int, api_key: ApiKey, request: Any, timeout_ms: float) -> Any:
        version = SUPPORTED[api_key].last
        connection = self.host.connection(self.host.world.addresses[broker])
        await connection.open(timeout_ms)
        answer = connection.ask(api_key, version, encode_request_body(api_key, version, request), timeout_ms)
        answer.on_done(connection.close)
        return decode_response_body(api_key, version, await answer)

    # -- fault injection

    def inject(self, happening: Fault | Operation) -> Future[str]:
        """Whatever a plan may have happen, at its `at_ms` or at once if that is past, for its `for_ms` (0: until it is
        undone by hand, or by `heal_all`). Answered when it is over: "ended", or "nothing" if it made no sense then."""
        self.safety_checker.expect_errors_of(happening)
        return self.injector.take(happening)

    def start(self, broker: int) -> None:
        """A broker that is dead, or on its way out. ValueError if it runs."""
        if self._alive(self._known(broker)) and not self.host.processes[broker].stopping:
            raise ValueError(f"broker {broker} runs already")
        self.injector.start(broker)

    def kill(self, broker: int, for_ms: float = 0.0) -> None:
        """SIGKILL; with `for_ms` it is started again so much later."""
        self.inject(Kill(at_ms=self.now_ms, node=self._known(broker), for_ms=for_ms))

    def stop(self, broker: int, for_ms: float = 0.0) -> None:
        """SIGTERM: a controlled shutdown begins."""
        self.inject(Stop(at_ms=self.now_ms, node=self._known(broker), for_ms=for_ms))

    def pause(self, broker: int, for_ms: float = 0.0) -> None:
        """SIGSTOP."""
        self.inject(Pause(at_ms=self.now_ms, node=self._known(broker), for_ms=for_ms))

    def resume(self, broker: int) -> None:
        if self._alive(self._known(broker)):
            self.host.processes[broker].resume()

    def expire(self, broker: int) -> None:
        """Its ZooKeeper session ends at the server."""
        self.inject(Expire(at_ms=self.now_ms, node=self._known(broker)))

    def cut(self, source: int, target: int) -> None:
        """What `source` opens to `target` passes nothing, both ways, and refuses nothing."""
        self.host.world.network.cut(source, target)

    def heal(self, source: int, target: int) -> None:
        """What was sent meanwhile arrives."""
        self.host.world.network.heal(source, target)

    def cut_zookeeper(self, broker: int, for_ms: float = 0.0) -> None:
        """Nothing passes between a broker and ZooKeeper."""
        self.inject(CutZooKeeper(at_ms=self.now_ms, node=self._known(broker), for_ms=for_ms))

    def heal_zookeeper(self, broker: int) -> None:
        spawn(self.host.heal(Link(self._known(broker), ZOOKEEPER)))

    def heal_all(self) -> None:
        """Every fault that lasts ends; who is dead stays dead."""
        self.injector.faults.heal_all()

    # -- user-defined nodes

    def add_node(self, name: str, node: int | None = None) -> CustomNode:
        """Start a process beside the brokers, on a machine of its own.

        Args:
            node: Its id, by default the next one above all others. The id of a dead node starts its next incarnation.

        Raises:
            ValueError: The id is a broker's or that of a live node.
        """
        node_id = max([len(self._brokers), *self._custom_nodes]) + 1 if node is None else node
        known = self._custom_nodes.get(node_id)
        if node_id in self._brokers or node_id < 1 or (known is not None and known.alive):
            raise ValueError(f"node {node_id}: expected an id above the brokers' that no living node has")
        incarnation = self._incarnations[node_id] = self._incarnations.get(node_id, 0) + 1
        self.host.place(self._address(node_id), node_id)
        custom_node = self._custom_nodes[node_id] = CustomNode(self.host, node_id, name, incarnation, self._address)
        return custom_node

    def _address(self, node: int) -> Address:
        if node in self._brokers:
            return self.host.world.addresses[node]
        return f"node-{node}", PORT

    def close(self) -> None:
        """Ends every process: nothing happens any more. The trace stays."""
        for _, custom_node in sorted(self._custom_nodes.items()):
            custom_node.kill()
        spawn(self.host.shut_down()).result()


def _name(condition: Callable[[], bool]) -> str:
    return getattr(condition, "__qualname__", repr(condition))
