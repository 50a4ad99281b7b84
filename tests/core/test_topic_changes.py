"""Topics that appear, grow and vanish, whoever wrote their znodes; creations that somebody else began."""

from __future__ import annotations

from typing import Any

import pytest

from controller.core.leadership import ControllerSettings
from controller.core.loading import topic_id_text
from controller.protocol.codec import ApiKey
from controller.protocol.control import NO_TOPIC_ID
from controller.trace import PartitionMoved, PartitionStateWritten
from controller.zookeeper import paths
from controller.zookeeper.codecs import TopicAssignment, decode_topic_assignment, encode_topic_assignment
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SetData
from tests.core.driving import TOPIC_ID, Cluster, Host
from tests.core.test_broker_changes import cluster_of, keep_busy

OTHER_ID = "BBBBBBBBQBCBBBBBBBBBBQ"


def delete_topic(cluster: Cluster, name: str) -> None:
    """As a deletion by hand leaves it: everything below gone."""
    gone = [row.path for row in cluster.server.rows() if f"{row.path}/".startswith(f"{paths.topic(name)}/")]
    cluster.write(*(Delete(path, ANY_VERSION) for path in reversed(gone)))


def test_a_new_partition_begins_with_its_first_live_replica_and_all_live_ones_in_sync() -> None:
    cluster, host = cluster_of(1, 2, 3)
    mark = len(host.sent)
    cluster.topic("t", {0: (9, 3, 1), 1: (2, 9)})
    cluster.settle()
    assert cluster.states() == {"t-0": (3, 0, (3, 1), 0), "t-1": (2, 0, (2,), 0)}
    row = cluster.server.row(paths.partition_state("t", 0))
    assert row is not None
    assert row.data == b'{"controller_epoch":1,"leader":3,"version":1,"leader_epoch":0,"isr":[3,1]}'
    parent = cluster.server.row(paths.partition("t", 0))
    assert parent is not None
    assert parent.data is None
    told = {sent.broker: sent for sent in host.sent[mark:] if sent.api is ApiKey.LEADER_AND_ISR}
    assert {broker: set(sent.states()) for broker, sent in told.items()} == {1: {"t-0"}, 2: {"t-1"}, 3: {"t-0"}}
    assert all(state.is_new for sent in told.values() for state in sent.states().values())
    last = [sent for sent in host.sent[mark:] if sent.api is ApiKey.UPDATE_METADATA][-1]
    assert last.states()["t-0"].offline_replicas == (9,)
    cluster.check()


def test_a_partition_without_a_live_replica_waits_for_one() -> None:
    cluster, host = cluster_of(1)
    cluster.topic("t", {0: (7, 8)})
    cluster.settle()
    assert cluster.states() == {}
    assert any("t-0" in note for note in host.notes("warning"))
    cluster.register(8)
    cluster.settle()
    assert cluster.states() == {"t-0": (8, 0, (8,), 0)}
    cluster.check()


def test_partitions_are_added() -> None:
    cluster, host = cluster_of(1, 2)
    cluster.topic("t", {0: (1, 2)})
    cluster.settle()
    mark = len(host.sent)
    cluster.topic("t", {0: (1, 2), 1: (2, 1), 2: (1,)})
    cluster.settle()
    assert cluster.states() == {"t-0": (1, 0, (1, 2), 0), "t-1": (2, 0, (2, 1), 0), "t-2": (1, 0, (1,), 0)}
    told = {name for sent in host.sent[mark:] for name in sent.states()}
    assert told == {"t-1", "t-2"}
    cluster.check()


def test_a_topic_that_vanished_is_forgotten_and_its_watch_with_it() -> None:
    cluster, host = cluster_of(1, 2)
    for name in ("a", "b", "c"):
        cluster.topic(name, {0: (1, 2), 1: (2, 1)})
    cluster.settle()
    delete_topic(cluster, "b")
    cluster.settle()
    assert set(host.context_states()) == {"a-0", "a-1", "c-0", "c-1"}
    cluster.check()
    cluster.unregister(2)
    cluster.settle()
    assert {name: state[2] for name, state in cluster.states().items()} == dict.fromkeys(
        ("a-0", "a-1", "c-0", "c-1"), (1,)
    )
    cluster.check()


def test_a_topic_that_was_made_again_before_anyone_looked_is_another() -> None:
    cluster, host = cluster_of(1, 2)
    cluster.topic("t", {0: (1, 2), 1: (2, 1)})
    cluster.settle()
    busy = keep_busy(host)
    delete_topic(cluster, "t")
    cluster.topic("t", {0: (2,)}, OTHER_ID)
    busy()
    cluster.settle()
    assert cluster.states() == {"t-0": (2, 0, (2,), 0)}
    cluster.check()


