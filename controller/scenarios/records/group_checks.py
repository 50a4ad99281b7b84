"""Invariants of a consumer group: checkers over what its members saw.

Pure functions over the group's history; each yields violations in words. Two orders of events are certain, as the
clients' clock is one: an answer that arrived before another request was sent came first at the coordinator too, and
nothing else. All rules use that order alone, so a clean history of any interleaving passes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from controller.scenarios.invariants import Finding
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.group_history import (
    NOTHING_COMMITTED,
    CommittedRead,
    GroupHistory,
    GroupLog,
    MemberAssignment,
    OffsetCommit,
)
from controller.scenarios.records.history import History, Ints
from controller.scenarios.records.workload import PartitionName

Partitions = Sequence[PartitionName]
NOT_COMMITTED = "TRANSACTION_ABORTED"
"""The error of a commit whose transaction was aborted: no answer of Kafka's."""


def _name(partitions: Partitions, place: int) -> str:
    topic, number = partitions[place]
    return f"{topic}-{number}"


def two_owners(group: GroupHistory, partitions: Partitions) -> Iterator[str]:
    """A partition has at most one owner in a generation. A static member that comes back under another member id has
    its assignment still."""
    owners: dict[tuple[int, int], MemberAssignment] = {}
    for one in group.assignments:
        for place in one.partitions:
            other = owners.setdefault((one.generation, place), one)
            if other.client != one.client:
                yield (
                    f"{_name(partitions, place)} is assigned in generation {one.generation} to member {other.client}"
                    f" ({other.member_id}) and to member {one.client} ({one.member_id})"
                )


def commits_of_old_generations(group: GroupHistory, partitions: Partitions) -> Iterator[str]:
    """A commit that is sent after a member has its assignment of a later generation is refused; so is one under a
    former member id of a static member (any other stays a member of its own until its session ends)."""
    for commit, one in _of_former_members(group):
        yield (
            f"{_commit(commit, partitions)} was acknowledged for {commit.member_id}, in whose place {one.member_id} had"
            f" come by {one.at_ms:.1f} ms"
        )
    begun: dict[int, float] = {}
    for one in group.assignments:
        begun[one.generation] = min(one.at_ms, begun.get(one.generation, one.at_ms))
    for commit in group.commits:
        if not commit.acknowledged:
            continue
        later = [
            (at_ms, number)
            for number, at_ms in begun.items()
            if number > commit.generation and at_ms < commit.sent_at_ms
        ]
        if later:
            at_ms, number = min(later)
            yield (
                f"{_commit(commit, partitions)} was acknowledged, and generation {number} had begun by {at_ms:.1f} ms"
            )


def _of_former_members(group: GroupHistory) -> Iterator[tuple[OffsetCommit, MemberAssignment]]:
    latest: dict[str, float] = {}
    for one in group.assignments:
        latest[one.member_id] = max(one.at_ms, latest.get(one.member_id, one.at_ms))
    for commit in group.commits:
        if commit.acknowledged and commit.member_id in latest:
            for one in group.assignments:
                if (
                    one.static
                    and one.client == commit.client
                    and latest[commit.member_id] < one.at_ms < commit.sent_at_ms
                ):
                    yield commit, one


def unfenced(group: GroupHistory, _partitions: Partitions) -> Iterator[str]:
    """A static member in whose place another has come is fenced, as long as the other is a member: one that had its
    assignment before the request, and commits after the answer."""
    for one in group.former:
        successors = {
            each.member_id
            for each in group.assignments
            if each.client == one.client and each.member_id != one.member_id and each.at_ms < one.sent_at_ms
        }
        stayed = any(
            commit.acknowledged and commit.member_id in successors and commit.sent_at_ms > one.ended_at_ms
            for commit in group.commits
        )
        if stayed and one.error != FENCED:
            yield f"{one.member_id}, whose place another had, was answered {one.error} at {one.ended_at_ms:.1f} ms"


