"""A leader asks for replicas that are back in its ISR: one slot a partition, one request at a time, again in a while.

KAFKA-12686 and KAFKA-12751: the slot is emptied by the answer or by a newer leader epoch, by nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.broker.isr_manager import RETRY_FIRST_MS, RETRY_LAST_MS, IsrManager
from controller.broker.partition import Partition
from controller.core.channels import PeerTimedOut, PeerUnreachable
from controller.protocol.codec import ApiKey
from controller.protocol.control import (
    NO_TOPIC_ID,
    AlterIsrRequest,
    IsrMember,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)
from controller.protocol.errors import ErrorCode
from tests.broker.harness import BROKER, BROKER_EPOCH, TOPIC_ID, live
from tests.broker.leading import CONTROLLER, VERSION, Leader, decoded, done, refused


def asking(isr: Sequence[int] = (1,)) -> Leader:
    """One that has asked for all that live, and waits."""
    leader = Leader()
    leader.lead(isr)
    leader.hear(isr)
    assert len(leader.asked()) == 1
    return leader


def test_a_live_replica_outside_the_isr_is_asked_for_of_the_controller_that_the_metadata_names() -> None:
    leader = asking((1, 3))
    ((port, request),) = leader.asked()
    assert port == 9090 + CONTROLLER
    assert (request.broker_id, request.broker_epoch) == (BROKER, BROKER_EPOCH)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index, partition.leader_epoch) == ("t", 0, 4)
    assert (partition.new_isr, partition.current_isr_version) == ((1, 3, 2), VERSION)
    leader.answer(done((1, 3, 2)))
    assert leader.isr() == (1, 3, 2)
    leader.hear((1, 3, 2), version=8)
    assert len(leader.asked()) == 1


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"alive": (1, 2)}, "replica 3 is dead"),
        ({"offline": (3,)}, "replica 3 is on its way out"),
        ({"leader_epoch": 3}, "the metadata is of an older leader epoch"),
    ],
)
def test_who_is_not_known_to_follow_is_not_asked_for(told: dict[str, Any], why: str) -> None:
    leader = Leader()
    leader.lead((1, 2))
    leader.hear((1, 2), **told)
    assert not leader.asked(), why


def test_a_follower_asks_for_nothing() -> None:
    leader = Leader()
    leader.lead((2,), leader=2)
    leader.hear((2,))
    assert not leader.asked()


def test_many_partitions_go_in_one_request_and_one_request_at_a_time() -> None:
    leader = Leader(partitions=3)
    leader.lead((1,))
    leader.hear((1,), alive=(1, 2))
    leader.hear((1,))
    leader.hear((1,))
    assert leader.wanted() == [{0: (1, 2), 1: (1, 2), 2: (1, 2)}]
    leader.answer(*(done((1, 2), number=number) for number in range(3)))
    # What has come up meanwhile is asked for now, of the states that there are now.
    assert leader.wanted()[1:] == [{0: (1, 2, 3), 1: (1, 2, 3), 2: (1, 2, 3)}]
    assert leader.asked()[1][1].topics[0].partitions[0].current_isr_version == 8


def test_a_newer_leader_epoch_empties_the_slot_and_a_late_answer_says_nothing() -> None:
    leader = asking()
    leader.lead((1,), leader_epoch=5, version=9)
    assert leader.broker.isr_manager.proposal("t", 0) is None
    leader.answer(done((1, 2, 3)))
    assert leader.isr() == (1,)
    leader.hear((1,), leader_epoch=5, version=9)
    assert leader.asked()[-1][1].topics[0].partitions[0].leader_epoch == 5


def test_a_leader_that_becomes_a_follower_drops_what_it_asked_for() -> None:
    leader = asking()
    leader.lead((1, 2), leader=2, leader_epoch=5)
    leader.last().fail(PeerTimedOut("late"))
    leader.later(10 * RETRY_LAST_MS)
    assert len(leader.asked()) == 1


def test_a_replica_that_was_stopped_and_deleted_is_not_asked_for() -> None:
    leader = asking()
    stop = StopReplicaTopicState("t", (StopReplicaPartitionState(0, 6, delete_partition=True),))
    leader.ask(ApiKey.STOP_REPLICA, StopReplicaRequest(CONTROLLER, 1, (stop,), BROKER_EPOCH))
    leader.last().fail(PeerTimedOut("late"))
    leader.later(10 * RETRY_LAST_MS)
    leader.hear((1,))
    assert leader.broker.isr_manager.proposal("t", 0) is None
    assert len(leader.asked()) == 1


@pytest.mark.parametrize("how", ["no answer", "not the controller", "stale broker epoch"])
def test_what_was_not_answered_is_sent_again_as_it_was_later_each_time(how: str) -> None:
    leader = asking()
    delay_ms = RETRY_FIRST_MS
    for attempt in range(1, 4):
        if how == "no answer":
            leader.last().fail(PeerTimedOut("nothing came"))
        else:
            error = ErrorCode.NOT_CONTROLLER if how == "not the controller" else ErrorCode.STALE_BROKER_EPOCH
            leader.answer(error=error)
        leader.hear((1,), alive=(1, 2, 3))
        leader.later(delay_ms - 1)
        assert len(leader.asked()) == attempt
        leader.later(1)
        assert len(leader.asked()) == attempt + 1
        delay_ms *= 2
    assert leader.wanted() == [{0: (1, 2, 3)}] * 4


def test_another_controller_is_asked_at_once() -> None:
    leader = asking()
    leader.last().fail(PeerTimedOut("dead"))
    leader.hear((1,), controller=3)
    assert [port for port, _ in leader.asked()] == [9090 + CONTROLLER, 9093]


def test_a_controller_that_does_not_answer_is_not_waited_for_once_there_is_another() -> None:
    leader = asking()
    leader.hear((1,))
    assert leader.peers.closed == []
    leader.hear((1,), controller=3)
    assert leader.peers.closed == [9090 + CONTROLLER]
    leader.last().fail(PeerUnreachable("closed at this end"))
    leader.later(RETRY_FIRST_MS)
    assert [port for port, _ in leader.asked()] == [9090 + CONTROLLER, 9093]
    assert leader.wanted() == [{0: (1, 2, 3)}] * 2


def test_with_no_controller_to_ask_it_waits_for_one() -> None:
    leader = Leader()
    leader.lead((1,))
    leader.hear((1,), controller=9)
    assert not leader.asked()
    leader.hear((1,), controller=3)
    assert len(leader.asked()) == 1


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_a_controller_that_knows_better_is_not_asked_again_before_it_says_what(error: ErrorCode) -> None:
    leader = asking()
    leader.answer(refused(error))
    leader.hear((1,))
    leader.later(10 * RETRY_LAST_MS)
    assert len(leader.asked()) == 1
    leader.lead((1,), leader_epoch=5)
    leader.hear((1,), leader_epoch=5)
    assert len(leader.asked()) == 2


def test_a_controller_that_names_the_partition_again_is_asked_again() -> None:
    """It had left it out, since it could not read its state, and then could: nothing is newer than what is known."""
    leader = asking()
    leader.answer(refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    leader.lead((1,))
    leader.hear((1,))
    assert leader.wanted() == [{0: (1, 2, 3)}] * 2


def test_a_partition_that_is_led_again_in_the_same_leader_epoch_has_a_new_slot() -> None:
    """It was no replica of this broker for a while, and its state was written meanwhile."""
    leader = asking()
    leader.answer(refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    nothing = UpdateMetadataRequest(CONTROLLER, 1, (), live(1, 2, 3), BROKER_EPOCH, complete_but=())
    leader.ask(ApiKey.UPDATE_METADATA, nothing)
    leader.lead((1,), version=9)
    leader.hear((1,), version=9)
    assert leader.wanted() == [{0: (1, 2, 3)}] * 2
    ((_, request),) = leader.asked()[1:]
    assert request.topics[0].partitions[0].current_isr_version == 9


def test_another_controller_is_asked_what_one_knew_better() -> None:
    """What the first one said may have been of a cluster that it no longer led."""
    leader = asking()
    leader.answer(refused(ErrorCode.UNKNOWN_TOPIC_ID))
    leader.hear((1,), controller=3)
    assert leader.wanted() == [{0: (1, 2, 3)}] * 2
    leader.answer(refused(ErrorCode.FENCED_LEADER_EPOCH))
    leader.hear((1,), controller=3)
    assert len(leader.asked()) == 2


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT]
)
def test_what_may_have_been_made_after_all_is_sent_again_as_it_was(error: ErrorCode) -> None:
    """Of one attempt the answer may have been lost, and the next one may have met a controller that is none any more:
    dropped for that, the ISR would count that was there before the first (KAFKA-14154)."""
    leader = asking()
    leader.answer(refused(error))
    leader.hear((1,), alive=(1, 2))
    proposal = leader.broker.isr_manager.proposal("t", 0)
    assert proposal is not None
    assert proposal.isr == (1, 2, 3)
    leader.later(RETRY_FIRST_MS)
    assert leader.wanted() == [{0: (1, 2, 3)}] * 2
    leader.answer(done((1, 2, 3)))
    assert leader.isr() == (1, 2, 3)


@pytest.mark.parametrize(
    "error", [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST]
)
def test_what_was_refused_is_decided_anew_in_a_while(error: ErrorCode) -> None:
    leader = asking()
    leader.answer(refused(error))
    assert leader.broker.isr_manager.proposal("t", 0) is None
    leader.hear((1,), alive=(1, 2))
    leader.later(RETRY_LAST_MS)
    assert leader.wanted()[1] == {0: (1, 2)}


def test_a_version_that_is_behind_is_caught_up_with_from_the_metadata() -> None:
    """KAFKA-2729's wheel: the same old version would be refused for ever."""
    leader = asking()
    leader.answer(refused(ErrorCode.INVALID_UPDATE_VERSION))
    leader.hear((1,))
    assert leader.broker.isr_manager.proposal("t", 0) is not None, "whether it was made is not known yet"
    leader.hear((1, 2), version=11)
    (partition,) = leader.asked()[-1][1].topics[0].partitions
    assert (partition.new_isr, partition.current_isr_version) == ((1, 2, 3), 11)


