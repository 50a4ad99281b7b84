"""InitProducerId: ids given once, from blocks that many requests wait for together."""

from __future__ import annotations

import pytest

from controller.broker.zookeeper_services import ProducerIds
from controller.clock import Future, VirtualClock, spawn
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import InitProducerIdResponse
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.codecs import ProducerIdBlock
from controller.zookeeper.operations import DamagedZnode, SessionGone
from tests.broker.harness import KeptTrace
from tests.zookeeper.client_bench import Bench


class Blocks:
    """Answers when told to."""

    def __init__(self) -> None:
        self.asked: list[Future[ProducerIdBlock]] = []

    def take(self) -> Future[ProducerIdBlock]:
        self.asked.append(Future())
        return self.asked[-1]


class Asking:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.trace = KeptTrace()
        self.blocks = Blocks()
        self.ids = ProducerIds(self.blocks.take, self.clock, self.trace)
        self.answers: list[InitProducerIdResponse] = []

    def ask(self, times: int = 1) -> None:
        for _ in range(times):
            self.ids.give(self.answers.append)

    def give(self, start: int, end: int) -> None:
        self.blocks.asked[-1].resolve(ProducerIdBlock(1, start, end))
        assert self.clock.step(), "the way back to the broker's thread"

    def fail(self, error: Exception) -> None:
        self.blocks.asked[-1].fail(error)
        assert self.clock.step()

    @property
    def given(self) -> list[int]:
        assert all(one.error_code == ErrorCode.NONE and one.producer_epoch == 0 for one in self.answers)
        return [one.producer_id for one in self.answers]


def test_all_who_come_meanwhile_wait_for_one_block() -> None:
    asking = Asking()
    asking.ask(3)
    assert (len(asking.blocks.asked), asking.ids.waiting, asking.answers) == (1, 3, [])
    asking.give(1000, 1999)
    assert asking.given == [1000, 1001, 1002]
    asking.ask()
    assert asking.given[-1] == 1003
    assert len(asking.blocks.asked) == 1


def test_the_next_block_is_asked_for_when_the_last_id_is_gone() -> None:
    asking = Asking()
    asking.ask(5)
    asking.give(0, 1)
    assert asking.given == [0, 1]
    assert (len(asking.blocks.asked), asking.ids.waiting) == (2, 3)
    asking.give(10, 12)
    assert asking.given == [0, 1, 10, 11, 12]
    assert asking.ids.left == 0
    asking.ask()
    assert len(asking.blocks.asked) == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SessionGone(7), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (DamagedZnode("/latest_producer_id_block", "a block", b"?"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_all_who_wait_hear_that_there_is_no_block_and_the_next_asks_again(error: Exception, code: ErrorCode) -> None:
    asking = Asking()
    asking.ask(2)
    asking.fail(error)
    assert asking.answers == [InitProducerIdResponse(code)] * 2
    assert len(asking.trace.notes("warning")) == 1
    asking.answers.clear()
    asking.ask()
    asking.give(0, 999)
    assert asking.given == [0]


def test_whoever_waits_is_answered_even_where_we_are_at_fault() -> None:
    """The requests behind it on its connection wait for its answer."""
    asking = Asking()
    asking.ask(2)
    with pytest.raises(KeyError, match="idle_for"):
        asking.fail(KeyError("idle_for"))
    assert [answer.error_code for answer in asking.answers] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2


def test_two_brokers_never_give_the_same_id() -> None:
    bench = Bench()
    answers: list[InitProducerIdResponse] = []
    for broker in (1, 2):
        writes = BrokerDataWrites(bench.node().client)
        bench.run(writes.ensure_persistent_paths())

        def take(writes: BrokerDataWrites = writes, broker: int = broker) -> Future[ProducerIdBlock]:
            return spawn(writes.next_producer_id_block(broker))

        ids = ProducerIds(take, bench.clock, KeptTrace())
        for _ in range(1_500):
            ids.give(answers.append)
    bench.until(lambda: len(answers) == 3_000)
    assert len({one.producer_id for one in answers}) == 3_000
