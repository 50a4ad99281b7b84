"""A clean history of a group passes every checker; each planted one is found by the checker that is meant for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from controller.scenarios.records.checks import GROUP_RECORD_CHECKS, check_records
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.group_checks import group_behind
from controller.scenarios.records.group_history import GroupLog, MemberAssignment
from controller.scenarios.records.history import History, ReadLog
from tests.scenarios.records.histories import Story, evidence, sound


@dataclass
class GroupStory:
    """Two members share the two partitions; one leaves, and the other goes on from what was committed."""

    story: Story = field(default_factory=sound)
    log: GroupLog = field(default_factory=GroupLog)
    live: list[int] = field(default_factory=lambda: [1])
    settled: bool | None = True
    reads: list[ReadLog] = field(default_factory=list)

    def assigned(self, client: int, generation: int, places: list[int], at_ms: float) -> MemberAssignment:
        return self.log.assigned(client, f"member-{client}", generation, places, at_ms)

    def read(self, assignment: MemberAssignment, place: int, first: int, end: int) -> None:
        log = ReadLog(assignment.reader)
        for offset in range(first, end):
            log.read(place, offset, *self.story.logs[place][offset], 50.0)
        self.reads.append(log)

    def commit(self, client: int, generation: int, place: int, offset: int, at_ms: float, error: str = "") -> None:
        number = self.log.committing(client, f"member-{client}", generation, place, offset, at_ms)
        self.log.committed(number, at_ms + 5.0, error)

    def history(self) -> History:
        self.story.consumers += self.reads
        history = self.story.history()
        return History(
            history.partitions,
            history.sends,
            history.reads,
            history.finals,
            history.errors,
            history.troubles,
            self.log.history(self.live, self.settled),
        )

    def found(self) -> dict[str, str]:
        """The checkers of groups that were violated, with what they say."""
        found = check_records(evidence(self.history()), list(GROUP_RECORD_CHECKS), "none")
        return {name: finding.detail for name, finding in found if finding.held is False}


def shared() -> GroupStory:
    group = GroupStory()
    ends = [len(log) for log in group.story.logs]
    first, second = group.assigned(0, 1, [0], 100.0), group.assigned(1, 1, [1], 101.0)
    group.read(first, 0, 0, 6)
    group.read(second, 1, 0, ends[1])
    group.commit(0, 1, 0, 4, 200.0)
    group.commit(0, 1, 0, 6, 220.0)
    group.commit(1, 1, 1, ends[1], 210.0)
    group.log.gave_up(first, 300.0)
    group.log.gave_up(second, 300.0)
    last = group.assigned(1, 2, [0, 1], 310.0)
    group.log.read(1, 0, 6, 311.0, 312.0)
    group.log.read(1, 1, ends[1], 311.0, 312.0)
    group.read(last, 0, 6, ends[0])
    group.commit(1, 2, 0, ends[0], 400.0)
    return group


def test_a_clean_history_of_a_group_passes() -> None:
    group = shared()
    for name, finding in check_records(evidence(group.history()), None, "none"):
        assert finding.held is True, (name, finding.detail)


def test_a_history_without_a_group_is_not_asked_for_one() -> None:
    names = [name for name, _ in check_records(evidence(sound()), None, "none")]
    assert not set(names) & set(GROUP_RECORD_CHECKS)


def two_owners(group: GroupStory) -> None:
    group.assigned(0, 2, [1], 320.0)


def zombie_commit(group: GroupStory) -> None:
    group.commit(0, 1, 0, 5, 350.0)


def offset_lost(group: GroupStory) -> None:
    group.log.read(1, 0, -1, 500.0, 501.0)


def offset_went_back(group: GroupStory) -> None:
    group.log.read(1, 0, 6, 500.0, 501.0)


def offset_from_nowhere(group: GroupStory) -> None:
    group.log.read(1, 0, 5, 500.0, 501.0)


def refused_and_written(group: GroupStory) -> None:
    group.commit(0, 1, 0, 5, 350.0, "ILLEGAL_GENERATION")
    group.log.read(1, 0, 5, 360.0, 361.0)


def forgotten_at_once(group: GroupStory) -> None:
    group.commit(1, 2, 0, 7, 1_300.0, "UNKNOWN_MEMBER_ID")


@pytest.mark.parametrize(("session_ms", "kept_ms"), [(400, 363), (1_000, 909), (3_000, 1_000), (6_000, 1_000)])
def test_a_member_is_kept_for_its_session_and_a_second_at_most(session_ms: int, kept_ms: int) -> None:
    """A clock that drifts ends a session a tenth earlier; a commit's answer comes 5 ms after it was sent."""
    for late_ms, found in ((-1.0, {"members-kept"}), (1.0, set())):
        group = shared()
        group.log.session_ms = session_ms
        group.commit(1, 2, 0, 7, 400.0 + kept_ms + late_ms - 5.0, "UNKNOWN_MEMBER_ID")
        assert set(group.found()) == found


