"""Generate a plan from a seed: the cluster, the operations, and which faults occur in the run and how often.

Every run has its own mixture of faults. Most kinds are off in a given run, so that those that are on can occur often.
The generator uses random streams of its own, so that a change here does not change the random decisions of the run.
Each function `with_...` draws from a stream of its own and adds to a plan that is drawn already: a plan without such
happenings is the one that it was before the function existed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import get_args

import msgspec
from msgspec.structs import replace

from controller.broker.groups.offsets_topic import OFFSETS_TOPIC
from controller.broker.transactions.transaction import TRANSACTIONS_TOPIC
from controller.scenarios.faults import (
    AddPartitions,
    AskIsr,
    BreakDisk,
    BreakLogDirectory,
    ChangeMember,
    ChangeProducer,
    ChangeRegistration,
    ControllerEdit,
    CreateTopic,
    Cut,
    CutZooKeeper,
    DeleteController,
    DeleteTopic,
    Depose,
    Drift,
    EditController,
    EditControllerEpoch,
    ElectLeaders,
    ElectZooKeeper,
    EpochEdit,
    Expire,
    Fault,
    HostileClient,
    HostileKind,
    Isolate,
    Kill,
    KillZooKeeper,
    LosePower,
    LoseReply,
    Lossy,
    MemberChange,
    Operation,
    Pause,
    PauseController,
    ProducerChange,
    Reassign,
    Reset,
    ResetZooKeeper,
    SetConfig,
    Shut,
    Slow,
    SlowDisk,
    SlowZooKeeper,
    SpoiledZnode,
    SpoilZnode,
    StepWall,
    Stop,
)
from controller.scenarios.language import PROTOCOL, UNCLEAN, ClusterSpec, Happening, Outside, Plan, PlanRecords
from controller.scenarios.records.group_checks import FASTEST_CLOCK
from controller.scenarios.records.workload import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from controller.simulator.randomness import Streams, times
from controller.simulator.tiered_plans import with_slow_devices, with_tiers

SAFETY_MS = (4_000.0, 12_000.0)
"""The range of the time until all faults end."""
SESSION_TIMEOUTS_MS = (600, 1_000, 2_000, 4_000)
WITH_LOGS = 0.3
"""The probability that brokers hold logs: then followers fetch, and ISRs depend on their progress."""
WITH_RECORDS = 0.25
"""The probability that clients write and read records."""
RECORDS = "records"
CREATED_AGAIN_MS = 3_900.0
TOPICS = 6
"""The number of topic names: few, so that topics are deleted and created again."""
MIXTURES = ((0.3, (300.0, 4_000.0)), (0.3, (300.0, 4_000.0)), (0.1, (150.0, 1_200.0)))
"""The probability that a kind of fault is on, and the range of the mean time between its faults (chosen for each kind
in each run). Either many kinds are on, or few that occur often, so that other faults do not hide their consequences."""


@dataclass(frozen=True, slots=True)
class _FaultParameters:
    """The random generator and the cluster from which the fields of a fault are chosen."""

    rng: Random
    cluster: ClusterSpec

    def node(self) -> int:
        return self.rng.choice(self.cluster.nodes)

    def pair(self) -> tuple[int, int]:
        source, target = self.rng.sample(self.cluster.nodes, 2)
        return source, target

    def lasting_ms(self) -> float:
        """Return a duration around the session timeout, from a tenth to three times of it; sessions may expire."""
        return round(self.cluster.session_timeout_ms * self.rng.choice((0.1, 0.5, 0.8, 1.2, 1.7, 3.0)) * self._jitter())

    def downtime_ms(self) -> float:
        """Return a downtime, from a bounce that may go unnoticed to several session timeouts."""
        return round(self.cluster.session_timeout_ms * self.rng.choice((0.02, 0.1, 0.5, 1.5, 3.0)) * self._jitter())

    def _jitter(self) -> float:
        return self.rng.uniform(0.7, 1.3)


OF_DISKS = ("lose-power", "break-disk", "slow-disk")
"""Kinds of faults that need brokers with logs."""
AT_WORK = ("depose",)
"""Kinds that matter while the controller is busy: they follow shortly after each operation."""
WHILE_MS = (0.0, 80.0)
ON_AT_WORK = 0.5
"""The probability that such a kind is on, in every mixture: each occurs a few times."""

Draw = Callable[[_FaultParameters, float], Fault]

FAULTS: Mapping[str, Draw] = {
    "kill": lambda d, at: Kill(at_ms=at, node=d.node(), for_ms=d.downtime_ms()),
    "stop": lambda d, at: Stop(at_ms=at, node=d.node(), for_ms=d.downtime_ms()),
    "pause": lambda d, at: Pause(at_ms=at, node=d.node(), for_ms=d.lasting_ms()),
    "lose-power": lambda d, at: LosePower(at_ms=at, node=d.node(), for_ms=d.downtime_ms()),
    "break-disk": lambda d, at: BreakDisk(at_ms=at, node=d.node(), for_ms=d.lasting_ms()),
    "slow-disk": lambda d, at: SlowDisk(
        at_ms=at, node=d.node(), for_ms=d.lasting_ms(), a_change_ms=d.rng.choice((1.0, 10.0, 100.0))
    ),
    "drift": lambda d, at: Drift(
        at_ms=at, node=d.node(), for_ms=d.lasting_ms() * 3, rate=round(d.rng.uniform(0.9, FASTEST_CLOCK), 3)
    ),
    "step-wall": lambda d, at: StepWall(at_ms=at, node=d.node(), by_ms=d.rng.randint(-3_600_000, 3_600_000)),
    "cut-zookeeper": lambda d, at: CutZooKeeper(
        at_ms=at, node=d.node(), for_ms=d.lasting_ms(), way=d.rng.choice(("both", "to", "from"))
    ),
    "slow-zookeeper": lambda d, at: SlowZooKeeper(
        at_ms=at, node=d.node(), for_ms=d.lasting_ms(), slower=d.rng.choice((10.0, 50.0, 200.0))
    ),
    "reset-zookeeper": lambda d, at: ResetZooKeeper(at_ms=at, node=d.node()),
    "lose-reply": lambda d, at: LoseReply(at_ms=at, node=d.node(), applied=d.rng.random() < 0.7),
    "expire": lambda d, at: Expire(at_ms=at, node=d.node()),
    "delete-controller": lambda d, at: DeleteController(at_ms=at),
    "depose": lambda d, at: Depose(at_ms=at, for_ms=round(d.cluster.session_timeout_ms * d.rng.uniform(0.1, 0.6))),
    "elect-zookeeper": lambda d, at: ElectZooKeeper(at_ms=at),
    "kill-zookeeper": lambda d, at: KillZooKeeper(
        at_ms=at, server=d.rng.randint(1, d.cluster.zookeeper_servers), for_ms=d.lasting_ms()
    ),
    "cut": lambda d, at: _way(d, Cut, at),
    "shut": lambda d, at: _way(d, Shut, at),
    "slow": lambda d, at: _way(d, Slow, at, slower=d.rng.choice((5.0, 40.0, 300.0)), more_ms=d.rng.choice((0, 900))),
    "lossy": lambda d, at: _way(d, Lossy, at, loss=d.rng.choice((0.05, 0.3, 0.7))),
    "reset": lambda d, at: _reset(d, at),
    "isolate": lambda d, at: Isolate(at_ms=at, node=d.node(), for_ms=d.lasting_ms()),
}


def _way(parameters: _FaultParameters, kind: Callable[..., Fault], at_ms: float, **more: float) -> Fault:
    source, target = parameters.pair()
    return kind(at_ms=at_ms, source=source, target=target, for_ms=parameters.lasting_ms(), **more)


def _reset(parameters: _FaultParameters, at_ms: float) -> Fault:
    source, target = parameters.pair()
    return Reset(at_ms=at_ms, source=source, target=target, late_ms=parameters.rng.choice((0.0, 100.0, 1_500.0)))


OLD_PROTOCOL = 0.12
"""The probability that the inter-broker protocol is below 2.7."""


def draw_plan(seed: int, *, tiers: bool = False, slow_devices: bool = False) -> Plan:
    """Return the plan of a seed; the same seed always gives the same plan. `tiers`: brokers have an SSD and HDDs, and
    clients write records, whatever the seed draws; `slow_devices`: some devices are slow now and then, likewise."""
    rng = Streams(seed).stream("swarm")
    cluster, has_logs, has_records = _cluster(rng)
    calm_ms = round(rng.uniform(*SAFETY_MS))
    parameters = _FaultParameters(rng, cluster)
    operations = _operations(parameters, calm_ms)
    happenings: list[Happening] = [*operations, *_faults(parameters, operations, calm_ms, has_logs=has_logs)]
    left_out = rng.randint(0, (cluster.brokers - 1) // 2)
    core = tuple(sorted(rng.sample(cluster.nodes, cluster.brokers - left_out)))
    outside = rng.choice(list(Outside))
    records = None
    if has_records:
        records, creations = _records(parameters)
        happenings += creations
    plan = Plan(
        name=f"swarm-{seed}",
        seed=seed,
        cluster=cluster,
        core=core,
        outside=outside,
        calm_ms=calm_ms,
        records=records,
        happenings=tuple(sorted(happenings, key=lambda each: each.at_ms)),
    )
    # Numbers as they would be read from a file, so that the plan's own file is the same run to the byte.
    whole = with_operations(with_reassignments(msgspec.convert(msgspec.to_builtins(plan), Plan)))
    edited = with_spoiled_znodes(with_hand_edits(with_old_protocol(whole)))
    tiered = with_tiers(with_circumstances(with_hostile_clients(edited)), forced=tiers)
    return with_slow_devices(with_transactions(with_groups(tiered)), forced=slow_devices)


def with_old_protocol(plan: Plan) -> Plan:
    """Return the plan, in some runs with an inter-broker protocol below 2.7, where leaders change ISRs in ZooKeeper.

    The choice uses a random stream of its own, so that it changes no other part of a plan.
    """
    rng = Streams(plan.seed).stream("swarm-protocol")
    if rng.random() >= OLD_PROTOCOL:
        return plan
    return _with_happenings(plan, (), dict(plan.cluster.settings) | {PROTOCOL: rng.choice(("2.4", "2.6"))})


GROUPS = 0.6
"""The probability that a run with records has a consumer group."""
BETWEEN_CHANGES_MS = (300.0, 3_000.0)
"""The range of the mean time between changes of its members."""
BETWEEN_COORDINATORS_MS = (800.0, 5_000.0)
COORDINATOR = f"leader:{OFFSETS_TOPIC}:0"
GROUP_SESSIONS_MS = (400, 1_000, 3_000)


def with_groups(plan: Plan) -> Plan:
    """Return the plan with a consumer group that reads the records, whose members and coordinators come and go, or as
    it was."""
    rng = Streams(plan.seed).stream("swarm-groups")
    if plan.records is None or rng.random() >= GROUPS:
        return plan
    session_ms = rng.choice(GROUP_SESSIONS_MS)
    records = replace(
        plan.records, members=rng.randint(1, 4), group_session_ms=session_ms, static_members=rng.random() < 0.3
    )
    settings = dict(plan.cluster.settings) | {
        "group.min.session.timeout.ms": "100",
        "group.initial.rebalance.delay.ms": rng.choice(("0", "200")),
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": str(min(3, len(plan.core))),
    }
    began_ms = min(each.at_ms for each in _created(plan) if each.topic == plan.records.topic)
    more = [_member_change(rng, at_ms, session_ms) for at_ms in times(rng, began_ms, BETWEEN_CHANGES_MS, plan.calm_ms)]
    if rng.random() < 0.5:
        for at_ms in times(rng, began_ms, BETWEEN_COORDINATORS_MS, plan.calm_ms):
            kind = rng.choice((Kill, Pause, Stop))
            lasting_ms = round(plan.cluster.session_timeout_ms * rng.choice((0.05, 0.6, 1.5)) * rng.uniform(0.7, 1.3))
            more.append(kind(at_ms=at_ms, node=COORDINATOR, for_ms=lasting_ms))
    return _with_happenings(replace(plan, records=records), more, settings)


TRANSACTIONS = 0.7
"""The probability that a run with records of an idempotent or any other producer with acks=all has transactions too."""
LEDGER = "ledger"
TRANSACTION_COORDINATOR = f"leader:{TRANSACTIONS_TOPIC}:0"
TRANSACTION_TIMEOUTS_MS = (1_000, 3_000, 10_000)


def with_transactions(plan: Plan) -> Plan:
    """Return the plan with transactional producers, and in some runs members of the group that consume in transactions;
    producers and coordinators come and go. Or as it was."""
    rng = Streams(plan.seed).stream("swarm-transactions")
    if plan.records is None or plan.records.acks != ACKS_ALL or rng.random() >= TRANSACTIONS:
        return plan
    transform = plan.records.members > 0 and rng.random() < 0.5
    records = replace(
        plan.records,
        ledger=LEDGER,
        writers=rng.randint(0 if transform else 1, 2),
        transform=transform,
        transaction_timeout_ms=rng.choice(TRANSACTION_TIMEOUTS_MS),
    )
    replicas = min(3, len(plan.core))
    settings = dict(plan.cluster.settings) | {
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(min(replicas, rng.choice((1, 2, 2)))),
    }
    source = min((each for each in _created(plan) if each.topic == plan.records.topic), key=lambda each: each.at_ms)
    ledger = replace(source, topic=LEDGER, partitions=rng.randint(1, 3), at_ms=source.at_ms + 50.0)
    more: list[Happening] = [ledger, replace(ledger, at_ms=CREATED_AGAIN_MS + 50.0)]
    began_ms = ledger.at_ms
    if records.writers:
        for at_ms in times(rng, began_ms, BETWEEN_CHANGES_MS, plan.calm_ms):
            how: ProducerChange = rng.choice(("die", "die", "pause", "pause", "replace", "replace"))
            for_ms = round(records.transaction_timeout_ms * rng.choice((0.05, 0.3, 1.5)) * rng.uniform(0.7, 1.3))
            producer = rng.randrange(records.writers)
            more.append(ChangeProducer(at_ms=at_ms, producer=producer, how=how, for_ms=for_ms))
    if rng.random() < 0.5:
        for at_ms in times(rng, began_ms, BETWEEN_COORDINATORS_MS, plan.calm_ms):
            kind = rng.choice((Kill, Pause, Stop))
            lasting_ms = round(plan.cluster.session_timeout_ms * rng.choice((0.05, 0.6, 1.5)) * rng.uniform(0.7, 1.3))
            more.append(kind(at_ms=at_ms, node=TRANSACTION_COORDINATOR, for_ms=lasting_ms))
    return _with_happenings(replace(plan, records=records), more, settings)


def _member_change(rng: Random, at_ms: float, session_ms: float) -> Happening:
    how: MemberChange = rng.choice(("join", "join", "leave", "die", "die", "pause", "pause", "replace"))
    for_ms = round(session_ms * rng.choice((0.1, 0.6, 1.5, 4.0)) * rng.uniform(0.7, 1.3))
    return ChangeMember(at_ms=at_ms, member=rng.randrange(6), how=how, for_ms=for_ms)


def _with_happenings(
    plan: Plan, more: Iterable[Happening], settings: Mapping[str, str | int | bool] | None = None
) -> Plan:
    cluster = plan.cluster if settings is None else replace(plan.cluster, settings=settings)
    happenings = sorted((*plan.happenings, *more), key=lambda each: each.at_ms)
    return replace(plan, cluster=cluster, happenings=tuple(happenings))


def _created(plan: Plan) -> list[CreateTopic]:
    return [each for each in plan.happenings if isinstance(each, CreateTopic)]


def _cluster(rng: Random) -> tuple[ClusterSpec, bool, bool]:
    """Return the cluster, whether its brokers hold logs, and whether clients write records."""
    settings = {"unclean.leader.election.enable": rng.choice(("false", "false", "true"))}
    has_records = rng.random() < WITH_RECORDS
    has_logs = has_records or rng.random() < WITH_LOGS
    if has_logs:
        settings |= {"log.dirs": "/logs", "replica.lag.time.max.ms": str(rng.choice((1_000, 3_000, 10_000)))}
    cluster = ClusterSpec(
        brokers=rng.choice((3, 3, 3, 4, 5, 7)),
        zookeeper_servers=rng.choice((1, 3)),
        session_timeout_ms=rng.choice(SESSION_TIMEOUTS_MS),
        settings=settings,
    )
    return cluster, has_logs, has_records


def _faults(
    parameters: _FaultParameters, operations: Sequence[Operation], calm_ms: float, *, has_logs: bool
) -> list[Fault]:
    rng, faults = parameters.rng, list[Fault]()
    on, between_ms = rng.choice(MIXTURES)
    for name, draw in FAULTS.items():
        if rng.random() >= (ON_AT_WORK if name in AT_WORK else on) or (
            name == "kill-zookeeper" and parameters.cluster.zookeeper_servers == 1
        ):
            continue
        if name in OF_DISKS and not has_logs:
            continue
        moments = _moments(rng, calm_ms, rng.uniform(*between_ms))
        if name in AT_WORK:
            moments = [round(min(calm_ms, each.at_ms + rng.uniform(*WHILE_MS)), 1) for each in operations]
        faults += [draw(parameters, at_ms) for at_ms in moments]
    return faults


def _records(parameters: _FaultParameters) -> tuple[PlanRecords, list[Operation]]:
    """Return the clients' workload and the creation of its topic, which no operation deletes.

    The topic is created a second time in case too few brokers were live the first time. Only a producer with acks=all
    may be idempotent, as in Kafka.
    """
    rng = parameters.rng
    acks = rng.choice((ACKS_ALL, ACKS_ALL, ACKS_ALL, ACKS_LEADER, ACKS_NONE))
    records = PlanRecords(
        topic=RECORDS,
        rate_per_s=rng.choice((5.0, 10.0, 25.0)),
        acks=acks,
        idempotent=acks == ACKS_ALL and rng.random() < 0.6,
        in_flight=rng.choice((1, 5)),
    )
    creation = CreateTopic(
        at_ms=float(rng.randint(300, 900)),
        topic=RECORDS,
        partitions=rng.randint(1, 3),
        replication_factor=3,
        config={"min.insync.replicas": rng.choice(("1", "2", "2"))},
    )
    return records, [creation, replace(creation, at_ms=CREATED_AGAIN_MS)]


def _moments(rng: Random, until_ms: float, mean_ms: float) -> list[float]:
    moments: list[float] = []
    at_ms = rng.uniform(0.0, 2 * mean_ms)
    while at_ms < until_ms:
        moments.append(round(at_ms, 1))
        at_ms += rng.expovariate(1.0 / mean_ms)
    return moments


def _operations(parameters: _FaultParameters, calm_ms: float) -> list[Operation]:
    """Create two topics at the start and more while faults are on; delete some, and create them again."""
    rng = parameters.rng
    operations: list[Operation] = [
        _create(parameters, round(rng.uniform(500.0, 2_500.0)), f"topic-{number}") for number in range(2)
    ]
    for at_ms in _moments(rng, calm_ms, rng.uniform(600.0, 4_000.0)):
        topic = f"topic-{rng.randrange(TOPICS)}"
        draw = rng.random()
        if draw < 0.45:
            operations.append(_create(parameters, at_ms, topic))
        elif draw < 0.75:
            operations.append(DeleteTopic(at_ms=at_ms, topic=topic))
        else:
            operations.append(AddPartitions(at_ms=at_ms, topic=topic, partitions=rng.randint(2, 9)))
    return operations


def _create(parameters: _FaultParameters, at_ms: float, topic: str) -> Operation:
    rng = parameters.rng
    return CreateTopic(
        at_ms=at_ms, topic=topic, partitions=rng.randint(1, 6), replication_factor=rng.choice((1, 2, 3, 3))
    )


REASSIGNMENTS = 0.4
"""The chance of a run to have any."""
BETWEEN_REASSIGNMENTS_MS = (250.0, 2_500.0)
"""How far apart they are, on average; drawn for each run."""
CANCELLED = 0.2
"""The chance of one to take a partition back where it was."""
ONE_AT_A_TIME = 0.25
"""The chance that one partition alone may gain replicas: the others wait in ZooKeeper."""


def with_reassignments(plan: Plan) -> Plan:
    """The plan with reassignments of the topics that it creates, or as it was."""
    rng = Streams(plan.seed).stream("swarm-reassignments")
    created = _created(plan)
    if rng.random() >= REASSIGNMENTS or not created:
        return plan
    settings = dict(plan.cluster.settings)
    if rng.random() < ONE_AT_A_TIME:
        settings["camerlengo.reassignments.in.cluster"] = "1"
    moments = times(rng, min(each.at_ms for each in created), BETWEEN_REASSIGNMENTS_MS, plan.calm_ms)
    reassignments = [_reassign(rng, at_ms, rng.choice(created), plan.cluster.brokers) for at_ms in moments]
    return _with_happenings(plan, reassignments, settings)


def _reassign(rng: Random, at_ms: float, topic: CreateTopic, brokers: int) -> Reassign:
    """Choose among few partitions, so that a partition is moved again while it is being reassigned."""
    wanted = [] if rng.random() < CANCELLED else rng.sample(range(1, brokers + 1), rng.choice((1, 2, 2, 3)))
    return Reassign(at_ms=at_ms, topic=topic.topic, partition=rng.randrange(min(topic.partitions, 2)), replicas=wanted)


BETWEEN_OPERATIONS_MS = (400.0, 3_000.0)
"""How far apart those of a kind are, on average; drawn for each kind of each run."""
ELECTIONS, CONFIGS, PAUSES, WHILE_MOVING = 0.25, 0.15, 0.15, 0.4
"""The chance of each kind to be on; of the last, in a run with reassignments."""
BALANCED_OFTEN = 0.15
"""The chance that the clock looks at the balance every second."""
DIRECTORIES = 0.5
"""The chance of a run with logs to have several log directories."""
BROKEN_DIRECTORY = 0.6
"""The chance of such a run that one of them fails now and then."""
BY_ZNODE = 0.3
MEANWHILE_MS = (0.0, 60.0)
WHILE_PAUSED_MS = ((20.0, 200.0), (250.0, 600.0), (250.0, 600.0))
"""How long after the beginning of a pause the controller changes, and what the pause forbids is asked for."""
MISSED_MS = (20.0, 300.0)
AT_ANY_PRICE, MOST_ASKED = 0.4, 8
LOG_DIRECTORIES = ("/logs/a", "/logs/b")


def with_operations(plan: Plan) -> Plan:
    """The plan with more of what operators do, or as it was."""
    rng = Streams(plan.seed).stream("swarm-operations")
    created = _created(plan)
    settings = dict(plan.cluster.settings)
    happenings: list[Happening] = []
    if rng.random() < ELECTIONS:
        happenings += _each_moment(rng, plan, lambda at_ms: _election(rng, plan, created, at_ms))
        happenings += _where_leaders_died(rng, plan, created)
    if rng.random() < CONFIGS:
        happenings += _each_moment(rng, plan, lambda at_ms: _config(rng, plan, created, at_ms))
    if rng.random() < PAUSES:
        for pause in [*_each_moment(rng, plan, lambda at_ms: _pause(rng, at_ms))]:
            happenings += [pause, *_during(rng, plan, created, pause)]
    if rng.random() < WHILE_MOVING:
        happenings += [_meanwhile(rng, each, plan) for each in plan.happenings if isinstance(each, Reassign)]
    if rng.random() < BALANCED_OFTEN:
        settings["leader.imbalance.check.interval.seconds"] = "1"
    if "log.dirs" in settings and rng.random() < DIRECTORIES:
        settings["log.dirs"] = ",".join(LOG_DIRECTORIES)
        if rng.random() < BROKEN_DIRECTORY:
            happenings += _each_moment(rng, plan, lambda at_ms: _broken_directory(rng, plan, at_ms))
    if not happenings and settings == plan.cluster.settings:
        return plan
    return _with_happenings(plan, happenings, settings)


def _each_moment(rng: Random, plan: Plan, draw: Callable[[float], Happening]) -> Iterator[Happening]:
    """One after the other, from when the first topic is there."""
    return map(draw, times(rng, 1_000.0, BETWEEN_OPERATIONS_MS, plan.calm_ms))


def _election(rng: Random, plan: Plan, created: list[CreateTopic], at_ms: float) -> Happening:
    """Never unclean where clients write: what they were promised would not hold."""
    topic = rng.choice(created)
    znode, unclean = rng.random() < BY_ZNODE, rng.random() < 0.3
    return ElectLeaders(
        at_ms=at_ms,
        topic=topic.topic,
        partition=rng.randrange(topic.partitions),
        unclean=unclean and not znode and not _is_written(plan, topic),
        znode=znode,
    )


def _config(rng: Random, plan: Plan, created: list[CreateTopic], at_ms: float) -> Happening:
    topic = rng.choice(created)
    choices = [{"min.insync.replicas": "1"}, {"min.insync.replicas": "2"}, {UNCLEAN: "true"}, {UNCLEAN: "false"}]
    config = {"retention.ms": "86400000"} if _is_written(plan, topic) else rng.choice(choices)
    return SetConfig(at_ms=at_ms, topic=topic.topic, config=config)


def _is_written(plan: Plan, topic: CreateTopic) -> bool:
    return plan.records is not None and topic.topic == plan.records.topic


def _pause(rng: Random, at_ms: float) -> Happening:
    return PauseController(at_ms=at_ms, for_ms=rng.choice((0.0, 300.0, 1_000.0, 3_000.0)))


def _during(rng: Random, plan: Plan, created: list[CreateTopic], pause: Happening) -> Iterator[Happening]:
    """A pause matters to a controller that finds it, and where somebody wants what it forbids."""
    moments = [min(plan.calm_ms, round(pause.at_ms + rng.uniform(*span), 1)) for span in WHILE_PAUSED_MS]
    topic = rng.choice(created)
    if rng.random() < 0.6:
        yield DeleteController(at_ms=moments[0])
    partition = rng.randrange(topic.partitions)
    yield ElectLeaders(at_ms=moments[1], topic=topic.topic, partition=partition)
    replicas = rng.sample(list(plan.cluster.nodes), rng.choice((1, 2, 3)))
    yield Reassign(at_ms=moments[2], topic=topic.topic, partition=partition, replicas=replicas)


def _where_leaders_died(rng: Random, plan: Plan, created: list[CreateTopic]) -> Iterator[Happening]:
    """A little after brokers are missed somebody asks for a leader at any price."""
    topics = [each for each in created if not _is_written(plan, each)]
    killed = [each for each in plan.happenings if isinstance(each, Kill | LosePower)]
    for kill in killed[:MOST_ASKED]:
        at_ms = round(kill.at_ms + plan.cluster.session_timeout_ms + rng.uniform(*MISSED_MS), 1)
        if topics and at_ms < plan.calm_ms and rng.random() < AT_ANY_PRICE:
            topic = rng.choice(topics)
            for partition in range(min(topic.partitions, 2)):
                yield ElectLeaders(at_ms=at_ms, topic=topic.topic, partition=partition, unclean=True)


def _meanwhile(rng: Random, move: Reassign, plan: Plan) -> Happening:
    """A little after a partition was sent on its way: its topic grows, or goes, or is moved by the old way too."""
    at_ms = min(plan.calm_ms, round(move.at_ms + rng.uniform(*MEANWHILE_MS), 1))
    draw = rng.random()
    written = plan.records is not None and move.topic == plan.records.topic
    if draw < 0.3:
        return AddPartitions(at_ms=at_ms, topic=move.topic, partitions=rng.randint(2, 9))
    if draw < 0.5 and not written:
        return DeleteTopic(at_ms=at_ms, topic=move.topic)
    replicas = rng.sample(list(plan.cluster.nodes), rng.choice((1, 2, 3)))
    return Reassign(at_ms=at_ms, topic=move.topic, partition=move.partition, replicas=replicas, znode=True)


def _broken_directory(rng: Random, plan: Plan, at_ms: float) -> Happening:
    return BreakLogDirectory(
        at_ms=at_ms,
        node=rng.choice(list(plan.cluster.nodes)),
        directory=rng.choice(LOG_DIRECTORIES),
        for_ms=rng.choice((500.0, 2_000.0, 4_000.0) if plan.records is not None else (0.0, 500.0, 2_000.0, 4_000.0)),
    )


SPOILED_ZNODES = 0.3
"""The chance of a run to have any."""
BETWEEN_SPOILED_MS = (300.0, 3_000.0)
SPOILED_LASTING_MS = (100.0, 1_000.0, 4_000.0)


def with_spoiled_znodes(plan: Plan) -> Plan:
    """The plan with znodes spoiled now and then, or as it was."""
    rng = Streams(plan.seed).stream("swarm-spoiled-znodes")
    created = _created(plan)
    if rng.random() >= SPOILED_ZNODES or not created:
        return plan
    moments = times(rng, min(each.at_ms for each in created), BETWEEN_SPOILED_MS, plan.calm_ms)
    return _with_happenings(plan, [_spoil(rng, at_ms, rng.choice(created), plan.cluster.brokers) for at_ms in moments])


def _spoil(rng: Random, at_ms: float, topic: CreateTopic, brokers: int) -> SpoilZnode:
    what: SpoiledZnode = rng.choice(("state", "state", "registration", "topic"))
    return SpoilZnode(
        at_ms=at_ms,
        what=what,
        topic=f"spoiled-{rng.randrange(3)}" if what == "topic" else topic.topic,
        partition=0 if what == "topic" else rng.randrange(topic.partitions),
        node=rng.randint(1, brokers),
        for_ms=round(rng.choice(SPOILED_LASTING_MS) * rng.uniform(0.5, 1.5)),
    )


HAND_EDITS = 0.2
"""The chance of a run to have any."""
EDIT_OF_EPOCH = 0.5
"""The chance of one to be of /controller_epoch."""
BETWEEN_EDITS_MS = (800.0, 4_000.0)
"""How far apart they are, on average; drawn for each run."""
EDIT_LASTS_SESSIONS = (0.2, 1.0, 2.0)
"""How long one lasts, in session timeouts."""
WITH_ELECTION = 0.5
"""The chance that /controller is edited right after the epoch, so that the next election meets both."""


def with_hand_edits(plan: Plan) -> Plan:
    """Return the plan with edits, or as it was."""
    rng = Streams(plan.seed).stream("swarm-hand-edits")
    if rng.random() >= HAND_EDITS:
        return plan
    edits: list[Happening] = []
    for at_ms in times(rng, 1_000.0, BETWEEN_EDITS_MS, plan.calm_ms):
        for_ms = round(plan.cluster.session_timeout_ms * rng.choice(EDIT_LASTS_SESSIONS) * rng.uniform(0.7, 1.3))
        if rng.random() < EDIT_OF_EPOCH:
            how: EpochEdit = rng.choice(get_args(EpochEdit))
            edits.append(EditControllerEpoch(at_ms=at_ms, how=how, for_ms=for_ms))
            if rng.random() >= WITH_ELECTION:
                continue
        edits.append(_controller_edit(rng, plan, at_ms, for_ms))
    return _with_happenings(plan, edits)


def _controller_edit(rng: Random, plan: Plan, at_ms: float, for_ms: float) -> EditController:
    how: ControllerEdit = rng.choice(get_args(ControllerEdit))
    return EditController(at_ms=at_ms, how=how, node=rng.choice(list(plan.cluster.nodes)), for_ms=for_ms)


HOSTILE_CLIENTS = 0.25
"""The chance of a run to have any."""
HOSTILE_ALONE = 0.25
"""The chance that a run with hostile clients has no other fault: then no controller's term may end."""
BETWEEN_HOSTILE_MS = (400.0, 2_500.0)
"""How far apart they begin, on average; drawn for each run."""
HOSTILE_KINDS: tuple[HostileKind, ...] = ("operations", "operations", *get_args(HostileKind))
"""Operations are the most likely: they alone may reach what a controller does."""
HOSTILE_LASTING_MS = (200.0, 1_000.0, 4_000.0)
HOSTILE_RATES = (10.0, 40.0, 120.0)
PIPELINED_LESS = 20.0
"""How much rarer they act that send many requests each time."""


