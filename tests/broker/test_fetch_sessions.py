"""Fetch sessions as a leader keeps them: who gets one, what a request in it means, what its answer leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from controller.broker.fetcher_state import EPOCH_MAX
from controller.broker.records.fetch_sessions import EVICTABLE_AFTER_MS, FetchSessionCache, SessionRefused, next_epoch
from controller.clock import VirtualClock
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from controller.storage import PartitionLog
from tests.broker.harness import Deferred
from tests.broker.leading import Holder, done, offsets

PARTITIONS = 4


class Client:
    """One client of a broker that leads all partitions alone."""

    def __init__(self, broker: Holder, replica: int = -1) -> None:
        self.broker = broker
        self.replica = replica
        self.session = (NO_SESSION, INITIAL_SESSION_EPOCH)

    def begin(
        self,
        asked: Mapping[int, int],
        *,
        forgotten: Sequence[int] = (),
        session: tuple[int, int] | None = None,
        wait_ms: int = 0,
    ) -> Deferred:
        """`asked`: partition to offset."""
        parts = tuple(FetchPartition(number, offset, 1 << 20, -1, -1, 0) for number, offset in asked.items())
        session_id, epoch = self.session if session is None else session
        request = FetchRequest(
            wait_ms,
            1,
            (FetchTopic("t", parts),) if parts else (),
            self.replica,
            session_id=session_id,
            session_epoch=epoch,
            forgotten_topics_data=(ForgottenTopic("t", tuple(forgotten)),) if forgotten else (),
        )
        return self.broker.begin(ApiKey.FETCH, request)

    def fetch(self, asked: Mapping[int, int], **given: object) -> dict[int, list[int]]:
        """Partition to the offsets of the records that came, in the answer's order. The session goes on."""
        response = self.answered(self.begin(asked, **given))  # type: ignore[arg-type]
        assert response.error_code == ErrorCode.NONE
        self.session = (response.session_id, next_epoch(self.session[1]))
        return {data.partition_index: offsets(data) for topic in response.responses for data in topic.partitions}

    def answered(self, deferred: Deferred) -> FetchResponse:
        response = deferred.value()
        assert isinstance(response, FetchResponse)
        return response

    def error(self, asked: Mapping[int, int], session: tuple[int, int]) -> int:
        response = self.answered(self.begin(asked, session=session))
        assert (response.responses, response.session_id) == ((), NO_SESSION)
        return response.error_code


def holder(slots: int = 10) -> Holder:
    broker = Holder(PARTITIONS, max_incremental_fetch_session_cache_slots=str(slots))
    broker.begin_leading((1,))
    return broker


EVERYTHING = dict.fromkeys(range(PARTITIONS), 0)


def test_an_incremental_fetch_names_what_changed_and_is_told_what_changed() -> None:
    broker = holder()
    client = Client(broker)
    assert client.fetch(EVERYTHING) == {0: [], 1: [], 2: [], 3: []}
    assert client.session[0] != NO_SESSION
    assert client.fetch({}) == {}
    broker.produce(numbers=(1, 3))
    assert client.fetch({}) == {1: [0], 3: [0]}
    assert client.fetch({1: 1, 3: 1}) == {}
    broker.produce(numbers=(0, 1))
    assert client.fetch({}) == {0: [0], 1: [1]}


def test_what_was_told_of_comes_last_the_next_time() -> None:
    broker = holder()
    client = Client(broker)
    client.fetch(EVERYTHING)
    broker.produce(numbers=(0,))
    client.fetch({})
    broker.produce(numbers=(0, 2))
    assert list(client.fetch({0: 1})) == [2, 0]


def test_what_is_forgotten_is_not_told_of() -> None:
    broker = holder()
    client = Client(broker)
    client.fetch(EVERYTHING)
    broker.produce(numbers=(0, 1))
    assert client.fetch({}, forgotten=(1,)) == {0: [0]}


def test_a_high_watermark_that_moved_is_told_without_records() -> None:
    broker = Holder()
    broker.begin_leading((1, 2))
    client = Client(broker, replica=2)
    client.fetch({0: 0})
    broker.produce(acks=1)
    client.fetch({})
    assert client.fetch({0: 1}) == {0: []}, "it is committed now"
    assert client.fetch({}) == {}


def test_an_error_is_told_each_time_and_what_comes_after_it_too() -> None:
    broker = holder()
    client = Client(broker)
    client.fetch(EVERYTHING)
    broker.lead((2, 3), leader=2, leader_epoch=5)
    for _ in range(2):
        response = client.answered(client.begin({0: 9}))
        ((data,),) = [topic.partitions for topic in response.responses]
        assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        client.session = client.session[0], next_epoch(client.session[1])
    assert client.fetch({0: 0}) == {0: []}


