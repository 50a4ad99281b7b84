"""A leader's view of its followers, and what follows from it: the high watermark, who falls out of the ISR, who may
join it.

Pure rules over a value; no I/O, no clock: the caller says what time it is. Source: Kafka 2.8's Partition and Replica,
and KIP-497 for what holds while a change of the ISR is under way: as long as it is not known whether the controller
made it, the high watermark is held back by the members of both ISRs, the old and the proposed (the maximal ISR).

A follower's log end is what it asked for last, in this leader epoch: it has everything below. With a new epoch it is
unknown again until the follower has fetched in it, so that what a broker had in an earlier life counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
NEVER_MS = -math.inf

Live: TypeAlias = Callable[[int], bool]
"""Whether a broker is live, as far as this one knows."""


class Fetching(Protocol):
    """Who fetches again and again from where it is: a follower's session."""

    heard_ms: float
    """When it did so last."""


class FollowerState:
    """A follower's state as its leader knows it.

    `log_end_offset` and `log_start_offset` are those of its last fetch. `broker_epoch` is that of its incarnation, if
    it sent one. A caught-up follower repeats the same position with each fetch of its session. While it is `quiet`,
    those fetches do not update this object: the time of the session's last fetch (`quiet.heard_ms`) counts instead.
    """

    __slots__ = (
        "_caught_up_ms",
        "_fetch_ms",
        "broker_epoch",
        "leader_end_at_fetch",
        "log_end_offset",
        "log_start_offset",
        "quiet",
    )

    def __init__(self, last_caught_up_ms: float = NEVER_MS) -> None:
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.leader_end_at_fetch = UNKNOWN_OFFSET
        self.broker_epoch = UNKNOWN_EPOCH
        self.quiet: Fetching | None = None
        self._caught_up_ms = last_caught_up_ms
        self._fetch_ms = NEVER_MS

    @property
    def last_caught_up_ms(self) -> float:
        """The latest time at which it is known to have had all that the leader had."""
        return self._caught_up_ms if self.quiet is None else max(self._caught_up_ms, self.quiet.heard_ms)

    @property
    def last_fetch_ms(self) -> float:
        return self._fetch_ms if self.quiet is None else max(self._fetch_ms, self.quiet.heard_ms)

    def rouse(self, by: Fetching) -> None:
        """Stop counting the fetches of session `by` as fetches of this follower."""
        if self.quiet is by:
            self._caught_up_ms, self._fetch_ms = self.last_caught_up_ms, self.last_fetch_ms
            self.quiet = None

    def fetched(self, fetch_offset: int, log_start_offset: int, leader_end: int, now_ms: float) -> None:
        """A fetch that reaches the leader's present end is caught up now; one that reaches the end of the fetch
        before was caught up then."""
        if fetch_offset >= leader_end:
            caught_up_ms = now_ms
        else:
            caught_up_ms = self._fetch_ms if fetch_offset >= self.leader_end_at_fetch else NEVER_MS
        if caught_up_ms > self._caught_up_ms:
            self._caught_up_ms = caught_up_ms
        self.log_end_offset, self.log_start_offset = fetch_offset, log_start_offset
        self.leader_end_at_fetch, self._fetch_ms = leader_end, now_ms