def with_hostile_clients(plan: Plan) -> Plan:
    """Return the plan with hostile clients, or as it was."""
    rng = Streams(plan.seed).stream("swarm-hostile-clients")
    if rng.random() >= HOSTILE_CLIENTS:
        return plan
    is_alone = rng.random() < HOSTILE_ALONE
    others = tuple(each for each in plan.happenings if isinstance(each, Operation) or not is_alone)
    hostile: list[Happening] = []
    for at_ms in times(rng, 800.0, BETWEEN_HOSTILE_MS, plan.calm_ms):
        kind: HostileKind = rng.choice(HOSTILE_KINDS)
        for_ms = round(rng.choice(HOSTILE_LASTING_MS) * rng.uniform(0.7, 1.3))
        node = rng.choice(list(plan.cluster.nodes))
        rate = rng.choice(HOSTILE_RATES) / (PIPELINED_LESS if kind == "drops" else 1.0)
        hostile.append(HostileClient(at_ms=at_ms, kind=kind, node=node, for_ms=for_ms, rate=rate))
    return _with_happenings(replace(plan, happenings=others), hostile)


# -- circumstances that a plan hardly ever has by chance, each put together from several happenings

CIRCUMSTANCE = 0.06
"""The chance of a run to have one of them, each."""
UNCLEAN_TOPIC = "unclean"
SLOWER = 8.0
RESETS_EACH_MS = 18.0
WINDOW_MS = 900.0
LATE_MS = (150.0, 400.0)
RETURN_APART_MS = (30.0, 300.0)
AFTER_CALM_MS = (4_000.0, 10_000.0)
READ_WITHIN_MS = 12.0
"""About how long a new controller takes until it has read the registrations."""