def forgotten(group: GroupHistory, partitions: Partitions) -> Iterator[str]:
    """A member whose commit was acknowledged is a member for another second, or its session if that is shorter: neither
    that nor a rebalance that it has not joined yet is over before. A session ends by the coordinator's clock, which may
    drift. Clients that repeat commits by themselves may have left meanwhile."""
    least_ms = min(KEPT_MS, group.session_ms / FASTEST_CLOCK)
    kept_ms: dict[str, float] = {}
    for commit in () if group.repeats else group.commits:
        if commit.acknowledged:
            kept_ms[commit.member_id] = commit.sent_at_ms
        elif commit.error == "UNKNOWN_MEMBER_ID" and commit.ended_at_ms is not None:
            sent_ms = kept_ms.get(commit.member_id)
            if sent_ms is not None and commit.ended_at_ms - sent_ms < least_ms:
                yield f"{_commit(commit, partitions)} found no such member; one of {sent_ms:.1f} ms was acknowledged"


KEPT_MS = 1_000.0
FASTEST_CLOCK = 1.1
"""The rate of a broker's clock that drifts, at most, in the plans that the swarm draws."""
FENCED = "FENCED_INSTANCE_ID"


def _commit(commit: OffsetCommit, partitions: Partitions) -> str:
    return (
        f"the commit of {commit.offset} for {_name(partitions, commit.partition)} by member {commit.client} in"
        f" generation {commit.generation}, sent {commit.sent_at_ms:.1f} ms,"
    )


def stale_offsets(group: GroupHistory, partitions: Partitions) -> Iterator[str]:
    """An OffsetFetch returns what some commit wrote that no acknowledged commit has replaced.

    A commit has replaced another if it was sent after the other had ended and was acknowledged before the fetch was
    sent. Nothing committed is what was there before the first commit. A refused commit wrote nothing.
    """
    written: dict[int, list[OffsetCommit]] = defaultdict(list)
    for commit in group.commits:
        written[commit.partition].append(commit)
    for read in group.reads:
        known = [
            one
            for one in written[read.partition]
            if _may_be_written(one, repeats=group.repeats) and one.sent_at_ms <= read.ended_at_ms
        ]
        settled = [one for one in known if one.acknowledged and _ended_before(one, read.sent_at_ms)]
        if read.offset == NOTHING_COMMITTED:
            if settled:
                yield f"{_read(read, partitions)}: nothing is committed; {_commit(settled[-1], partitions)} had ended"
            continue
        sources = [one for one in known if one.offset == read.offset]
        if not sources:
            yield f"{_read(read, partitions)}: {read.offset}, which no commit wrote"
            continue
        if all(any(_ended_before(source, other.sent_at_ms) for other in settled) for source in sources):
            last = max(settled, key=lambda one: one.sent_at_ms)
            yield f"{_read(read, partitions)}: {read.offset}; {_commit(last, partitions)} had replaced it"


def _may_be_written(commit: OffsetCommit, *, repeats: bool) -> bool:
    """A commit whose answer says that the write failed may have been written in part: only refusals that come before
    the write are certain, and those of clients that do not repeat their commits."""
    return commit.error not in REFUSED or (repeats and commit.error != NOT_COMMITTED)


REFUSED = frozenset(
    {
        "UNKNOWN_MEMBER_ID",
        "ILLEGAL_GENERATION",
        "REBALANCE_IN_PROGRESS",
        "FENCED_INSTANCE_ID",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "INVALID_GROUP_ID",
        NOT_COMMITTED,
    }
)
"""Refusals that the coordinator decides before it writes."""


def _ended_before(commit: OffsetCommit, at_ms: float) -> bool:
    return commit.ended_at_ms is not None and commit.ended_at_ms < at_ms


def _read(read: CommittedRead, partitions: Partitions) -> str:
    return (
        f"the committed offset of {_name(partitions, read.partition)}, fetched by member {read.client} at"
        f" {read.ended_at_ms:.1f} ms"
    )


