"""Each checker holds for a sound history, catches the fault planted for it, and says "unknown" where it did not see
enough; and all of them agree with a slow and obvious one on random histories."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.scenarios.records import delivery_audit
from controller.scenarios.records.checks import (
    ANY_LOSS,
    NO_LOSS,
    RECORD_CHECKS,
    SOME_LOSS,
    all_served,
    check_records,
    loss_as_expected,
)
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.history import FAILED, FOREIGN, INDETERMINATE, Reached, ReadLog
from controller.scenarios.records.workload import ACKS_LEADER, RecordWorkload
from tests.scenarios.records.histories import PARTITIONS, Story, evidence, random_story, sound
from tests.scenarios.records.slow_checker import RULES, Slow


def test_a_sound_history_holds_in_every_respect() -> None:
    for name, finding in check_records(evidence(sound()), None, NO_LOSS):
        assert finding.held is True, (name, finding.detail)


def acknowledged_and_lost(story: Story) -> None:
    story.logs[1].pop()


def in_the_wrong_order(story: Story) -> None:
    log = story.logs[0]
    log[0], log[2] = log[2], log[0]


def written_twice(story: Story) -> None:
    story.logs[0].append(story.logs[0][-1])


def failed_yet_written(story: Story) -> None:
    story.send(0, 0, FAILED)


def never_sent(story: Story) -> None:
    story.logs[0].append((1, 999, 1))


def under_another_key(story: Story) -> None:
    producer, sequence, key = story.logs[0][3]
    story.logs[0][3] = (producer, sequence, key + 2)


def in_another_partition(story: Story) -> None:
    story.logs[1].append(story.logs[0][-1])


def foreign(story: Story) -> None:
    story.logs[0].append((FOREIGN, -1, -1))


def elsewhere_than_acknowledged(story: Story) -> None:
    story.sends[0].offset[4] += 1


def read_and_gone(story: Story) -> None:
    story.send(0, 0, INDETERMINATE)
    story.read(1, 0, len(story.logs[0]) - 1)
    story.logs[0].pop()


def read_and_replaced(story: Story) -> None:
    story.send(0, 0, INDETERMINATE)
    story.read(1, 0, len(story.logs[0]) - 1)
    story.logs[0].pop()
    story.send(1, 0)


def read_beyond_the_high_watermark(story: Story) -> None:
    story.read(0, 0, 3, high_watermark=3)


def offsets_passed_over(story: Story) -> None:
    story.read(0, 0, 1)
    story.read(0, 0, 4)


def read_again(story: Story) -> None:
    story.read(0, 0, 3)


def acknowledged_backwards(story: Story) -> None:
    """Of two records that no reader can have seen any more: retention took them."""
    offsets = story.sends[0].offset
    offsets[0], offsets[2] = offsets[2], offsets[0]
    story.start = 3
    story.consumers = [ReadLog(0), ReadLog(1)]
    story.read(0, 0, 3)


def not_readable(story: Story) -> None:
    story.reached[1] = Reached.NOTHING_MORE


def given_up(story: Story) -> None:
    story.troubles.append("producer 1: its sequence is not taken")


@pytest.mark.parametrize(
    ("plant", "broken"),
    [
        (acknowledged_and_lost, "lost-write"),
        (in_the_wrong_order, "nonmonotonic-send"),
        (written_twice, "duplicate"),
        (failed_yet_written, "G1a"),
        (never_sent, "records-as-sent"),
        (under_another_key, "records-as-sent"),
        (in_another_partition, "records-as-sent"),
        (foreign, "records-as-sent"),
        (elsewhere_than_acknowledged, "inconsistent-offsets"),
        (read_and_gone, "reads-kept"),
        (read_and_replaced, "reads-kept"),
        (read_and_replaced, "inconsistent-offsets"),
        (read_again, "nonmonotonic-poll"),
        (acknowledged_backwards, "nonmonotonic-send"),
        (read_beyond_the_high_watermark, "reads-kept"),
        (offsets_passed_over, "poll-skip"),
        (not_readable, "partitions-readable"),
        (given_up, "clients-served"),
    ],
)
def test_a_planted_fault_is_caught(plant: Callable[[Story], None], broken: str) -> None:
    story = sound()
    plant(story)
    findings = dict(check_records(evidence(story), None, NO_LOSS))
    assert findings[broken].held is False, findings[broken]


def test_what_was_violated_is_named() -> None:
    story = sound()
    acknowledged_and_lost(story)
    detail = RECORD_CHECKS["lost-write"](evidence(story)).detail
    assert detail == (
        "1 acknowledged records lost, the first t-1: producer 1, key 3, record 9, sent 9.0 ms, acknowledged 14.0 ms"
        " at offset 9"
    )
    story = sound()
    in_the_wrong_order(story)
    assert "t-0, offset 1: producer 0, key 2, record 1" in RECORD_CHECKS["nonmonotonic-send"](evidence(story)).detail


def no_final_read(story: Story) -> None:
    story.final = False


def ended_early(story: Story) -> None:
    story.reached[0] = Reached.PART


@pytest.mark.parametrize("plant", [no_final_read, ended_early])
@pytest.mark.parametrize("name", [name for name in RECORD_CHECKS if name != "clients-served"])
def test_what_was_not_seen_does_not_hold(name: str, plant: Callable[[Story], None]) -> None:
    story = sound()
    plant(story)
    assert RECORD_CHECKS[name](evidence(story)).held is None


def test_a_run_in_which_nothing_was_acknowledged_shows_nothing() -> None:
    story = Story()
    assert all(finding.held is not True for _, finding in check_records(evidence(story), None, NO_LOSS)[:6])
    story.send(0, 0, INDETERMINATE)
    assert RECORD_CHECKS["lost-write"](evidence(story)).held is None
    assert RECORD_CHECKS["reads-kept"](evidence(story)).held is None


def test_a_violation_outweighs_what_was_not_seen() -> None:
    story = sound()
    acknowledged_and_lost(story)
    story.reached[0] = Reached.PART
    assert RECORD_CHECKS["lost-write"](evidence(story)).held is False


def test_a_partition_that_nobody_leads_need_not_be_readable() -> None:
    story = sound()
    not_readable(story)
    assert RECORD_CHECKS["partitions-readable"](evidence(story, led=PARTITIONS[:1])).held is None
    assert RECORD_CHECKS["partitions-readable"](evidence(story, led=None)).held is None


def test_producers_that_are_not_promised_order_or_once_are_counted_only() -> None:
    story = sound()
    in_the_wrong_order(story)
    written_twice(story)
    careless = RecordWorkload(idempotent=False, in_flight=5)
    assert RECORD_CHECKS["nonmonotonic-send"](evidence(story, careless)).held is True
    assert RECORD_CHECKS["duplicate"](evidence(story, careless)).held is True
    careful = RecordWorkload(idempotent=False, in_flight=1)
    assert RECORD_CHECKS["nonmonotonic-send"](evidence(story, careful)).held is False
    assert not RecordWorkload(acks=ACKS_LEADER, idempotent=False, in_flight=1).keeps_order


def test_a_producer_that_gave_a_record_up_may_repeat_others() -> None:
    story = sound()
    written_twice(story)
    story.send(1, 0, INDETERMINATE)
    repeating = story.logs[0][len(sound().logs[0]) - 1][0]
    assert RECORD_CHECKS["duplicate"](evidence(story)).held is (None if repeating == 1 else False)
    story.send(0, 0, INDETERMINATE)
    assert RECORD_CHECKS["duplicate"](evidence(story)).held is None


def test_a_producer_that_went_on_in_another_epoch_may_repeat_records() -> None:
    story = sound()
    written_twice(story)
    repeating = story.logs[0][-1][0]
    for producer in (1 - repeating, repeating):
        story.sends[producer].renewed = True
        assert RECORD_CHECKS["duplicate"](evidence(story)).held is (None if producer == repeating else False)


def test_a_record_that_was_given_up_may_come_late() -> None:
    """A request whose answer was not waited for may be written after what was sent next."""
    story = sound()
    given_up = story.send(0, 0, INDETERMINATE, write=0)
    story.send(0, 0)
    story.logs[0].append((0, given_up, 0))
    assert RECORD_CHECKS["nonmonotonic-send"](evidence(story)).held is True


def test_what_retention_took_is_not_lost() -> None:
    story = sound()
    story.start = 3
    for name, finding in check_records(evidence(story), None, NO_LOSS):
        assert finding.held is True, (name, finding.detail)


@pytest.mark.parametrize(
    ("expected", "lossy", "held"),
    [
        (NO_LOSS, False, True),
        (NO_LOSS, True, False),
        (SOME_LOSS, False, False),
        (SOME_LOSS, True, True),
        (ANY_LOSS, False, True),
        (ANY_LOSS, True, True),
    ],
)
def test_loss_may_be_expected(expected: str, lossy: bool, held: bool) -> None:
    story = sound()
    if lossy:
        acknowledged_and_lost(story)
    assert loss_as_expected(evidence(story), expected).held is held
    story.final = False
    assert loss_as_expected(evidence(story), expected).held is None


def test_only_the_checkers_asked_for_are_asked() -> None:
    assert [name for name, _ in check_records(evidence(sound()), ("duplicate", "converged"), NO_LOSS)] == ["duplicate"]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 60), st.booleans())
def test_the_columns_say_what_a_slow_checker_says(seed: int, records: int, final: bool) -> None:
    story = random_story(Random(seed), records)
    story.final = final
    history = story.history()
    fast, slow = DeliveryAudit(history), Slow(history)
    for rule in RULES:
        assert set(getattr(delivery_audit, rule)(fast).tolist()) == getattr(slow, rule)(), rule


def test_random_histories_break_every_rule() -> None:
    """Else the comparison above would compare nothing."""
    broken = dict.fromkeys(RULES, 0)
    for seed in range(60):
        audit = DeliveryAudit(random_story(Random(seed), 60).history())
        for rule in RULES:
            broken[rule] += len(getattr(delivery_audit, rule)(audit))
    assert min(broken.values()) > 5, broken


def test_two_sends_of_one_name_are_refused() -> None:
    story = sound()
    story.sends.append(story.sends[0])
    with pytest.raises(ValueError, match="one producer and sequence"):
        DeliveryAudit(story.history())


def test_an_operation_ends_once() -> None:
    story = sound()
    with pytest.raises(ValueError, match="a second time"):
        story.sends[0].ended(0, FAILED, 1.0)


def test_records_that_were_not_acknowledged_may_be_bounded() -> None:
    story = sound()
    assert all_served(evidence(story), 0).held is True
    story.sends[0].ended(story.sends[0].sent(0, 0, 1.0), FAILED, 2.0, error="no leader")
    assert all_served(evidence(story), 1).held is True
    finding = all_served(evidence(story), 0)
    assert finding.held is False
    assert "no leader" in finding.detail
    assert all_served(evidence(Story()), 0).held is None
