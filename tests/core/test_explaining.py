"""Why a partition is as it is: a small cluster for each rule, with what it says and what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from controller.core.explaining import (
    ClusterView,
    Diagnosis,
    Kind,
    Subject,
    UnknownSubject,
    explain,
    explain_partition,
    subject_named,
    view_of,
)
from controller.zookeeper import paths
from controller.zookeeper.cluster_state import Tree, cluster_state
from controller.zookeeper.codecs import PauseZnode, encode_pause
from tests.zookeeper.test_tree_cluster_state import BROKER, tree_of

CONTROLLER = b'{"version":1,"brokerid":1,"timestamp":"7"}'


@dataclass(frozen=True, slots=True)
class Case:
    """t-0 on brokers 1, 2 and 3; `state`: (leader, ISR), None for none. `also`: more znodes, `None` takes one out."""

    what: Sequence[str]
    why: str
    change: str
    state: tuple[int, tuple[int, ...]] | None = (1, (1, 2, 3))
    live: tuple[int, ...] = (1, 2, 3)
    assignment: str = "[1,2,3]"
    more: str = ""
    also: Mapping[str, bytes | None] = field(default_factory=dict)


def view(case: Case) -> ClusterView:
    znodes: dict[str, bytes | None] = {paths.broker(broker): BROKER for broker in case.live}
    znodes[paths.CONTROLLER] = CONTROLLER
    znodes[paths.CONTROLLER_EPOCH] = b"1"
    znodes[paths.CLUSTER_ID] = b'{"version":"1","id":"J8-8Nx2oQLqnW3uVoYhVCg"}'
    znodes[paths.topic("t")] = f'{{"version":3,"partitions":{{"0":{case.assignment}}}{case.more}}}'.encode()
    if case.state is not None:
        leader, isr = case.state
        data = f'{{"controller_epoch":1,"leader":{leader},"version":1,"leader_epoch":4,"isr":{list(isr)}}}'
        znodes[paths.partition_state("t", 0)] = data.encode()
    for path, content in case.also.items():
        if content is None and path in znodes:
            del znodes[path]
        else:
            znodes[path] = content
    tree = tree_of(znodes)
    return view_of(tree, cluster_state(tree))


def config(**values: str) -> bytes:
    inside = ",".join(f'"{name.replace("_", ".")}":"{value}"' for name, value in values.items())
    return f'{{"version":1,"config":{{{inside}}}}}'.encode()


MOVING = ',"adding_replicas":{"0":[4]},"removing_replicas":{"0":[3]}'
ASKED = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,1]}]}'
ELECT = b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
PAUSED = encode_pause(PauseZnode("a move of racks", 7))
CASES: dict[str, Case] = {
    "as it should be": Case([], "", ""),
    "no replica ever lived": Case(
        ["offline"], "never led: none of its replicas 7, 8", "one of brokers 7, 8 registers", None, assignment="[7,8]"
    ),
    "a state is still to come": Case(["offline"], "broker 1 is to lead it", "controller 1 takes up", None),
    "a state is still to come and there is no controller": Case(
        ["offline"], "there is no controller", "a broker is elected", None, also={paths.CONTROLLER: None}
    ),
    "the whole ISR is dead": Case(
        ["offline", "under-replicated"],
        "of its ISR (1) none is registered",
        "broker 1 registers: nothing is lost",
        (-1, (1,)),
        (2, 3),
    ),
    "unclean election is not allowed": Case(
        ["offline", "under-replicated"],
        "brokers 2, 3 outside of it live, and unclean.leader.election.enable is false",
        "unclean.leader.election.enable=true for the topic, or an unclean election by request: broker 2 leads",
        (-1, (1,)),
        (2, 3),
        also={paths.config_topic("t"): config(unclean_leader_election_enable="false")},
    ),
    "unclean election says the cluster": Case(
        ["offline", "under-replicated"],
        "unclean.leader.election.enable is true",
        "broker 1 registers",
        (-1, (1,)),
        (2,),
        also={paths.CONFIG_BROKER_DEFAULT: config(unclean_leader_election_enable="true")},
    ),
    "a leader that is gone can be followed at once": Case(
        ["offline", "under-replicated"],
        "broker 3 is live and in the ISR (1, 3), but /controller names broker 1, which is not",
        "a broker is elected",
        (1, (1, 3)),
        (2, 3),
    ),
    "and there is somebody to elect it": Case(
        ["offline", "under-replicated"],
        "broker 3 is live and in the ISR (2, 3), and may lead at once",
        "controller 1 elects 3",
        (2, (2, 3)),
        (1, 3),
    ),
    "a replica's broker is dead": Case(
        ["under-replicated"], "broker 3 is not registered", "broker 3 registers and catches up", (1, (1, 2)), (1, 2)
    ),
    "a replica lags": Case(
        ["under-replicated"],
        "broker 3 lives and is not in the ISR (1, 2)",
        "broker 3 catches up with leader 1",
        (1, (1, 2)),
    ),
    "no replica can catch up without a leader": Case(
        ["offline", "under-replicated"],
        "brokers 2, 3 live and are not in the ISR (1)",
        "a leader is elected: without one",
        (-1, (1,)),
        (2, 3),
    ),
    "too few for acks=all": Case(
        ["under-replicated", "not writable with acks=all"],
        "1 of its ISR are registered, min.insync.replicas is 2",
        "1 more replicas come into sync",
        (1, (1,)),
        also={paths.config_topic("t"): config(min_insync_replicas="2")},
    ),
    "the preferred leader is dead": Case(
        ["under-replicated", "off its preferred leader"],
        "broker 2 leads, 1 is preferred and is not registered",
        "broker 1 registers and comes",
        (2, (2, 3)),
        (2, 3),
        also={paths.CONTROLLER: b'{"version":1,"brokerid":2,"timestamp":"7"}'},
    ),
    "the preferred leader is out of sync": Case(
        ["under-replicated", "off its preferred leader"],
        "broker 2 leads, 1 is preferred and is not in the ISR (2, 3)",
        "broker 1 catches up with leader 2",
        (2, (2, 3)),
    ),
    "the preferred leader could lead": Case(
        ["off its preferred leader"],
        "could lead now; it misses 1 of the 1 partitions",
        "the next check of the balance",
        (2, (1, 2, 3)),
    ),
    "nothing goes back while the controller is paused": Case(
        ["off its preferred leader"],
        "the controller is paused (a move of racks)",
        "the controller is resumed",
        (2, (1, 2, 3)),
        also={paths.CONTROLLER_PAUSE: PAUSED},
    ),
    "nothing goes back while something is reassigned": Case(
        ["off its preferred leader", "being reassigned"],
        "while 1 partitions are being reassigned",
        "the reassignments end",
        (2, (1, 2, 3)),
        (1, 2, 3, 4),
        "[1,2,3,4]",
        MOVING,
    ),
    "a reassignment waits for one that lags": Case(
        ["being reassigned"],
        "broker 4 of the target is not in the ISR",
        "broker 4 catches up with leader 1",
        (1, (1, 2, 3)),
        (1, 2, 3, 4),
        "[1,2,3,4]",
        MOVING,
    ),
    "a reassignment waits for one that is dead": Case(
        ["being reassigned"],
        "broker 4 of the target is not registered",
        "broker 4 registers: it waits",
        (1, (1, 2, 3)),
        (1, 2, 3),
        "[1,2,3,4]",
        MOVING,
    ),
    "a reassignment is about to end": Case(
        ["being reassigned"],
        "the whole target is in sync",
        "controller 1 ends it",
        (1, (1, 2, 3, 4)),
        (1, 2, 3, 4),
        "[1,2,3,4]",
        MOVING,
    ),
    "a reassignment that was not taken up": Case(
        ["to be reassigned"],
        "asks for replicas 2, 1",
        "controller 1 takes it up",
        also={paths.REASSIGN_PARTITIONS: ASKED},
    ),
    "a reassignment while the controller is paused": Case(
        ["to be reassigned"],
        "the controller is paused (a move of racks)",
        "the controller is resumed",
        also={paths.REASSIGN_PARTITIONS: ASKED, paths.CONTROLLER_PAUSE: PAUSED},
    ),
    "an election that was not taken up": Case(
        ["to be given its preferred leader"],
        "there is no controller",
        "a broker is elected",
        also={paths.PREFERRED_ELECTION: ELECT, paths.CONTROLLER: None},
    ),
    "a deletion waits for a broker": Case(
        ["being deleted"],
        "broker 3 has replicas of it and is not registered",
        "broker 3 registers",
        (1, (1, 2)),
        (1, 2),
        also={paths.delete_topic("t"): None},
    ),
    "a deletion waits for a reassignment": Case(
        ["being deleted"],
        "1 of its partitions are being reassigned",
        "the reassignment ends",
        (1, (1, 2, 3)),
        (1, 2, 3, 4),
        "[1,2,3,4]",
        MOVING,
        {paths.delete_topic("t"): None},
    ),
    "a deletion waits for answers": Case(
        ["being deleted"],
        "nothing that ZooKeeper shows holds it up",
        "the brokers answer",
        also={paths.delete_topic("t"): None},
    ),
    "a state that can't be read": Case(
        ["damaged"],
        "/brokers/topics/t/partitions/0/state can't be read",
        "repair /brokers",
        also={paths.partition_state("t", 0): b"{"},
    ),
    "a leader outside its ISR": Case(
        ["contradictory", "under-replicated"], "leader 1, ISR 2, assignment 1, 2, 3", "find out who did", (1, (2,))
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_case_names_the_rule_that_decides_and_what_would_change_it(case: Case) -> None:
    findings = list(explain_partition(view(case), 0))
    assert [finding.what for finding in findings] == list(case.what)
    if case.what:
        assert case.why in " | ".join(finding.why for finding in findings)
        assert case.change in " | ".join(change for finding in findings for change in finding.changes)
        assert all(finding.rule and finding.changes for finding in findings)


def test_every_case_is_another() -> None:
    """No two say the same, so that none passes for another's reason."""
    said = [
        tuple((one.what, one.why, one.changes) for one in explain_partition(view(case), 0)) for case in CASES.values()
    ]
    assert len(set(said)) >= len(CASES) - 2, "the ISR that is dead and no replica can catch up are one cluster"


