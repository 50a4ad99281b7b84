"""What may befall the replicas of `following.py`, as steps: values that hypothesis or a seed draws, and `play`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tests.broker.following import NOBODY, Cluster, Replica

Step: TypeAlias = tuple[str, int, int]
"""What, to which broker (an index), how much."""

HOW_MUCH = 1_000
PACES_MS = (0.0, 0.5, 1.0, 3.0)
"""After each step. A message takes 1 ms, so that much happens before a follower has what its leader has."""
PAUSES_MS = (2.0, 5.0, 20.0, 150.0)


def play(steps: Sequence[Step], protocol: str = "2.8", size: int = 3) -> Cluster:
    """All the steps, one after another, and then peace: every log must be its leader's, and hold what was committed."""
    cluster = Cluster(size=size, protocol=protocol)
    for name, broker, number in steps:
        STEPS[name](cluster, cluster.replicas[broker % size + 1], number)
        cluster.pass_ms(PACES_MS[number % len(PACES_MS)])
    cluster.settle()
    return cluster


def append(cluster: Cluster, replica: Replica, number: int) -> None:
    """To whoever believes that it leads."""
    if replica.leads:
        cluster.appended += 1
        replica.append(number % 4 + 1, cluster.appended)


def wait(cluster: Cluster, replica: Replica, number: int) -> None:
    cluster.pass_ms(PAUSES_MS[number % len(PAUSES_MS)])


def tell(cluster: Cluster, replica: Replica, number: int) -> None:
    if replica.broker in cluster.untold:
        cluster.tell([replica.broker])


def elect(cluster: Cluster, replica: Replica, number: int) -> None:
    """Whoever runs and is in the ISR may lead next; who was told of it is another matter."""
    if replica.broker in cluster.isr and not replica.down:
        cluster.change(replica.broker, tuple(one for one in cluster.isr if not cluster.replicas[one].down))


def shrink(cluster: Cluster, replica: Replica, number: int) -> None:
    """The leader finds a follower too slow."""
    if cluster.leader == NOBODY:
        return
    leader = cluster.replicas[cluster.leader]
    if cluster.is_leader(leader) and leader.leads and replica.broker in cluster.isr and replica is not leader:
        cluster.isr = leader.isr = tuple(one for one in cluster.isr if one != replica.broker)
        leader.ends.pop(replica.broker, None)
        leader.advance()


def crash(cluster: Cluster, replica: Replica, number: int) -> None:
    """The process is killed; or its machine loses power, which only who is not alone in the ISR survives without a
    loss."""
    if replica.down:
        return
    alone = cluster.isr == (replica.broker,)
    replica.crash(random.Random(number) if number % 3 == 0 and not alone else None)
    if replica.broker == cluster.leader:
        cluster.elect()
    elif replica.broker in cluster.isr:
        cluster.change(cluster.leader, tuple(one for one in cluster.isr if one != replica.broker) or cluster.isr)


def restart(cluster: Cluster, replica: Replica, number: int) -> None:
    if replica.down:
        cluster.restart(replica.broker)


def checkpoint(cluster: Cluster, replica: Replica, number: int) -> None:
    if not replica.down:
        replica.log.flush()
        replica.directory.checkpoint_recovery_points()
        replica.directory.write_high_watermarks({("t", 0): replica.partition.high_watermark})


STEPS: Mapping[str, Callable[[Cluster, Replica, int], None]] = {
    "append": append,
    "wait": wait,
    "tell": tell,
    "elect": elect,
    "shrink": shrink,
    "crash": crash,
    "restart": restart,
    "checkpoint": checkpoint,
}
WEIGHTS = {"append": 8, "wait": 1, "tell": 6, "elect": 2, "restart": 2}


def drawn(seed: int, count: int = 60) -> list[Step]:
    draw = random.Random(seed)
    names = draw.choices([*STEPS], [WEIGHTS.get(name, 1) for name in STEPS], k=count)
    return [(name, draw.randrange(3), draw.randrange(HOW_MUCH)) for name in names]
