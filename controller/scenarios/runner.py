"""Carries out a scenario's steps on a host, one after the other, and says what came of each.

The runner is a coroutine over the host's own Pendings: the host on real processes blocks in them, the simulator
resumes it in virtual time. It decides nothing about right and wrong: `judge.py` does, from the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from controller.scenarios.conditions import CONDITIONS, MILESTONES, View
from controller.scenarios.faults import HealAll, InjectedFault, LosePower, kind_of
from controller.scenarios.host import (
    ZOOKEEPER,
    ClusterSpec,
    HostFailure,
    Link,
    PartitionView,
    ScenarioHost,
    Snapshot,
    TopicSpec,
    Workload,
)
from controller.scenarios.invariants import disagreement
from controller.scenarios.language import (
    AnyStep,
    CreateTopics,
    Cut,
    Expire,
    Heal,
    Kill,
    KillZooKeeper,
    Let,
    Pause,
    Produce,
    Quiesce,
    Restart,
    Resume,
    Scenario,
    Start,
    StartZooKeeper,
    Stop,
    Wait,
)
from controller.scenarios.records.history import History
from controller.scenarios.records.section import workload_of
from controller.scenarios.records.workload import RecordWorkload
from controller.scenarios.step import NodeName
from controller.trace import FaultInjected, StepEnded, StepStarted

NODE_FIELDS = ("node", "source", "target")
"""In which faults name brokers."""
POLL_MS = 20.0
"""How often a wait looks again. Looking costs nothing but for `leaders`, which reads ZooKeeper."""

QUIET_MS = 5_000.0
"""How long after the last step a cluster may take to become quiet."""

Progress = Callable[[float, str], None]
"""A callback for each step as it happens, with milliseconds from the start and a line of text."""


@dataclass(slots=True)
class Outcome:
    """How the steps went: `failure` names the step that could not be carried out or waited for in vain.
    `could_not_run`: the host failed, so nothing was proved either way. `workload`, `history`: of the records, if any
    were asked for."""

    topics: list[TopicSpec] = field(default_factory=list)
    snapshot: Snapshot | None = None
    failure: str | None = None
    could_not_run: bool = False
    workload: RecordWorkload | None = None
    history: History | None = None


def cluster_spec(scenario: Scenario) -> ClusterSpec:
    cluster = scenario.cluster
    settings = tuple((key, _property(value)) for key, value in cluster.settings.items())
    return ClusterSpec(cluster.brokers, cluster.zookeeper_servers, cluster.session_timeout_ms, cluster.racks, settings)


def _workload(scenario: Scenario, host: str) -> Workload:
    section = scenario.workload.records
    produces = any(isinstance(step, Produce) and step.when for step in scenario.steps)
    records = section is not None and produces and workload_of(section, host).rate_per_s > 0
    return Workload(scenario.workload.metadata_interval_ms, records)


def _property(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def run_steps(scenario: Scenario, host: ScenarioHost, progress: Progress = lambda at_ms, line: None) -> Outcome:
    """Boots the host, takes every step, ends with a snapshot. The caller shuts the host down, whatever happened."""
    run = _Run(scenario, host, progress)
    outcome = run.outcome
    try:
        await host.boot(cluster_spec(scenario), _workload(scenario, host.name))
        for index, step in enumerate(scenario.steps):
            if step.when and not await run.take(index, step):
                break
        await run.quiesce()
        outcome.snapshot = await run.last_look()
    except HostFailure as error:
        outcome.failure, outcome.could_not_run = str(error), True
        progress(host.clock.now_ms(), f"could not go on: {error}")
    outcome.history = host.history()
    return outcome


class _Run:
    def __init__(self, scenario: Scenario, host: ScenarioHost, progress: Progress) -> None:
        self.scenario = scenario
        self.host = host
        self.progress = progress
        self.outcome = Outcome()
        self.names: dict[str, int] = {}
        self.servers: dict[str, int] = {}
        self.former: dict[int, int] = {}
        """The session that a broker had before the last fault that ended it."""
        self.producing = False
        self.fault_at_ms = 0.0
        """Answers that a client had before the last fault say nothing about the recovery from it."""

    async def last_look(self) -> Snapshot:
        """The cluster once it is quiet: as soon as every broker's metadata is ZooKeeper's, at the latest after
        QUIET_MS, when it is what it is."""
        deadline_ms = self.host.clock.now_ms() + QUIET_MS
        while True:
            snapshot = await self.host.snapshot()
            if disagreement(snapshot) is None or self.host.clock.now_ms() >= deadline_ms:
                return snapshot
            await self.host.clock.sleep(5 * POLL_MS)

    async def take(self, index: int, step: AnyStep) -> bool:
        """Run one step, and report it to the trace and the observers. Return False if it failed: the scenario ends."""
        kind = step.__struct_config__.tag
        assert isinstance(kind, str)
        nodes = await self._targets(step)
        text = _describe(step, kind, nodes)
        self.host.take(StepStarted(index, kind, text))
        self.progress(self.host.clock.now_ms(), text)
        missing = await self._carry_out(step, nodes)
        self.host.take(StepEnded(index, kind, missing is None, missing or ""))
        if missing is not None:
            self.outcome.failure = f"step {index} ({text}): {missing}"
            self.progress(self.host.clock.now_ms(), f"failed: {missing}")
        return missing is None

    async def _carry_out(self, step: AnyStep, nodes: list[int]) -> str | None:
        match step:
            case Wait():
                return await self._wait(step, nodes)
            case Let():
                await self.host.clock.sleep(step.ms)
            case Produce():
                await self._produce()
            case Quiesce():
                await self.quiesce(step.deadline_ms)
            case CreateTopics():
                await self._create_topics(step)
            case Start():
                for node in nodes:
                    await self.host.start(node)
            case Cut() | Heal():
                await self._link(step, Link(nodes[0], nodes[1]))
            case KillZooKeeper() | StartZooKeeper():
                await self._server(step, nodes[0])
            case HealAll():
                self._fault("mend", "everything")
                await self.host.heal_all()
            case InjectedFault():
                await self._inject(step, nodes)
            case Kill() | Stop() | Restart() | Pause() | Resume() | Expire():
                await self._strike(step, nodes[0])
        return None

    async def _strike(self, step: Kill | Stop | Restart | Pause | Resume | Expire, node: int) -> None:
        if step.name:
            self.names[step.name] = node
        kind = str(step.__struct_config__.tag)
        if isinstance(step, Kill | Stop | Restart | Expire):
            self.former[node] = self.host.observe().registered.get(node, 0)
        self._fault(kind, str(node))
        match step:
            case Kill():
                await self.host.kill(node)
            case Stop():
                await self.host.stop(node)
            case Restart():
                await (self.host.kill(node) if step.how == "hard" else self.host.stop(node))
                await self.host.start(node)
            case Pause():
                await self.host.pause(node)
            case Resume():
                await self.host.resume(node)
            case Expire():
                await self.host.expire(node)

    async def _inject(self, step: InjectedFault, nodes: list[int]) -> None:
        fault = _with_nodes(step, nodes)
        if isinstance(fault, LosePower):  # the checkers count it as a kill
            self.former[nodes[0]] = self.host.observe().registered.get(nodes[0], 0)
            self._fault("kill", str(nodes[0]))
        else:
            self._fault(kind_of(fault), _details(fault))
        await self.host.inject(fault)

    async def _link(self, step: Cut | Heal, link: Link) -> None:
        if isinstance(step, Cut):
            if step.name:
                self.names[step.name] = link.source
            self._fault("cut", str(link))
            await self.host.cut(link)
        else:
            self._fault("heal", str(link))
            await self.host.heal(link)

    async def _server(self, step: KillZooKeeper | StartZooKeeper, server: int) -> None:
        if step.name:
            self.servers[step.name] = server
        self._fault("kill" if isinstance(step, KillZooKeeper) else "start", f"zookeeper {server}")
        if isinstance(step, KillZooKeeper):
            await self.host.kill_zookeeper(server)
        else:
            await self.host.start_zookeeper(server)

    def _fault(self, fault: str, target: str) -> None:
        self.fault_at_ms = self.host.clock.now_ms()
        self.host.take(FaultInjected(fault, target))

    async def _create_topics(self, step: CreateTopics) -> None:
        config = tuple((key, _property(value)) for key, value in sorted(step.config.items()))
        topics = [
            TopicSpec(f"{step.prefix}{number}", step.partitions, step.replication_factor, config)
            for number in range(step.count)
        ]
        await self.host.create_topics(topics)
        self.outcome.topics.extend(topics)

    async def _produce(self) -> None:
        """A rate of 0 asks for no records at all."""
        section = self.scenario.workload.records
        assert section is not None, "the file was checked"
        workload = workload_of(section, self.host.name)
        partitions = [
            (topic.name, number)
            for topic in self.outcome.topics
            if topic.name.startswith(workload.topics)
            for number in range(topic.partitions)
        ]
        if not partitions:
            raise HostFailure(f"there is no topic {workload.topics}* to produce to: create one first")
        if workload.rate_per_s > 0:
            self.outcome.workload = workload
            self.producing = True
            await self.host.produce(workload, partitions)

    async def quiesce(self, deadline_ms: float = Quiesce().deadline_ms) -> None:
        if self.producing:
            self.producing = False
            await self.host.quiesce(deadline_ms)

    async def _wait(self, step: Wait, nodes: list[int]) -> str | None:
        condition = CONDITIONS[step.until]
        deadline_ms = self.host.clock.now_ms() + step.deadline_ms
        others = tuple(self._known(name) for name in step.other_than)
        since_ms = self.fault_at_ms if step.after is None else None
        while True:
            partitions: Mapping[tuple[str, int], PartitionView] | None = None
            if condition.needs_partitions:
                partitions = await self.host.leaders()
            running = self.host.running()
            node = nodes[0] if nodes else None
            now_ms = self.host.clock.now_ms()
            view = View(self.host.observe(), now_ms, running, node, others, partitions, self.former)
            missing = None if step.after is None else MILESTONES[step.after](view)
            if missing is None:
                since_ms = now_ms if since_ms is None else since_ms
                missing = condition.check(replace(view, since_ms=since_ms))
            if missing is None:
                return None
            if self.host.clock.now_ms() >= deadline_ms:
                return f"not within {step.deadline_ms:.0f} ms: {missing}"
            await self.host.clock.sleep(POLL_MS)

    async def _targets(self, step: AnyStep) -> list[int]:
        """The nodes that a step speaks of, by id."""
        match step:
            case Start(nodes=None):
                return [node for node in cluster_spec(self.scenario).nodes if node not in self.host.running()]
            case Start():
                return [await self._node(name, ()) for name in step.nodes or ()]
            case Cut() | Heal():
                return [await self._node(step.source, ()), await self._node(step.target, ())]
            case Wait():
                return [] if step.node is None else [await self._node(step.node, step.other_than)]
            case CreateTopics() | Let() | Produce() | Quiesce():
                return []
            case KillZooKeeper() | StartZooKeeper():
                return [await self._zookeeper(step.server)]
            case HealAll():
                return []
            case InjectedFault():
                return [await self._node(getattr(step, name), ()) for name in NODE_FIELDS if hasattr(step, name)]
            case _:
                return [await self._node(step.node, step.other_than)]

    async def _node(self, name: NodeName, other_than: Iterable[NodeName]) -> int:
        if name == "zookeeper":
            return ZOOKEEPER
        if isinstance(name, str) and name.startswith("leader:"):
            return await self._leader(name)
        if name == "controller":
            controller = self.host.observe().controller
            if controller == -1:
                raise HostFailure("a step names the controller, and there is none: wait for one first")
            return controller
        if name == "not-controller":
            return self._not_controller({self._known(other) for other in other_than})
        return self._known(name)

    async def _zookeeper(self, name: NodeName) -> int:
        """One server of the ensemble, by number."""
        servers = range(1, self.scenario.cluster.zookeeper_servers + 1)
        if name == "leader":
            return await self.host.zookeeper_leader()
        if name == "follower":
            leader = await self.host.zookeeper_leader()
            number = next((each for each in self.host.zookeepers_running() if each != leader), None)
        else:
            number = self.servers.get(name) if isinstance(name, str) else name
        if number is None or number not in servers:
            raise HostFailure(
                f"ZooKeeper server {name!r}: expected leader, follower, 1 to {servers[-1]}, or a name given by `as`"
            )
        return number

    def _not_controller(self, excluded: set[int]) -> int:
        seen = self.host.observe()
        for node in sorted(seen.registered):
            if node != seen.controller and node not in excluded and node in self.host.running():
                return node
        raise HostFailure(f"no registered broker but the controller ({seen.controller}) and {sorted(excluded)}")

    async def _leader(self, name: str) -> int:
        _, topic, partition = (name.split(":") + ["", ""])[:3]
        state = (await self.host.leaders()).get((topic, int(partition or 0)))
        if state is None or state.leader == -1:
            raise HostFailure(f"{name}: {'no such partition' if state is None else 'it has no leader'}")
        return state.leader

    def _known(self, name: NodeName) -> int:
        nodes = cluster_spec(self.scenario).nodes
        node = self.names.get(name) if isinstance(name, str) else name
        if node is None or node not in nodes:
            raise HostFailure(f"node {name!r}: expected 1 to {nodes[-1]}, or a name given by an earlier step's `as`")
        return node


def _with_nodes(fault: InjectedFault, nodes: list[int]) -> InjectedFault:
    """With ids where names were."""
    names = [name for name in NODE_FIELDS if hasattr(fault, name)]
    return msgspec.structs.replace(fault, **dict(zip(names, nodes, strict=True)))


def _details(fault: InjectedFault) -> str:
    """Format the fault's fields, except those with the value 0."""
    fields = {name: getattr(fault, name) for name in fault.__struct_fields__ if name != "when"}
    shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in fields.items() if value != 0}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def _describe(step: AnyStep, kind: str, nodes: list[int]) -> str:
    """The step as a person would say it."""
    match step:
        case Wait():
            about = f" (broker {nodes[0]})" if nodes else ""
            after = f" after {step.after}" if step.after is not None else ""
            return f"wait until {step.until}{about}{after}, at most {step.deadline_ms / 1000:g} s"
        case Let():
            return f"let {step.ms:g} ms pass"
        case CreateTopics():
            return (
                f"create {step.count} topics of {step.partitions} partitions, replication factor"
                f" {step.replication_factor}"
            )
        case Produce():
            return "produce and consume records"
        case Quiesce():
            return "stop producing, and read every partition to its end"
        case Cut() | Heal():
            return f"{kind} link {Link(nodes[0], nodes[1])}"
        case Start():
            return f"start {'brokers' if len(nodes) != 1 else 'broker'} {', '.join(map(str, nodes))}"
        case Restart():
            return f"restart broker {nodes[0]} ({step.how})"
        case HealAll():
            return "mend (end all lasting faults)"
        case InjectedFault():
            return f"{kind} {_details(_with_nodes(step, nodes))}".rstrip()
        case KillZooKeeper() | StartZooKeeper():
            return f"{kind.partition('-')[0]} ZooKeeper server {nodes[0]}"
        case _:
            return f"{kind} broker {nodes[0]}"