def with_circumstances(plan: Plan) -> Plan:
    """Return the plan with some of them, or as it was."""
    happenings: list[Happening] = []
    for name, draw in CIRCUMSTANCES.items():
        rng = Streams(plan.seed).stream(f"swarm-{name}")
        if rng.random() < CIRCUMSTANCE:
            happenings += draw(rng, plan)
    if not happenings:
        return plan
    return _with_happenings(plan, happenings)


def _late_requests(rng: Random, plan: Plan) -> Iterator[Happening]:
    """Two brokers return one after the other, so that a leader asks for two ISRs in one leader epoch; partitions move,
    which raises leader epochs in quick succession."""
    nodes, session_ms = list(plan.cluster.nodes), plan.cluster.session_timeout_ms
    links = [(source, target) for source in nodes for target in nodes]
    created = _created(plan)
    began_ms = 1_500.0
    while (back_ms := began_ms + session_ms) + WINDOW_MS < plan.calm_ms:
        apart_ms = rng.uniform(*RETURN_APART_MS)
        for place, node in enumerate(rng.sample(nodes, 2)):
            yield Kill(at_ms=_rounded(began_ms + place * apart_ms), node=node, for_ms=_rounded(session_ms * 0.9))
        for source, target in links:
            yield Slow(at_ms=_rounded(back_ms), source=source, target=target, slower=SLOWER, for_ms=_rounded(WINDOW_MS))
        for _ in range(3):
            topic = rng.choice(created)
            yield Reassign(
                at_ms=_rounded(back_ms + rng.uniform(0.0, WINDOW_MS)),
                topic=topic.topic,
                partition=rng.randrange(topic.partitions),
                replicas=rng.sample(nodes, min(3, len(nodes))),
            )
        at_ms = back_ms
        while (at_ms := at_ms + rng.expovariate(1.0 / RESETS_EACH_MS)) < back_ms + WINDOW_MS:
            source, target = rng.choice(links)
            yield Reset(at_ms=_rounded(at_ms), source=source, target=target, late_ms=rng.choice(LATE_MS))
        began_ms = back_ms + WINDOW_MS