def test_what_has_not_changed_is_not_looked_for_and_still_tells_that_its_follower_fetches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = holder()
    broker.begin_leading(leader_epoch=5)
    client = Client(broker, replica=2)
    client.fetch(EVERYTHING)
    client.fetch({})
    looked: list[PartitionLog] = []
    right = PartitionLog.read

    def read(self: PartitionLog, *arguments: Any, **named: Any) -> Any:
        looked.append(self)
        return right(self, *arguments, **named)

    monkeypatch.setattr(PartitionLog, "read", read)
    broker.later(70)
    assert client.fetch({}) == {}
    assert looked == []
    assert [broker.leading(number).followers[2].last_fetch_ms for number in (0, 3)] == [broker.clock.now_ms()] * 2
    broker.produce(acks=1, numbers=(2,))
    assert client.fetch({}) == {2: [0]}
    assert looked == [broker.log(2)]


def test_a_log_start_that_moved_is_told_though_there_is_nothing_to_fetch() -> None:
    broker = holder()
    broker.produce(acks=1, numbers=(2,))
    client = Client(broker)
    client.fetch(EVERYTHING | {2: 1})
    assert client.fetch({}) == {}
    broker.log(2).delete_records_before(1, 1)
    assert broker.broker.data is not None
    broker.broker.data.logs_changed()
    assert client.fetch({}) == {2: []}
    assert client.fetch({}) == {}


def test_a_wait_ends_with_records_of_a_partition_that_never_was_quiet() -> None:
    broker = holder()
    broker.produce(numbers=(0,))
    client = Client(broker)
    assert client.fetch({0: 0}) == {0: [0]}
    waiting = client.begin({0: 1}, wait_ms=1_000)
    assert not waiting.answered
    broker.produce(numbers=(0,))
    assert waiting.answered


def test_who_is_out_of_the_isr_is_heard_with_each_fetch() -> None:
    broker = Holder()
    broker.begin_leading((1, 2, 3))
    client = Client(broker, replica=2)
    client.fetch({0: 0})
    assert broker.leading().followers[2].parked_in is not None
    broker.hear((1, 3), version=8)
    broker.later(20_000)
    assert broker.isr() == (1, 3)
    client.fetch({})
    assert broker.leading().followers[2].parked_in is None
    broker.answer(done((1, 3, 2), version=9))
    client.fetch({})
    assert broker.leading().followers[2].parked_in is not None


def test_who_was_quiet_has_its_time_from_its_last_fetch_on() -> None:
    """Not from when it last had to say where it is; and an older session of its, left behind, changes nothing."""
    broker = Holder(replica_lag_time_max_ms="10000")
    broker.begin_leading((1, 2))
    left, client = Client(broker, replica=2), Client(broker, replica=2)
    for each in (left, client):
        each.fetch({0: 0})
    for _ in range(30):
        broker.later(1_000)
        client.fetch({})
    client.session, other = (client.session[0], FINAL_SESSION_EPOCH), client.session
    left.fetch({}, session=(left.session[0], FINAL_SESSION_EPOCH))
    client.session = other
    broker.later(1_000)
    client.fetch({})
    broker.produce(acks=1)
    broker.later(9_000)
    assert broker.asked() == [], "it has been behind for nine seconds"
    broker.later(11_000)
    assert broker.wanted() == [{0: (1,)}]


@pytest.mark.parametrize("how", ["a new epoch", "another asks", "offline", "deleted"])
def test_what_was_nothing_before_is_looked_at_anew_when_more_than_records_changed(how: str) -> None:
    broker = holder()
    client = Client(broker)
    client.fetch(EVERYTHING)
    asked = {0: 0}
    expected = ErrorCode.NONE
    if how == "a new epoch":
        asked = {}
        broker.begin_leading((1,), leader_epoch=5)
    elif how == "another asks":
        asked = {0: 5}
        expected = ErrorCode.OFFSET_OUT_OF_RANGE
    elif how == "offline":
        broker.logs.directories[0].health.fail(OSError("a bad sector"))
        broker.later(1)
        expected = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        broker.stop_replica(delete=True)
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
    response = client.answered(client.begin(asked))
    told = {data.partition_index: data.error_code for topic in response.responses for data in topic.partitions}
    assert told.get(0, ErrorCode.NONE) == expected


def test_a_wait_is_over_for_a_client_that_asks_again_in_its_session() -> None:
    broker = holder()
    client = Client(broker)
    client.fetch(EVERYTHING)
    waiting = client.begin({}, wait_ms=1_000)
    client.session = client.session[0], next_epoch(client.session[1])
    assert client.fetch({}) == {}
    broker.produce(numbers=(0,))
    assert client.answered(waiting).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert client.fetch({}) == {0: [0]}, "nothing was lost with the answer that did not count"


