"""Requests about groups into the coordinator of the groups, whose members take part in rebalances meanwhile.

    python -m tests.fuzz.campaign --target groups --inputs 1000000

`MEMBER` in an input stands for the id of the last member that joined, so that malformed requests are a member's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.broker.groups.bounds import PENDING_MAX
from controller.broker.groups.store import GroupStore
from controller.protocol.codec import SUPPORTED, ApiKey, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import Part
from controller.protocol.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from controller.protocol.schema import RequestValue
from controller.simulator.group_members import subscription
from tests.broker.data_harness import DataBroker
from tests.broker.harness import frame_of, header, metadata
from tests.fuzz.crash import Crash

BROKER_LIFE = 500
"""Inputs that one broker gets before another takes its place."""
STEPS_MS = (0.0, 1.0, 50.0, 3_100.0, 11_000.0)
"""Virtual time after an input: a session is 10 s, the first wait of a group 3 s."""
OFFSETS = "__consumer_offsets"
MEMBER = "test-" + "0" * 36
JOIN_VERSION = 2
"""A member joins at once, without an id that it is given first."""


def join(member: str = "", instance: str | None = None) -> JoinGroupRequest:
    protocols = tuple(JoinGroupProtocol(name, subscription(["t"])) for name in ("range", "roundrobin"))
    return JoinGroupRequest("g", 10_000, member, "consumer", protocols, 20_000, instance)


def requests() -> Iterator[tuple[ApiKey, RequestValue, int]]:
    """Each with the first version that has what it says."""
    yield ApiKey.JOIN_GROUP, join(), 0
    yield ApiKey.JOIN_GROUP, join(MEMBER), 0
    yield ApiKey.JOIN_GROUP, join("", "static"), 5
    yield ApiKey.SYNC_GROUP, SyncGroupRequest("g", 1, MEMBER, (SyncGroupAssignment(MEMBER, b"assigned"),)), 0
    yield ApiKey.HEARTBEAT, HeartbeatRequest("g", 1, MEMBER), 0
    yield ApiKey.LEAVE_GROUP, LeaveGroupRequest("g", (LeavingMember(MEMBER),)), 0
    yield ApiKey.LEAVE_GROUP, LeaveGroupRequest("g", (LeavingMember("", "static"), LeavingMember(MEMBER))), 3
    topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, 7, "metadata"),)),)
    yield ApiKey.OFFSET_COMMIT, OffsetCommitRequest("g", topics, 1, MEMBER), 1
    yield ApiKey.OFFSET_COMMIT, OffsetCommitRequest("other", topics), 1
    yield ApiKey.OFFSET_FETCH, OffsetFetchRequest("g", (OffsetFetchTopic("t", (0, 1)),)), 0
    deleted = (OffsetDeleteTopic("t", (OffsetDeletePartition(0),)),)
    yield ApiKey.OFFSET_DELETE, OffsetDeleteRequest("other", deleted), 0
    yield ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(("g", "other")), 0
    yield ApiKey.LIST_GROUPS, ListGroupsRequest(), 0
    yield ApiKey.DELETE_GROUPS, DeleteGroupsRequest(("other",)), 0


def group_frames() -> list[bytes]:
    return [
        encode_request(header(key, version), value)
        for key, value, first in requests()
        for version in range(max(first, SUPPORTED[key].first), SUPPORTED[key].last + 1)
    ]


class GroupTarget:
    """Frames into a broker that coordinates all groups. What the groups hold is counted right, and every request is
    answered once, at the latest when the broker loses the lead."""

    def __init__(self) -> None:
        self._fed = 0
        self._sound = group_frames()
        self._begin()

    def _begin(self) -> None:
        self._broker = DataBroker()
        self._broker.lead(OFFSETS, isr=(1,))
        self._broker.clock.step()
        self._broker.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1), ("t", 1, 1)))
        self._member = MEMBER.encode()
        self._answers: list[list[Sequence[Part] | None]] = []

    def feed(self, frame: bytes) -> str:
        answers: list[Sequence[Part] | None] = []
        self._answers.append(answers)
        self._broker.broker.receive(frame.replace(MEMBER.encode(), self._member), answers.append)
        if self._fed % 3 == 0:
            sound = self._sound[self._fed // 3 % len(self._sound)]
            self._answers.append([])
            self._broker.broker.receive(sound.replace(MEMBER.encode(), self._member), self._answers[-1].append)
        clock = self._broker.clock
        clock.advance_to(clock.now_ms() + STEPS_MS[self._fed % len(STEPS_MS)])
        self._fed += 1
        if self._fed % 10 == 0:
            self._a_member_joins()
        if self._fed % BROKER_LIFE == 0:
            self._end()
            self._begin()
        elif self._fed % 50 == 0:
            self._check()
        if not answers:
            return "answered later"
        return "connection closed" if answers[0] is None else "answered"

    def _a_member_joins(self) -> None:
        answers: list[Sequence[Part] | None] = []
        frame = encode_request(header(ApiKey.JOIN_GROUP, JOIN_VERSION), join())
        self._broker.broker.receive(frame, answers.append)
        clock = self._broker.clock
        clock.advance_to(clock.now_ms() + 3_100.0)
        answered = frame_of(answers[0]) if answers else None
        if answered is not None:
            response = decode_response(ApiKey.JOIN_GROUP, JOIN_VERSION, answered)[1]
            assert isinstance(response, JoinGroupResponse)
            if response.error_code == ErrorCode.NONE:
                self._member = response.member_id.encode()

    def _store(self) -> GroupStore:
        coordinator = self._broker.broker.groups
        assert coordinator is not None
        return coordinator._store

    def _check(self) -> None:
        if faults := self._broker.trace.notes("error"):
            raise Crash(faults[0])
        self._broker.trace.recorder.records.clear()
        store = self._store()
        groups = store.topic.entries()
        held = sum(member.size_bytes for group in groups for member in group.members.values())
        if (store.tally.groups, store.tally.member_bytes) != (len(groups), held):
            raise Crash(f"{store.tally} is counted: expected {len(groups)} groups, {held} bytes")
        if sum(len(group.pending) for group in groups) > PENDING_MAX:
            raise Crash("more ids are pending than may be")

    def _end(self) -> None:
        self._check()
        self._broker.follow(OFFSETS, epoch=1)
        clock = self._broker.clock
        clock.advance_to(clock.now_ms() + 60_000.0)
        self._check()
        if self._store().tally.groups:
            raise Crash("groups are counted without a partition that is led")
        if any(len(answers) > 1 for answers in self._answers):
            raise Crash("a request was answered twice")
