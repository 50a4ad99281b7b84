"""Carries out a scenario's steps on a host, one after the other, and says what came of each.

The runner is a coroutine over the host's own futures: the host on real processes blocks in them, the simulator
resumes it in virtual time. It decides nothing about right and wrong: `judge.py` does, from the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from controller.scenarios.conditions import CONDITIONS, MILESTONES, View, WantedState, is_registered
from controller.scenarios.faults import (
    NODE_FIELDS,
    ZOOKEEPER,
    Cut,
    Expire,
    Fault,
    Heal,
    HealAll,
    HostFailure,
    Kill,
    KillZooKeeper,
    LosePower,
    NodeName,
    OnServer,
    Operation,
    Pause,
    Restart,
    Resume,
    Start,
    StartZooKeeper,
    Step,
    Stop,
    broker_id,
    describe,
    kind_of,
    unsupported,
)
from controller.scenarios.host import Observation, PartitionView, ScenarioHost, Snapshot, TopicSpec, Workload
from controller.scenarios.invariants import disagreement
from controller.scenarios.language import (
    ClusterSpec,
    CreateTopics,
    HoldTransaction,
    Let,
    Produce,
    Quiesce,
    ReleaseTransaction,
    Scenario,
    Wait,
    property_text,
)
from controller.scenarios.records.history import History
from controller.scenarios.records.section import workload_of
from controller.scenarios.records.workload import HONOURED, RecordWorkload, not_honoured
from controller.trace import FaultInjected, StepEnded, StepStarted

S = TypeVar("S", bound=Step)
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


def _workload(scenario: Scenario, host: str) -> Workload:
    workload = workload_of(scenario.workload, host)
    produces = any(isinstance(step, Produce) and step.when for step in scenario.steps)
    records = workload is not None and produces and workload.writes
    return Workload(scenario.workload.metadata_interval_ms, records)


def refusal(scenario: Scenario, host: str) -> str | None:
    """Why a host can't run the scenario as it is written: a step or a key of the workload that it does not know. None
    if it can."""
    for index, step in enumerate(scenario.steps):
        problem = unsupported(step, host) if step.when else None
        if problem is not None:
            return f"{scenario.name}: steps[{index}]: {problem}"
    workload = workload_of(scenario.workload, host)
    ignored = [] if workload is None else not_honoured(workload, host)
    if ignored:
        section = "workload" if ignored[0] == "transactions" else "workload.records"
        return f"{scenario.name}: {section}.{ignored[0]} is not supported by clients of the host {host!r}"
    return None


async def run_steps(scenario: Scenario, host: ScenarioHost, progress: Progress = lambda at_ms, line: None) -> Outcome:
    """Boots the host, takes every step, ends with a snapshot. The caller shuts the host down, whatever happened."""
    run = _Run(scenario, host, progress)
    outcome = run.outcome
    try:
        problem = refusal(scenario, host.name) if host.name in HONOURED else None
        if problem is not None:
            raise HostFailure(problem)
        await host.boot(scenario.cluster, _workload(scenario, host.name))
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
        self.names = NodeNames(host, scenario.cluster)
        self.former: dict[int, int] = {}
        """The session that a broker had before the last fault that ended it."""
        self.starting: set[int] = set()
        """Brokers that were started, or whose session was expired, and that have not been seen registered since."""
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

    async def take(self, index: int, step: Step) -> bool:
        """Run one step, and report it to the trace and the observers. Return False if it failed: the scenario ends."""
        early_ms = step.at_ms - self.host.clock.now_ms()
        if early_ms > 0:
            await self.host.clock.sleep(early_ms)
        kind = kind_of(step)
        step = await self.names.resolved(step)
        text = _describe(step)
        self.host.take(StepStarted(index, kind, text))
        self.progress(self.host.clock.now_ms(), text)
        missing = await self._carry_out(step)
        self.host.take(StepEnded(index, kind, missing is None, missing or ""))
        if missing is not None:
            self.outcome.failure = f"step {index} ({text}): {missing}"
            self.progress(self.host.clock.now_ms(), f"failed: {missing}")
        return missing is None

    async def _carry_out(self, step: Step) -> str | None:
        match step:
            case Wait():
                return await self._wait(step)
            case Let():
                await self.host.clock.sleep(step.ms)
            case HoldTransaction():
                return await self._hold(step)
            case ReleaseTransaction():
                self.host.release_transaction(step.client)
            case Produce():
                await self._produce()
            case Quiesce():
                await self.quiesce(step.deadline_ms)
            case CreateTopics():
                await self._create_topics(step)
            case Start():
                nodes = [broker_id(node) for node in step.nodes or ()]
                self.starting.update(nodes)
                for node in nodes:
                    await self.host.start(node)
            case Restart():
                self._struck(step)
                await self.host.inject(Kill(node=step.node) if step.how == "hard" else Stop(node=step.node))
                await self.host.start(step.broker)
            case Resume():
                self._struck(step)
                await self.host.resume(step.broker)
            case Heal():
                self._struck(step)
                await self.host.heal(step.link)
            case StartZooKeeper():
                self._struck(step)
                await self.host.start_zookeeper(step.number)
            case HealAll():
                self._struck(step)
                await self.host.heal_all()
            case Fault() | Operation():
                self._struck(step)
                await self.host.inject(step)
        return None

    def _struck(self, step: Step) -> None:
        """Record in the trace that a fault begins or ends."""
        now = self._observe()
        if isinstance(step, Kill | LosePower | Stop | Restart | Expire):
            self.former[step.broker] = now.registered.get(step.broker, 0)
            self.starting.discard(step.broker)
        if isinstance(step, Restart | Expire):
            self.starting.add(step.broker)
        self.fault_at_ms = self.host.clock.now_ms()
        self.host.take(_traced(step))

    def _observe(self) -> Observation:
        now = self.host.observe()
        self.starting.difference_update([one for one in self.starting if is_registered(one, now, self.former)])
        return now

    async def _create_topics(self, step: CreateTopics) -> None:
        config = tuple((key, property_text(value)) for key, value in sorted(step.config.items()))
        partitions = len(step.assignment) or step.partitions
        replicas = len(step.assignment[0]) if step.assignment else step.replication_factor
        topics = [
            TopicSpec(f"{step.prefix}{number}", partitions, replicas, config, step.assignment)
            for number in range(step.count)
        ]
        await self.host.create_topics(topics)
        self.outcome.topics.extend(topics)

    async def _produce(self) -> None:
        """A rate of 0 asks for no records at all."""
        workload = workload_of(self.scenario.workload, self.host.name)
        assert workload is not None, "the file was checked"
        partitions = workload.partitions_of(
            [(topic.name, number) for topic in self.outcome.topics for number in range(topic.partitions)]
        )
        if not partitions:
            raise HostFailure(f"there is no topic {workload.topics}* to produce to: create one first")
        if workload.transactions is not None and not workload.transactional_places(partitions):
            raise HostFailure(f"there is no topic {workload.transactions.topics}* for transactions: create one first")
        if workload.writes:
            self.outcome.workload = workload
            self.producing = True
            await self.host.produce(workload, partitions)

    async def _hold(self, step: HoldTransaction) -> str | None:
        if await self.host.hold_transaction(step.client, step.at, step.deadline_ms):
            return None
        return f"client {step.client} did not come to {step.at.value} within {step.deadline_ms:.0f} ms"

    async def quiesce(self, deadline_ms: float = Quiesce().deadline_ms) -> None:
        if self.producing:
            self.producing = False
            await self.host.quiesce(deadline_ms)

    async def _wait(self, step: Wait) -> str | None:
        condition = CONDITIONS[step.until]
        deadline_ms = self.host.clock.now_ms() + step.deadline_ms
        others = tuple(broker_id(name) for name in step.other_than)
        wanted = None if step.topic is None else WantedState(step.topic, step.partition, step.leader, step.isr)
        since_ms = self.fault_at_ms if step.after is None else None
        while True:
            partitions: Mapping[tuple[str, int], PartitionView] | None = None
            if condition.needs_partitions:
                partitions = await self.host.leaders()
            running = self.host.running()
            node = None if step.node is None else broker_id(step.node)
            now_ms = self.host.clock.now_ms()
            now = self._observe()
            starting = tuple(sorted(self.starting))
            view = View(now, now_ms, running, node, others, partitions, self.former, starting, wanted)
            missing = None if step.after is None else MILESTONES[step.after](view)
            if missing is None:
                since_ms = now_ms if since_ms is None else since_ms
                missing = condition.check(replace(view, since_ms=since_ms))
            if missing is None:
                return None
            if self.host.clock.now_ms() >= deadline_ms:
                return f"not within {step.deadline_ms:.0f} ms: {missing}"
            await self.host.clock.sleep(POLL_MS)


def has_names(step: Step) -> bool:
    """Return True if a step names a broker or a server, or gives a name to one."""
    fields = (getattr(step, key, 0) for key in ("server", *NODE_FIELDS))
    return bool(getattr(step, "name", "")) or any(isinstance(value, str) for value in fields)


class NodeNames:
    """The names that steps have for brokers and for ZooKeeper's servers, and what `as` has named."""

    def __init__(self, host: ScenarioHost, cluster: ClusterSpec) -> None:
        self._host = host
        self._cluster = cluster
        self._nodes: dict[str, int] = {}
        self._servers: dict[str, int] = {}

    async def resolved(self, step: S) -> S:
        """Return the step with ids in place of names. HostFailure: a name means no broker or server now."""
        changes: dict[str, Any] = {}
        others = getattr(step, "other_than", ())
        if others:
            changes["other_than"] = tuple(self._known(name) for name in others)
        for key in NODE_FIELDS:
            name = getattr(step, key, None)
            if name is not None:
                changes[key] = await self._node(name, changes.get("other_than", ()))
        if isinstance(step, Start):
            if step.nodes is None:
                running = self._host.running()
                changes["nodes"] = tuple(node for node in self._cluster.nodes if node not in running)
            else:
                changes["nodes"] = tuple([await self._node(name, ()) for name in step.nodes])
        if isinstance(step, OnServer):
            changes["server"] = await self._zookeeper(step.server)
        name = getattr(step, "name", "")
        if name:
            named = self._servers if isinstance(step, OnServer) else self._nodes
            named[name] = next(changes[key] for key in ("server", *NODE_FIELDS) if key in changes)
        return msgspec.structs.replace(step, **changes) if changes else step

    async def _node(self, name: NodeName, other_than: Iterable[int]) -> int:
        if name in ("zookeeper", ZOOKEEPER):
            return ZOOKEEPER
        if isinstance(name, str) and name.startswith("leader:"):
            return await self._leader(name)
        if name == "controller":
            controller = self._host.observe().controller
            if controller == -1:
                raise HostFailure("a step names the controller, and there is none: wait for one first")
            return controller
        if name == "not-controller":
            return self._not_controller(set(other_than))
        return self._known(name)

    async def _zookeeper(self, name: NodeName) -> int:
        """One server of the ensemble, by number."""
        servers = range(1, self._cluster.zookeeper_servers + 1)
        if name == "leader":
            return await self._host.zookeeper_leader()
        if name == "follower":
            leader = await self._host.zookeeper_leader()
            number = next((each for each in self._host.zookeepers_running() if each != leader), None)
        else:
            number = self._servers.get(name) if isinstance(name, str) else name
        if number is None or number not in servers:
            raise HostFailure(
                f"ZooKeeper server {name!r}: expected leader, follower, 1 to {servers[-1]}, or a name given by `as`"
            )
        return number

    def _not_controller(self, excluded: set[int]) -> int:
        seen = self._host.observe()
        for node in sorted(seen.registered):
            if node != seen.controller and node not in excluded and node in self._host.running():
                return node
        raise HostFailure(f"no registered broker but the controller ({seen.controller}) and {sorted(excluded)}")

    async def _leader(self, name: str) -> int:
        _, topic, partition = (name.split(":") + ["", ""])[:3]
        state = (await self._host.leaders()).get((topic, int(partition or 0)))
        if state is None or state.leader == -1:
            raise HostFailure(f"{name}: {'no such partition' if state is None else 'it has no leader'}")
        return state.leader

    def _known(self, name: NodeName) -> int:
        nodes = self._cluster.nodes
        node = self._nodes.get(name) if isinstance(name, str) else name
        if node is None or node not in nodes:
            raise HostFailure(f"node {name!r}: expected 1 to {nodes[-1]}, or a name given by an earlier step's `as`")
        return node


