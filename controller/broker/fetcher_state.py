"""The state of one fetcher's partitions: which are fetched, truncated or delayed, its fetch session, and truncation.

Partitions that have not changed since the last fetch cost nothing in the next one: a leader may have thousands of
partitions, most of them idle. No I/O, no clock. Rules: Kafka 2.8's AbstractFetcherThread and FetchSessionHandler.

A follower finds where its log diverges from its leader's by leader epochs, never by the high watermark as long as
epochs are known. Truncating to the high watermark would remove committed records whose commit the follower had not yet
learned of, and keep what a leader in between had replaced (KIP-101). Accepting a leader's answer about an epoch that it
never saw would keep records of a third log (KIP-279).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import msgspec

from controller.broker.partition import Partition
from controller.broker.settings import BrokerSettings
from controller.few import Few
from controller.protocol.control import NO_BROKER_EPOCH
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    INITIAL_SESSION_EPOCH,
    NO_DIVERGENCE,
    NO_LEADER_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    ReplicaState,
)
from controller.storage import BadBatches, CorruptBatch, OffsetsOutOfOrder, PartitionLog
from controller.storage.checkpoints import UNDEFINED_EPOCH, UNDEFINED_OFFSET, EpochEnd, LeaderEpochs
from controller.trace import LogTruncated, Noted, Trace

Key: TypeAlias = tuple[str, int]
"""Topic and partition."""


@dataclass(slots=True, eq=False)
class FetchedPartition:
    """One for each LeaderAndIsr: an answer is taken only while its partition is followed by the same object, so that
    one to an older leader epoch, or to an earlier life of the partition, changes nothing.

    Where to fetch from is the log's own end, always. `agreed`: the log holds nothing that the leader's has not, as far
    as that must be known before it is fetched from. `ready_ms`: not asked about before that time. `refusals`: how many
    times in a row the leader said that it is not, or does not know. `is_behind`: it lacks something that the leader has
    committed, as far as it knows. `is_busy`: jobs of the log's device are to end before it is asked about again.
    `unflushed`: up to where the log is to be flushed before that; 0 if it is not.
    """

    partition: Partition
    log: PartitionLog
    leader_epoch: int
    agreed: bool
    ready_ms: float = 0.0
    refusals: int = 0
    is_behind: bool = True
    is_busy: bool = False
    unflushed: int = 0
    _asked: FetchPartition | None = None

    @property
    def key(self) -> Key:
        return self.partition.key

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"

    def has_asked(self, question: FetchPartition) -> bool:
        """Whether this asked that question, and has not moved on since."""
        return self._asked is question and question.fetch_offset == self.log.log_end_offset

    def question(self, max_bytes: int, sends_epoch: bool) -> FetchPartition:
        """What is to be fetched next: the same object for as long as it is the same."""
        end, start = self.log.log_end_offset, self.log.log_start_offset
        epoch = self.log.epochs.latest if sends_epoch else NO_LEADER_EPOCH
        asked = self._asked
        if (
            asked is None
            or asked.fetch_offset != end
            or asked.log_start_offset != start
            or asked.last_fetched_epoch != epoch
        ):
            asked = _asked(self.partition.index, end, max_bytes, self.leader_epoch, epoch, start)
            self._asked = asked
        return asked


_asked = lru_cache(maxsize=1_024)(FetchPartition)
"""Of idle partitions many are asked the same."""


Offsets: TypeAlias = Mapping[Key, tuple[ErrorCode, int]]
EndOffsets: TypeAlias = Mapping[Key, tuple[ErrorCode, EpochEnd]]

_KNOWN = {int(code): code for code in ErrorCode}


def error_of(code: int) -> ErrorCode:
    """A later broker may have errors that are not known here."""
    return _KNOWN.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def fetch_request(
    settings: BrokerSettings, session: SessionRequest, until_due_ms: float | None, broker_epoch: int
) -> FetchRequest:
    """Return a Fetch request. `until_due_ms` is the time until another partition is due, which limits the leader's
    wait. `broker_epoch` identifies the broker incarnation whose log end offsets the request reports (KIP-903)."""
    max_wait_ms = settings.replica_fetch_wait_max_ms
    if until_due_ms is not None:
        max_wait_ms = min(max_wait_ms, math.ceil(until_due_ms))
    life = ReplicaState() if broker_epoch == NO_BROKER_EPOCH else ReplicaState(settings.broker_id, broker_epoch)
    return FetchRequest(
        max_wait_ms,
        settings.replica_fetch_min_bytes,
        session.topics,
        replica_id=settings.broker_id,
        max_bytes=settings.replica_fetch_response_max_bytes,
        session_id=session.session_id,
        session_epoch=session.session_epoch,
        forgotten_topics_data=session.forgotten,
        replica_state=life,
    )


def offset_for_leader_epoch_request(
    broker_id: int, partitions: Iterable[FetchedPartition]
) -> OffsetForLeaderEpochRequest:
    """Where each log's latest epoch ends at the leader."""
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for one in partitions:
        asked = OffsetForLeaderPartition(one.partition.index, one.log.epochs.latest, one.leader_epoch)
        topics.setdefault(one.partition.topic, []).append(asked)
    return OffsetForLeaderEpochRequest(
        tuple(OffsetForLeaderTopic(topic, tuple(asked)) for topic, asked in topics.items()), broker_id
    )


