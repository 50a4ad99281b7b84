"""A znode that makes no sense costs its own topic, partition or broker; repaired, it is served in the same term."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.core.events import CreatePartitionsRequested, DeleteTopicsRequested, ReassignmentAsked
from controller.core.leadership import ControllerSettings
from controller.protocol.client import CreatePartitionsRequest, CreatePartitionsTopic
from controller.protocol.errors import ErrorCode
from controller.trace import ControllerResigned
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_topic_assignment
from controller.zookeeper.operations import ACL, ANY_VERSION, OPEN_ACL, PERM_ALL, PERM_READ, Delete
from tests.core.driving import TOPIC_ID, Cluster, Host, registration
from tests.core.reassigning import ask, ask_by_znode, asked, assignment

MANY = list(range(1, 131))
TOPICS: list[dict[str, Any]] = [
    {"partitions": {"0": [2, 2]}},
    {"partitions": {"0": [1, 2], "1": []}},
    {"partitions": {"0": MANY}},
    {"partitions": {"0": [1, 2]}, "adding_replicas": {"0": [3]}},
    {"partitions": {"0": [1, 2]}, "adding_replicas": {"0": [2, 1]}},
    {"partitions": {"0": [1, 2]}, "removing_replicas": {"0": [1, 2]}},
    {"partitions": {"0": [1, 2]}, "adding_replicas": {"0": [2]}, "removing_replicas": {"0": [2]}},
    {"partitions": {"0": [1, 2]}, "version": 2**40},
]
STATES: list[dict[str, Any]] = [
    {"isr": [2, 2]},
    {"isr": MANY},
    {"leader_epoch": 2**31 - 1},
    {"leader_epoch": -1},
    {"controller_epoch": 2**31 - 3},
    {"leader": -2},
    {"isr": [1, 2**31]},
    {"more": "x" * 70_000},
]
REGISTRATIONS: list[dict[str, Any]] = [
    {"rack": "r" * 32_768},
    {"rack": "\ud800"},
    {"endpoints": [f"PLAINTEXT://{'h' * 40_000}:9092"]},
    {"endpoints": ["PLAINTEXT://:9092"]},
    {"endpoints": ["PLAINTEXT://host:0"]},
    {"endpoints": ["PLAINTEXT://host:-1"]},
    {"endpoints": []},
]
STATE = {"controller_epoch": 0, "leader": 1, "version": 1, "leader_epoch": 0, "isr": [1, 2]}


def text(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def scene(
    *, before: tuple[str, bytes] | None = None, settings: ControllerSettings | None = None
) -> tuple[Cluster, Host]:
    """Topics "t" and "other" on brokers 1 to 3; `before` stands in a znode when the controller's term begins."""
    cluster = Cluster()
    cluster.register(2, 3)
    for name in ("other", "t"):
        cluster.topic(name, {0: (1, 2), 1: (2, 3)})
        for partition, isr in ((0, (1, 2)), (1, (2, 3))):
            cluster.state(name, partition, isr[0], isr)
    if before is not None:
        cluster.put(*before)
    host = cluster.new_host(1, settings)
    host.answering = True
    host.start()
    cluster.settle()
    return cluster, host


def serves(cluster: Cluster, host: Host, *topics: str) -> None:
    """Broker 2 goes: partition 1 of each is led by 3; no term has ended."""
    cluster.unregister(2)
    cluster.settle()
    for topic in topics:
        state = cluster.read_state(topic, 1)
        assert state is not None
        assert (state.leader, state.isr) == (3, (3,)), topic
    assert host.failures() == []
    assert host.trace.of(ControllerResigned) == []


@pytest.mark.parametrize("value", TOPICS, ids=str)
def test_a_topic_of_no_sense_is_left_out_until_it_is_repaired(value: dict[str, Any]) -> None:
    path = paths.topic("t")
    cluster, host = scene(before=(path, text(value)))
    (said,) = host.notes("error")
    assert said.startswith(f"[controller 1, epoch 1] topic t is left out: {path}: expected a topic's assignment (")
    assert host.controller.measures.figures.quarantined == 1
    cluster.topic("t", {0: (1, 2), 1: (2, 3)})
    cluster.settle()
    assert host.controller.measures.figures.quarantined == 0
    serves(cluster, host, "other", "t")
    cluster.check(errors=True)


