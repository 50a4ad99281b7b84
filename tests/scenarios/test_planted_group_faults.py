"""Faults planted in the coordinator of consumer groups, each found by what the group's members saw.

In simulation, for a few seeds: a fault counts as found when any of them fails. The same runs pass without a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from controller.broker import coordinated_topic
from controller.broker.groups import coordinator as coordinators
from controller.broker.groups.coordinator import GroupCoordinator
from controller.broker.groups.group import ConsumerGroup, GroupMember, TopicPartition
from controller.broker.groups.offsets_topic import OFFSETS_TOPIC, CommittedOffset
from controller.broker.groups.store import GroupStore, _GroupReading
from controller.broker.request_context import Steps
from controller.protocol.errors import ErrorCode
from controller.protocol.groups import SyncGroupResponse
from controller.scenarios.files import load_scenario
from controller.scenarios.records.workload import ACKS_LEADER
from controller.simulator.run import simulate

Patch = pytest.MonkeyPatch
SEEDS = range(3)
REBALANCE, KILL, STATIC = "group-rebalance", "coordinator-kill", "group-rebalance static=true"


def violations(name: str, seeds: range = SEEDS) -> set[str]:
    """The invariants that the first failing seed violates."""
    name, _, setting = name.partition(" ")
    settings = {"simulated_rate": "10"} | (dict([setting.split("=")]) if setting else {})
    for seed in seeds:
        found = simulate(load_scenario(name, settings), seed).report.judgement.invariants
        wrong = {each.name for each in found if each.held is False}
        if wrong:
            return wrong
    return set()


def generation_unchecked(patch: Patch) -> None:
    """A commit counts whatever generation it is of, and whoever sends it."""
    patch.setattr(GroupCoordinator, "_commit_refusal", lambda *_: None)


def member_forgotten(patch: Patch) -> None:
    """The leader is not given the last member to assign to."""
    right = ConsumerGroup.described_members
    patch.setattr(ConsumerGroup, "described_members", lambda self: right(self)[: max(len(self.members) - 1, 1)])


def commit_acknowledged_early(patch: Patch) -> None:
    """A commit is written with acks of the leader alone, and its coordinator dies before the followers have it."""
    right = GroupStore._append_batch

    def by_the_leader(self: GroupStore, index: int, batch: bytes, acks: int, then: Any) -> None:
        right(self, index, batch, ACKS_LEADER, then)

    patch.setattr(GroupStore, "_append_batch", by_the_leader)


def commit_never_written(patch: Patch) -> None:
    """Commits are kept in memory alone."""

    def in_memory(
        self: GroupStore,
        group: ConsumerGroup,
        offsets: Mapping[Any, CommittedOffset],
        answer: Callable[[Mapping[Any, ErrorCode]], None],
    ) -> Steps:
        for key, committed in offsets.items():
            group.offsets[key] = committed
        answer(dict.fromkeys(offsets, ErrorCode.NONE))
        yield None

    patch.setattr(GroupStore, "store_offsets", in_memory)


def heartbeat_never_expires(patch: Patch) -> None:
    patch.setattr(GroupCoordinator, "_silent", lambda self, group, member: None)


def stale_assignment(patch: Patch) -> None:
    """A member that has an assignment of an earlier generation is given that one."""
    right = coordinators._assignment_of
    first: dict[str, Any] = {}

    def of_before(group: ConsumerGroup, member: GroupMember) -> Any:
        return first.setdefault(member.id, right(group, member))

    patch.setattr(coordinators, "_assignment_of", of_before)


def same_assignment_to_all(patch: Patch) -> None:
    """Every member is given the leader's share."""
    right = coordinators._assignment_of

    def of_leader(group: ConsumerGroup, member: GroupMember) -> Any:
        return right(group, group.members.get(group.leader or "", member))

    patch.setattr(coordinators, "_assignment_of", of_leader)


def offsets_lost_at_load(patch: Patch) -> None:
    """The next coordinator reads the groups, and none of their offsets."""
    right = _GroupReading.entries

    def without(self: _GroupReading) -> Mapping[str, ConsumerGroup]:
        for offsets in self.offsets.values():
            offsets.clear()
        return right(self)

    patch.setattr(_GroupReading, "entries", without)


def load_skips_the_last_batches(patch: Patch) -> None:
    """What the log holds at its end is not read."""
    right = coordinated_topic._records
    patch.setattr(coordinated_topic, "_records", lambda read: right(read)[:-3])