@pytest.mark.parametrize("epoch", [1, 3, 7])
def test_another_epoch_than_the_next_is_refused_and_harms_nothing(epoch: int) -> None:
    client = Client(holder())
    client.fetch(EVERYTHING)
    client.fetch({})
    assert client.session[1] == 2
    assert client.error({}, (client.session[0], epoch)) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert client.fetch({}) == {}


def test_a_session_that_is_not_known_is_refused() -> None:
    client = Client(holder())
    assert client.error(EVERYTHING, (77, 1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH])
def test_a_full_fetch_ends_the_session_that_it_names(epoch: int) -> None:
    client = Client(holder())
    client.fetch(EVERYTHING)
    old = client.session
    response = client.answered(client.begin({0: 0}, session=(old[0], epoch)))
    assert (response.session_id == NO_SESSION) == (epoch == FINAL_SESSION_EPOCH)
    assert client.error({}, old) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_with_nothing_left_ends() -> None:
    client = Client(holder())
    client.fetch({0: 0})
    old = client.session
    assert client.fetch({}, forgotten=(0,)) == {}
    assert client.error({}, (old[0], 2)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_without_a_place_a_client_goes_without_a_session() -> None:
    client = Client(holder(slots=0))
    for _ in range(2):
        client.session = (NO_SESSION, INITIAL_SESSION_EPOCH)
        assert client.fetch(EVERYTHING) == {0: [], 1: [], 2: [], 3: []}
        assert client.session[0] == NO_SESSION


def test_epochs_go_on_from_their_end_to_one() -> None:
    assert [next_epoch(0), next_epoch(1), next_epoch(EPOCH_MAX)] == [1, 2, 1]


# -- places


class Places:
    def __init__(self, slots: int) -> None:
        self.clock = VirtualClock(now_ms=1_000_000.0)
        self.sessions = FetchSessionCache(slots, self.clock)

    def new(self, size: int, *, replica: int = -1) -> int | None:
        """Its id, if there was a place for a session of `size` partitions."""
        topic = FetchTopic("t", tuple(FetchPartition(number, 0, 1) for number in range(size)))
        request = FetchRequest(0, 0, (topic,), replica, session_id=0, session_epoch=INITIAL_SESSION_EPOCH)
        session_id = self.sessions.begin(request).response([]).session_id
        return session_id or None

    def use(self, session_id: int, epoch: int = 1) -> bool:
        request = FetchRequest(0, 0, (), session_id=session_id, session_epoch=epoch)
        try:
            self.sessions.begin(request)
        except SessionRefused:
            return False
        return True

    def later(self, ms: float) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)


def test_a_place_goes_from_who_has_not_used_it_for_long() -> None:
    places = Places(2)
    first, second = places.new(5), places.new(5)
    assert first is not None
    assert second is not None
    places.later(EVICTABLE_AFTER_MS)
    assert places.use(second)
    assert places.new(1) is None, "no longer than it may"
    places.later(1)
    assert places.new(1) is not None
    assert not places.use(first)
    assert len(places.sessions) == 2


@pytest.mark.parametrize(
    ("size", "replica", "made"),
    [(3, -1, False), (6, -1, True), (1, 2, True)],
    ids=["smaller", "larger", "a follower's"],
)
def test_of_those_in_use_the_smallest_gives_way_to_one_that_is_worth_more(size: int, replica: int, made: bool) -> None:
    places = Places(2)
    small, large = places.new(5), places.new(9)
    assert small is not None
    assert large is not None
    places.later(EVICTABLE_AFTER_MS + 1)
    places.use(small), places.use(large)
    assert (places.new(size, replica=replica) is not None) == made
    assert places.use(small, 2) != made
    assert places.use(large, 2)


@pytest.mark.parametrize(("replica", "made"), [(-1, False), (3, True)])
def test_a_young_consumers_session_gives_way_to_a_followers_alone(replica: int, made: bool) -> None:
    places = Places(1)
    places.new(5)
    assert (places.new(9, replica=replica) is not None) == made


def test_a_young_followers_session_gives_way_to_nobody() -> None:
    places = Places(1)
    places.new(1, replica=2)
    assert places.new(9, replica=3) is None


def test_ids_of_another_life_are_not_met_again() -> None:
    places = Places(5)
    ids = {places.new(1) for _ in range(3)}
    later = FetchSessionCache(5, VirtualClock(now_ms=1_000_500.0))
    places.sessions = later
    assert not ids & {places.new(1) for _ in range(3)}
