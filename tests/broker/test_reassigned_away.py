"""S55: a broker that nobody could tell that its replica went elsewhere leaves it when metadata says so, and keeps what
it has."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.broker.partition import Role
from controller.protocol.codec import ApiKey
from controller.protocol.control import LEADER_DURING_DELETE, NO_TOPIC_ID, UpdateMetadataRequest
from controller.protocol.errors import ErrorCode
from controller.storage.directory import STRAY
from tests.broker.harness import metadata
from tests.broker.leading import Holder, produced
from tests.broker.test_replica_logs import NEXT_TOPIC_ID


def told(leader_epoch: int, replicas: tuple[int, ...], leader: int = 2) -> UpdateMetadataRequest:
    """t-0 as an UpdateMetadata has it."""
    request = metadata(("t", 0, leader), replicas=replicas)
    (topic,) = request.topic_states
    (state,) = topic.partition_states
    return replace(
        request, topic_states=(replace(topic, partition_states=(replace(state, leader_epoch=leader_epoch),)),)
    )


@pytest.mark.parametrize("leads", [True, False])
def test_s55_it_leads_and_follows_no_more_and_its_records_stay(leads: bool) -> None:
    broker = Holder()
    broker.begin_leading((1, 2))
    waiting = broker.produce()
    if not leads:
        broker.lead((2, 3), leader=2, leader_epoch=5)
    broker.ask(ApiKey.UPDATE_METADATA, told(7, (2, 3)))
    partition = broker.partition()
    assert (partition.role, partition.fetching, partition.leading) == (Role.NONE, False, None)
    assert broker.log().log_end_offset == 1
    assert produced(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produced(broker.produce()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("leader_epoch", "replicas"), [(4, (2, 3)), (3, (2, 3)), (7, (1, 2, 3))])
def test_what_is_no_news_or_names_it_changes_nothing(leader_epoch: int, replicas: tuple[int, ...]) -> None:
    broker = Holder()
    broker.begin_leading((1,))
    broker.ask(ApiKey.UPDATE_METADATA, told(leader_epoch, replicas))
    assert broker.partition().role is Role.LEADER
    assert produced(broker.produce()).error_code == ErrorCode.NONE


def test_what_a_new_registration_is_told_first_is_all_that_there_is() -> None:
    """Reassigned away in between, and then the topic deleted, of which nobody told this broker either."""
    broker = Holder()
    broker.begin_leading((1,))
    other = metadata(("other", 0, 2), replicas=(2, 3))
    broker.ask(ApiKey.UPDATE_METADATA, other)
    assert broker.partition().role is Role.LEADER
    broker.ask(ApiKey.UPDATE_METADATA, replace(other, broker_epoch=other.broker_epoch + 5))
    assert broker.partition().role is Role.NONE
    assert produced(broker.produce()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.log().log_end_offset == 0


@pytest.mark.parametrize(("kept", "role"), [((), Role.NONE), (("t",), Role.LEADER)])
def test_a_complete_request_takes_the_role_for_a_topic_that_it_neither_names_nor_lists(
    kept: tuple[str, ...], role: Role
) -> None:
    broker = Holder()
    broker.begin_leading((1,))
    topic = broker.partition().topic
    other = metadata(("other", 0, 2), replicas=(2, 3))
    broker.ask(ApiKey.UPDATE_METADATA, other)
    broker.ask(ApiKey.UPDATE_METADATA, replace(other, complete_but=tuple(topic for _ in kept)))
    assert broker.partition().role is role
    assert broker.log().log_end_offset == 0


@pytest.mark.parametrize(("replicas", "role"), [((2, 3), Role.NONE), ((1, 2), Role.LEADER)])
def test_a_topic_on_its_way_out_is_left_by_who_is_none_of_its_replicas(replicas: tuple[int, ...], role: Role) -> None:
    """Reassigned away in between (the swarm's seed 7405). A replica is told to stop by itself."""
    broker = Holder()
    broker.begin_leading((1, 2))
    broker.ask(ApiKey.UPDATE_METADATA, told(7, replicas, leader=LEADER_DURING_DELETE))
    assert broker.partition().role is role
    assert broker.log().log_end_offset == 0


@pytest.mark.parametrize("replicas", [(2, 3), (1, 2)])
def test_s55_a_topic_of_the_same_name_takes_the_role_also_in_an_earlier_leader_epoch(replicas: tuple[int, ...]) -> None:
    """Reassigned away, deleted and created again before anybody could tell this broker (the swarm's seed 61539)."""
    broker = Holder()
    broker.begin_leading((1, 2))
    request = told(0, replicas)
    (topic,) = request.topic_states
    broker.ask(ApiKey.UPDATE_METADATA, replace(request, topic_states=(replace(topic, topic_id=NEXT_TOPIC_ID),)))
    assert broker.partition().role is Role.NONE
    assert broker.log().log_end_offset == 0
    assert broker.lead((1, 2), leader=2, leader_epoch=1, topic_id=NEXT_TOPIC_ID) == [ErrorCode.NONE]
    assert (broker.partition().role, broker.log().topic_id) == (Role.FOLLOWER, NEXT_TOPIC_ID)


@pytest.mark.parametrize("leader_epoch", [0, 4])
@pytest.mark.parametrize("is_complete", [True, False])
def test_where_topics_have_no_ids_an_epoch_that_is_no_later_shows_another_topic_if_all_are_named(
    is_complete: bool, leader_epoch: int
) -> None:
    """The same one: both topics were new (the swarm's seed 61577 with tiers)."""
    broker = Holder()
    broker.hear((1, 2), leader_epoch=4)
    assert broker.lead((1, 2), leader_epoch=4, topic_id=NO_TOPIC_ID) == [ErrorCode.NONE]
    broker.produce()
    request = told(leader_epoch, (2, 3))
    (topic,) = request.topic_states
    request = replace(request, topic_states=(replace(topic, topic_id=NO_TOPIC_ID),))
    broker.ask(ApiKey.UPDATE_METADATA, replace(request, broker_epoch=request.broker_epoch + 5 * is_complete))
    assert broker.partition().role is (Role.NONE if is_complete else Role.LEADER)
    if is_complete:
        assert broker.lead((1, 2), leader=2, leader_epoch=leader_epoch + 1, topic_id=NO_TOPIC_ID) == [ErrorCode.NONE]
        assert (broker.partition().role, broker.log().log_end_offset) == (Role.FOLLOWER, 0)


@pytest.mark.parametrize("replicas", [(1, 2), (2, 1, 3)])
def test_a_complete_request_in_the_same_leader_epoch_that_names_it_changes_nothing(replicas: tuple[int, ...]) -> None:
    broker = Holder()
    broker.begin_leading((1, 2))
    request = told(broker.partition().leader_epoch, replicas)
    broker.ask(ApiKey.UPDATE_METADATA, replace(request, broker_epoch=request.broker_epoch + 5))
    assert broker.partition().role is Role.LEADER


def test_one_that_comes_back_takes_its_role_again() -> None:
    broker = Holder()
    broker.begin_leading((1,))
    broker.produce()
    broker.ask(ApiKey.UPDATE_METADATA, told(7, (2, 3)))
    assert broker.lead((2, 1), leader=2, leader_epoch=9) == [ErrorCode.NONE]
    assert broker.partition().role is Role.FOLLOWER
    assert broker.log().log_end_offset == 1


def test_one_that_was_left_out_takes_its_role_again_in_the_same_leader_epoch() -> None:
    """A controller leaves out a partition whose state it can't read; the repaired state has the epoch that it had."""
    broker = Holder()
    broker.begin_leading((1,))
    broker.produce()
    epoch = broker.partition().leader_epoch
    other = metadata(("other", 0, 2), replicas=(2, 3))
    broker.ask(ApiKey.UPDATE_METADATA, replace(other, broker_epoch=other.broker_epoch + 5))
    assert broker.partition().role is Role.NONE
    assert broker.lead((1, 2), leader=1, leader_epoch=epoch) == [ErrorCode.NONE]
    assert broker.partition().role is Role.LEADER
    assert broker.log().log_end_offset == 1


@pytest.mark.parametrize("shown", [True, False], ids=["metadata shows it", "metadata is yet to show it"])
@pytest.mark.parametrize("in_this_life", [True, False])
def test_s55_files_of_a_topic_that_is_gone_make_way_for_another_of_its_name(in_this_life: bool, shown: bool) -> None:
    """A topic's first LeaderAndIsr comes before its metadata."""
    broker = Holder()
    broker.begin_leading((1,))
    broker.produce()
    if in_this_life:
        broker.ask(ApiKey.UPDATE_METADATA, told(7, (2, 3)))
    else:
        broker.start()
    request = metadata(("t", 0, 1))
    (topic,) = request.topic_states
    states = (replace(topic, topic_id=NEXT_TOPIC_ID),) if shown else ()
    gone = metadata(("t", 0, LEADER_DURING_DELETE))
    broker.ask(ApiKey.UPDATE_METADATA, gone)
    broker.ask(ApiKey.UPDATE_METADATA, replace(request, topic_states=states))
    assert broker.lead((1,), leader_epoch=0, topic_id=NEXT_TOPIC_ID) == [ErrorCode.NONE]
    assert broker.log().log_end_offset == 0
    assert broker.log().topic_id == NEXT_TOPIC_ID
    (directory,) = broker.logs.directories
    assert [name for name in broker.disk.names(directory.path) if name.endswith(STRAY)]
    broker.start()
    assert [name for name in broker.disk.names(directory.path) if name.endswith(STRAY)], "and no start takes them away"


def test_a_partition_that_is_new_is_not_the_one_that_was_reassigned_away_also_where_topics_have_no_ids() -> None:
    """Before inter.broker.protocol.version 2.8. The new topic's leader epochs are below those of the deleted one."""
    broker = Holder()
    broker.hear((1,), leader_epoch=4)
    assert broker.lead((1,), leader_epoch=4, topic_id=NO_TOPIC_ID) == [ErrorCode.NONE]
    broker.produce()
    broker.ask(ApiKey.UPDATE_METADATA, told(7, (2, 3)))
    assert broker.partition().role is Role.NONE
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, LEADER_DURING_DELETE)))
    broker.hear((1,), leader_epoch=0)
    assert broker.lead((1,), leader_epoch=0, topic_id=NO_TOPIC_ID) == [ErrorCode.NONE]
    assert broker.partition().role is Role.LEADER
    assert broker.log().log_end_offset == 0
    (directory,) = broker.logs.directories
    assert [name for name in broker.disk.names(directory.path) if name.endswith(STRAY)]