def test_a_topic_that_goes_while_it_is_created_costs_only_itself() -> None:
    """Between the reading of its assignment and the writing of its states."""
    for at in range(1, 12):
        cluster, host = cluster_of(1, 2)
        cluster.topic("stays", {0: (1,)})
        cluster.topic("goes", {0: (1, 2)})
        cluster.topic("last", {0: (2,)})
        awaits = host.awaits
        cluster.until(lambda host=host, stop=awaits + at: host.awaits >= stop or host.idle)  # type: ignore[misc]
        delete_topic(cluster, "goes")
        cluster.settle()
        assert set(cluster.states()) == {"stays-0", "last-0"}, at
        cluster.check()


def test_what_another_has_created_is_taken_as_it_is() -> None:
    """A state that is there already, its leader live or dead, when its creation is tried."""
    cluster, host = cluster_of(1, 2, 3)
    busy = keep_busy(host)
    cluster.topic("t", {0: (1, 2), 1: (9, 2, 3), 2: (3, 1)})
    cluster.state("t", 0, 2, (2, 1), 3)
    cluster.state("t", 1, 9, (9, 3), 5)
    busy()
    cluster.settle()
    assert cluster.states() == {"t-0": (2, 3, (2, 1), 0), "t-1": (3, 6, (3,), 1), "t-2": (3, 0, (3, 1), 0)}
    assert [event.partition for event in host.trace.of(PartitionStateWritten)] == [2, 1]
    cluster.check()


def test_a_creation_that_dies_at_any_await_is_completed_by_the_next_controller() -> None:
    for at in range(1, 30):
        cluster = Cluster()
        cluster.register(2, 3)
        first = cluster.host(1)
        first.die_at_await = first.awaits + at
        cluster.topic("t", {0: (2, 3), 1: (3, 2), 2: (2, 1)})
        cluster.settle()
        if first.dead:
            cluster.host(4)
            cluster.pass_ms(8_000)
        states = {name: (state[0], state[2]) for name, state in cluster.states().items()}
        last = {(2, (2, 1)), (2, (2,))}
        assert states.pop("t-2") in last, at
        assert states == {"t-0": (2, (2, 3)), "t-1": (3, (3, 2))}, at
        cluster.check()
        if not first.dead:
            assert at > 3
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("topic_id", [None, TOPIC_ID])
def test_s56e_a_topic_without_an_id_gets_one_and_keeps_all_else(topic_id: str | None) -> None:
    """KAFKA-12835: unknown fields are kept, and an id that is there is never replaced."""
    cluster = Cluster()
    assignment = TopicAssignment(topic_id, {0: (1,)})
    data = encode_topic_assignment(assignment)[:-1] + b',"later":{"kept":[1, 2]}}'
    cluster.put(paths.topic("t"), data)
    host = cluster.host(1)
    row = cluster.server.row(paths.topic("t"))
    assert row is not None
    assert row.data is not None
    found = decode_topic_assignment(row.path, row.data)
    assert b'"later":{"kept":[1, 2]}' in row.data
    assert found.partitions == {0: (1,)}
    if topic_id is None:
        assert found.topic_id is not None
        assert len(found.topic_id) == 22
        term = host.controller.term
        assert term is not None
        known = term.context.partitions.topic_named("t")
        assert known is not None
        assert any(known.id)
    else:
        assert row.data == data
    cluster.check()


def test_a_topic_that_changed_before_it_is_given_an_id_holds_up_no_other() -> None:
    cluster = Cluster()
    for name in ("a", "b"):
        cluster.put(paths.topic(name), encode_topic_assignment(TopicAssignment(None, {0: (1,)})))
    host = cluster.new_host(1)
    read, changed = host.client.read, list[str]()

    def reading(some: Any) -> Any:
        if list(some) == [paths.topic("a"), paths.topic("b")] and not changed:
            data = encode_topic_assignment(TopicAssignment(None, {0: (1,), 1: (1,)}))
            changed.append("a")
            cluster._admin.multi([SetData(paths.topic("a"), data, ANY_VERSION)])
        return read(some)

    host.client.read = reading  # type: ignore[method-assign, assignment]
    host.start()
    cluster.settle()
    assert changed
    row = cluster.server.row(paths.topic("b"))
    assert row is not None
    assert decode_topic_assignment(row.path, row.data).topic_id is not None
    assert set(cluster.states()) == {"a-0", "a-1", "b-0"}
    cluster.check()


def test_before_2_8_topics_get_no_id() -> None:
    cluster = Cluster()
    data = encode_topic_assignment(TopicAssignment(None, {0: (1,)}))
    cluster.put(paths.topic("t"), data)
    cluster.host(1, ControllerSettings(inter_broker_protocol="2.7"))
    row = cluster.server.row(paths.topic("t"))
    assert row is not None
    assert row.data == data
    assert cluster.states() == {"t-0": (1, 0, (1,), 0)}
    cluster.check()