@pytest.mark.parametrize("value", TOPICS, ids=str)
def test_a_known_topic_that_becomes_of_no_sense_is_served_as_it_was(value: dict[str, Any]) -> None:
    cluster, host = scene()
    cluster.put(paths.topic("t"), text(value))
    cluster.settle()
    (said,) = host.notes("error")
    assert "topic t stays as it was known: " in said
    serves(cluster, host, "other", "t")
    cluster.topic("t", {0: (1, 2), 1: (2, 3), 2: (3,)})
    cluster.settle()
    assert host.controller.measures.figures.quarantined == 0
    assert "t-2" in cluster.states()
    cluster.check(errors=True)


@pytest.mark.parametrize("in_term", [False, True])
@pytest.mark.parametrize("change", STATES, ids=lambda change: str(change)[:30])
def test_a_state_of_no_sense_is_left_out_until_it_is_repaired(change: dict[str, Any], in_term: bool) -> None:
    path, value = paths.partition_state("t", 0), text({**STATE, **change})
    cluster, host = scene(before=None if in_term else (path, value))
    if in_term:
        cluster.put(path, value)
    serves(cluster, host, "other", "t")
    (said,) = host.notes("error")
    assert said.startswith(f"[controller 1, epoch 1] partition t-0 is left out: {path}: expected a partition's state (")
    row = cluster.server.row(path)
    assert row is not None
    assert row.data == value
    cluster.put(path, text({**STATE, "leader": 2}))
    cluster.settle()
    state = cluster.read_state("t", 0)
    assert state is not None
    assert (state.leader, state.isr) == (1, (1,)), "broker 2 is gone"
    told = [sent for sent in host.sent if "t-0" in sent.states() and sent.broker == 1]
    assert told[-1].states()["t-0"].leader_epoch == state.leader_epoch
    assert host.controller.measures.figures.quarantined == 0
    cluster.check(errors=True)


def test_a_state_that_is_gone_is_waited_for() -> None:
    cluster, host = scene()
    path = paths.partition_state("t", 1)
    cluster.write(Delete(path, ANY_VERSION))
    serves(cluster, host, "other")
    assert host.controller.measures.figures.quarantined == 1
    cluster.put(path, text({**STATE, "leader": 2, "isr": [2, 3]}))
    cluster.settle()
    state = cluster.read_state("t", 1)
    assert state is not None
    assert (state.leader, state.isr) == (3, (3,))
    cluster.check(errors=True)


@pytest.mark.parametrize("change", REGISTRATIONS, ids=lambda change: str(change)[:40])
def test_a_registration_of_no_sense_is_left_out_until_it_is_repaired_in_place(change: dict[str, Any]) -> None:
    value = text({**json.loads(registration(4)), **change})
    cluster, host = scene(before=(paths.broker(4), value))
    (said,) = host.notes("error")
    assert f"broker 4 is left out: {paths.broker(4)}: expected " in said
    cluster.put(paths.broker(5), registration(5))
    cluster.settle()
    assert len(host.notes("error")) == 1, "it is named once"
    cluster.put(paths.broker(4), registration(4))
    cluster.settle()
    assert host.controller.term is not None
    assert host.controller.term.context.broker_ids == (1, 2, 3, 4, 5)
    assert host.controller.measures.figures.quarantined == 0
    serves(cluster, host, "other", "t")
    cluster.check(errors=True)


@pytest.mark.parametrize("change", REGISTRATIONS, ids=lambda change: str(change)[:40])
def test_a_live_broker_whose_registration_becomes_of_no_sense_stays_as_it_was_known(change: dict[str, Any]) -> None:
    cluster, host = scene()
    cluster.put(paths.broker(3), text({**json.loads(registration(3)), **change}))
    cluster.settle()
    serves(cluster, host, "other", "t")
    (said,) = host.notes("error")
    assert "broker 3 stays as it was known: " in said
    cluster.put(paths.broker(3), registration(3))
    cluster.settle()
    assert host.controller.measures.figures.quarantined == 0
    cluster.check(errors=True)


@pytest.mark.parametrize("name", ["007", "x", "-1", "2147483648"])
def test_a_child_of_brokers_ids_that_is_no_broker_id_is_passed_over(name: str) -> None:
    cluster, host = scene(before=(paths.child(paths.BROKER_IDS, name), registration(7)))
    serves(cluster, host, "other", "t")
    assert len(host.notes("error")) == 1