def test_clients_that_repeat_their_commits_may_have_left() -> None:
    group = shared()
    group.log.repeats = True
    forgotten_at_once(group)
    assert not group.found()


def member_without_assignment(group: GroupStory) -> None:
    group.live.append(2)


def partition_without_owner(group: GroupStory) -> None:
    group.log.gave_up(group.log.current[0], 450.0)
    group.assigned(1, 3, [0], 460.0)


def never_at_rest(group: GroupStory) -> None:
    group.settled = False


def passed_over(group: GroupStory) -> None:
    group.reads[-1] = ReadLog(group.log.current[0].reader)


def test_a_refused_commit_may_be_written_where_clients_repeat_their_commits() -> None:
    group = shared()
    group.log.repeats = True
    refused_and_written(group)
    assert "commits-kept" not in group.found()


PLANTED: dict[str, tuple[Callable[[GroupStory], None], str]] = {
    "two owners": (two_owners, "one-owner-a-generation"),
    "a commit of an old generation": (zombie_commit, "old-generations-refused"),
    "a committed offset is lost": (offset_lost, "commits-kept"),
    "a committed offset goes back": (offset_went_back, "commits-kept"),
    "an offset that was not committed": (offset_from_nowhere, "commits-kept"),
    "a refused commit is written": (refused_and_written, "commits-kept"),
    "a member is forgotten": (forgotten_at_once, "members-kept"),
    "a member without an assignment": (member_without_assignment, "members-assigned"),
    "a partition without an owner": (partition_without_owner, "members-assigned"),
    "a group that does not come to rest": (never_at_rest, "members-assigned"),
    "records that nobody read": (passed_over, "unseen"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_anomaly_is_found(what: str) -> None:
    plant, name = PLANTED[what]
    group = shared()
    plant(group)
    assert list(group.found()) == [name], group.found()


def test_an_unanswered_commit_may_count_or_not() -> None:
    for offset in (10, 6):
        group = shared()
        group.log.committing(1, "member-1", 2, 0, 10, 250.0)
        group.log.read(1, 0, offset, 260.0, 261.0)
        assert not group.found()


def test_a_group_that_was_not_waited_for_is_unknown() -> None:
    group = shared()
    group.settled = None
    found = dict(check_records(evidence(group.history()), ["members-assigned"], "none"))
    assert found["members-assigned"].held is None
    assert DeliveryAudit(group.history()).history.group is not None


@pytest.mark.parametrize("static", [True, False])
def test_a_former_member_is_refused_if_it_is_static(static: bool) -> None:
    """One that is not is a member of its own until its session ends; found by the swarm (seed 1971)."""
    group = shared()
    group.log.assigned(1, "another", 2, [0, 1], 420.0, static=static)
    group.live = []
    group.commit(1, 2, 0, 10, 430.0)
    assert ("old-generations-refused" in group.found()) == static


def test_what_is_read_as_committed_was_committed_also_if_its_commit_had_no_answer() -> None:
    """A member died before it had the answer (the swarm's seed 68187)."""
    log = GroupLog()
    log.committed(log.committing(0, "a", 1, 0, 3, 0.0), 1.0)
    log.committing(0, "a", 1, 0, 5, 2.0)
    assert "committed to 3, acknowledged to 5" in group_behind(log, [5], [("t", 0)])
    log.read(1, 0, 5, 3.0, 4.0)
    assert group_behind(log, [5], [("t", 0)]) == ""
