"""A leader with logs asks for the ISR that its followers' fetches call for, and goes by it only when it is made."""

from __future__ import annotations

import pytest

from controller.broker.isr_manager import RETRY_LAST_MS
from controller.core.channels import PeerTimedOut
from controller.protocol.errors import ErrorCode
from controller.trace import IsrProposed
from tests.broker.leading import Holder, done, produced, refused

LAG_MS = 10_000.0


def holder(isr: tuple[int, ...] = (1, 2, 3), count: int = 2) -> Holder:
    """Leads partition 0, with `count` batches that all of the ISR have and one that none has."""
    broker = Holder(replica_lag_time_max_ms=str(int(LAG_MS)))
    broker.begin_leading(isr)
    for _ in range(count):
        broker.produce(acks=1)
    for replica in isr[1:]:
        broker.follow(replica, count)
    broker.produce(acks=1)
    return broker


def keep_up(broker: Holder, replica: int, for_ms: float) -> None:
    """The replica fetches from the log's end all that time."""
    until_ms = broker.clock.now_ms() + for_ms
    while broker.clock.now_ms() < until_ms:
        broker.follow(replica, broker.log().log_end_offset)
        broker.later(500)


def test_who_falls_behind_is_asked_out_and_held_for_until_the_controller_has_made_it() -> None:
    broker = holder()
    waiting = broker.produce(timeout_ms=60_000)
    keep_up(broker, 2, LAG_MS)
    assert broker.wanted() == [], "it has all its time"
    keep_up(broker, 2, LAG_MS)
    assert broker.wanted() == [{0: (1, 2)}]
    assert (broker.partition().high_watermark, waiting.answered) == (2, False)
    broker.answer(done((1, 2)))
    assert broker.isr() == (1, 2)
    assert (broker.partition().high_watermark, produced(waiting).error_code) == (4, ErrorCode.NONE)
    (proposed,) = broker.trace.events(IsrProposed)
    assert (proposed.topic, proposed.isr, proposed.proposed) == ("t", (1, 2, 3), (1, 2))


def test_all_that_fell_behind_go_at_once_and_the_leader_stays() -> None:
    broker = holder()
    broker.later(2 * LAG_MS)
    assert broker.wanted() == [{0: (1,)}]
    broker.answer(done((1,)))
    assert broker.partition().high_watermark == 3
    broker.later(10 * LAG_MS)
    assert len(broker.asked()) == 1


def test_who_has_everything_stays_however_long_nothing_comes() -> None:
    broker = holder()
    broker.follow(2, 3)
    broker.follow(3, 3)
    broker.later(10 * LAG_MS)
    assert broker.asked() == []


def test_an_answer_that_is_lost_leaves_it_open_which_isr_holds() -> None:
    broker = holder()
    keep_up(broker, 2, 2 * LAG_MS)
    broker.last().fail(PeerTimedOut("late"))
    broker.follow(3, 2)
    broker.follow(2, 3)
    assert broker.partition().high_watermark == 2, "3 may be in the ISR still"
    broker.later(RETRY_LAST_MS)
    assert broker.wanted() == [{0: (1, 2)}] * 2
    broker.answer(done((1, 2)))
    assert broker.partition().high_watermark == 3


def test_who_has_caught_up_is_asked_in_by_its_own_fetch_and_counts_from_the_asking_on() -> None:
    broker = holder((1, 2))
    broker.follow(2, 3)
    assert broker.partition().high_watermark == 3
    broker.follow(3, 2)
    assert broker.wanted() == [], "it lacks what is committed"
    broker.follow(3, 3)
    assert broker.wanted() == [{0: (1, 2, 3)}]
    broker.produce(acks=1)
    broker.follow(2, 4)
    assert broker.partition().high_watermark == 3, "3 may be in the ISR already"
    broker.answer(done((1, 2, 3)))
    assert (broker.isr(), broker.partition().high_watermark) == ((1, 2, 3), 3)
    broker.follow(3, 4)
    assert broker.partition().high_watermark == 4