def test_a_topic_that_changes_while_it_is_given_an_id_has_the_one_that_its_znode_names() -> None:
    cluster = Cluster()
    cluster.put(paths.topic("t"), encode_topic_assignment(TopicAssignment(None, {0: (1,)})))
    host = cluster.new_host(1)
    multi, changed = host.connection.multi, False

    def changing(operations: Any) -> Any:
        nonlocal changed
        if not changed and any(one.path == paths.topic("t") for one in operations):
            changed = True
            data = encode_topic_assignment(TopicAssignment(None, {0: (1,), 1: (1,)}))
            cluster._admin.multi([SetData(paths.topic("t"), data, ANY_VERSION)])
        return multi(operations)

    host.connection.multi = changing  # type: ignore[method-assign]
    host.start()
    cluster.settle()
    assert changed
    row = cluster.server.row(paths.topic("t"))
    term = host.controller.term
    assert row is not None
    assert term is not None
    known = term.context.partitions.topic_named("t")
    assert known is not None
    named = decode_topic_assignment(row.path, row.data).topic_id
    assert (None if known.id == NO_TOPIC_ID else topic_id_text(known.id)) == named


def test_a_damaged_topic_is_left_out_named_and_taken_in_once_it_is_mended() -> None:
    cluster = Cluster()
    cluster.put(paths.topic("bad"), b'{"partitions":7}')
    cluster.topic("good", {0: (1,)})
    host = cluster.host(1)
    (said,) = host.notes("error")
    assert paths.topic("bad") in said
    assert set(cluster.states()) == {"good-0"}
    cluster.topic("other", {0: (1,)})
    cluster.settle()
    assert len(host.notes("error")) == 1
    cluster.topic("bad", {0: (1,)})
    cluster.settle()
    assert set(cluster.states()) == {"bad-0", "good-0", "other-0"}
    cluster.check(errors=True)


def test_a_damaged_state_is_left_out_and_named_and_never_overwritten() -> None:
    cluster = Cluster()
    cluster.register(2)
    cluster.topic("t", {0: (1, 2), 1: (2, 1)})
    cluster.state("t", 0, 1, (1, 2))
    cluster.state("t", 1, 2, (2, 1))
    cluster.put(paths.partition_state("t", 1), b"not a state")
    host = cluster.host(1)
    (said,) = host.notes("error")
    assert paths.partition_state("t", 1) in said
    cluster.unregister(2)
    cluster.settle()
    row = cluster.server.row(paths.partition_state("t", 1))
    assert row is not None
    assert row.data == b"not a state"
    state = cluster.read_state("t", 0)
    assert state is not None
    assert (state.leader, state.isr) == (1, (1,))
    assert {name for sent in host.sent for name in sent.states()} == {"t-0"}


def test_unknown_fields_of_a_state_are_kept_when_it_is_written() -> None:
    cluster = Cluster()
    cluster.register(2)
    cluster.topic("t", {0: (2, 1)})
    cluster.state("t", 0, 2, (2, 1))
    data = b'{"controller_epoch":0,"leader":2,"version":1,"leader_epoch":0,"isr":[2,1],"recovery":{"a": 1}}'
    cluster.put(paths.partition_state("t", 0), data)
    cluster.host(1)
    cluster.unregister(2)
    cluster.settle()
    row = cluster.server.row(paths.partition_state("t", 0))
    assert row is not None
    assert row.data == (b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":1,"isr":[1],"recovery":{"a": 1}}')


def test_the_machines_moves_are_told_when_somebody_listens() -> None:
    cluster, host = cluster_of(1)
    cluster.topic("t", {0: (1,)})
    cluster.settle()
    moves = [(event.replica, event.source, event.target) for event in host.trace.of(PartitionMoved)]
    assert moves == [
        (-1, "NonExistent", "New"),
        (1, "NonExistent", "New"),
        (-1, "New", "Online"),
        (1, "New", "Online"),
    ]


def test_the_children_of_a_new_topic_are_made_by_the_controller_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of a state or its parents is fenced: with the fence down nothing is made."""
    cluster, host = cluster_of(1)
    cluster.write(Create("/other", None))
    stop_standing(host, monkeypatch)
    cluster.write(Delete(paths.CONTROLLER, ANY_VERSION), Create(paths.CONTROLLER, b"{}"))
    cluster.put(paths.CONTROLLER_EPOCH, b"5")
    cluster.topic("t", {0: (1,)})
    cluster.settle()
    assert cluster.server.children(paths.topic("t")) == ()


def stop_standing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_election() -> None:
        pass

    monkeypatch.setattr(host.controller, "_stand", no_election)
    monkeypatch.setattr(host.controller, "_controller_change", no_election)