def end_offsets_of(response: OffsetForLeaderEpochResponse) -> EndOffsets:
    return {
        (topic.topic, one.partition): (error_of(one.error_code), EpochEnd(one.leader_epoch, one.end_offset))
        for topic in response.topics
        for one in topic.partitions
    }


def list_offsets_request(broker_id: int, partitions: Iterable[FetchedPartition], timestamp: int) -> ListOffsetsRequest:
    """Return a ListOffsets request. `timestamp` is EARLIEST_TIMESTAMP for the leaders' log start offsets, or
    LATEST_TIMESTAMP for their log end offsets (a leader returns its high watermark to consumers only)."""
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for one in partitions:
        asked = ListOffsetsPartition(one.partition.index, timestamp, one.leader_epoch)
        topics.setdefault(one.partition.topic, []).append(asked)
    return ListOffsetsRequest(
        tuple(ListOffsetsTopic(topic, tuple(asked)) for topic, asked in topics.items()), broker_id
    )


def offsets_of(response: ListOffsetsResponse) -> Offsets:
    return {
        (topic.name, one.partition_index): (error_of(one.error_code), one.offset)
        for topic in response.topics
        for one in topic.partitions
    }


EPOCH_MAX = 2**31 - 1


class SessionRequest(msgspec.Struct, frozen=True):
    """The fields of a FetchRequest that a session makes."""

    session_id: int
    session_epoch: int
    topics: tuple[FetchTopic, ...]
    forgotten: tuple[ForgottenTopic, ...]


class FetchSessionHandler:
    """The follower's side of a fetch session. `sent` holds the last question sent for each partition, in the order in
    which they were added or changed. Changes by `want` and `forget` go out with the next request."""

    __slots__ = ("_changes", "_epoch", "_id", "_unanswered", "sent")

    def __init__(self) -> None:
        self.sent: Few[Key, FetchPartition] = Few()
        self._changes: dict[Key, FetchPartition | None] | None = None
        self._id = NO_SESSION
        self._epoch = INITIAL_SESSION_EPOCH
        self._unanswered: SessionRequest | None = None
        """From when a request was lost until one is answered: the last that named all."""

    def want(self, key: Key, question: FetchPartition) -> None:
        """The same object as before changes nothing."""
        if self._changes is None:
            self._changes = {}
        if key in self._changes or self.sent.get(key) is not question:
            self._changes[key] = question

    def forget(self, key: Key) -> None:
        if key in self.sent:
            if self._changes is None:
                self._changes = {}
            self._changes[key] = None
        elif self._changes is not None:
            self._changes.pop(key, None)

    def next(self) -> SessionRequest:
        """Return the next request: the same object for each retry to a failed leader while nothing changes."""
        in_vain = self._unanswered
        if in_vain is not None and not self._changes and in_vain.session_id == self._id:
            return in_vain
        changed: list[tuple[Key, FetchPartition]] = []
        forgotten: dict[str, list[int]] = {}
        changes, self._changes = self._changes, None
        for key, question in (changes or {}).items():
            # Removed first: a changed partition goes to the end of a full request. The answer's size is limited, and it
            # is filled in the order of the questions.
            self.sent.pop(key)
            if question is not None:
                self.sent[key] = question
                changed.append((key, question))
            else:
                forgotten.setdefault(key[0], []).append(key[1])
        if self._epoch == INITIAL_SESSION_EPOCH:
            request = SessionRequest(self._id, self._epoch, by_topic(self.sent.items()), ())
            if in_vain is not None:
                self._unanswered = request
            return request
        gone = tuple(ForgottenTopic(topic, tuple(indexes)) for topic, indexes in forgotten.items())
        return SessionRequest(self._id, self._epoch, by_topic(changed), gone)

    def answered(self, response: FetchResponse) -> bool:
        """False: the session is over, what the response says of partitions does not count, and the next request is a
        full one."""
        self._unanswered = None
        if response.error_code != ErrorCode.NONE:
            known = response.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._begin_again(self._id if known else NO_SESSION)
            return False
        named = [(topic.topic, one.partition_index) for topic in response.responses for one in topic.partitions]
        if any(key not in self.sent for key in named):
            self._begin_again(self._id)
            return False
        if response.session_id == NO_SESSION:
            self._begin_again(NO_SESSION)
        elif self._epoch == INITIAL_SESSION_EPOCH:
            self._id, self._epoch = response.session_id, INITIAL_SESSION_EPOCH + 1
        else:
            self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1
        return True

    def lost(self) -> None:
        """Handle a request without an answer: it is unknown whether the leader received it. The next request closes the
        session there and opens another."""
        self._begin_again(self._id)
        self._unanswered = self._unanswered or _NONE_YET

    def _begin_again(self, session_id: int) -> None:
        self._id, self._epoch = session_id, INITIAL_SESSION_EPOCH