def _traced(step: Step) -> FaultInjected:
    """Return a fault, or the end of one, as the checkers and the timeline know it: by its broker, link or server."""
    kind = kind_of(step)
    match step:
        case LosePower():
            return FaultInjected("kill", str(step.broker))
        case Kill() | Stop() | Restart() | Pause() | Resume() | Expire():
            return FaultInjected(kind, str(step.broker))
        case Cut() | Heal():
            return FaultInjected(kind, str(step.link))
        case KillZooKeeper() | StartZooKeeper():
            return FaultInjected(kind.partition("-")[0], f"zookeeper {step.number}")
        case HealAll():
            return FaultInjected(kind, "everything")
    return FaultInjected(kind, describe(step).partition(" ")[2])


def _describe(step: Step) -> str:
    """Describe a step whose names are resolved, for a person."""
    kind = kind_of(step)
    match step:
        case Wait():
            about = f" (broker {step.node})" if step.node is not None else ""
            if step.topic is not None:
                parts = [f"leader {step.leader}"] if step.leader is not None else []
                parts += [f"ISR {list(step.isr)}"] if step.isr is not None else []
                about = f" ({step.topic}-{step.partition}: {', '.join(parts)})"
            after = f" after {step.after}" if step.after is not None else ""
            return f"wait until {step.until}{about}{after}, at most {step.deadline_ms / 1000:g} s"
        case Let():
            return f"let {step.ms:g} ms pass"
        case CreateTopics() if step.assignment:
            return f"create {step.count} topics with replicas {', '.join(str(list(one)) for one in step.assignment)}"
        case CreateTopics():
            return (
                f"create {step.count} topics of {step.partitions} partitions, replication factor"
                f" {step.replication_factor}"
            )
        case Produce():
            return "produce and consume records"
        case HoldTransaction():
            return f"wait until transactional client {step.client} is at: {step.at.value}"
        case ReleaseTransaction():
            return f"transactional client {step.client} goes on"
        case Quiesce():
            return "stop producing, and read every partition to its end"
        case Cut() | Heal():
            return f"{kind} link {step.link}"
        case Start():
            nodes = step.nodes or ()
            return f"start {'brokers' if len(nodes) != 1 else 'broker'} {', '.join(map(str, nodes))}"
        case Restart():
            return f"restart broker {step.broker} ({step.how})"
        case HealAll():
            return "heal all (end all lasting faults)"
        case KillZooKeeper() | StartZooKeeper():
            return f"{kind.partition('-')[0]} ZooKeeper server {step.number}"
        case Kill() | Stop() | Pause() | Resume() | Expire():
            return f"{kind} broker {step.broker}"
    return describe(step)