def names(found: Sequence[Diagnosis]) -> list[tuple[str, str]]:
    return [(finding.subject, finding.what) for finding in found]


def test_a_topic_a_broker_and_the_cluster_are_told_of_as_a_whole() -> None:
    dead = view(CASES["the whole ISR is dead"])
    assert names(explain(dead, subject_named(dead, "t"))) == [("t-0", "offline"), ("t-0", "under-replicated")]
    (broker,) = explain(dead, subject_named(dead, "1"))
    assert (broker.subject, broker.what) == ("broker 1", "not registered")
    assert "it has 1 replicas; 1 partitions without a leader wait for it, t-0" in broker.why
    assert names(explain(dead, subject_named(dead, "2"))) == [("broker 2", "behind")]
    assert names(explain(dead, Subject(Kind.CLUSTER))) == [
        ("controller", "missing"),
        ("t-0", "offline"),
        ("t-0", "under-replicated"),
    ]


def test_a_broker_that_could_not_be_stopped_without_harm() -> None:
    needs_two = {paths.config_topic("t"): config(min_insync_replicas="2")}
    two = view(Case([], "", "", (1, (1, 2)), also=needs_two))
    (finding,) = (one for one in explain(two, subject_named(two, "1")) if one.what == "can't be spared")
    assert finding.why == "1 partitions would be left under min.insync.replicas without it: t-0 (1 of 2)"
    assert any("camerlengo.controlled.shutdown.check=false" in change for change in finding.changes)
    three = view(Case([], "", "", (1, (1, 2, 3)), also=needs_two))
    assert explain(three, subject_named(three, "1")) == ()
    behind = explain(two, subject_named(two, "3"))
    assert [one.what for one in behind] == ["behind"], "what is not in sync is not missed"