_NONE_YET = SessionRequest(-1, INITIAL_SESSION_EPOCH, (), ())
"""No session has that id."""


def by_topic(partitions: Iterable[tuple[Key, FetchPartition]]) -> tuple[FetchTopic, ...]:
    """Grouped, in the order of each topic's first."""
    topics: dict[str, list[FetchPartition]] = {}
    for (topic, _), asked in partitions:
        topics.setdefault(topic, []).append(asked)
    return tuple(FetchTopic(topic, tuple(partitions)) for topic, partitions in topics.items())


class FetcherQueue:
    """The partitions that a fetcher follows. Questions go to `session`. `max_bytes`, `sends_epoch`: see
    `FetchedPartition.question`."""

    __slots__ = ("_followed", "_max_bytes", "_sends_epoch", "_session", "_truncating", "_waiting")

    def __init__(self, session: FetchSessionHandler, max_bytes: int, sends_epoch: bool) -> None:
        self._session = session
        self._max_bytes = max_bytes
        self._sends_epoch = sends_epoch
        self._followed: Few[Key, FetchedPartition] = Few()
        self._waiting: dict[Key, FetchedPartition] | None = None  # these two are made when there is one
        self._truncating: dict[Key, FetchedPartition] | None = None

    @property
    def is_empty(self) -> bool:
        return not len(self._followed)

    @property
    def truncating(self) -> Mapping[Key, FetchedPartition]:
        """Those due whose logs may hold what the leader's has not."""
        return self._truncating or {}

    @property
    def has_questions(self) -> bool:
        """There is something to fetch."""
        aside = (len(self._waiting) if self._waiting else 0) + (len(self._truncating) if self._truncating else 0)
        return len(self._followed) > aside

    @property
    def is_all_asked(self) -> bool:
        """There is something to fetch, and nothing else."""
        return not self._waiting and not self._truncating and len(self._followed) > 0

    def add(self, followed: FetchedPartition) -> None:
        self.remove(followed.key)
        self._followed[followed.key] = followed
        self.ask(followed)

    def remove(self, key: Key) -> None:
        if self._followed.pop(key) is not None:
            self._postpone(key)

    def clear(self) -> None:
        for key in tuple(self._followed):
            self.remove(key)

    def follows(self, followed: FetchedPartition) -> bool:
        return self._followed.get(followed.key) is followed

    def asked(self, key: Key) -> FetchedPartition | None:
        """Whose question the last fetch had for the partition, if it is followed still and its log is as it was."""
        followed, question = self._followed.get(key), self._session.sent.get(key)
        if followed is None or question is None or not followed.has_asked(question):
            return None
        return followed

    def ask(self, followed: FetchedPartition) -> None:
        """With the next request, as its log is now."""
        key = followed.key
        if self._followed.get(key) is not followed or (self._waiting and key in self._waiting):
            return
        if followed.agreed:
            if self._truncating:
                self._truncating.pop(key, None)
            self._session.want(key, followed.question(self._max_bytes, self._sends_epoch))
        else:
            self._session.forget(key)
            if self._truncating is None:
                self._truncating = {}
            self._truncating[key] = followed

    def ask_all(self) -> None:
        """For what changes without the fetcher: a log's start, by its own retention; and after a fault."""
        for followed in self._followed.values():
            self.ask(followed)

    def delay(self, followed: FetchedPartition, until_ms: float) -> None:
        if self.follows(followed):
            self._postpone(followed.key)
            followed.ready_ms = until_ms
            if self._waiting is None:
                self._waiting = {}
            self._waiting[followed.key] = followed

    def resume(self, followed: FetchedPartition) -> None:
        """Its delay has ended."""
        if self._waiting and self.follows(followed):
            self._waiting.pop(followed.key, None)
        self.ask(followed)

    def apply_changes(self, now_ms: float, hold_ms: Callable[[FetchedPartition], float]) -> None:
        """Queue the partitions whose delay has ended; one with `hold_ms` is delayed by that again."""
        if not self._waiting:
            return
        for followed in [one for one in self._waiting.values() if one.ready_ms <= now_ms]:
            if held_ms := hold_ms(followed):
                followed.ready_ms = now_ms + held_ms
                continue
            del self._waiting[followed.key]
            self.ask(followed)
        if not self._waiting:
            self._waiting = None

    def all(self) -> tuple[FetchedPartition, ...]:
        return self._followed.values()

    def next_due_ms(self) -> float | None:
        """None if nothing waits."""
        return min((one.ready_ms for one in self._waiting.values()), default=None) if self._waiting else None

    def _postpone(self, key: Key) -> None:
        if self._waiting:
            self._waiting.pop(key, None)
        if self._truncating:
            self._truncating.pop(key, None)
        self._session.forget(key)