@pytest.mark.parametrize("name", ["x" * 250, "a b", "\u00e9", "n" * 40_000])
def test_a_topic_of_an_illegal_name_is_left_out(name: str) -> None:
    cluster, host = scene(before=(paths.child(paths.BROKER_TOPICS, name), b'{"partitions":{"0":[1]}}'))
    serves(cluster, host, "other", "t")
    (said,) = host.notes("error")
    assert "is left out: Topic name" in said


def test_a_reassignment_of_no_sense_costs_itself_alone_and_is_never_persisted() -> None:
    cluster, host = scene()
    wanted: list[dict[str, Any]] = [
        {"topic": "t", "partition": 0, "replicas": MANY},
        {"topic": "t", "partition": 1, "replicas": [2**31, 1]},
        {"topic": "t", "partition": 2**40, "replicas": [1]},
        {"topic": "other", "partition": -1, "replicas": [1]},
        {"topic": "other", "partition": 0, "replicas": [2, 1]},
        {"topic": "other", "partition": 1, "replicas": [-3]},
    ]
    cluster.put(paths.REASSIGN_PARTITIONS, text({"version": 1, "partitions": wanted}))
    host.events.put(ReassignmentAsked())
    cluster.settle()
    assert cluster.server.row(paths.REASSIGN_PARTITIONS) is None
    for name, first in (("t", (1, 2)), ("other", (2, 1))):
        row = cluster.server.row(paths.topic(name))
        assert row is not None
        found = decode_topic_assignment(row.path, row.data)
        assert (found.partitions, found.adding) == ({0: first, 1: (2, 3)}, {})
    serves(cluster, host, "other", "t")
    cluster.check(errors=True)


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("name", ["", ".", "..", "\0", "t\n", "/", "a/b", "t/partitions/0", "x" * 250])
def test_no_name_from_a_client_ends_a_term(name: str, validate_only: bool) -> None:
    cluster, host = scene()
    answers: list[Any] = []
    request = CreatePartitionsRequest((CreatePartitionsTopic(name, 3),), 1_000, validate_only)
    host.events.put(CreatePartitionsRequested(request, answers.append))
    cluster.settle()
    assert answers[0].results[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    host.events.put(DeleteTopicsRequested((name,), answers.append))
    cluster.settle()
    assert answers[1:] == [{name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}]
    serves(cluster, host, "other", "t")


# -- access lists

CLOSED = (ACL(PERM_ALL, "digest", "admin:x1nq8J5GOJVPY6zgzhtTtA9izLc="),)
READ_ONLY = (ACL(PERM_READ, "world", "anyone"), *CLOSED)
ONE_TOPICS = [
    paths.topic("t"),
    paths.partition_state("t", 0),
    paths.partition_state("t", 1),
    paths.config_topic("t"),
    paths.partitions("t"),
    paths.partition("t", 1),
]


def closed_scene(path: str, acl: tuple[ACL, ...], *, in_term: bool) -> tuple[Cluster, Host]:
    """As `scene`; the znode gets the access list before the controller's term begins, or in it."""
    cluster = Cluster()
    cluster.register(2, 3)
    for name in ("other", "t"):
        cluster.topic(name, {0: (1, 2), 1: (2, 3)})
        cluster.topic_config(name, retention_ms="1000")
        for partition, isr in ((0, (1, 2)), (1, (2, 3))):
            cluster.state(name, partition, isr[0], isr)
    if not in_term:
        cluster.server.set_acl(path, acl)
    host = cluster.new_host(1)
    host.answering = True
    host.start()
    cluster.settle()
    if in_term:
        cluster.server.set_acl(path, acl)
    return cluster, host


@pytest.mark.parametrize("in_term", [False, True])
@pytest.mark.parametrize("acl", [CLOSED, READ_ONLY], ids=["closed", "read-only"])
@pytest.mark.parametrize("path", ONE_TOPICS)
def test_a_closed_znode_of_a_topic_costs_that_topic_alone(path: str, acl: tuple[ACL, ...], in_term: bool) -> None:
    cluster, host = closed_scene(path, acl, in_term=in_term)
    cluster.topic("t2", {0: (3, 1)})
    cluster.settle()
    serves(cluster, host, "other")
    assert "t2-0" in cluster.states()
    said = [note for note in host.notes("error") if path in note]
    if path == paths.topic("t") and acl is CLOSED and not in_term:
        assert "topic t is left out: " in said[0]
        assert "an access list that lets this broker read it (NoAuth)" in said[0]
    if path == paths.partition_state("t", 1):
        assert "partition t-1 is left out: " in said[0]
        assert "an access list that lets this broker" in said[0]
        assert len(said) < 4, "it is not tried again and again"
    if acl is CLOSED or path == paths.partition_state("t", 1):
        opened_again(cluster, host, path)


def opened_again(cluster: Cluster, host: Host, path: str) -> None:
    """The administrator corrects the access list, and writes the znode's data anew: an access list fires no watch."""
    cluster.server.set_acl(path, OPEN_ACL)
    row = cluster.server.row(path)
    assert row is not None
    if row.data is not None:
        cluster.put(path, row.data)
    cluster.settle()
    cluster.register(2)
    cluster.settle()
    serves(cluster, host, "other", *(["t"] if path.endswith("state") or path == paths.topic("t") else []))
    assert host.controller.measures.figures.quarantined == 0


def test_many_closed_states_cost_their_partitions_alone() -> None:
    cluster = Cluster()
    cluster.register(2)
    cluster.topic("t", dict.fromkeys(range(200), (2, 1)))
    for partition in range(200):
        cluster.state("t", partition, 2, (2, 1))
        if partition % 20 == 0:
            cluster.server.set_acl(paths.partition_state("t", partition), CLOSED if partition % 40 else READ_ONLY)
    host = cluster.new_host(1)
    host.answering = True
    host.start()
    cluster.settle()
    cluster.unregister(2)
    cluster.settle()
    left = [key for key, (leader, *_) in cluster.states().items() if leader != 1]
    assert set(left) == {f"t-{partition}" for partition in range(0, 200, 20)}
    assert host.failures() == []
    assert host.trace.of(ControllerResigned) == []
    assert host.controller.measures.figures.quarantined == 10


@pytest.mark.parametrize("in_term", [False, True])
def test_a_closed_registration_costs_its_own_broker_alone(in_term: bool) -> None:
    cluster, host = scene()
    cluster.register(4)
    cluster.settle()
    cluster.server.set_acl(paths.broker(4), CLOSED)
    if not in_term:
        cluster.write(Delete(paths.CONTROLLER, ANY_VERSION))
    cluster.register(5)
    cluster.settle()
    term = host.controller.term
    assert term is not None
    assert term.context.broker_ids == ((1, 2, 3, 4, 5) if in_term else (1, 2, 3, 5))
    assert host.failures() == []
    (said,) = host.notes("error")
    assert ("broker 4 stays as it was known: " if in_term else "broker 4 is left out: ") in said


@pytest.mark.parametrize("acl", [CLOSED, READ_ONLY], ids=["closed", "read-only"])
def test_a_client_that_asks_for_a_closed_topic_ends_no_term(acl: tuple[ACL, ...]) -> None:
    cluster, host = closed_scene(paths.topic("t"), acl, in_term=True)
    answers: list[Any] = []
    request = CreatePartitionsRequest((CreatePartitionsTopic("t", 3), CreatePartitionsTopic("other", 3)), 1_000, False)
    host.events.put(CreatePartitionsRequested(request, answers.append))
    cluster.settle()
    assert [one.error_code for one in answers[0].results] == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]
    host.events.put(DeleteTopicsRequested(("t",), answers.append))
    cluster.settle()
    assert answers[1] == {"t": ErrorCode.UNKNOWN_SERVER_ERROR if acl is CLOSED else ErrorCode.NONE}
    serves(cluster, host, "other")


