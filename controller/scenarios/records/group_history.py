"""The history of one consumer group: what its members were assigned, committed and read back, as they saw it.

One format for the simulated members and for real clients. A member is named by the number of its client, which keeps
it over all its member ids. Times are milliseconds on the scenario's clock; an operation without an answer has None as
the time of its end. What a member reads under one assignment has a reader of its own in the history of records
(`MemberAssignment.reader`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

GROUP = "group"
"""The name of a workload's group."""
FIRST_READER = 1_000
"""Readers of groups are numbered from here; a workload has at most 64 consumers of other kinds."""
NOTHING_COMMITTED = -1


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The partitions of one member in one generation, by their places in the history. `until_ms`: when the member gave
    them up; None if it never did. `static`: under a group.instance.id."""

    client: int
    member_id: str
    generation: int
    partitions: tuple[int, ...]
    reader: int
    at_ms: float
    until_ms: float | None = None
    static: bool = False


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """One partition of an OffsetCommit. `acknowledged`: None without an answer; `error` is the name of a refusal."""

    client: int
    member_id: str
    generation: int
    partition: int
    offset: int
    sent_at_ms: float
    ended_at_ms: float | None = None
    acknowledged: bool | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class CommittedRead:
    """One partition of an OffsetFetch that was answered. `offset`: NOTHING_COMMITTED if there was none."""

    client: int
    partition: int
    offset: int
    sent_at_ms: float
    ended_at_ms: float


@dataclass(frozen=True, slots=True)
class FormerMember:
    """A static member in whose place another came, and the error that ended it."""

    client: int
    member_id: str
    error: str
    sent_at_ms: float
    ended_at_ms: float


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """`live`: the clients that took part until the end. `settled`: whether the group came to rest, with all of them in
    it and everything acknowledged read and committed; None if that was not waited for. `detail`: what was missing."""

    assignments: tuple[MemberAssignment, ...] = ()
    commits: tuple[OffsetCommit, ...] = ()
    reads: tuple[CommittedRead, ...] = ()
    former: tuple[FormerMember, ...] = ()
    live: tuple[int, ...] = ()
    settled: bool | None = None
    detail: str = ""
    partitions: int | None = None
    """How many partitions the group reads, from the history's first on; None: all."""
    repeats: bool = False
    """Whether clients send a commit again by themselves if it has no answer, as librdkafka does: one that is refused
    may have been written by an earlier attempt."""
    session_ms: float = 6_000.0


@dataclass(slots=True)
class GroupLog:
    """What all members of a group did, being written. One thread at a time may use it. `repeats`: see GroupHistory."""

    repeats: bool = False
    session_ms: float = 6_000.0
    _assignments: list[MemberAssignment] = field(default_factory=list)
    _until_ms: dict[int, float] = field(default_factory=dict)
    _commits: list[OffsetCommit] = field(default_factory=list)
    _reads: list[CommittedRead] = field(default_factory=list)
    _former: list[FormerMember] = field(default_factory=list)

    def assigned(
        self,
        client: int,
        member_id: str,
        generation: int,
        partitions: Collection[int],
        at_ms: float,
        *,
        static: bool = False,
    ) -> MemberAssignment:
        """A member has its assignment, under a reader's number of its own."""
        reader = FIRST_READER + len(self._assignments)
        one = MemberAssignment(client, member_id, generation, tuple(sorted(partitions)), reader, at_ms, static=static)
        self._assignments.append(one)
        return one

    def gave_up(self, assignment: MemberAssignment, at_ms: float) -> None:
        self._until_ms.setdefault(assignment.reader, at_ms)

    def committing(
        self, client: int, member_id: str, generation: int, partition: int, offset: int, at_ms: float
    ) -> int:
        """A commit is sent. Return its number."""
        self._commits.append(OffsetCommit(client, member_id, generation, partition, offset, at_ms))
        return len(self._commits) - 1

    def committed(self, number: int, at_ms: float, error: str = "") -> None:
        """A commit is answered: acknowledged, or refused with an error."""
        one = self._commits[number]
        self._commits[number] = replace(one, ended_at_ms=at_ms, acknowledged=not error, error=error)

    def read(self, client: int, partition: int, offset: int, sent_at_ms: float, at_ms: float) -> None:
        self._reads.append(CommittedRead(client, partition, offset, sent_at_ms, at_ms))

    def ended(self, former: FormerMember) -> None:
        self._former.append(former)

    @property
    def current(self) -> list[MemberAssignment]:
        """The assignments that were not given up."""
        return [one for one in self._assignments if one.reader not in self._until_ms]

    def committed_offset(self, partition: int) -> int:
        """The highest offset whose commit was acknowledged, or that was read as committed: a member may end before it
        has the answer to its last commit."""
        commits = [one.offset for one in self._commits if one.partition == partition and one.acknowledged]
        reads = [one.offset for one in self._reads if one.partition == partition]
        return max((*commits, *reads), default=NOTHING_COMMITTED)

    def history(
        self, live: Sequence[int] = (), settled: bool | None = None, detail: str = "", partitions: int | None = None
    ) -> GroupHistory:
        return GroupHistory(
            tuple(replace(one, until_ms=self._until_ms.get(one.reader)) for one in self._assignments),
            tuple(self._commits),
            tuple(self._reads),
            tuple(self._former),
            tuple(live),
            settled,
            detail,
            partitions,
            self.repeats,
            self.session_ms,
        )
