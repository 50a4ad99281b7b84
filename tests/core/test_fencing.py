"""What a controller may do only as long as its term holds: every write is fenced, no request leaves after the lease has
run out, and no answer to another term or to an earlier incarnation of a broker counts.

`Cluster` judges each write and each request of every test that uses it; here is what it must catch, and the
circumstances that other tests do not bring about.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.core.events import (
    LeaderAndIsrResponseReceived,
    StopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
)
from controller.core.request_batch import RequestBatch
from controller.protocol import control
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.simulator.fencing import Fencing
from controller.trace import RequestAnswered, RequestSent, TraceEvent
from controller.zookeeper import paths
from controller.zookeeper.operations import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    LeaseExpired,
    SessionGone,
    SetData,
    Write,
)
from tests.core.deleting import answering, left_of, silent_about_deletion, word_of
from tests.core.deleting import ask as ask_to_delete
from tests.core.driving import Cluster, Host, answer_to
from tests.core.reassigning import ask_by_znode, asked, assignment, in_sync, two_of_three

CONTROLLER, OTHER = 1, 2
TOPIC = paths.topic("t")
STATE = paths.partition_state("t", 0)
FENCE = Check(paths.CONTROLLER_EPOCH, 7)


def judged(session: int, *operations: Write) -> str | None:
    """After the election of `CONTROLLER`'s session."""
    fencing = Fencing()
    claim = Create(paths.CONTROLLER, b"", ephemeral=True), SetData(paths.CONTROLLER_EPOCH, b"7", 6)
    assert fencing.unfenced(CONTROLLER, claim) is None
    return fencing.unfenced(session, operations)


CONTROLLERS_WRITES: tuple[Write, ...] = (
    SetData(STATE, b"{}", 3),
    Create(STATE, b"{}"),
    Create(paths.partitions("t"), None),
    Delete(STATE, ANY_VERSION),
    Delete(TOPIC, ANY_VERSION),
    Delete(paths.config_topic("t"), ANY_VERSION),
    Delete(paths.delete_topic("t"), ANY_VERSION),
    Delete(paths.child(paths.ISR_CHANGE_NOTIFICATION, "isr_change_1"), ANY_VERSION),
    Delete(paths.child(paths.LOG_DIR_EVENT_NOTIFICATION, "log_dir_event_1"), ANY_VERSION),
    Delete(paths.PREFERRED_ELECTION, 0),
    Create(paths.REASSIGN_PARTITIONS, b"{}"),
    SetData(paths.REASSIGN_PARTITIONS, b"{}", 0),
    Delete(paths.REASSIGN_PARTITIONS, 0),
    Create(TOPIC, b"{}"),
    SetData(TOPIC, b"{}", 0),
    Create(paths.delete_topic("t"), None),
    SetData(paths.FEATURE, b"{}", 0),
    Create(paths.FEATURE, b"{}"),
    Delete(paths.CONTROLLER, ANY_VERSION),
)
BROKERS_WRITES: tuple[Write, ...] = (
    Create(paths.broker(3), None, ephemeral=True),
    SetData(paths.broker(3), b"{}", 0),
    Delete(paths.broker(3), 0),
    Create(paths.BROKER_IDS, None),
    Create(paths.CLUSTER_ID, b"{}"),
    SetData(paths.BROKER_SEQUENCE, b"", ANY_VERSION),
    SetData(paths.PRODUCER_ID_BLOCK, b"{}", 4),
    Create(paths.config_topic("t"), b"{}"),
    SetData(paths.config_broker(3), b"{}", 0),
    Create(paths.child(paths.CONFIG_CHANGES, paths.CONFIG_CHANGE_PREFIX), b"{}", sequential=True),
    Delete(paths.child(paths.CONFIG_CHANGES, "config_change_1"), ANY_VERSION),
    Create(paths.child(paths.LOG_DIR_EVENT_NOTIFICATION, paths.LOG_DIR_EVENT_PREFIX), b"{}", sequential=True),
)


@pytest.mark.parametrize("write", CONTROLLERS_WRITES, ids=lambda write: f"{type(write).__name__} {write.path}")
def test_a_controllers_write_is_fenced_by_the_session_that_won_the_epoch(write: Write) -> None:
    assert judged(CONTROLLER, FENCE, write) is None
    assert judged(OTHER, FENCE, write) is not None
    assert judged(CONTROLLER, write) is not None
    assert judged(CONTROLLER, write, FENCE) is not None
    assert judged(CONTROLLER, replace(FENCE, version=ANY_VERSION), write) is not None