def test_a_topic_whose_znodes_may_not_be_deleted_stays_and_the_others_go() -> None:
    cluster, host = closed_scene(paths.partitions("t"), READ_ONLY, in_term=True)
    answers: list[Any] = []
    host.events.put(DeleteTopicsRequested(("t", "other"), answers.append))
    cluster.settle()
    assert answers == [{"t": ErrorCode.NONE, "other": ErrorCode.NONE}]
    assert cluster.server.row(paths.topic("other")) is None
    assert cluster.server.row(paths.partitions("t")) is not None
    assert any("topic t could not be removed: NoAuth" in note for note in host.notes("error"))
    assert host.failures() == []
    assert host.trace.of(ControllerResigned) == []


# -- topic ids


def test_of_two_topics_with_one_id_the_older_one_is_served() -> None:
    cluster, host = scene()
    cluster.topic("a-copy", {0: (1, 2), 1: (2, 3)}, TOPIC_ID)
    cluster.settle()
    serves(cluster, host, "other", "t")
    assert "a-copy-0" not in cluster.states()
    for term in (1, 2):
        said = [note for note in host.notes("error") if f"epoch {term}]" in note]
        assert len(said) == 1
        assert "topic a-copy is left out: /brokers/topics/a-copy: expected a topic id of its own" in said[0]
        assert said[0].endswith("which is the id of topic t")
        if term == 1:
            cluster.write(Delete(paths.CONTROLLER, ANY_VERSION))
            cluster.settle()
    assert host.controller.measures.figures.quarantined == 1
    answers: list[Any] = []
    host.events.put(DeleteTopicsRequested(("t",), answers.append))
    cluster.register(2)
    cluster.settle()
    assert cluster.server.row(paths.topic("t")) is None
    assert "a-copy-0" in cluster.states(), "the id is its own by now"
    assert host.controller.measures.figures.quarantined == 0
    cluster.check(errors=True)


