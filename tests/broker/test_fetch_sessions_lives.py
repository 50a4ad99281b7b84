"""Whatever happens to a leader's partitions: who fetches in a session knows of each what a look at it shows, is heard
of in each, and waits for nothing that is there."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.broker.records.fetch_sessions import next_epoch
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import INITIAL_SESSION_EPOCH, NO_SESSION, FetchResponse
from tests.broker.harness import Deferred
from tests.broker.leading import Holder, offsets
from tests.broker.test_fetch_sessions import PARTITIONS, Client

FOLLOWER = 2
WAIT_MS = 500

Step: TypeAlias = tuple[str, int]
KINDS = ("produce", "follow", "follow", "watch", "watch", "park", "isr", "epoch", "start", "later")
STEPS: st.SearchStrategy[Step] = st.tuples(st.sampled_from(KINDS), st.integers(0, 1))


class Fetcher:
    """A client with a session, and what it knows: where it is in each partition, and the high watermark and log start
    that it was told last."""

    def __init__(self, broker: Holder, replica: int = -1) -> None:
        self.client = Client(broker, replica)
        self.at = dict.fromkeys(range(PARTITIONS), 0)
        self.named: dict[int, int] = {}
        self.told: dict[int, tuple[int, int] | None] = dict.fromkeys(range(PARTITIONS))
        self.waiting: Deferred | None = None

    def fetch(self, wait_ms: int = 0) -> None:
        if self.waiting is not None:
            return
        if self.client.session[1] == INITIAL_SESSION_EPOCH:
            self.named = {}
        asked = {number: offset for number, offset in self.at.items() if self.named.get(number) != offset}
        self.named |= asked
        self.waiting = self.client.begin(asked, wait_ms=wait_ms)

    def take(self) -> bool:
        """What was answered, if anything was."""
        if self.waiting is None or not self.waiting.answered:
            return False
        response = self.client.answered(self.waiting)
        self.waiting = None
        self._take(response)
        return True

    def _take(self, response: FetchResponse) -> None:
        assert response.error_code == ErrorCode.NONE
        assert response.session_id != NO_SESSION
        self.client.session = response.session_id, next_epoch(self.client.session[1])
        for data in (data for topic in response.responses for data in topic.partitions):
            number = data.partition_index
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.at[number] = self.client.broker.log(number).log_start_offset
                self.told[number] = None
                continue
            assert data.error_code == ErrorCode.NONE
            self.told[number] = data.high_watermark, data.log_start_offset
            found = offsets(data)
            if found:
                self.at[number] = found[-1] + 1


class World:
    def __init__(self) -> None:
        self.broker = Holder(PARTITIONS)
        self.epoch, self.version = 4, 7
        self.broker.begin_leading((1, FOLLOWER))
        self.consumer, self.follower = Fetcher(self.broker), Fetcher(self.broker, FOLLOWER)

    def step(self, what: str, number: int) -> None:
        broker = self.broker
        if what == "produce":
            broker.produce(acks=1, numbers=(number,))
        elif what == "follow":
            self.follower.fetch()
            assert self.follower.take()
            inside = [each for each, told in self.follower.told.items() if told is not None]
            heard = [broker.leading(each).followers[FOLLOWER] for each in inside]
            assert all(one.last_fetch_ms == broker.clock.now_ms() for one in heard)
            assert all(self.follower.at[each] == broker.log(each).log_end_offset for each in inside)
        elif what in ("watch", "park"):
            self.consumer.fetch(WAIT_MS if what == "park" else 0)
        elif what == "isr":
            self.version += 1
            broker.hear((1, FOLLOWER) if number % 2 else (1,), leader_epoch=self.epoch, version=self.version)
        elif what == "epoch":
            self.epoch += 1
            broker.begin_leading((1, FOLLOWER) if number else (1,), leader_epoch=self.epoch, version=self.version)
        elif what == "start":
            broker.log(number).delete_records_before(
                broker.partition(number).high_watermark, broker.partition(number).high_watermark
            )
            assert broker.broker.data is not None
            broker.broker.data.logs_changed()
        else:
            broker.later(WAIT_MS)

    def check(self, what: str) -> None:
        waited = self.consumer.waiting is not None and what != "watch"
        if self.consumer.take():
            for number, told in self.consumer.told.items():
                if told is not None and not waited:  # an answer to a wait is of its moment
                    log = self.broker.log(number)
                    assert told == (self.broker.partition(number).high_watermark, log.log_start_offset)
        elif self.consumer.waiting is not None:
            at = self.consumer.at
            assert all(self.broker.partition(number).high_watermark <= at[number] for number in at)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_a_session_tells_what_there_is(steps: list[Step]) -> None:
    world = World()
    for what, number in [*steps, ("later", 0), ("watch", 0), ("watch", 0)]:
        world.step(what, number)
        world.check(what)
    assert world.consumer.waiting is None