def test_one_slot_a_partition() -> None:
    broker = holder((1,), count=1)
    broker.follow(3, 2)
    broker.follow(2, 2)
    assert broker.wanted() == [{0: (1, 3)}]
    broker.answer(done((1, 3)))
    assert broker.wanted()[1:] == [{0: (1, 3, 2)}]


@pytest.mark.parametrize("why", ["dead", "on its way out"])
def test_who_is_not_live_by_the_metadata_is_not_asked_in(why: str) -> None:
    broker = holder((1, 2))
    dead = (1, 2) if why == "dead" else (1, 2, 3)
    broker.hear((1, 2), alive=dead, offline=() if why == "dead" else (3,))
    broker.follow(3, 3)
    assert broker.asked() == []
    broker.hear((1, 2))
    assert broker.wanted() == [{0: (1, 2, 3)}]


def test_one_that_bounced_does_not_join_by_what_it_had_before() -> None:
    """KIP-903: it may have lost the end of its log with its last life."""
    broker = holder()
    broker.follow(3, 3)
    broker.begin_leading((1, 2), leader_epoch=5, version=9)
    broker.hear((1, 2), leader_epoch=5, version=9)
    broker.follow(2, 3)
    broker.later(1_000)
    assert broker.asked() == []
    broker.follow(3, 2)
    assert broker.asked() == []
    broker.follow(3, 3)
    assert broker.wanted() == [{0: (1, 2, 3)}]


@pytest.mark.parametrize("error", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_change_that_was_refused_is_decided_anew_in_a_while(error: ErrorCode) -> None:
    broker = holder()
    keep_up(broker, 2, 2 * LAG_MS)
    broker.answer(refused(error))
    assert broker.partition().high_watermark == 2
    broker.follow(3, 3)
    broker.later(RETRY_LAST_MS)
    assert len(broker.asked()) == 1, "by now it has caught up"
    assert broker.partition().high_watermark == 3


def test_a_controller_that_knows_better_leaves_it_open_which_isr_holds() -> None:
    broker = holder()
    keep_up(broker, 2, 2 * LAG_MS)
    broker.answer(refused(ErrorCode.FENCED_LEADER_EPOCH))
    broker.follow(2, 3)
    broker.later(5 * LAG_MS)
    assert (len(broker.asked()), broker.partition().high_watermark) == (1, 2)
    broker.begin_leading((1, 2), leader_epoch=5, version=9)
    broker.follow(2, 3)
    assert broker.partition().high_watermark == 3


def test_a_follower_asks_for_nothing_and_one_that_led_neither() -> None:
    broker = holder()
    broker.lead((2, 3), leader=2, leader_epoch=5)
    broker.later(10 * LAG_MS)
    assert broker.asked() == []


def keeping_up_outside() -> Holder:
    """With 2 in the ISR, and 3, which has everything, on its way out."""
    broker = holder((1, 2))
    broker.follow(2, 3)
    broker.follow(3, 3)
    broker.answer(refused(ErrorCode.OPERATION_NOT_ATTEMPTED))
    return broker


def test_what_keeps_up_outside_the_isr_holds_the_high_watermark_back_for_its_time_only() -> None:
    broker = keeping_up_outside()
    waiting = broker.produce(timeout_ms=120_000)
    broker.follow(2, 4)
    broker.later(1)
    assert not waiting.answered
    while not waiting.answered and broker.clock.now_ms() < 3 * LAG_MS:
        for _, _, _, answer in broker.peers.asked:
            if not answer.done:
                broker.answer(refused(ErrorCode.OPERATION_NOT_ATTEMPTED))
        broker.later(100)
    assert produced(waiting).error_code == ErrorCode.NONE


def test_what_kept_up_outside_the_isr_and_died_is_not_waited_for() -> None:
    broker = keeping_up_outside()
    waiting = broker.produce(timeout_ms=120_000)
    broker.follow(2, 4)
    assert not waiting.answered
    broker.hear((1, 2), alive=(1, 2))
    assert produced(waiting).error_code == ErrorCode.NONE