def test_a_topic_that_gets_the_id_of_another_stays_as_it_was_known() -> None:
    cluster, host = scene()
    cluster.topic("other", {0: (1, 2), 1: (2, 3), 2: (3,)}, TOPIC_ID)
    cluster.settle()
    (said,) = host.notes("error")
    assert "topic other stays as it was known: " in said
    serves(cluster, host, "other", "t")
    cluster.topic("other", {0: (1, 2), 1: (2, 3), 2: (3,)})
    cluster.settle()
    assert "other-2" in cluster.states()
    assert host.controller.measures.figures.quarantined == 0
    cluster.check(errors=True)


@pytest.mark.parametrize("by_znode", [False, True])
def test_a_partition_whose_state_is_in_quarantine_is_reassigned_once_it_is_repaired(by_znode: bool) -> None:
    """Its ISR is not known: a replica that alone is in sync could be dropped (the swarm's seed 4075)."""
    path = paths.partition_state("t", 0)
    cluster, host = scene(before=(path, text({**STATE, "isr": [2, 2]})))
    before = assignment(cluster, 0)
    if by_znode:
        ask_by_znode(cluster, {0: (1, 3)})
        assert asked(cluster) == {("t", 0): (1, 3)}, "it waits for the repair"
    else:
        assert ask(cluster, host, {0: (1, 3)}) == {0: ErrorCode.UNKNOWN_SERVER_ERROR}
    assert assignment(cluster, 0) == before
    cluster.put(path, text(STATE))
    cluster.settle()
    if not by_znode:
        assert ask(cluster, host, {0: (1, 3)}) == {0: ErrorCode.NONE}
    assert assignment(cluster, 0).target == (1, 3)
    cluster.check(errors=True)


@pytest.mark.parametrize("target", [(1, 2), (1, 3)])
def test_a_reassignment_leaves_the_watch_of_a_state_in_quarantine(target: tuple[int, ...]) -> None:
    """Where leaders write states, both watch them; the one that ends first took the other's watch (seed 81019)."""
    path = paths.partition_state("t", 0)
    cluster, host = scene(settings=ControllerSettings(inter_broker_protocol="2.6"))
    cluster.put(path, text({**STATE, "isr": [2, 2]}))
    ask_by_znode(cluster, {0: target})
    cluster.settle()
    assert host.controller.measures.figures.quarantined == 1
    cluster.put(path, text({**STATE, "leader_epoch": 5}))
    cluster.settle()
    assert host.controller.measures.figures.quarantined == 0
    if 3 in target:
        cluster.state("t", 0, 1, (1, 2, 3), epoch=9)
        cluster.settle()
    assert not asked(cluster), "the leader's write is seen, and the reassignment has ended"
    assert assignment(cluster, 0).replicas == target
    cluster.check(errors=True)
