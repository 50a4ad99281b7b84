"""What a leader makes of its followers' fetches: the high watermark, who is out of sync, who may join.

Tables for the rules, and for what they are good for a little world: whatever the controller has made of a proposal, and
whenever the leader hears of it, nobody in the real ISR lacks what the leader takes for committed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from controller.broker.partition import UNKNOWN_OFFSET, LeaderState, Live

ME, LAG_MS = 1, 100.0
REPLICAS = (1, 2, 3)


def leader(isr: tuple[int, ...] = REPLICAS, now_ms: float = 0.0, epoch_start: int = 0) -> LeaderState:
    return LeaderState(isr, REPLICAS, ME, now_ms, epoch_start)


def fetched(state: LeaderState, broker: int, offset: int, end: int, now_ms: float = 0.0) -> bool:
    return state.follower_fetched(broker, offset, 0, end, now_ms)


@pytest.mark.parametrize(
    ("isr", "proposed", "ends", "expected"),
    [
        ((1,), None, {}, 10),
        ((1, 2, 3), None, {2: 7, 3: 4}, 4),
        ((1, 2, 3), None, {2: 7}, UNKNOWN_OFFSET),
        ((1, 2), None, {2: 7, 3: 4}, 7),
        ((1, 2), (1, 2, 3), {2: 7, 3: 4}, 4),
        ((1, 2, 3), (1, 2), {2: 7, 3: 4}, 4),
        ((1, 2, 3), None, {2: 12, 3: 11}, 10),
    ],
    ids=[
        "alone",
        "the slowest of the ISR",
        "one not heard of in this epoch",
        "outside the ISR nobody counts",
        "one that may be in the ISR already counts",
        "one that may be in the ISR still counts",
        "never beyond the leader's own end",
    ],
)
def test_the_high_watermark_is_what_every_possible_isr_has(
    isr: tuple[int, ...], proposed: tuple[int, ...] | None, ends: dict[int, int], expected: int
) -> None:
    state = leader(isr)
    for broker, end in ends.items():
        fetched(state, broker, end, 20)
    state.proposed = proposed
    assert state.high_watermark(10, LAG_MS + 1, LAG_MS) == expected


@pytest.mark.parametrize("proposed", [None, (1,)])
def test_a_member_that_is_no_replica_any_more_is_waited_for_until_it_is_out(proposed: tuple[int, ...] | None) -> None:
    """The moment in which a reassignment's target leads and the controller has yet to take the others out (the swarm's
    seed 2261): one of them would lead next if the leader died in it."""
    state = LeaderState((1, 9), REPLICAS, ME, 0.0)
    state.proposed = proposed
    assert state.high_watermark(10, 10 * LAG_MS, LAG_MS) == UNKNOWN_OFFSET
    state.isr, state.proposed = (1,), None
    assert state.high_watermark(10, 10 * LAG_MS, LAG_MS) == 10


def test_who_keeps_up_outside_the_isr_is_waited_for_until_it_lags() -> None:
    state = leader((1, 2))
    fetched(state, 2, 10, 10, 50.0)
    fetched(state, 3, 8, 8, 50.0)
    assert state.high_watermark(10, 50.0 + LAG_MS, LAG_MS) == 8
    assert state.high_watermark(10, 51.0 + LAG_MS, LAG_MS) == 10
    assert state.high_watermark(10, 50.0, LAG_MS, lambda broker: broker != 3) == 10, "the dead are not waited for"


@pytest.mark.parametrize(
    ("fetches", "now_ms", "behind"),
    [
        ([], LAG_MS, ()),
        ([], LAG_MS + 1, (2,)),
        ([(10, 10, 0.0)], 10 * LAG_MS, ()),  # it has all there is: however long nothing came
        ([(9, 9, 50.0)], 50.0 + LAG_MS, ()),
        ([(9, 9, 50.0)], 51.0 + LAG_MS, (2,)),
        ([(5, 9, 50.0), (9, 12, 90.0)], 50.0 + LAG_MS, ()),  # what there was at 50 it had at 90
        ([(5, 9, 50.0), (9, 12, 90.0)], 51.0 + LAG_MS, (2,)),
        ([(5, 9, 50.0), (8, 12, 90.0)], LAG_MS + 1, (2,)),  # always behind, however often it fetches
    ],
)
def test_out_of_sync_is_who_has_not_had_everything_for_too_long(
    fetches: list[tuple[int, int, float]], now_ms: float, behind: tuple[int, ...]
) -> None:
    """`fetches`: (offset, the leader's end then, when)."""
    state = leader((1, 2))
    for offset, end, at_ms in fetches:
        fetched(state, 2, offset, end, at_ms)
    assert state.behind(10, now_ms, LAG_MS) == behind


def test_the_leader_itself_is_never_out_of_sync_and_who_is_no_replica_always() -> None:
    state = LeaderState((1, 9), REPLICAS, ME, 0.0)
    assert state.behind(10, 0.0, LAG_MS) == (9,)
    assert LeaderState((1,), REPLICAS, ME, 0.0).behind(10, 10 * LAG_MS, LAG_MS) == ()


@pytest.mark.parametrize(
    ("offset", "at_ms", "joins"),
    [(8, 90.0, True), (7, 90.0, False), (6, 90.0, False), (8, -20.0, False)],
    ids=["has all that is committed", "lacks a record of before the epoch", "lacks a committed one", "fetches no more"],
)
def test_one_that_has_what_is_committed_and_what_the_epoch_began_with_may_join(
    offset: int, at_ms: float, joins: bool
) -> None:
    state = leader((1, 2), epoch_start=8)
    fetched(state, 3, offset, 20, at_ms)
    assert state.caught_up(7, 100.0, LAG_MS) == ((3,) if joins else ())


def test_what_was_known_of_followers_does_not_outlive_the_leader_epoch() -> None:
    """A broker that bounced and lost its log's end must not join by what it had before (KIP-903)."""
    state = leader((1, 2, 3))
    fetched(state, 2, 10, 10, 5.0)
    state.proposed = (1, 2)
    state.begin_epoch((1,), REPLICAS, 10.0, 10)
    assert state.maximal_isr == (1,)
    assert state.caught_up(10, 10.0, LAG_MS) == ()
    assert state.high_watermark(10, 10.0, LAG_MS) == 10


def test_a_member_of_a_new_epochs_isr_has_its_time_to_be_heard_of() -> None:
    state = leader((1, 2), now_ms=500.0)
    assert state.behind(10, 500.0 + LAG_MS, LAG_MS) == ()
    assert state.high_watermark(10, 500.0, LAG_MS) == UNKNOWN_OFFSET


def test_whether_a_fetch_tells_something_new() -> None:
    state = leader()
    assert [fetched(state, 2, offset, 9) for offset in (4, 4, 9)] == [True, False, True]
    with pytest.raises(KeyError):
        fetched(state, 8, 4, 9)


@pytest.mark.parametrize(
    ("starts", "live", "low"), [({2: 3, 3: 5}, (1, 2, 3), 3), ({2: 3, 3: 5}, (1, 3), 4), ({}, (1, 2), -1)]
)
def test_the_low_watermark_is_the_lowest_start_of_those_that_live(
    starts: dict[int, int], live: tuple[int, ...], low: int
) -> None:
    state = leader()
    for broker, start in starts.items():
        state.follower_fetched(broker, 9, start, 9, 0.0)
    assert state.low_watermark(4, live) == low


# -- a little world

LIVE: Live = frozenset(REPLICAS).__contains__

Made = Callable[..., LeaderState]


class World:
    """Followers that fetch, and a controller whose answers come late or never. `seen`: the leader's high watermark."""

    def __init__(self, seed: int, made: Made) -> None:
        self.draw = random.Random(seed)
        self.state = made(REPLICAS, REPLICAS, ME, 0.0, 0)
        self.now_ms, self.end, self.seen = 0.0, 0, 0
        self.ends = {2: 0, 3: 0}
        self.isr: tuple[int, ...] = REPLICAS  # the controller's
        self.open: tuple[int, ...] | None = None
        self.applied = False

    def step(self) -> None:
        what = self.draw.choice(
            (self.append, self.fetch, self.fetch, self.fetch, self.wait, self.propose, self.apply, self.hear)
        )
        what()
        self.seen = max(self.seen, self.state.high_watermark(self.end, self.now_ms, LAG_MS))

    def append(self) -> None:
        self.end += self.draw.randint(1, 3)

    def fetch(self) -> None:
        broker = self.draw.choice((2, 3))
        self.state.follower_fetched(broker, self.ends[broker], 0, self.end, self.now_ms)
        if self.draw.random() < 0.7:  # else the answer is lost
            self.ends[broker] = self.draw.randint(self.ends[broker], self.end)

    def wait(self) -> None:
        self.now_ms += self.draw.choice((1.0, LAG_MS / 2, 2 * LAG_MS))

    def propose(self) -> None:
        if self.open is not None:
            return
        behind = self.state.behind(self.end, self.now_ms, LAG_MS)
        joining = self.state.caught_up(self.seen, self.now_ms, LAG_MS)
        wanted = (*(one for one in self.state.isr if one not in behind), *joining)
        if set(wanted) != set(self.state.isr):
            self.state.proposed = self.open = wanted
            self.applied = False

    def apply(self) -> None:
        if self.open is not None and not self.applied:
            self.isr, self.applied = self.open, True

    def hear(self) -> None:
        """An answer; a proposal that was not made is refused or made first."""
        if self.open is None:
            return
        if self.applied or self.draw.random() < 0.5:
            self.apply()
            self.state.isr = self.isr
        self.state.proposed = self.open = None

    def trouble(self) -> str | None:
        lacking = [one for one in self.isr if one != ME and self.ends[one] < self.seen]
        if lacking or self.seen > self.end or ME not in self.isr:
            return f"{lacking} lack what is committed below {self.seen}: {self.ends}, ISR {self.isr}"
        return None


def first_trouble(made: Made, seeds: range) -> str | None:
    for seed in seeds:
        world = World(seed, made)
        for _ in range(120):
            world.step()
            if (trouble := world.trouble()) is not None:
                return trouble
    return None


def test_nobody_in_the_real_isr_lacks_what_the_leader_takes_for_committed() -> None:
    assert first_trouble(LeaderState, range(300)) is None


class OneTooFar(LeaderState):
    def high_watermark(self, log_end: int, now_ms: float, lag_max_ms: float, live: Live = LIVE) -> int:
        reached = super().high_watermark(log_end, now_ms, lag_max_ms, live)
        return reached + 1 if 0 <= reached < log_end else reached


class IsrShrunkWithoutTheController(LeaderState):
    def high_watermark(self, log_end: int, now_ms: float, lag_max_ms: float, live: Live = LIVE) -> int:
        behind = self.behind(log_end, now_ms, lag_max_ms)
        self.isr = tuple(one for one in self.isr if one not in behind)
        return super().high_watermark(log_end, now_ms, lag_max_ms, live)


class ProposalTakenForGranted(LeaderState):
    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return self.isr if self.proposed is None else self.proposed


class ProposalIgnored(LeaderState):
    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return self.isr


class UnheardOfIsIgnored(LeaderState):
    def high_watermark(self, log_end: int, now_ms: float, lag_max_ms: float, live: Live = LIVE) -> int:
        ends = [one.log_end_offset for one in self.followers.values() if one.log_end_offset != UNKNOWN_OFFSET]
        return min([log_end, *ends])


class AnyoneMayJoin(LeaderState):
    def caught_up(self, high_watermark: int, now_ms: float, lag_max_ms: float) -> tuple[int, ...]:
        return tuple(one for one in self.followers if one not in self.isr)


@pytest.mark.parametrize(
    "fault",
    [
        OneTooFar,
        IsrShrunkWithoutTheController,
        ProposalTakenForGranted,
        ProposalIgnored,
        UnheardOfIsIgnored,
        AnyoneMayJoin,
    ],
)
def test_the_little_world_finds_a_planted_fault(fault: Made) -> None:
    assert first_trouble(fault, range(300)) is not None