def test_a_partition_that_the_answer_passes_over_is_asked_for_again() -> None:
    leader = asking()
    leader.answer()
    assert len(leader.asked()) == 1
    leader.later(RETRY_FIRST_MS)
    assert leader.wanted() == [{0: (1, 2, 3)}] * 2


def test_an_answer_that_is_no_answer_is_told_and_asked_for_again() -> None:
    leader = asking()
    leader.last().resolve(b"\x00")
    leader.later(RETRY_FIRST_MS)
    assert len(leader.asked()) == 2


def test_below_protocol_2_7_nobody_is_asked() -> None:
    leader = Leader()
    changes: Any = leader.broker.isr_manager
    changes._version = None
    leader.lead((1,))
    leader.hear((1,))
    assert not leader.asked()


def test_who_is_in_sync_is_another_question_that_can_be_answered_otherwise() -> None:
    leader = Leader()
    changes: Any = leader.broker.isr_manager
    changes._wanted = lambda partition: (*partition.isr, 3)
    leader.lead((1,))
    leader.hear((1,))
    assert leader.wanted() == [{0: (1, 3)}]


def test_an_isr_that_is_not_newer_changes_nothing() -> None:
    leader = Leader()
    leader.lead((1, 2))
    partition = leader.broker.replicas.partition("t", 0)
    assert partition is not None
    before = replace(partition)
    partition.change_isr((1,), VERSION)
    assert partition == before