def _unclean_elections(rng: Random, plan: Plan) -> Iterator[Happening]:
    nodes, session_ms = list(plan.cluster.nodes), plan.cluster.session_timeout_ms
    latest_ms = plan.calm_ms - 3.2 * session_ms - 600.0
    if latest_ms < 1_200.0:
        return
    at_ms = rng.uniform(1_200.0, latest_ms)
    last = rng.choice(nodes)
    replicas = min(3, len(nodes))
    yield CreateTopic(at_ms=_rounded(at_ms - 600.0), topic=UNCLEAN_TOPIC, partitions=4, replication_factor=replicas)
    for node in nodes:
        if node != last:
            yield Kill(at_ms=_rounded(at_ms), node=node, for_ms=_rounded(1.5 * session_ms))
    yield Kill(at_ms=_rounded(at_ms + 1.4 * session_ms), node=last)
    asked_ms = at_ms + 2.5 * session_ms
    while (asked_ms := asked_ms + 150.0) < min(at_ms + 3.2 * session_ms + 500.0, plan.calm_ms):
        for partition in range(4):
            yield ElectLeaders(at_ms=_rounded(asked_ms), topic=UNCLEAN_TOPIC, partition=partition, unclean=True)


def _pause_end(rng: Random, plan: Plan) -> Iterator[Happening]:
    """Only brokers that are in the core are named, so that the reassignment can complete."""
    created = _created(plan)
    at_ms = plan.calm_ms - rng.uniform(300.0, 1_500.0)
    yield PauseController(at_ms=_rounded(at_ms), after_calm_ms=_rounded(rng.uniform(*AFTER_CALM_MS)))
    for _ in range(3):
        topic = rng.choice(created)
        yield Reassign(
            at_ms=_rounded(rng.uniform(at_ms + 50.0, plan.calm_ms)),
            topic=topic.topic,
            partition=rng.randrange(topic.partitions),
            replicas=rng.sample(list(plan.core), rng.choice((1, 2))),
            znode=True,
        )


