"""A log directory that fails on a broker that lives: its replicas are lost, the broker's others are not."""

from __future__ import annotations

from typing import Any

import pytest

from controller.core.context import FailedReplicas
from controller.protocol.codec import ApiKey
from controller.protocol.control import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import LogDirEvent, encode_log_dir_event
from controller.zookeeper.operations import Create
from tests.core.driving import Cluster, Host, answer_to

NOTICE = f"{paths.LOG_DIR_EVENT_NOTIFICATION}/{paths.LOG_DIR_EVENT_PREFIX}"


class Disks:
    """Answers LeaderAndIsr as brokers do some of whose directories failed: (broker, topic, partition)."""

    def __init__(self, host: Host) -> None:
        self.failed: set[tuple[int, str, int]] = set()
        host.answering = True
        host.answer = self._answer  # type: ignore[method-assign]

    def _answer(self, broker: int, api: ApiKey, request: Any) -> Any:
        if api is not ApiKey.LEADER_AND_ISR:
            return answer_to(api, request)
        assert isinstance(request, LeaderAndIsrRequest)
        topics = tuple(
            LeaderAndIsrTopicError(
                tuple(
                    LeaderAndIsrPartitionError(state.partition_index, self._error(broker, topic.topic_name, state))
                    for state in topic.partition_states
                ),
                topic.topic_name,
                topic.topic_id,
            )
            for topic in request.topic_states
        )
        return LeaderAndIsrResponse(ErrorCode.NONE, topics)

    def _error(self, broker: int, topic: str, state: Any) -> ErrorCode:
        hit = (broker, topic, state.partition_index) in self.failed
        return ErrorCode.KAFKA_STORAGE_ERROR if hit else ErrorCode.NONE


def began(*brokers: int) -> tuple[Cluster, Disks]:
    cluster = Cluster()
    host = cluster.host(brokers[0])
    disks = Disks(host)
    cluster.register(*brokers[1:])
    cluster.settle()
    return cluster, disks


def notice(cluster: Cluster, broker: int) -> None:
    cluster.write(Create(NOTICE, encode_log_dir_event(LogDirEvent(broker)), sequential=True))
    cluster.settle()


def led(cluster: Cluster, partition: int) -> tuple[int, tuple[int, ...]]:
    state = cluster.read_state("t", partition)
    assert state is not None
    return state.leader, state.isr


def test_what_lies_on_a_failed_directory_is_lost_and_nothing_else() -> None:
    cluster, disks = began(1, 2, 3)
    cluster.topic("t", {0: (2, 3, 1), 1: (2, 1, 3), 2: (3, 2, 1)})
    cluster.settle()
    assert [led(cluster, partition)[0] for partition in range(3)] == [2, 2, 3]
    disks.failed = {(2, "t", 0), (2, "t", 2)}
    notice(cluster, 2)
    assert led(cluster, 0) == (3, (3, 1)), "led by the next in assignment order"
    assert led(cluster, 1) == (2, (2, 1, 3)), "its other directory is well"
    assert led(cluster, 2) == (3, (3, 1)), "a follower is out of the ISR"
    assert cluster.server.children(paths.LOG_DIR_EVENT_NOTIFICATION) == ()
    cluster.check()


def test_everybody_hears_which_replicas_are_offline() -> None:
    cluster, disks = began(1, 2, 3)
    cluster.topic("t", {0: (2, 3, 1), 1: (2, 1, 3)})
    cluster.settle()
    mark = len(cluster.leader().sent)
    disks.failed = {(2, "t", 0)}
    notice(cluster, 2)
    told = {
        (sent.broker, state.partition_index): state.offline_replicas
        for sent in cluster.leader().sent_after(mark, ApiKey.UPDATE_METADATA)
        for topic in sent.value.topic_states
        for state in topic.partition_states
    }
    assert {broker: offline for (broker, partition), offline in told.items() if partition == 0} == dict.fromkeys(
        (1, 2, 3), (2,)
    )
    assert not any(offline for (_, partition), offline in told.items() if partition == 1)


def test_nobody_is_elected_on_a_failed_directory_though_its_broker_lives() -> None:
    """The only other member of the ISR dies: the partition waits, unclean election being off."""
    cluster, disks = began(1, 2, 3)
    cluster.topic("t", {0: (2, 3), 1: (3, 2)})
    cluster.settle()
    disks.failed = {(2, "t", 0)}
    notice(cluster, 2)
    assert led(cluster, 0) == (3, (3,))
    cluster.unregister(3)
    cluster.settle()
    assert led(cluster, 0) == (-1, (3,))
    assert led(cluster, 1) == (2, (2,))
    cluster.check()


def test_what_a_broker_answers_of_some_replicas_says_nothing_of_its_others() -> None:
    a, b, c = ("t", 0), ("t", 1), ("u", 0)
    failed = FailedReplicas()
    assert failed.heard(1, [a, b], []) == {a, b}
    assert failed.heard(1, [b, c], []) == {c}, "those that are known have not failed anew"
    assert failed.of(1) == {a, b, c}
    assert failed.heard(1, [], [b]) == frozenset()
    assert failed.of(1) == {a, c}
    assert not failed.of(2)
    assert [failed.among((1, 2), key) for key in (a, b)] == [(2,), (1, 2)]
    failed.forget_topics(["t"])
    assert failed.of(1) == {c}
    assert failed.heard(1, [c], [c]) == frozenset(), "failed counts, where both are said"
    failed.forget([1, 2])
    assert (bool(failed), failed.of(1)) == (False, frozenset())