def test_metadata_that_tells_nothing_else_of_a_partition_is_no_occasion_to_look_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = asking((1, 3))
    leader.answer(refused(ErrorCode.INELIGIBLE_REPLICA))
    looked: list[Partition] = []
    right = IsrManager._propose

    def propose(
        self: IsrManager, key: tuple[str, int], partition: Partition, state: UpdateMetadataPartitionState | None
    ) -> None:
        looked.append(partition)
        right(self, key, partition, state)

    monkeypatch.setattr(IsrManager, "_propose", propose)
    changes = leader.broker.isr_manager
    changes.metadata_changed()
    assert len(looked) == 1, "its slot is empty since"
    changes.metadata_changed()
    assert len(looked) == 1
    leader.hear((1, 3), alive=(1, 3))
    assert len(looked) == 1, "a proposal is under way"


# -- in which version


def told(leader: Leader) -> tuple[int, AlterIsrRequest]:
    """The last request's version, and what it said."""
    _, key, body, _ = leader.peers.asked[-1]
    assert key is ApiKey.ALTER_ISR
    return leader.peers.asked_in[-1], decoded(body, leader.peers.asked_in[-1])


@pytest.mark.parametrize(
    ("offered", "version"),
    [((0, 3), 3), ((2, 9), 3), ((0, 2), 2), ((0, 1), 1), ((0, 0), 0), (None, 0)],
    ids=["as we do", "more than we do", "without lives", "without ids", "as Kafka 2.8 does", "nothing"],
)
def test_a_controller_is_asked_in_the_newest_version_that_both_know(
    offered: tuple[int, int] | None, version: int
) -> None:
    leader = Leader()
    offer(leader, offered)
    leader.lead((1,))
    leader.hear((1,), alive=(1, 2))
    spoken, request = told(leader)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert spoken == version
    assert (topic.name, topic.topic_id) == (("", TOPIC_ID) if version >= 2 else ("t", NO_TOPIC_ID))
    members = (IsrMember(1, -1), IsrMember(2, -1)) if version == 3 else ()
    assert (partition.new_isr_with_epochs, partition.new_isr) == (members, () if version == 3 else (1, 2))
    leader.answer(done((1, 2)))
    assert leader.isr() == (1, 2)


