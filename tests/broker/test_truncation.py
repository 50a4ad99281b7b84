"""Where two logs part, by their leader epochs: Kafka's cases, and those that KIP-101 and KIP-279 are about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.broker.fetcher_state import (
    AskForStart,
    InRange,
    LeadersRange,
    RestartAt,
    TruncateTo,
    Truncation,
    after_out_of_range,
    truncation,
)
from controller.storage import EpochEnd, EpochStart
from controller.storage.checkpoints import LeaderEpochs


def epochs(*starts: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(EpochStart(epoch, start) for epoch, start in starts)


@pytest.mark.parametrize(
    ("own", "log_end", "leader", "expected", "why"),
    [
        (epochs((0, 0)), 10, EpochEnd(0, 10), Truncation(10, True), "the same log"),
        (epochs((0, 0)), 10, EpochEnd(0, 25), Truncation(10, True), "the leader has more of it"),
        (epochs((0, 0)), 10, EpochEnd(0, 7), Truncation(7, True), "KIP-101: the leader has less of it"),
        (epochs((0, 0), (2, 6)), 10, EpochEnd(0, 8), Truncation(6, True), "epoch 2 was another leader's"),
        (epochs((0, 0), (2, 6)), 10, EpochEnd(0, 5), Truncation(5, True), "and of epoch 0 there is too much"),
        (epochs((0, 0), (2, 6)), 10, EpochEnd(1, 9), Truncation(6, False), "KIP-279: epoch 1 was never here"),
        (epochs((3, 0), (5, 6)), 10, EpochEnd(2, 4), Truncation(0, True), "all that is here is later"),
        (epochs((0, 0)), 10, EpochEnd(-1, -1), Truncation(4, True), "the leader knows no epochs: the high watermark"),
        (epochs((0, 0)), 3, EpochEnd(-1, -1), Truncation(3, True), "which is beyond the end"),
        (epochs(), 10, EpochEnd(1, 8), Truncation(8, True), "this log knows no epochs"),
        (epochs((0, 0)), 10, EpochEnd(-1, 8), Truncation(8, True), "an answer of version 0 names no epoch"),
        (epochs((0, 0)), 10, EpochEnd(4, 8), Truncation(8, True), "a later epoch than any here"),
        (epochs((0, 0), (2, 10)), 10, EpochEnd(0, 12), Truncation(10, True), "epoch 2 got no record"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_log_keeps_what_its_leader_has(
    own: LeaderEpochs, log_end: int, leader: EpochEnd, expected: Truncation, why: str
) -> None:
    assert truncation(own, log_end, 4, leader) == expected, why


lives = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=8)


@given(common=lives, mine=lives, theirs=lives)
def test_asking_again_until_agreed_ends_where_the_logs_part(
    common: list[tuple[int, int]], mine: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    """Logs as lists of epochs, one a record. An epoch has one leader, so epochs that one of the two has alone are told
    apart by being odd or even."""
    base = written([], common, None)
    own, leader = written(base, mine, 1), written(base, theirs, 0)
    parts = next((at for at, (a, b) in enumerate(zip(own, leader, strict=False)) if a != b), min(len(own), len(leader)))
    for _ in range(len(own) + 1):
        held = starts(own)
        if held.latest < 0:
            break
        found = truncation(held, len(own), 0, leading(leader).end_offset_for(held.latest, len(leader)))
        if found.offset == len(own) and found.agreed:
            break
        assert found.offset >= parts, "nothing that both have is cut"
        own = own[: found.offset]
    assert own == leader[: len(own)]
    assert len(own) >= parts


def written(base: list[int], lives: list[tuple[int, int]], parity: int | None) -> list[int]:
    """`lives`: how much later each next leader's epoch is, and how many records it got."""
    log = list(base)
    epoch = base[-1] if base else 0
    for later, count in lives:
        epoch += 1 + later
        if parity is not None and epoch % 2 != parity:
            epoch += 1
        log += [epoch] * count
    return log


def leading(log: list[int]) -> LeaderEpochs:
    """A leader has put down its own epoch, later than any."""
    found = starts(log)
    found.assign(1_000, len(log))
    return found


def starts(log: list[int]) -> LeaderEpochs:
    found = LeaderEpochs()
    for offset, epoch in enumerate(log):
        if epoch != found.latest:
            found.assign(epoch, offset)
    return found


@pytest.mark.parametrize(
    ("log_end", "leader", "expected"),
    [
        (100, LeadersRange(60), TruncateTo(60)),
        (100, LeadersRange(100), AskForStart()),
        (100, LeadersRange(200), AskForStart()),
        (100, LeadersRange(200, 150), RestartAt(150)),
        (100, LeadersRange(200, 100), InRange()),
        (100, LeadersRange(200, 0), InRange()),
        (100, LeadersRange(60, 50), TruncateTo(60)),
    ],
)
def test_a_log_out_of_its_leaders_range_is_cut_or_begun_again(
    log_end: int, leader: LeadersRange, expected: object
) -> None:
    assert after_out_of_range(log_end, leader) == expected