def test_a_broker_that_leads_too_little_and_one_that_a_deletion_waits_for() -> None:
    drifted = view(CASES["the preferred leader could lead"])
    (finding,) = explain(drifted, subject_named(drifted, "broker:1"))
    assert (finding.what, finding.changes) == ("leads less than it should", ("the next check of the balance",))
    waiting = view(CASES["a deletion waits for a broker"])
    assert names(explain(waiting, subject_named(waiting, "3"))) == [
        ("broker 3", "not registered"),
        ("t", "being deleted"),
    ]
    assert names(explain(waiting, Subject(Kind.CLUSTER))) == [("t", "being deleted")]


def test_a_topic_that_can_not_be_read_and_a_pause_are_the_clusters() -> None:
    found = view(Case([], "", "", also={paths.topic("t"): b"{", paths.CONTROLLER_PAUSE: PAUSED}))
    assert names(explain(found, Subject(Kind.CLUSTER))) == [("controller", "paused"), (paths.topic("t"), "damaged")]
    assert names(explain(found, Subject(Kind.TOPIC, "t"))) == [("t", "damaged")]
    (partition,) = explain(found, subject_named(found, "t-0"))
    assert (partition.subject, partition.what) == ("t", "damaged")
    assert "expected" in partition.why


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("t", Subject(Kind.TOPIC, "t")),
        ("topic:t", Subject(Kind.TOPIC, "t")),
        ("t-0", Subject(Kind.PARTITION, "t", 0)),
        ("partition:t-0", Subject(Kind.PARTITION, "t", 0)),
        ("2", Subject(Kind.BROKER, "2")),
        ("broker:2", Subject(Kind.BROKER, "2")),
    ],
)
def test_what_is_named_is_found(text: str, found: Subject) -> None:
    assert subject_named(view(CASES["as it should be"]), text) == found


@pytest.mark.parametrize("text", ["", "u", "t-1", "t-", "9", "topic:1", "broker:t", "partition:t", "x:t", "-0", "٣"])
def test_what_is_not_there_is_said(text: str) -> None:
    with pytest.raises(UnknownSubject):
        subject_named(view(CASES["as it should be"]), text)


