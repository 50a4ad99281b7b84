"""Every finding of a set of clusters, word for word: `tests/core/explanations.txt`.

`pytest tests/core/test_explanations.py --rewrite-golden` writes the file anew; read the diff before keeping it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.core.explaining import ClusterView, Kind, Subject, explain, rows_of, totals, view_of
from controller.core.leadership import HIGHEST_EPOCH
from controller.zookeeper import paths
from controller.zookeeper.cluster_state import Tree, cluster_state
from tests.core.test_explaining import ASKED, CASES, CONTROLLER, CONTROLLERS, ELECT, MOVING, PAUSED, Case, config, view
from tests.core.test_explaining import view_of_controller as of_controller

EXPECTED = Path(__file__).with_name("explanations.txt")
DAMAGED = b"{"
State = tuple[int, tuple[int, ...]] | None


def topic(name: str, partitions: Mapping[int, tuple[tuple[int, ...], State]]) -> dict[str, bytes | None]:
    """The znodes of a topic: by partition its assignment, and leader and ISR (None: no state)."""
    assignment = ",".join(f'"{one}":{list(replicas)}' for one, (replicas, _) in partitions.items())
    znodes: dict[str, bytes | None] = {paths.topic(name): f'{{"version":3,"partitions":{{{assignment}}}}}'.encode()}
    for one, (_, state) in partitions.items():
        if state is not None:
            leader, isr = state
            text = f'{{"controller_epoch":1,"leader":{leader},"version":1,"leader_epoch":4,"isr":{list(isr)}}}'
            znodes[paths.partition_state(name, one)] = text.encode()
    return znodes


def drifted(count: int, wanted: int) -> dict[str, bytes | None]:
    """`count` of `wanted` partitions that prefer broker 2 are led by 3."""
    return topic("u", {one: ((2, 3), (3 if one < count else 2, (2, 3))) for one in range(wanted)})


def waiting(count: int) -> dict[str, bytes | None]:
    """Partitions whose ISR is broker 4 alone."""
    return topic("w", dict.fromkeys(range(count), ((4, 1), (-1, (4,)))))


def needed(count: int) -> dict[str, bytes | None]:
    """Partitions that two of three replicas are in sync of, and two have to be."""
    znodes = topic("n", dict.fromkeys(range(count), ((1, 2, 3), (1, (1, 2)))))
    return {**znodes, paths.config_topic("n"): config(min_insync_replicas="2")}


NOBODY: dict[str, bytes | None] = {paths.CONTROLLER: None}
DELETED: dict[str, bytes | None] = {paths.delete_topic("t"): None}
TWO = ',"adding_replicas":{"0":[4,5]},"removing_replicas":{"0":[1,2]}'
MORE: dict[str, Case] = {
    "the only replica never lived, and no controller": Case([], "", "", None, (2,), "[7]", also=NOBODY),
    "a controller that is gone, and a state to come": Case([], "", "", None, (2,)),
    "no leader, two could be": Case([], "", "", (-1, (1, 2)), (1, 2, 3)),
    "an ISR named twice": Case([], "", "", (-1, (1, 1)), (1, 2, 3)),
    "two of the ISR are dead, one replica lives": Case([], "", "", (-1, (1, 2)), (3,)),
    "all are dead": Case([], "", "", (1, (1, 2)), ()),
    "one lags behind a dead leader": Case([], "", "", (1, (1,)), (2,)),
    "two are dead, one lags": Case([], "", "", (1, (1,)), (1, 4), "[1,2,3,4]"),
    "an ISR beyond the assignment": Case([], "", "", (1, (1, 2, 3, 4)), (1, 2, 3)),
    "the leader is beyond the assignment": Case([], "", "", (4, (4, 1)), (1, 2, 3, 4)),
    "in sync as many as have to be": Case(
        [], "", "", (1, (1, 2)), also={paths.config_topic("t"): config(min_insync_replicas="2")}
    ),
    "three have to be in sync, of which one is dead": Case(
        [], "", "", (1, (1, 2)), (1, 3), also={paths.config_topic("t"): config(min_insync_replicas="3")}
    ),
    "min.insync.replicas of ten digits": Case(
        [], "", "", (1, (1,)), also={paths.config_topic("t"): config(min_insync_replicas="1000000000")}
    ),
    "min.insync.replicas of nine digits": Case(
        [], "", "", (1, (1,)), also={paths.config_topic("t"): config(min_insync_replicas="100000000")}
    ),
    "min.insync.replicas is no number": Case(
        [], "", "", (1, (1,)), also={paths.config_topic("t"): config(min_insync_replicas="two")}
    ),
    "the topic's config can't be read, the cluster's can": Case(
        [],
        "",
        "",
        (1, (1,)),
        also={paths.config_topic("t"): DAMAGED, paths.CONFIG_BROKER_DEFAULT: config(min_insync_replicas="2")},
    ),
    "min.insync.replicas without a leader": Case(
        [], "", "", (-1, (1,)), (2, 3), also={paths.config_topic("t"): config(min_insync_replicas="2")}
    ),
    "min.insync.replicas without a state": Case(
        [], "", "", None, also={paths.config_topic("t"): config(min_insync_replicas="2")}
    ),
    "the preferred leader is dead, and so is the controller": Case([], "", "", (2, (2, 3)), (2, 3)),
    "one in ten drifted": Case([], "", "", also=drifted(1, 10)),
    "one in nine drifted": Case([], "", "", also=drifted(1, 9)),
    "two in nine drifted": Case([], "", "", also=drifted(2, 9)),
    "drifted partitions of a topic that goes": Case([], "", "", also={**drifted(2, 9), paths.delete_topic("u"): None}),
    "five wait for a broker": Case([], "", "", also=waiting(5)),
    "six wait for a broker": Case([], "", "", also=waiting(6)),
    "five can't spare a broker": Case([], "", "", also=needed(5)),
    "six can't spare a broker": Case([], "", "", also=needed(6)),
    "a topic that goes can spare all": Case([], "", "", also={**needed(2), paths.delete_topic("n"): None}),
    "two are added, two removed": Case([], "", "", (1, (1, 2, 3)), (1, 2, 3, 4, 5), "[4,5,1,2]", TWO),
    "two are added of which one is dead": Case([], "", "", (1, (1, 2)), (1, 2, 4), "[4,5,1,2]", TWO),
    "two are added that are dead": Case([], "", "", (1, (1, 2)), (1, 2), "[4,5,1,2]", TWO),
    "a reassignment without a leader": Case([], "", "", (-1, (3,)), (1, 2, 4), "[1,2,3,4]", MOVING),
    "a reassignment without a controller to end it": Case(
        [], "", "", (1, (1, 2, 3, 4)), (1, 2, 3, 4), "[1,2,3,4]", MOVING, NOBODY
    ),
    "a reassignment without a controller to begin it": Case(
        [], "", "", also={paths.REASSIGN_PARTITIONS: ASKED, **NOBODY}
    ),
    "a reassignment without a controller, in a pause": Case(
        [], "", "", also={paths.REASSIGN_PARTITIONS: ASKED, paths.CONTROLLER_PAUSE: PAUSED, **NOBODY}
    ),
    "an election while the controller is paused": Case(
        [], "", "", also={paths.PREFERRED_ELECTION: ELECT, paths.CONTROLLER_PAUSE: PAUSED}
    ),
    "an election that is to be": Case([], "", "", also={paths.PREFERRED_ELECTION: ELECT}),
    "an election and a reassignment of what is not there": Case(
        [],
        "",
        "",
        also={
            paths.PREFERRED_ELECTION: b'{"version":1,"partitions":[{"topic":"x","partition":0}]}',
            paths.REASSIGN_PARTITIONS: b'{"version":1,"partitions":[{"topic":"t","partition":9,"replicas":[2]}]}',
        },
    ),
    "a deletion without a controller": Case([], "", "", also={**DELETED, **NOBODY}),
    "a deletion that waits for two brokers and a reassignment": Case(
        [], "", "", (1, (1, 3)), (1, 3), "[1,2,3,4]", MOVING, DELETED
    ),
    "only the request to delete is left": Case([], "", "", also={paths.delete_topic("x"): None}),
    "only the request is left, and no controller": Case([], "", "", also={paths.delete_topic("x"): None, **NOBODY}),
    "a topic and a pause that can't be read": Case(
        [], "", "", also={paths.topic("x"): DAMAGED, paths.CONTROLLER_PAUSE: DAMAGED}
    ),
    "a registration that can't be read": Case([], "", "", also={paths.broker(5): DAMAGED}),
    "an earlier controller's epoch is as high": Case([], "", "", also={paths.CONTROLLER_EPOCH: b"1"}),
    "the highest epoch": Case([], "", "", also={paths.CONTROLLER_EPOCH: str(HIGHEST_EPOCH).encode()}),
    "one above the highest epoch": Case([], "", "", also={paths.CONTROLLER_EPOCH: str(HIGHEST_EPOCH + 1).encode()}),
    "a controller that can't be read": Case([], "", "", also={paths.CONTROLLER: DAMAGED}),
    "no epoch, and none in use": Case([], "", "", None, also={paths.CONTROLLER_EPOCH: None}),
    "no epoch, no controller, and none in use": Case([], "", "", None, also={paths.CONTROLLER_EPOCH: None, **NOBODY}),
    "no epoch, no controller, and one in use": Case([], "", "", also={paths.CONTROLLER_EPOCH: None, **NOBODY}),
    "another topic beside it": Case(
        [], "", "", (1, (1,)), also=topic("a", {0: ((3, 1), (1, (1, 3))), 4: ((2, 3), (2, (2,)))})
    ),
    "no topic at all": Case([], "", "", None, also={paths.topic("t"): None, paths.CONTROLLER: CONTROLLER}),
}


def subjects(seen: ClusterView) -> Iterator[Subject]:
    yield Subject(Kind.CLUSTER)
    held = seen.state.partitions.assignments
    for name in held.names:
        yield Subject(Kind.TOPIC, name)
        for row in list(rows_of(seen, name))[:2]:
            yield Subject(Kind.PARTITION, name, int(held.partition[row]))
    for broker in sorted(seen.live | set(seen.state.absent_brokers)):
        yield Subject(Kind.BROKER, str(broker))


def told(seen: ClusterView) -> Iterator[str]:
    """By subject a line a finding; what the cluster's findings have said already is named alone."""
    known: set[str] = set()
    sound = []
    for subject in subjects(seen):
        findings = explain(seen, subject)
        if findings:
            yield f"  {subject}: {', '.join(f'{count} {what}' for what, count in totals(findings).items())}"
        else:
            sound.append(str(subject))
        for one in findings:
            line = f"    {one.subject} {one.what}: {one.why} -> {' | '.join(one.changes)}"
            if line not in known:
                known.add(line)
                yield line
    yield f"  as it should be: {', '.join(sound)}"


def first_version(case: Case) -> ClusterView:
    """The same cluster, whose znodes nobody has written since they were created."""
    tree = Tree.of(replace(row, stat=row.stat._replace(version=0)) for row in view(case).tree.nodes.values())
    return view_of(tree, cluster_state(tree))


def page() -> str:
    views = {name: view(case) for name, case in (*CASES.items(), *MORE.items())}
    views["a state of version 0"] = first_version(CASES["too few for acks=all"])
    views["a state of version 0, and none is in sync"] = first_version(CASES["the whole ISR is dead"])
    views |= {f"controller: {name}": of_controller(case) for name, case in CONTROLLERS.items()}
    lines, rules = [], set()
    for name, seen in views.items():
        lines += [name, *told(seen)]
        rules |= {f"{one.what}: {one.rule}" for subject in subjects(seen) for one in explain(seen, subject)}
    return "\n".join([*lines, "rules", *(f"  {rule}" for rule in sorted(rules)), ""])


def test_every_explanation_is_as_it_is_written_down(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--rewrite-golden"):
        EXPECTED.write_text(page(), encoding="utf-8")
    assert page().splitlines() == EXPECTED.read_text(encoding="utf-8").splitlines()
