"""One fetch session as a broker keeps it (KIP-227): its partitions' places, and which of them are quiet.

A place is quiet when its next fetch would find what the last one found: nothing, and nothing else to tell. A fetch
does not look at quiet places at all, so that it costs what is new and not what there is. Who changes a partition
rouses its places (`Partition.readers`). No I/O, no clock.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TypeAlias

from controller.broker.leader_state import NEVER_MS, FollowerState
from controller.broker.partition import Partition
from controller.broker.records.fetch_reading import Ask, Reading
from controller.few import Few
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    INITIAL_SESSION_EPOCH,
    NO_DIVERGENCE,
    NO_OFFSET,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
)

EPOCH_MAX = 2**31 - 1
Key: TypeAlias = tuple[str, int]


class Place:
    """A partition of a session: what is asked of it, what that was answered last, and what the client was told of.
    `turn`: places are read in its order."""

    __slots__ = (
        "asked",
        "before",
        "follower",
        "high_watermark",
        "is_active",
        "log_start_offset",
        "partition",
        "session",
        "topic",
        "turn",
    )

    def __init__(self, session: Session, topic: str, asked: FetchPartition, turn: int) -> None:
        self.session = session
        self.topic = topic
        self.asked = asked
        self.turn = turn
        self.before: Reading | None = None
        self.high_watermark = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.partition: Partition | None = None
        self.follower: FollowerState | None = None
        self.is_active = False
        """Among its session's `active`."""

    @property
    def watch_key(self) -> Key:
        return self.session.watch_key

    @property
    def heard_ms(self) -> float:
        return self.session.heard_ms

    def told(self, data: FetchPartitionData) -> bool:
        """Whether the client must be told. After an error it is told of whatever comes next."""
        failed = data.error_code != ErrorCode.NONE
        news = (
            failed
            or bool(_size(data))
            or (data.diverging_epoch is not NO_DIVERGENCE and data.diverging_epoch != NO_DIVERGENCE)
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
        )
        self.high_watermark = NO_OFFSET if failed else data.high_watermark
        self.log_start_offset = data.log_start_offset
        return news

    def rouse(self) -> None:
        """The next fetch looks at it."""
        if not self.is_active:
            self.is_active = True
            session = self.session
            if session.active:
                session.active.append(self)
            else:
                session.active = [self]  # a list that grows takes room for four
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.rouse(self.session)

    def rest(self, ask: Ask) -> bool:
        """Quiet from now on, if it may be. A follower that is not in the ISR may not: each of its fetches is an
        occasion to ask it in."""
        known = self.before
        if known is None or not known.is_still_empty(ask, self.asked) or known.partition is None:
            return False
        if ask.from_follower:
            leading = known.partition.leading
            follower = None if leading is None else leading.followers.get(ask.replica_id)
            if leading is None or follower is None or ask.replica_id not in leading.isr:
                return False
            if follower.log_end_offset != self.asked.fetch_offset or follower.broker_epoch != ask.replica_epoch:
                return False
            follower.quiet, self.follower = self.session, follower
        self.stand_in(known.partition)
        return True

    def leave(self) -> None:
        """It is in the session no more."""
        self.rouse()
        self.stand_in(None)

    def stand_in(self, partition: Partition | None) -> None:
        """It is that partition's to rouse from now on."""
        if partition is self.partition:
            return
        if self.partition is not None and self.partition.readers is not None:
            self.partition.readers = tuple(one for one in self.partition.readers if one is not self) or None
        self.partition = partition
        if partition is not None:
            partition.readers = (*(partition.readers or ()), self)


class Session:
    """`epoch` is the one that the next request must have; `active` are the places that are not quiet; `heard_ms`: when
    the last request came."""

    __slots__ = (
        "_asked",
        "_turn",
        "active",
        "created_ms",
        "epoch",
        "from_follower",
        "heard_ms",
        "id",
        "places",
        "used_ms",
    )

    def __init__(self, session_id: int, from_follower: bool, now_ms: float) -> None:
        self.id = session_id
        self.from_follower = from_follower
        self.epoch = next_epoch(INITIAL_SESSION_EPOCH)
        self.created_ms = self.used_ms = now_ms
        self.heard_ms = NEVER_MS
        self.places: Few[Key, Place] = Few()
        self.active: list[Place] = []
        self._turn = 0
        self._asked: Ask | None = None

    @property
    def watch_key(self) -> Key:
        """Where a fetch of it waits: no topic has that name."""
        return "", self.id

    def update(self, request: FetchRequest) -> None:
        for topic in request.topics:
            for asked in topic.partitions:
                place = self.places.get((topic.topic, asked.partition))
                if place is None:
                    name = sys.intern(topic.topic)
                    place = Place(self, name, one_question(asked), self._next_turn())
                    self.places[name, asked.partition] = place
                else:
                    place.asked, place.before = asked, None
                place.rouse()
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                place = self.places.pop((forgotten.topic, index))
                if place is not None:
                    place.leave()
                    place.is_active = False
        if request.forgotten_topics_data:
            self._leave_out_the_quiet()

    def ask(self, ask: Ask) -> None:
        """The places that are quiet are so for one who asks like that."""
        before, self._asked = self._asked, ask
        if before is not ask and (before is None or not _ask_alike(before, ask)):
            for place in self.places.values():
                place.rouse()

    def looked_at(self) -> list[Place]:
        """Those that are not quiet, in their order."""
        if len(self.active) < 2:
            return list(self.active)
        return sorted(self.active, key=attrgetter("turn"))

    def news(self, readings: Sequence[Reading], ask: Ask | None) -> list[Reading]:
        """What the client must be told. That goes behind the others, whose turn is first the next time: there may not
        be room for all."""
        told = []
        rested = False
        for reading in readings:
            place = self.places.get((reading.topic, reading.data.partition_index))
            if place is None:
                continue
            place.before = None if reading.size_bytes else reading  # records' files are not held on to
            if place.told(reading.data):
                told.append(reading)
                place.turn = self._next_turn()
            if ask is not None and place.rest(ask):
                place.is_active, rested = False, True
        if rested:
            self._leave_out_the_quiet()
        return told

    def _leave_out_the_quiet(self) -> None:
        self.active = [place for place in self.active if place.is_active]

    def end(self) -> None:
        """Nobody fetches in it any more."""
        for place in self.places.values():
            place.leave()

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn


def _ask_alike(one: Ask, other: Ask) -> bool:
    """Whether a place that is quiet for one is quiet for the other."""
    return (
        one.replica_id == other.replica_id
        and one.replica_epoch == other.replica_epoch
        and one.version == other.version
        and one.isolation_level == other.isolation_level
    )


@lru_cache(maxsize=512)  # clients choose the values: six integers each
def one_question(asked: FetchPartition) -> FetchPartition:
    """Return one object for equal questions: of idle partitions many are asked the same."""
    return asked


def next_epoch(epoch: int) -> int:
    """From 2^31 - 1 on to 1: 0 would begin anew."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


def _size(data: FetchPartitionData) -> int:
    records = data.records
    if records is None:
        return 0
    return len(records) if isinstance(records, bytes | memoryview) else records.length