def test_one_name_for_two_things_has_to_be_made_clear() -> None:
    topic = b'{"version":1,"partitions":{"0":[1]}}'
    both = view(Case([], "", "", also={paths.topic("2"): topic, paths.topic("t-0"): topic}))
    with pytest.raises(UnknownSubject, match="could be broker:2, topic:2"):
        subject_named(both, "2")
    with pytest.raises(UnknownSubject, match="could be topic:t-0, partition:t-0"):
        subject_named(both, "t-0")
    assert subject_named(both, "topic:2") == Subject(Kind.TOPIC, "2")


@dataclass(frozen=True, slots=True)
class OfController:
    """`rows`: znodes as (data, owning session), None takes one out."""

    what: Sequence[str]
    why: str
    change: str
    rows: Mapping[str, tuple[bytes, int] | None]


CONTROLLERS: dict[str, OfController] = {
    "sound": OfController([], "", "", {}),
    "persistent": OfController(
        ["blocked (controller-persistent)"],
        '/controller is a persistent znode with b\'{"version":1,',
        "zookeeper-shell.sh ZOOKEEPER delete /controller",
        {paths.CONTROLLER: (CONTROLLER, 0)},
    ),
    "names broker -1": OfController(
        ["blocked (controller-unreadable)", "missing"],
        "found b'{\"brokerid\":-1}', owned by session 0x9",
        "or end that session",
        {paths.CONTROLLER: (b'{"brokerid":-1}', 9)},
    ),
    "of another session": OfController(
        ["in doubt"],
        "belongs to session 0x8; that broker is registered in session 0x9",
        "if it lasts longer than a session timeout, delete it",
        {paths.CONTROLLER: (CONTROLLER, 8)},
    ),
    "none": OfController(["missing"], "/controller is not there", "stands for election", {paths.CONTROLLER: None}),
    "not registered": OfController(
        ["missing"],
        "/controller names broker 7, which is not registered",
        "stands for election",
        {paths.CONTROLLER: (b'{"brokerid":7}', 9)},
    ),
    "an epoch that can't be read": OfController(
        ["blocked (controller-epoch-unreadable)"],
        "found b'-7'",
        "zookeeper-shell.sh ZOOKEEPER delete /controller_epoch",
        {paths.CONTROLLER_EPOCH: (b"-7", 0)},
    ),
    "an epoch that is missing": OfController(
        ["missing"], "epoch 1 is in use", "delete /controller", {paths.CONTROLLER_EPOCH: None}
    ),
    "an epoch that is too low": OfController(
        ["too low"], "holds 0, and a partition's state has epoch 1", "delete", {paths.CONTROLLER_EPOCH: (b"0", 0)}
    ),
    "an epoch that is too high": OfController(
        ["too high"], "holds 2147483646, above", "delete", {paths.CONTROLLER_EPOCH: (b"2147483646", 0)}
    ),
    "a cluster without an id": OfController(
        ["missing"], "/cluster/id is not there", "create /cluster/id", {paths.CLUSTER_ID: None}
    ),
}


def view_of_controller(case: OfController) -> ClusterView:
    nodes = dict(view(Case([], "", "")).tree.nodes)
    for path, changed in case.rows.items():
        row = nodes.pop(path)
        if changed is not None:
            data, owner = changed
            nodes[path] = replace(row, data=data, stat=row.stat._replace(ephemeral_owner=owner))
    tree = Tree.of(nodes.values())
    return view_of(tree, cluster_state(tree))


@pytest.mark.parametrize("case", CONTROLLERS.values(), ids=CONTROLLERS)
def test_what_is_wrong_with_the_controllers_znodes_is_named_with_its_repair(case: OfController) -> None:
    seen = view_of_controller(case)
    findings = explain(seen, subject_named(seen, "controller"))
    assert [finding.what for finding in findings] == list(case.what)
    assert case.why in " | ".join(finding.why for finding in findings)
    assert case.change in " | ".join(change for finding in findings for change in finding.changes)
    assert all(finding.rule for finding in findings)
    assert names(explain(seen, Subject(Kind.CLUSTER)))[: len(findings)] == names(findings)


def test_a_topic_called_controller_is_told_from_the_controller() -> None:
    seen = view(Case([], "", "", also={paths.topic("controller"): b'{"version":1,"partitions":{"0":[1]}}'}))
    with pytest.raises(UnknownSubject, match="could be controller:controller, topic:controller"):
        subject_named(seen, "controller")
    assert subject_named(seen, "controller:controller") == Subject(Kind.CONTROLLER)
    assert subject_named(seen, "topic:controller") == Subject(Kind.TOPIC, "controller")