def unassigned(group: GroupHistory, partitions: Partitions) -> Iterator[str]:
    """A stable group: every live member has its assignment of one generation, and every partition has its owner. Where
    there are enough partitions each member has some, as all assignors of Kafka's give them."""
    current = [one for one in group.assignments if one.until_ms is None]
    by_client = {one.client: one for one in current}
    for client in group.live:
        if client not in by_client:
            yield f"member {client} has no assignment in the end"
    generations = sorted({by_client[client].generation for client in group.live if client in by_client})
    if len(generations) > 1:
        yield f"the members are in generations {generations} in the end"
    if group.live and len(group.live) <= min(Counter(topic for topic, _ in partitions).values()):
        for client in group.live:
            if client in by_client and not by_client[client].partitions:
                yield f"member {client} was assigned nothing in the end, among {len(group.live)} members"
    owned = {place for client in group.live if client in by_client for place in by_client[client].partitions}
    for place in range(len(partitions)):
        if place not in owned and group.live:
            yield f"{_name(partitions, place)} has no owner in the end"


def group_at_rest(log: GroupLog, live: Sequence[int], ends: Sequence[int], partitions: Partitions) -> bool:
    """Whether the group has committed everything up to `ends`, and each live member has its assignment."""
    return not group_behind(log, ends, partitions) and not any(unassigned(log.history(live), partitions))


def group_behind(log: GroupLog, ends: Sequence[int], partitions: Partitions) -> str:
    """What the group has not committed of what was acknowledged, up to `ends`; "" if nothing."""
    behind = [
        f"{_name(partitions, place)} is committed to {log.committed_offset(place)}, acknowledged to {end}"
        for place, end in enumerate(ends)
        if end and log.committed_offset(place) < end
    ]
    return "; ".join(behind[:3])


def unseen(audit: DeliveryAudit, group: GroupHistory) -> Ints:
    """Rows of the final read below the group's last acknowledged commit that no member has read (Jepsen's "unseen"):
    the group went past them."""
    history = audit.history
    ends = np.zeros(len(history.partitions), np.int64)
    for commit in group.commits:
        if commit.acknowledged:
            ends[commit.partition] = max(ends[commit.partition], commit.offset)
    reads = history.reads
    by_group = np.isin(reads.reader, [one.reader for one in group.assignments])
    seen = np.unique(reads.partition[by_group] * _OFFSETS + reads.offset[by_group])
    rows = audit.rows
    places = reads.partition[rows] * _OFFSETS + reads.offset[rows]
    passed: Ints = rows[(reads.offset[rows] < ends[reads.partition[rows]]) & ~np.isin(places, seen)]
    return passed


_OFFSETS = 2**40

GroupRule = Callable[[GroupHistory, Partitions], Iterator[str]]


def _finding(rule: GroupRule, held: str) -> Callable[[History], Finding]:
    def check(history: History) -> Finding:
        group = history.group
        assert group is not None
        found = list(rule(group, history.partitions[: group.partitions]))
        if found:
            return Finding(False, f"{len(found)}: {found[0]}" if len(found) > 1 else found[0])
        if not group.assignments:
            return Finding(None, "no member had an assignment")
        return Finding(True, held)

    return check


def members_assigned(history: History) -> Finding:
    """At rest every live member has its assignment, and the group has read and committed what was acknowledged."""
    group = history.group
    assert group is not None
    if group.settled is None:
        return Finding(None, "the group was not waited for")
    found = next(unassigned(group, history.partitions[: group.partitions]), None)
    if not group.settled:
        return Finding(False, f"the group did not come to rest: {found or group.detail}")
    if found is not None:
        return Finding(False, found)
    return Finding(True, f"{len(group.live)} members have their assignments, and the group has read everything")


GROUP_CHECKS: dict[str, Callable[[History], Finding]] = {
    "one-owner-a-generation": _finding(two_owners, "each partition had one owner in each generation"),
    "old-generations-refused": _finding(commits_of_old_generations, "no commit of an old generation was acknowledged"),
    "former-members-fenced": _finding(unfenced, "every static member in whose place another came was fenced"),
    "members-kept": _finding(forgotten, "no member was forgotten while its commits were acknowledged"),
    "commits-kept": _finding(stale_offsets, "every committed offset that was read was the last one"),
    "members-assigned": members_assigned,
}
"""Checkers of a history that has a group."""
