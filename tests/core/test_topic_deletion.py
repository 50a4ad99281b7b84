"""Topics that are deleted: what is told to whom, in which order, what waits for what, and what is left in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from controller.core.events import (
    ControlledShutdownRequested,
    CreatePartitionsRequested,
    DeleteTopicsRequested,
    RetryDeletions,
)
from controller.core.leadership import ControllerSettings
from controller.protocol.client import CreatePartitionsRequest, CreatePartitionsTopic
from controller.protocol.codec import ApiKey
from controller.protocol.control import EPOCH_DURING_DELETE, LEADER_DURING_DELETE, ControlledShutdownResponse
from controller.protocol.errors import ErrorCode
from controller.trace import PartitionMoved
from controller.zookeeper import paths
from controller.zookeeper.codecs import TopicAssignment, decode_topic_assignment, encode_topic_assignment
from controller.zookeeper.operations import ANY_VERSION, Create, Delete
from tests.core.deleting import (
    answer,
    answer_metadata,
    answering,
    ask,
    left_of,
    recorded_writes,
    silent_about_deletion,
    told,
    word_of,
)
from tests.core.driving import TOPIC_ID, Cluster, answer_to
from tests.kafka_recording import deletion_requests, deletion_writes, flat_write


def topic_of_two(cluster: Cluster) -> None:
    cluster.topic("t", {0: (1, 2), 1: (2, 3)})
    cluster.topic_config("t", retention_ms="1000")
    cluster.topic("kept", {0: (2, 1, 3)})
    cluster.settle()


def test_a_topic_is_deleted_and_forgotten() -> None:
    cluster, host = answering(1, 2, 3)
    topic_of_two(cluster)
    mark = len(host.sent)
    ask(cluster, "t")
    assert told(host.sent[mark:]) == {
        1: ["forget t-0 t-1", "stop t-0", "delete t-0"],
        2: ["forget t-0 t-1", "stop t-0 t-1", "delete t-0 t-1"],
        3: ["forget t-0 t-1", "stop t-1", "delete t-1"],
    }
    assert left_of(cluster, "t") == []
    assert set(cluster.states()) == {"kept-0"}
    term = host.controller.term
    assert term is not None
    assert [topic.name for topic in term.context.partitions.topics] == ["kept"]
    assert not term.context.deletions.queued | term.context.deletions.begun | term.context.deletions.ineligible
    assert term.context.offline_partitions == 0
    cluster.check()


def test_the_fields_are_those_of_a_deletion() -> None:
    cluster, host = answering(1, 2, 3)
    topic_of_two(cluster)
    mark = len(host.sent)
    ask(cluster, "t")
    metadata = next(sent for sent in host.sent[mark:] if sent.api is ApiKey.UPDATE_METADATA)
    state = metadata.states()["t-1"]
    assert (state.leader, state.leader_epoch, state.zk_version, state.isr) == (LEADER_DURING_DELETE, 0, 0, (2, 3))
    stops = [sent for sent in host.sent[mark:] if sent.api is ApiKey.STOP_REPLICA]
    assert {one.leader_epoch for sent in stops for one in sent.states().values()} == {EPOCH_DURING_DELETE}


def test_a_topic_that_is_made_again_while_it_is_removed_is_left_alone() -> None:
    """Somebody takes the old one out by hand and makes another, as its znodes are being deleted."""
    cluster, host = answering(1, 2, 3)
    topic_of_two(cluster)
    another = encode_topic_assignment(TopicAssignment("BBBBBBBBQBCBBBBBBBBBBQ", {0: (3, 2)}))
    multi, made = host.connection.multi, False

    def made_again(operations: Any) -> Any:
        nonlocal made
        if not made and any(isinstance(one, Delete) and one.path == paths.topic("t") for one in operations):
            made = True
            below = [paths.partition_state("t", 0), paths.partition("t", 0), paths.partition_state("t", 1)]
            below += [paths.partition("t", 1), paths.partitions("t"), paths.topic("t")]
            removed = [Delete(path, ANY_VERSION) for path in below]
            cluster._admin.multi([*removed, Create(paths.topic("t"), another), Create(paths.partitions("t"), None)])
        return multi(operations)

    host.connection.multi = made_again  # type: ignore[method-assign]
    ask(cluster, "t")
    assert made
    row = cluster.server.row(paths.topic("t"))
    assert row is not None
    assert row.data == another
    assert cluster.server.row(paths.partitions("t")) is not None


def test_a_topic_of_the_same_name_can_be_made_at_once() -> None:
    cluster, _host = answering(1, 2, 3)
    topic_of_two(cluster)
    ask(cluster, "t")
    cluster.topic("t", {0: (3, 2)}, "BBBBBBBBQBCBBBBBBBBBBQ")
    cluster.settle()
    assert cluster.states()["t-0"] == (3, 0, (3, 2), 0)
    cluster.check()


def test_many_topics_are_deleted_together() -> None:
    """Each batch of deletes is a multi of hundreds."""
    cluster, host = answering(1, 2)
    names = [f"t{number}" for number in range(60)]
    for name in names:
        cluster.topic(name, {partition: (1 + partition % 2,) for partition in range(5)})
    cluster.settle()
    writes = recorded_writes(host)
    ask(cluster, *names)
    assert cluster.states() == {}
    assert [left_of(cluster, name) for name in names] == [[]] * 60
    assert all(len(operations) <= 500 for operations in writes)
    cluster.check()


# -- as a recorded cluster did it


def test_a_deletion_is_what_kafka_logged_of_its_own() -> None:
    """Requests by broker and the writes of a real controller, from its log and ZooKeeper's. Its partitions, by hash,
    are in no order that means anything: those that are set come in ours."""
    cluster = Cluster()
    for epoch in (0, 1):
        cluster.put(paths.CONTROLLER_EPOCH, b"%d" % epoch)
    cluster.register(1, 2)
    host = cluster.new_host(3)
    host.answering = True
    host.start()
    cluster.settle()
    cluster.topic("tmp1x", {0: (2,), 1: (3,), 2: (1,)})
    cluster.topic_config("tmp1x")
    cluster.settle()
    mark, writes = len(host.sent), recorded_writes(host)
    ask(cluster, "tmp1x")
    ours: dict[int, list[tuple[str, int]]] = {}
    for sent in host.sent[mark:]:
        ours.setdefault(sent.broker, []).append((sent.api.name, len(sent.states())))
    assert ours == deletion_requests()
    done = [flat_write(one) for operations in writes for one in operations[1:]]
    expected = deletion_writes()
    assert [one for one in done if one[0] == "delete"] == [one for one in expected if one[0] == "delete"]
    assert done[:3] == sorted(expected[:3], key=lambda one: one[1])
    assert len(done) == len(expected) == 13
    cluster.check()


# -- what waits


def test_a_dead_brokers_replica_makes_the_topic_wait_until_it_is_back() -> None:
    cluster, host = answering(1, 2, 3)
    topic_of_two(cluster)
    cluster.unregister(3)
    cluster.settle()
    mark = len(host.sent)
    ask(cluster, "t")
    assert told(host.sent[mark:]) == {
        1: ["forget t-0 t-1", "stop t-0", "delete t-0"],
        2: ["forget t-0 t-1", "stop t-0 t-1", "delete t-0 t-1"],
    }
    assert paths.delete_topic("t") in left_of(cluster, "t")
    cluster.check()
    mark = len(host.sent)
    cluster.register(3)
    cluster.settle()
    words = told(host.sent[mark:])
    assert words[3][0] == "forget t-0 t-1 kept-0", "it may be one that knows the topic: its session ended, not its life"
    assert words[3][-3:] == ["forget t-0 t-1", "stop t-1", "delete t-1"]
    assert not any("delete" in word for broker in (1, 2) for word in words[broker]), "they have deleted theirs"
    assert left_of(cluster, "t") == []
    cluster.check()


@pytest.mark.parametrize("bounced", [False, True])
def test_a_broker_that_dies_before_it_answers_is_told_again_when_it_is_back(bounced: bool) -> None:
    cluster, host = answering(1, 2, 3)
    topic_of_two(cluster)
    host.answer_to = silent_about_deletion
    ask(cluster, "t")
    unanswered = [sent for sent in host.sent if sent.broker == 3 and word_of(sent) == "delete t-1"]
    assert len(unanswered) == 1
    for sent in [sent for sent in host.sent if sent.broker != 3 and word_of(sent).startswith("delete")]:
        answer(host, sent)
    cluster.settle()
    assert paths.delete_topic("t") in left_of(cluster, "t")
    host.answer_to = answer_to
    cluster.unregister(3)
    if not bounced:
        cluster.settle()
        assert paths.delete_topic("t") in left_of(cluster, "t")
        cluster.check()
    cluster.register(3)
    cluster.settle()
    answer(host, unanswered[0])  # of an earlier life: nobody asks for it any more
    cluster.settle()
    assert left_of(cluster, "t") == []
    cluster.check()


def test_a_broker_that_comes_back_has_to_forget_it_too() -> None:
    """Broker 4 has none of its replicas, and another keeps the topic until then."""
    cluster, host = answering(1, 2, 3, 4)
    topic_of_two(cluster)
    host.slow |= {2, 4}
    ask(cluster, "t")
    cluster.unregister(4)
    cluster.register(4)
    cluster.settle()
    host.slow.discard(2)
    for sent in [sent for sent in host.sent if sent.broker == 2]:
        if sent.api is ApiKey.UPDATE_METADATA:
            answer_metadata(host, sent)
        elif word_of(sent).startswith("delete"):
            answer(host, sent)
    cluster.settle()
    assert {paths.topic("t"), paths.delete_topic("t")} <= set(left_of(cluster, "t"))
    host.slow.clear()
    for sent in [sent for sent in host.sent if sent.broker == 4 and sent.api is ApiKey.UPDATE_METADATA][-2:]:
        answer_metadata(host, sent)
    cluster.settle()
    assert left_of(cluster, "t") == []
    cluster.check()


@pytest.mark.parametrize("end", ["it answers", "it dies", "it bounces"])
def test_a_topic_waits_for_every_broker_to_forget_it(end: str) -> None:
    """One that has none of its replicas, and is slow: the next controller would know nothing of the topic any more,
    and clients of that broker would see it for good."""
    cluster, host = answering(1, 2, 3, 4)
    topic_of_two(cluster)
    host.slow.add(4)
    ask(cluster, "t")
    assert told(host.sent)[4][-1] == "forget t-0 t-1"
    assert {paths.topic("t"), paths.delete_topic("t")} <= set(left_of(cluster, "t"))
    host.slow.clear()
    if end == "it answers":
        forget = [sent for sent in host.sent if sent.broker == 4][-1]
        answer_metadata(host, forget)
    else:
        cluster.unregister(4)
        if end == "it bounces":
            cluster.register(4)
    cluster.settle()
    assert left_of(cluster, "t") == []
    cluster.check()


@pytest.mark.parametrize(
    ("error", "whole"),
    [(ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE), (ErrorCode.NONE, ErrorCode.STALE_BROKER_EPOCH)],
)
@pytest.mark.parametrize("returns", [False, True])
def test_a_replica_that_could_not_be_deleted_makes_the_topic_wait_for_its_broker(
    error: ErrorCode, whole: ErrorCode, returns: bool
) -> None:
    """Until it registers anew, or for half a minute: the disk may have been slow."""
    cluster, host = answering(1, 2, 3)
    topic_of_two(cluster)
    host.answer_to = silent_about_deletion
    ask(cluster, "t")
    for sent in [sent for sent in host.sent if word_of(sent).startswith("delete")]:
        answer(host, sent, *((error, whole) if sent.broker == 2 else ()))
    cluster.settle()
    host.answer_to = answer_to
    term = host.controller.term
    assert term is not None
    assert term.context.deletions.ineligible == {"t"}
    steps = [one.target for one in host.trace.of(PartitionMoved) if (one.partition, one.replica) == (0, 2)]
    assert steps[-3:] == ["DeletionStarted", "DeletionIneligible", "Offline"]
    assert paths.delete_topic("t") in left_of(cluster, "t")
    if returns:
        cluster.unregister(2)
        cluster.register(2)
    else:
        cluster.pass_ms(29_000)
        assert paths.delete_topic("t") in left_of(cluster, "t")
        cluster.pass_ms(2_000)
    cluster.settle()
    assert left_of(cluster, "t") == []
    cluster.check()


def test_a_deletion_of_an_earlier_term_is_not_retried() -> None:
    cluster, host = answering(1, 2, 3)
    topic_of_two(cluster)
    term = host.controller.term
    assert term is not None
    term.context.deletions.ineligible.add("t")
    term.context.deletions.queued.add("t")
    host.events.put(RetryDeletions(term.epoch - 1))
    cluster.settle()
    assert term.context.deletions.ineligible == {"t"}


def test_a_topic_that_is_being_reassigned_waits() -> None:
    cluster, host = answering(1, 2, 3)
    moving = TopicAssignment(TOPIC_ID, {0: (1, 2, 3)}, adding={0: (3,)}, removing={0: (2,)})
    cluster.put(paths.topic("t"), encode_topic_assignment(moving))
    cluster.settle()
    mark = len(host.sent)
    ask(cluster, "t")
    assert host.sent[mark:] == []
    assert paths.delete_topic("t") in left_of(cluster, "t")


def test_a_topic_that_waits_elects_nobody_and_a_shutdown_leaves_it_alone() -> None:
    cluster, host = answering(1, 2, 3)
    cluster.topic("t", {0: (2, 1), 1: (3,)})
    cluster.settle()
    cluster.unregister(3)
    cluster.settle()
    ask(cluster, "t")
    before = cluster.states()
    row = cluster.server.row(paths.broker(2))
    assert row is not None
    answers: list[ControlledShutdownResponse] = []
    host.events.put(ControlledShutdownRequested(2, row.stat.czxid, answers.append))
    cluster.settle()
    assert answers == [ControlledShutdownResponse(0)]
    assert cluster.states() == before
    cluster.unregister(2)
    cluster.settle()
    after = cluster.states()
    assert after["t-0"][0] == before["t-0"][0] == -1, "nobody leads it again"
    cluster.register(2, 3)
    cluster.settle()
    assert left_of(cluster, "t") == []
    cluster.check()


# -- what is asked for


def test_a_request_for_no_topic_is_taken_out() -> None:
    cluster, host = answering(1)
    ask(cluster, "nothing")
    assert left_of(cluster, "nothing") == []
    assert any("nothing" in note for note in host.notes("warning"))


def test_a_topic_made_a_moment_before_its_request_is_found_and_deleted() -> None:
    """The change of /brokers/topics waits in the queue behind an older look at /admin/delete_topics."""
    cluster, host = answering(1, 2)
    cluster.hosts.remove(host)
    host._scheduled = True
    cluster.write(Create(paths.delete_topic("other"), None))
    cluster.pass_ms(20)
    cluster.topic("t", {0: (2,)})
    cluster.write(Create(paths.delete_topic("t"), None))
    cluster.pass_ms(20)
    host._scheduled = False
    cluster.hosts.append(host)
    host._wake()
    cluster.settle()
    assert left_of(cluster, "t") == left_of(cluster, "other") == []
    assert [word_of(sent) for sent in host.sent if sent.broker == 2][-1] == "delete t-0"
    cluster.check()


def test_with_deletion_disabled_the_request_goes_and_the_topic_stays() -> None:
    cluster, _host = answering(1, 2, settings=ControllerSettings(delete_topic=False))
    cluster.topic("t", {0: (2, 1)})
    cluster.settle()
    ask(cluster, "t")
    assert paths.delete_topic("t") not in left_of(cluster, "t")
    assert cluster.states() == {"t-0": (2, 0, (2, 1), 0)}
    cluster.check()


def test_a_topic_that_cannot_be_read_is_deleted_once_it_has_been_mended() -> None:
    cluster, _host = answering(1, 2)
    cluster.put(paths.topic("t"), b"{")
    cluster.settle()
    ask(cluster, "t")
    assert {paths.topic("t"), paths.delete_topic("t")} <= set(left_of(cluster, "t"))
    cluster.topic("t", {0: (2,)})
    cluster.settle()
    assert left_of(cluster, "t") == []
    cluster.check(errors=True)


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_request_for_a_topic_that_cannot_be_read_is_named(asked_first: bool) -> None:
    cluster = Cluster()
    cluster.put(paths.topic("t"), b"{")
    if asked_first:
        cluster.write(Create(paths.delete_topic("t"), None))
    host = cluster.host(1)
    if not asked_first:
        ask(cluster, "t")
    said = [note for note in host.notes("warning") if "topic t is not deleted before its znode can be read" in note]
    assert len(said) == 1
    cluster.check(errors=True)


def test_a_replica_that_could_not_be_deleted_holds_up_its_own_topic_alone() -> None:
    cluster, host = answering(1, 2, 3)
    for name in ("t", "u"):
        cluster.topic(name, {0: (2, 3)})
    cluster.settle()
    host.answer_to = silent_about_deletion
    ask(cluster, "t")
    ask(cluster, "u")
    (sent,) = (one for one in host.sent if one.broker == 2 and word_of(one) == "delete t-0")
    answer(host, sent, ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.settle()
    term = host.controller.term
    assert term is not None
    assert term.context.deletions.ineligible == {"t"}


def test_what_was_wrong_with_a_topic_is_forgotten_with_it() -> None:
    cluster, host = answering(1, 2, 3)
    topic_of_two(cluster)
    cluster.topic("u", {0: (2,), 1: (2,)})
    cluster.settle()
    for topic in ("t", "u"):
        cluster.put(paths.partition_state(topic, 1), b"{")
    cluster.unregister(2)
    cluster.settle()
    assert host.controller.measures.figures.quarantined >= 1
    cluster.register(2)
    cluster.settle()
    ask(cluster, "t", "u")
    assert left_of(cluster, "t") == left_of(cluster, "u") == []
    assert host.controller.measures.figures.quarantined == 0
    cluster.check(errors=True)


def test_s56a_a_partition_without_a_state_is_deleted() -> None:
    """KAFKA-6650."""
    cluster, _host = answering(1, 2)
    cluster.topic("t", {0: (9,), 1: (2,)})
    cluster.settle()
    assert set(cluster.states()) == {"t-1"}
    ask(cluster, "t")
    assert paths.delete_topic("t") in left_of(cluster, "t")
    cluster.register(9)
    cluster.settle()
    assert left_of(cluster, "t") == []
    cluster.check()


def test_s56b_partitions_that_are_added_meanwhile_are_taken_out_again() -> None:
    """KAFKA-6612."""
    cluster, host = answering(1, 2, 3)
    topic_of_two(cluster)
    cluster.unregister(3)
    cluster.settle()
    ask(cluster, "t")
    mark = len(host.sent)
    cluster.topic("t", {0: (1, 2), 1: (2, 3), 2: (1,)})
    cluster.settle()
    row = cluster.server.row(paths.topic("t"))
    assert row is not None
    assert set(decode_topic_assignment(row.path, row.data).partitions) == {0, 1}
    assert host.sent[mark:] == []
    answers: list[Any] = []
    asked = CreatePartitionsRequest((CreatePartitionsTopic("t", 5),), 1_000)
    host.events.put(CreatePartitionsRequested(asked, answers.append))
    cluster.settle()
    assert [result.error_code for result in answers[0].results] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    cluster.register(3)
    cluster.settle()
    assert left_of(cluster, "t") == []
    cluster.check()


@pytest.mark.parametrize("begun", [False, True])
def test_s56c_a_new_controller_takes_up_what_was_asked_of_the_one_before(begun: bool) -> None:
    """KAFKA-1681. Also where only the config and the request are left of it."""
    cluster = Cluster()
    cluster.register(2, 3)
    if not begun:
        cluster.topic("t", {0: (2, 3)})
        cluster.state("t", 0, 2, (2, 3))
    cluster.topic_config("t", retention_ms="1000")
    cluster.write(Create(paths.delete_topic("t"), None))
    host = cluster.new_host(1)
    host.answering = True
    host.start()
    cluster.settle()
    assert left_of(cluster, "t") == []
    assert ("delete t-0" in told(host.sent).get(2, [])) is not begun
    cluster.check()


def test_a_topic_that_somebody_removed_by_hand_is_done_with() -> None:
    cluster, host = answering(1, 2, 3)
    topic_of_two(cluster)
    cluster.unregister(3)
    cluster.settle()
    ask(cluster, "t")
    gone = [path for path in left_of(cluster, "t") if path.startswith("/brokers")]
    cluster.write(*(Delete(path, ANY_VERSION) for path in reversed(gone)))
    cluster.settle()
    assert left_of(cluster, "t") == [paths.config_topic("t")]
    term = host.controller.term
    assert term is not None
    assert not term.context.deletions.queued
    cluster.check()


def test_clients_ask_by_name() -> None:
    cluster, host = answering(1, 2)
    cluster.topic("t", {0: (2,)})
    cluster.topic("waiting", {0: (2, 9)})
    cluster.settle()
    answers: list[Mapping[str, ErrorCode]] = []
    for _ in range(2):
        host.events.put(DeleteTopicsRequested(("t", "waiting", "none"), answers.append))
        cluster.settle()
    assert answers == [
        {"t": ErrorCode.NONE, "waiting": ErrorCode.NONE, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        {
            "t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "waiting": ErrorCode.NONE,
            "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        },
    ]
    assert left_of(cluster, "t") == []
    cluster.check()


def test_before_stop_replica_3_one_flag_says_it() -> None:
    settings = ControllerSettings(inter_broker_protocol="2.5")
    cluster, host = answering(1, 2, settings=settings)
    cluster.topic("t", {0: (2, 1)}, topic_id=None)
    cluster.settle()
    ask(cluster, "t")
    stops = [sent.value.delete_partitions for sent in host.sent if sent.api is ApiKey.STOP_REPLICA and sent.broker == 2]
    assert stops == [False, True]
    assert left_of(cluster, "t") == []