@pytest.mark.parametrize("write", BROKERS_WRITES, ids=lambda write: f"{type(write).__name__} {write.path}")
def test_a_brokers_own_write_needs_no_fence(write: Write) -> None:
    assert judged(OTHER, write) is None
    assert judged(OTHER, Check(TOPIC, ANY_VERSION), write) is None


def test_the_epoch_is_raised_with_the_claim_of_controller_alone() -> None:
    raised = SetData(paths.CONTROLLER_EPOCH, b"8", 7)
    claim = Create(paths.CONTROLLER, b"", ephemeral=True)
    assert judged(OTHER, claim, raised) is None
    assert judged(OTHER, claim, Delete(paths.CONTROLLER, ANY_VERSION), claim, raised) is None
    assert judged(OTHER, claim, Delete(TOPIC, 0), raised) is not None
    assert judged(OTHER, raised) is not None
    assert judged(OTHER, Create(paths.CONTROLLER, b"", ephemeral=True), raised, Delete(TOPIC, 0)) is not None


# -- the lease


def cluster_of_two_topics() -> tuple[Cluster, Host]:
    cluster, host = answering(1, 2, 3)
    cluster.topic("t", {0: (2, 3), 1: (3, 2)})
    cluster.settle()
    return cluster, host


def ends(host: Host, how: str) -> None:
    """The thread that handles an event stood still for so long: nothing of it was noticed yet."""
    if how == "lease":
        host.client.lease_until_ms = lambda: host.cluster.clock.now_ms() - 1  # type: ignore[method-assign]
    else:
        host.client.session = lambda: 99  # type: ignore[method-assign]


@pytest.mark.parametrize(("how", "error"), [("lease", LeaseExpired), ("session", SessionGone)])
def test_a_batch_is_not_sent_after_the_end_of_the_lease_or_the_session(how: str, error: type[Exception]) -> None:
    _, host = cluster_of_two_topics()
    term = host.controller.term
    assert term is not None
    batch = RequestBatch(term)
    batch.send_live_brokers()
    ends(host, how)
    mark = len(host.sent)
    with pytest.raises(error):
        batch.send()
    assert host.sent[mark:] == []


@pytest.mark.parametrize("new_first", [True, False])
def test_a_replica_that_is_put_in_twice_is_told_once_as_new(new_first: bool) -> None:
    _, host = cluster_of_two_topics()
    term = host.controller.term
    assert term is not None
    batch, mark = RequestBatch(term), len(host.sent)
    replicas = term.context.replicas_on([2, 3])
    batch.leader_and_isr(replicas, is_new=new_first)
    batch.leader_and_isr(term.context.replicas_on([2]), is_new=not new_first)
    batch.send()
    told = {
        sent.broker: {name: state.is_new for name, state in sent.states().items()}
        for sent in host.sent_after(mark, ApiKey.LEADER_AND_ISR)
    }
    assert told == {2: {"t-0": True, "t-1": True}, 3: dict.fromkeys(("t-0", "t-1"), new_first)}


def sent_after_standing_still(at: int) -> tuple[int, int]:
    """A broker fails, and the controller's thread stands still beyond the lease at the `at`-th step that leaves a
    trace (0: at none). Returns how many steps there were, and how many requests were sent after it."""
    cluster, host = cluster_of_two_topics()
    emit, steps, sent = host.trace.emit, 0, len(host.sent)

    def stands_still(event: TraceEvent) -> None:
        nonlocal steps, sent
        emit(event)
        if not isinstance(event, RequestSent | RequestAnswered):
            steps += 1
            if steps == at:
                ends(host, "lease")
                sent = len(host.sent)

    host.trace.emit = stands_still  # type: ignore[method-assign]
    cluster.brokers.pop(2).close()
    cluster.pass_ms(100)
    assert host.failures() == []
    return steps, len(host.sent) - sent


def test_a_handler_that_stands_still_beyond_the_lease_sends_nothing_more() -> None:
    steps, sent = sent_after_standing_still(0)
    assert steps > 3
    assert sent > 3
    assert [sent_after_standing_still(at)[1] for at in range(1, steps + 1)] == [0] * steps


# -- answers