class FollowerLogs:
    """Applies fetched data to followers' logs. `changed` is called with each partition whose log or high watermark has
    changed. Without `may_wait` a call raises NotCached where it would wait for the disk; it is then made again."""

    def __init__(self, changed: Callable[[Partition], None], trace: Trace) -> None:
        self._changed = changed
        self._trace = trace

    def take(self, followed: FetchedPartition, data: FetchPartitionData, may_wait: bool = True) -> None:
        """A fetched answer without an error. Raises CorruptBatch, OffsetsOutOfOrder."""
        if data.diverging_epoch is not NO_DIVERGENCE and data.diverging_epoch != NO_DIVERGENCE:
            self.agree(followed, EpochEnd(data.diverging_epoch.epoch, data.diverging_epoch.end_offset), may_wait)
            followed.agreed = True  # the next fetch shows whether the logs diverge further
            return
        appended = self._append(followed, data, may_wait)
        moved = self._move_high_watermark(followed, data.high_watermark)
        started = self._move_start(followed, data.log_start_offset)
        if appended or moved or started:
            self._changed(followed.partition)

    def _append(self, followed: FetchedPartition, data: FetchPartitionData, may_wait: bool) -> bool:
        records, log = data.records, followed.log
        assert records is None or isinstance(records, bytes | memoryview)
        if not records:
            return False
        try:
            if log.attempt(may_wait, log.append_as_follower, records).must_flush:
                followed.unflushed = log.log_end_offset
        except (CorruptBatch, OffsetsOutOfOrder):
            raise
        except BadBatches:
            # The answer contained the beginning of a batch only. This partition comes first soon, and a leader sends
            # the first batch of an answer complete.
            return False
        return True

    def flush(self, followed: FetchedPartition, may_wait: bool) -> None:
        """Before the leader learns, from the next fetch, what the log has (flush.messages)."""
        followed.log.attempt(may_wait, followed.log.flush, followed.unflushed)
        followed.unflushed = 0

    def _move_high_watermark(self, followed: FetchedPartition, leaders: int) -> bool:
        """What the leader says, as far as there are records. Also back: a new leader may not know yet how far the
        last one had come."""
        partition, log = followed.partition, followed.log
        reached = max(min(leaders, log.log_end_offset), log.log_start_offset)
        moved = reached != partition.high_watermark
        partition.high_watermark = reached
        if moved and (producers := log.known_producers) is not None:
            producers.replicated(reached)
        return moved

    def _move_start(self, followed: FetchedPartition, leaders: int) -> bool:
        if leaders <= followed.log.log_start_offset:
            return False
        high_watermark = followed.partition.high_watermark
        return followed.log.delete_records_before(min(leaders, high_watermark), high_watermark)

    def agree(self, followed: FetchedPartition, leader: EpochEnd, may_wait: bool = True) -> None:
        """The leader's answer about this log's latest epoch: what it has not is cut off. `followed.agreed` says whether
        that was all."""
        log = followed.log
        found = truncation(log.epochs, log.log_end_offset, followed.partition.high_watermark, leader)
        self.cut(followed, found.offset, f"the leader's epoch {leader.epoch} ends at {leader.end_offset}", may_wait)
        followed.agreed = found.agreed

    def cut(self, followed: FetchedPartition, offset: int, why: str, may_wait: bool = True) -> None:
        """To `offset`, or to the beginning of the batch that it lies within."""
        partition, log = followed.partition, followed.log
        end, high_watermark = log.log_end_offset, partition.high_watermark
        log.attempt(may_wait, log.truncate_to, offset)
        partition.high_watermark = min(high_watermark, log.log_end_offset)
        if log.log_end_offset != end:
            self._emit_truncation(followed, end, high_watermark, why)
            self._changed(partition)

    def restart(self, followed: FetchedPartition, offset: int, may_wait: bool = True) -> None:
        """Everything goes: the leader begins after this log's end."""
        partition, log = followed.partition, followed.log
        end, high_watermark = log.log_end_offset, partition.high_watermark
        log.attempt(may_wait, log.restart_at, offset)
        partition.high_watermark = offset
        self._emit_truncation(followed, end, high_watermark, f"the leader begins at {offset}")
        self._changed(partition)

    def _emit_truncation(self, followed: FetchedPartition, before: int, high_watermark: int, why: str) -> None:
        if self._trace.enabled:
            partition, end = followed.partition, followed.log.log_end_offset
            self._trace.emit(LogTruncated(partition.topic, partition.index, end, followed.leader_epoch))
            # What was committed may go only where an election was unclean.
            below = f", below the high watermark {high_watermark}" if end < high_watermark else ""
            level = "warning" if below else "info"
            self._trace.emit(Noted(level, f"{followed} truncated from {before} to {end}{below}: {why}"))


