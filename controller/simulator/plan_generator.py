"""Generate a plan from a seed: the cluster, the operations, and which faults occur in the run and how often.

Every run has its own mixture of faults. Most kinds are off in a given run, so that those that are on can occur often.
The generator uses random streams of its own, so that a change here does not change the random decisions of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import msgspec
from msgspec.structs import replace

from controller.scenarios.records.workload import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from controller.simulator.drawn_circumstances import with_circumstances
from controller.simulator.drawn_hand_edits import with_hand_edits
from controller.simulator.drawn_hostile_clients import with_hostile_clients
from controller.simulator.drawn_operations import with_operations
from controller.simulator.drawn_reassignments import with_reassignments
from controller.simulator.plan import (
    PROTOCOL,
    AddPartitions,
    BreakDisk,
    CreateTopic,
    Cut,
    CutZooKeeper,
    DeleteController,
    DeleteTopic,
    Depose,
    Drift,
    ElectZooKeeper,
    Expire,
    Fault,
    Isolate,
    Kill,
    KillZooKeeper,
    LosePower,
    LoseReply,
    Lossy,
    Operation,
    Outside,
    Pause,
    Plan,
    PlanCluster,
    PlanRecords,
    Reset,
    ResetZooKeeper,
    Shut,
    Slow,
    SlowDisk,
    SlowZooKeeper,
    StepWall,
    Stop,
)
from controller.simulator.randomness import Streams
from controller.simulator.spoiled_znodes import with_spoiled_znodes

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
    cluster: PlanCluster

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
        at_ms=at, node=d.node(), for_ms=d.lasting_ms() * 3, rate=round(d.rng.uniform(0.9, 1.1), 3)
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


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed; the same seed always gives the same plan."""
    rng = Streams(seed).stream("swarm")
    cluster, has_logs, has_records = _cluster(rng)
    calm_ms = round(rng.uniform(*SAFETY_MS))
    parameters = _FaultParameters(rng, cluster)
    operations = _operations(parameters, calm_ms)
    happenings = [*operations, *_faults(parameters, operations, calm_ms, has_logs=has_logs)]
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
    return with_circumstances(with_hostile_clients(edited))


def with_old_protocol(plan: Plan) -> Plan:
    """Return the plan, in some runs with an inter-broker protocol below 2.7, where leaders change ISRs in ZooKeeper.

    The choice uses a random stream of its own, so that it changes no other part of a plan.
    """
    rng = Streams(plan.seed).stream("swarm-protocol")
    if rng.random() >= OLD_PROTOCOL:
        return plan
    settings = dict(plan.cluster.settings) | {PROTOCOL: rng.choice(("2.4", "2.6"))}
    return msgspec.structs.replace(plan, cluster=msgspec.structs.replace(plan.cluster, settings=settings))


def _cluster(rng: Random) -> tuple[PlanCluster, bool, bool]:
    """Return the cluster, whether its brokers hold logs, and whether clients write records."""
    settings = {"unclean.leader.election.enable": rng.choice(("false", "false", "true"))}
    has_records = rng.random() < WITH_RECORDS
    has_logs = has_records or rng.random() < WITH_LOGS
    if has_logs:
        settings |= {"log.dirs": "/logs", "replica.lag.time.max.ms": str(rng.choice((1_000, 3_000, 10_000)))}
    cluster = PlanCluster(
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
        at_ms=at_ms,
        topic=topic,
        partitions=rng.randint(1, 6),
        replication_factor=rng.choice((1, 2, 3, 3)),
    )