def offer(leader: Leader, versions: tuple[int, int] | None) -> None:
    if versions is None:
        del leader.peers.offered[ApiKey.ALTER_ISR]
    else:
        leader.peers.offered[ApiKey.ALTER_ISR] = versions


def test_a_topic_without_an_id_goes_by_its_name() -> None:
    leader = Leader()
    leader.lead((1,), topic_id=NO_TOPIC_ID)
    leader.hear((1,))
    spoken, request = told(leader)
    assert (spoken, request.topics[0].name) == (1, "t")


def test_what_a_controller_offers_is_asked_once_a_connection() -> None:
    leader = asking()
    leader.answer(done((1, 2)))
    leader.hear((1, 2), version=8)
    assert (len(leader.asked()), leader.peers.asked_for_versions) == (2, [9090 + CONTROLLER])
    leader.last().fail(PeerTimedOut("its broker is gone"))
    assert leader.peers.closed == [9090 + CONTROLLER]
    offer(leader, (0, 0))
    leader.later(RETRY_FIRST_MS)
    assert leader.peers.asked_for_versions == [9090 + CONTROLLER] * 2
    assert told(leader)[0] == 0, "an older one took its place"
    leader.last().fail(PeerTimedOut("nothing came"))
    offer(leader, (0, 3))
    leader.hear((1, 2), controller=3, version=8)
    assert leader.peers.asked_for_versions[2:] == [9093]
    assert told(leader)[0] == 3


def test_a_controller_that_does_not_know_this_way_to_ask_is_asked_as_kafka_2_8_is() -> None:
    leader = Leader()
    leader.peers.offers_error = ErrorCode.UNSUPPORTED_VERSION
    leader.lead((1,))
    leader.hear((1,))
    assert told(leader)[0] == 0


def test_a_topic_that_was_made_again_has_a_slot_of_its_own() -> None:
    """It begins in the same leader epoch."""
    leader = asking()
    stop = StopReplicaTopicState("t", (StopReplicaPartitionState(0, -2, delete_partition=True),))
    leader.ask(ApiKey.STOP_REPLICA, StopReplicaRequest(CONTROLLER, 1, (stop,), BROKER_EPOCH))
    leader.lead((1,), topic_id=bytes(range(16, 32)), version=0)
    leader.answer(done((1, 2, 3)))
    assert leader.isr() == (1,)