class Truncation(msgspec.Struct, frozen=True):
    """`offset`: the log keeps what is below. `agreed`: what is kept is the leader's too; else the leader must be asked
    again, with the epoch that is the latest then."""

    offset: int
    agreed: bool


def truncation(own: LeaderEpochs, log_end: int, high_watermark: int, leader: EpochEnd) -> Truncation:
    """What a leader's answer means for a log with these epochs. `leader`: the largest epoch of the leader's up to the
    one that it was asked for (the log's latest), and where that ends there. Never above `log_end`."""
    if leader.end_offset == UNDEFINED_OFFSET:
        # Records from before there were epochs, or an epoch before all that the leader knows: the old rule.
        return Truncation(min(high_watermark, log_end), agreed=True)
    if leader.epoch == UNDEFINED_EPOCH:
        return Truncation(min(leader.end_offset, log_end), agreed=True)
    mine = own.end_offset_for(leader.epoch, log_end)
    if mine.end_offset == UNDEFINED_OFFSET:
        return Truncation(min(leader.end_offset, log_end), agreed=True)
    if mine.epoch != leader.epoch:
        # The leader's epoch never was here, so nothing from where it would begin is the leader's (KIP-279).
        return Truncation(min(mine.end_offset, log_end), agreed=False)
    return Truncation(min(mine.end_offset, leader.end_offset, log_end), agreed=True)


class LeadersRange(msgspec.Struct, frozen=True):
    """The leader's log holds `start` to `end`. `start` is None while it was not asked for."""

    end: int
    start: int | None = None


class TruncateTo(msgspec.Struct, frozen=True):
    """The leader's log ends before this one (after an unclean election): what is beyond goes."""

    offset: int


class RestartAt(msgspec.Struct, frozen=True):
    """The leader has nothing as old as this log's end: all of it goes, and it begins again there."""

    offset: int


class AskForStart(msgspec.Struct, frozen=True):
    """The leader's end says nothing against this log."""


class InRange(msgspec.Struct, frozen=True):
    """There is nothing to put right: the leader's log has changed since it refused."""


def after_out_of_range(log_end: int, leader: LeadersRange) -> TruncateTo | RestartAt | AskForStart | InRange:
    """What a follower does to whom the leader said that its log's end is out of range."""
    if leader.end < log_end:
        return TruncateTo(leader.end)
    if leader.start is None:
        return AskForStart()
    return RestartAt(leader.start) if leader.start > log_end else InRange()