def load_keeps_the_first(patch: Patch) -> None:
    """Of several commits to one partition the first that was read counts."""
    right = _GroupReading._offset

    def first_counts(self: _GroupReading, group: str, key: TopicPartition, committed: CommittedOffset | None) -> None:
        if key not in self.offsets.get(group, ()):
            right(self, group, key, committed)

    patch.setattr(_GroupReading, "_offset", first_counts)


def generation_not_written(patch: Patch) -> None:
    """A generation is not written: the next coordinator knows no members."""
    patch.setattr(GroupStore, "store_group", lambda self, group, assignments, then: then(ErrorCode.NONE))


def rebalance_not_announced(patch: Patch) -> None:
    """Heartbeats are answered without an error while the group rebalances; who has not joined in time is removed."""
    right = GroupCoordinator.heartbeat

    def silent(self: GroupCoordinator, *given: Any) -> ErrorCode:
        error = right(self, *given)
        return ErrorCode.NONE if error is ErrorCode.REBALANCE_IN_PROGRESS else error

    patch.setattr(GroupCoordinator, "heartbeat", silent)


def rebalance_timeout_ignored(patch: Patch) -> None:
    """The wait for members to join never ends but by all of them, and a dead one's session does not count."""
    patch.setattr(GroupCoordinator, "_join_wait_over", lambda self, group: None)
    patch.setattr(GroupCoordinator, "_silent", lambda self, group, member: None)


def two_leaders(patch: Patch) -> None:
    """Every member is answered as the leader, assigns, and is given what it has assigned."""
    right, sync = GroupCoordinator._joined, GroupCoordinator.sync

    def leads(self: GroupCoordinator, group: ConsumerGroup, member: GroupMember, *, with_members: bool) -> Any:
        group.leader = member.id
        return right(self, group, member, with_members=True)

    def as_assigned(self: GroupCoordinator, request: Any, given: Mapping[str, bytes], answer: Any) -> None:
        def answered(response: SyncGroupResponse) -> None:
            own = given.get(request.member_id, b"") if response.error_code == ErrorCode.NONE else b""
            answer(SyncGroupResponse(response.error_code, own, response.protocol_type, response.protocol_name))

        sync(self, request, given, answered)

    patch.setattr(GroupCoordinator, "_joined", leads)
    patch.setattr(GroupCoordinator, "sync", as_assigned)


def zombie_still_coordinates(patch: Patch) -> None:
    """A broker that no longer leads the partition goes on to answer for its groups."""
    right = coordinated_topic.CoordinatedTopic._unload

    def unload(self: Any, index: int) -> None:
        if self.name != OFFSETS_TOPIC:
            right(self, index)

    patch.setattr(coordinated_topic.CoordinatedTopic, "_unload", unload)


def static_members_not_fenced(patch: Patch) -> None:
    patch.setattr(ConsumerGroup, "is_fenced", lambda self, member_id, instance_id: False)


FAULTS: Mapping[str, tuple[Callable[[Patch], None], str]] = {
    "generation unchecked": (generation_unchecked, REBALANCE),
    "member forgotten in a rebalance": (member_forgotten, REBALANCE),
    "commit acknowledged before it is replicated": (commit_acknowledged_early, KILL),
    "commit never written": (commit_never_written, KILL),
    "heartbeat never expires": (heartbeat_never_expires, REBALANCE),
    "stale assignment given": (stale_assignment, REBALANCE),
    "one assignment to all": (same_assignment_to_all, REBALANCE),
    "offsets lost at load": (offsets_lost_at_load, KILL),
    "load skips batches": (load_skips_the_last_batches, KILL),
    "load keeps the first commit": (load_keeps_the_first, KILL),
    "generation not written": (generation_not_written, KILL),
    "rebalance not announced": (rebalance_not_announced, REBALANCE),
    "rebalance timeout ignored": (rebalance_timeout_ignored, REBALANCE),
    "two leaders of a group": (two_leaders, REBALANCE),
    "static members not fenced": (static_members_not_fenced, STATIC),
    "a former coordinator answers": (zombie_still_coordinates, KILL),
}


def test_static_members_pass_without_a_fault() -> None:
    """As the scenarios without settings do in tests/simulator/test_runs.py."""
    assert violations(STATIC, range(1)) == set()


@pytest.mark.parametrize("what", FAULTS)
def test_a_planted_fault_is_found(what: str, monkeypatch: Patch) -> None:
    plant, name = FAULTS[what]
    plant(monkeypatch)
    found = violations(name)
    print(what, found)
    assert found