def test_a_broker_that_comes_back_with_its_directory_is_asked_anew() -> None:
    cluster, disks = began(1, 2, 3)
    cluster.topic("t", {0: (2,)})
    cluster.settle()
    disks.failed = {(2, "t", 0)}
    notice(cluster, 2)
    assert led(cluster, 0) == (-1, (2,))
    disks.failed = set()
    cluster.unregister(2)
    cluster.register(2)
    cluster.settle()
    assert led(cluster, 0) == (2, (2,))
    cluster.check()


def test_what_a_broker_has_again_gets_a_leader_and_everybody_hears_of_it() -> None:
    """A device was late with its files, and the broker leaves a notice once it has answered."""
    cluster, disks = began(1, 2, 3)
    cluster.topic("t", {0: (2,), 1: (3, 2)})
    cluster.settle()
    disks.failed = {(2, "t", 0), (2, "t", 1)}
    notice(cluster, 2)
    assert [led(cluster, partition) for partition in range(2)] == [(-1, (2,)), (3, (3,))]
    disks.failed = set()
    mark = len(cluster.leader().sent)
    notice(cluster, 2)
    assert led(cluster, 0) == (2, (2,))
    told = {
        (sent.broker, state.partition_index): state.offline_replicas
        for sent in cluster.leader().sent_after(mark, ApiKey.UPDATE_METADATA)
        for topic in sent.value.topic_states
        for state in topic.partition_states
    }
    assert told == {(broker, partition): () for broker in (1, 2, 3) for partition in range(2)}
    cluster.check()


def test_what_is_given_back_is_sent_its_state_once_more() -> None:
    """It may have been stopped since it was asked for: if the controller asks before it hears of the refusal."""
    cluster, disks = began(1, 2, 3)
    cluster.topic("t", {0: (3, 2)})
    cluster.settle()
    disks.failed = {(2, "t", 0)}
    notice(cluster, 2)
    assert led(cluster, 0) == (3, (3,))
    host = cluster.leader()
    mark = len(host.sent)
    disks.failed = set()
    notice(cluster, 2)
    asked = [(sent.broker, sent.api) for sent in host.sent_after(mark) if sent.broker == 2]
    assert asked.count((2, ApiKey.LEADER_AND_ISR)) >= 2, "once to ask, once since it is back"
    cluster.check()


def test_a_broker_that_comes_back_without_it_leads_nothing_of_it() -> None:
    """No notice: a directory that was bad at the start is told by the first answer."""
    cluster, disks = began(1, 2, 3)
    cluster.topic("t", {0: (2, 3)})
    cluster.settle()
    cluster.unregister(2)
    cluster.settle()
    disks.failed = {(2, "t", 0)}
    cluster.register(2)
    cluster.settle()
    cluster.unregister(3)
    cluster.settle()
    assert led(cluster, 0) == (-1, (3,))
    cluster.check()


def test_a_notice_that_can_not_be_read_goes_and_the_others_count() -> None:
    cluster, disks = began(1, 2, 3)
    cluster.topic("t", {0: (2, 3)})
    cluster.settle()
    disks.failed = {(2, "t", 0)}
    cluster.write(
        Create(NOTICE, b"torn", sequential=True),
        Create(NOTICE, encode_log_dir_event(LogDirEvent(9)), sequential=True),
        Create(NOTICE, encode_log_dir_event(LogDirEvent(2)), sequential=True),
    )
    cluster.settle()
    assert led(cluster, 0) == (3, (3,))
    assert cluster.server.children(paths.LOG_DIR_EVENT_NOTIFICATION) == ()
    assert len(cluster.leader().notes("error")) == 1


def test_an_election_that_forgets_failed_directories_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailedReplicas, "usable", lambda self, table, rows, brokers, mask: mask)
    with pytest.raises(AssertionError):
        test_what_lies_on_a_failed_directory_is_lost_and_nothing_else()


def test_a_notice_that_nobody_asks_about_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.core.handlers.log_directories.ask", lambda term, brokers: None)
    with pytest.raises(AssertionError):
        test_what_lies_on_a_failed_directory_is_lost_and_nothing_else()


def test_a_broker_that_is_not_asked_anew_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailedReplicas, "forget", lambda self, brokers: None)
    monkeypatch.setattr(FailedReplicas, "heard", _never_well)
    with pytest.raises(AssertionError):
        test_a_broker_that_comes_back_with_its_directory_is_asked_anew()


def _never_well(self: FailedReplicas, broker: int, failed: Any, sound: Any) -> frozenset[Any]:
    known = self._by_broker.setdefault(broker, set())
    new = frozenset(set(failed) - known)
    known |= set(failed)
    return new