class LeaderState:
    """One broker's uninterrupted leadership of one partition, over all of its leader epochs.

    A caller that keeps this object can detect that leadership was lost in the meantime. `isr` is the ISR that the
    controller has written, `proposed` the one that was requested and is not settled yet. `epoch_start_offset` is the
    log end offset at the start of the leader epoch."""

    __slots__ = ("epoch_start_offset", "followers", "isr", "me", "proposed")

    def __init__(
        self, isr: Iterable[int], replicas: Iterable[int], me: int, now_ms: float, epoch_start_offset: int = 0
    ) -> None:
        self.me = me
        self.begin_epoch(isr, replicas, now_ms, epoch_start_offset)

    def begin_epoch(self, isr: Iterable[int], replicas: Iterable[int], now_ms: float, epoch_start_offset: int) -> None:
        """A new leader epoch. The members of its ISR have all their time to be heard of."""
        self.isr = tuple(isr)
        self.proposed: tuple[int, ...] | None = None
        self.epoch_start_offset = epoch_start_offset
        self.followers = {
            replica: FollowerState(last_caught_up_ms=now_ms if replica in self.isr else NEVER_MS)
            for replica in replicas
            if replica != self.me
        }

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Return all replicas that may be in the ISR, as far as this leader knows (Kafka's maximal ISR)."""
        if self.proposed is None:
            return self.isr
        return (*self.isr, *(replica for replica in self.proposed if replica not in self.isr))

    def follower_fetched(
        self,
        broker: int,
        fetch_offset: int,
        log_start_offset: int,
        leader_end: int,
        now_ms: float,
        broker_epoch: int = UNKNOWN_EPOCH,
    ) -> bool:
        """Whether it is known now to have another end than before. KeyError: it is no replica of this partition."""
        follower = self.followers[broker]
        before = follower.log_end_offset
        follower.fetched(fetch_offset, log_start_offset, leader_end, now_ms)
        follower.broker_epoch = broker_epoch
        return follower.log_end_offset != before

    def lives_of(self, members: Iterable[int], mine: int) -> tuple[int, ...]:
        """Which life of each member is spoken of, as far as is known: what it had is that life's alone (KIP-903)."""
        known = {broker: follower.broker_epoch for broker, follower in self.followers.items()} | {self.me: mine}
        return tuple(known.get(member, UNKNOWN_EPOCH) for member in members)

    def high_watermark(self, log_end: int, now_ms: float, lag_max_ms: float, live: Live = lambda _broker: True) -> int:
        """Return the offset below which every member of the maximal ISR has all records, or UNKNOWN_OFFSET while a
        member's position is unknown.

        A member that is not a replica any more never reports one: until the controller has removed it, it may still be
        elected. A replica outside the ISR that keeps up counts too, or it could never join under load; but not if it is
        dead, because its position never advances (as Kafka from 3.4 on)."""
        lowest, followers = log_end, self.followers
        isr = self.isr if self.proposed is None else self.maximal_isr
        for broker in isr:
            if broker not in followers and broker != self.me:
                return UNKNOWN_OFFSET
        for broker, follower in followers.items():
            if follower.log_end_offset >= lowest:
                continue
            if broker in isr or (now_ms - follower.last_caught_up_ms <= lag_max_ms and live(broker)):
                lowest = follower.log_end_offset
        return lowest

    def all_at(self, log_end: int) -> bool:
        """Return whether each follower is known to have all records."""
        return all(follower.log_end_offset == log_end for follower in self.followers.values())

    def low_watermark(self, log_start: int, live: Iterable[int]) -> int:
        """The lowest log start offset of the leader and its live followers: none of them has records below it."""
        starts = (self.followers[broker].log_start_offset for broker in live if broker in self.followers)
        return min((log_start, *starts))

    def keeps_isr(self, log_end: int, high_watermark: int, now_ms: float, lag_max_ms: float) -> bool:
        """Return True if no replica is `behind` and none `caught_up`, which is nearly always so."""
        isr = self.isr
        members = 1 if self.me in isr else 0
        for broker, follower in self.followers.items():
            end = follower.log_end_offset
            if broker in isr:
                members += 1
                if end != log_end and now_ms - follower.last_caught_up_ms > lag_max_ms:
                    return False
            elif end >= max(high_watermark, self.epoch_start_offset) and now_ms - follower.last_fetch_ms <= lag_max_ms:
                return False
        return members == len(isr)

    def behind(self, log_end: int, now_ms: float, lag_max_ms: float) -> tuple[int, ...]:
        """Members of the ISR that have not had everything for longer than `lag_max_ms`. Never this broker itself."""
        found: tuple[int, ...] = ()
        for broker in self.isr:
            if broker == self.me:
                continue
            follower = self.followers.get(broker)
            if follower is None or (
                follower.log_end_offset != log_end and now_ms - follower.last_caught_up_ms > lag_max_ms
            ):
                found += (broker,)
        return found

    def caught_up(self, high_watermark: int, now_ms: float, lag_max_ms: float) -> tuple[int, ...]:
        """Replicas outside the ISR that may join it: they have all that is committed and all that was there when the
        leader epoch began, and they are fetching."""
        found: tuple[int, ...] = ()
        for broker, follower in self.followers.items():
            if (
                broker not in self.isr
                and follower.log_end_offset >= high_watermark
                and follower.log_end_offset >= self.epoch_start_offset
                and now_ms - follower.last_fetch_ms <= lag_max_ms
            ):
                found += (broker,)
        return found