def _changed_registrations(rng: Random, plan: Plan) -> Iterator[Happening]:
    """Shortly before the calm: a later controller would read them once more."""
    at_ms = plan.calm_ms - rng.uniform(150.0, 700.0)
    yield DeleteController(at_ms=_rounded(at_ms))
    for node in plan.cluster.nodes:
        changed_ms = min(at_ms + rng.expovariate(1.0 / READ_WITHIN_MS), plan.calm_ms)
        yield ChangeRegistration(at_ms=_rounded(changed_ms), node=node, rack=f"rack-{rng.randrange(1_000)}")


def _stray_isrs(rng: Random, plan: Plan) -> Iterator[Happening]:
    created = _created(plan)
    for _ in range(8):
        topic = rng.choice(created)
        yield AskIsr(
            at_ms=_rounded(rng.uniform(1_500.0, plan.calm_ms)),
            topic=topic.topic,
            partition=rng.randrange(topic.partitions),
            how=rng.choice(("ahead", "behind")),
            version=rng.choice((0, 1)),
        )


def _rounded(ms: float) -> float:
    return round(ms, 1)


CIRCUMSTANCES: Mapping[str, Callable[[Random, Plan], Iterator[Happening]]] = MappingProxyType(
    {
        "late-requests": _late_requests,
        "unclean-elections": _unclean_elections,
        "pause-end": _pause_end,
        "registrations": _changed_registrations,
        "stray-isrs": _stray_isrs,
    }
)