def put_answers(host: Host, *, controller_epoch: int = 0, broker_epoch: int = 0) -> None:
    """As broker 2 may answer, or an earlier incarnation of it, or to an earlier term, to a request of each kind."""
    term = host.controller.term
    assert term is not None
    broker = term.context.broker(2)
    assert broker is not None
    head = (2, broker.epoch + broker_epoch, term.epoch + controller_epoch)
    refused = control.LeaderAndIsrPartitionError(0, int(ErrorCode.KAFKA_STORAGE_ERROR))
    topics = tuple(
        control.LeaderAndIsrTopicError((refused,), topic_id=topic.id) for topic in term.context.partitions.topics
    )
    stopped = control.StopReplicaPartitionError("t", 0, 0)
    host.events.put(UpdateMetadataResponseReceived(*head, control.UpdateMetadataResponse(0)))
    host.events.put(StopReplicaResponseReceived(*head, control.StopReplicaResponse(0, (stopped,)), (("t", 0),)))
    host.events.put(LeaderAndIsrResponseReceived(*head, control.LeaderAndIsrResponse(0, topics)))


def being_deleted() -> tuple[Cluster, Host]:
    """Topic t waits for the answers of broker 2 alone; u stays."""
    cluster, host = answering(1, 2, 3)
    cluster.topic("t", {0: (2,)})
    cluster.topic("u", {0: (2, 3)})
    cluster.settle()
    host.answer_to = silent_about_deletion
    ask_to_delete(cluster, "t")
    assert [word_of(sent) for sent in host.sent][-1] == "delete t-0"
    return cluster, host


@pytest.mark.parametrize(("controller_epoch", "broker_epoch"), [(0, 0), (-1, 0), (1, 0), (0, -1)])
def test_an_answer_counts_in_its_own_term_and_incarnation_alone(controller_epoch: int, broker_epoch: int) -> None:
    cluster, host = being_deleted()
    states, term = cluster.states(), host.controller.term
    assert term is not None
    waiting = term.requests.by_broker()
    put_answers(host, controller_epoch=controller_epoch, broker_epoch=broker_epoch)
    cluster.settle()
    if controller_epoch == broker_epoch == 0:
        assert left_of(cluster, "t") == []
        assert cluster.states() != states, "a replica that failed leads no more"
    else:
        assert paths.delete_topic("t") in left_of(cluster, "t")
        assert term.requests.by_broker() == waiting
        assert cluster.states() == states
        assert host.notes("warning") == []
    cluster.check()


def test_each_answer_is_traced_with_the_number_of_its_request() -> None:
    cluster, host = cluster_of_two_topics()
    refused = control.UpdateMetadataResponse(7)
    host.answer_to = lambda api, request: refused if api is ApiKey.UPDATE_METADATA else answer_to(api, request)
    cluster.topic("u", {0: (2, 3)})
    cluster.settle()
    sent = [(one.controller_epoch, one.to_broker, one.api, one.sequence) for one in host.trace.of(RequestSent)]
    answered = [(one.controller_epoch, one.to_broker, one.api, one.sequence) for one in host.trace.of(RequestAnswered)]
    assert {one[:2] for one in answered} == {(1, 1), (1, 2), (1, 3)}
    for broker in (1, 2, 3):
        of_broker = [one for one in answered if one[1] == broker]
        assert of_broker == [one for one in sent if one[1] == broker][: len(of_broker)]
    errors = [(one.api, one.error_code) for one in host.trace.of(RequestAnswered)]
    assert {one for one in errors if one[0] != "UpdateMetadata"} == {("LeaderAndIsr", 0)}
    assert [error for api, error in errors if api == "UpdateMetadata"][-1] == 7
    host.events.put(UpdateMetadataResponseReceived(9, 9, 1, control.UpdateMetadataResponse(0)))
    cluster.settle()
    assert len(host.trace.of(RequestAnswered)) == len(errors), "an answer to nothing is none"


# -- requests in ZooKeeper


def test_a_completed_reassignment_leaves_the_request_for_a_newer_target() -> None:
    """An administrator writes another target while the last steps of the first one are under way."""
    cluster, host = two_of_three()
    ask_by_znode(cluster, {0: (3, 4)})
    rewritten: list[Any] = []
    emit = host.trace.emit

    def rewrite(event: TraceEvent) -> None:
        emit(event)
        if "the target of 1 partitions is in sync" in str(event) and not rewritten:
            rewritten.append(event)
            asked_for = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,4]}]}'
            cluster._admin.multi([SetData(paths.REASSIGN_PARTITIONS, asked_for, ANY_VERSION)])

    host.trace.emit = rewrite  # type: ignore[method-assign]
    in_sync(cluster, host, 0, 2, 3, 4)
    assert rewritten
    cluster.settle()
    found = assignment(cluster, 0)
    assert (found.replicas, found.adding, found.removing) == ((2, 4, 3), (2,), (3,)), found
    assert asked(cluster) == {("t", 0): (2, 4)}
