"""The requests about consumer groups: from the fields of a request to the coordinator's call, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from itertools import islice

from controller.broker.error_responses import topic_results
from controller.broker.groups.coordinator import Errors, GroupCoordinator, JoiningClient, join_error
from controller.broker.groups.group import ConsumerGroup, TopicPartition
from controller.broker.groups.offsets_topic import CommittedOffset
from controller.broker.metadata import MetadataCache
from controller.broker.request_context import SLICE, Handler, RequestContext, Steps
from controller.clock import Clock
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import joined
from controller.protocol.groups import (
    NO_EPOCH,
    NO_OFFSET,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitPartitionResult,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopicResult,
    OffsetDeletePartitionResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopicResult,
    OffsetFetchPartitionResult,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    OffsetFetchTopicResult,
    SyncGroupRequest,
)
from statemachines.group import Stable

STATES_MAX = 1_000
"""States that a ListGroups request may name and have looked at. There are five."""
LATEST_MS = (1 << 63) - 1
"""The latest time that a record can hold."""
PROTOCOLS_MAX = 1_000
"""Ways to assign that one member may name. Clients name one or two."""
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
_VERSION_WITH_NULLABLE_PROTOCOL = 7
_VERSION_WITH_KNOWN_MEMBER_IDS = 4
_VERSION_WITH_MEMBER_ERRORS = 3
_VERSION_WITH_GROUP_ERROR = 2


class GroupHandlers:
    def __init__(self, coordinator: GroupCoordinator, metadata: MetadataCache, clock: Clock) -> None:
        self._coordinator = coordinator
        self._metadata = metadata
        self._clock = clock

    @property
    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: self._heartbeat,
            ApiKey.LEAVE_GROUP: self._leave,
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.OFFSET_FETCH: self._fetch,
            ApiKey.OFFSET_DELETE: self._delete_offsets,
            ApiKey.DESCRIBE_GROUPS: self._describe,
            ApiKey.LIST_GROUPS: self._list,
            ApiKey.DELETE_GROUPS: self._delete,
        }

    def _join(self, exchange: RequestContext, request: JoinGroupRequest) -> None:
        version = exchange.header.api_version

        def answer(response: JoinGroupResponse) -> None:
            if version < _VERSION_WITH_NULLABLE_PROTOCOL and response.protocol_name is None:
                response = JoinGroupResponse(
                    response.error_code,
                    response.generation_id,
                    "",
                    response.leader,
                    response.member_id,
                    response.members,
                )
            exchange.answer(response)

        names = {one.name for one in request.protocols[: PROTOCOLS_MAX + 1]}
        if len(names) > PROTOCOLS_MAX or len(names) < len(request.protocols):
            answer(join_error(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        client = JoiningClient(
            exchange.header.client_id or "",
            java_address(exchange.host),
            new_member_id=version >= _VERSION_WITH_KNOWN_MEMBER_IDS,
        )
        self._coordinator.join(request, client, answer)
        if not exchange.answered:
            exchange.release_request(
                JoinGroupRequest(
                    request.group_id, 0, request.member_id, request.protocol_type, (), 0, request.group_instance_id
                )
            )

    def _sync(self, exchange: RequestContext, request: SyncGroupRequest) -> Steps:
        assignments: dict[str, bytes] = {}
        for number, one in enumerate(request.assignments, 1):
            assignments[one.member_id] = joined([one.assignment])
            if number % SLICE == 0:
                yield None
        self._coordinator.sync(request, assignments, exchange.answer)
        if not exchange.answered:
            exchange.release_request(SyncGroupRequest(request.group_id, request.generation_id, request.member_id, ()))

    def _heartbeat(self, exchange: RequestContext, request: HeartbeatRequest) -> None:
        error = self._coordinator.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        exchange.answer(HeartbeatResponse(error))

    def _leave(self, exchange: RequestContext, request: LeaveGroupRequest) -> Steps:
        error, left = ErrorCode.NONE, list[LeftMember]()
        for start in range(0, max(len(request.members), 1), SLICE):
            if start:
                yield None
            error, members = self._coordinator.leave(request.group_id, request.members[start : start + SLICE])
            if error is not ErrorCode.NONE:
                break
            left += members
        if exchange.header.api_version < _VERSION_WITH_MEMBER_ERRORS:
            of_one = ErrorCode(left[0].error_code) if error is ErrorCode.NONE and left else error
            exchange.answer(LeaveGroupResponse(of_one))
        else:
            exchange.answer_made(lambda: LeaveGroupResponse(error, tuple(left)))

    # Offsets.

    def _commit(self, exchange: RequestContext, request: OffsetCommitRequest) -> Steps:
        now_ms = self._clock.wall_ms()
        expires_ms = min(now_ms + request.retention_time_ms, LATEST_MS) if request.retention_time_ms >= 0 else -1
        offsets: dict[TopicPartition, CommittedOffset] = {}
        unknown: dict[TopicPartition, ErrorCode] = {}
        known = self._metadata.snapshot.topics
        for topic in request.topics:
            for one in topic.partitions:
                if one.partition_index not in known.get(topic.name, ()):
                    unknown[topic.name, one.partition_index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                offsets[topic.name, one.partition_index] = CommittedOffset(
                    one.committed_offset,
                    max(one.committed_leader_epoch, NO_EPOCH),
                    one.committed_metadata or "",
                    one.commit_timestamp if one.commit_timestamp >= 0 else now_ms,
                    expires_ms,
                )
                if len(offsets) % SLICE == 0:
                    yield None

        def answer(errors: Errors) -> None:
            exchange.answer_made(lambda: _committed(request, {**errors, **unknown}))

        if unknown and not offsets:
            answer({})
            return
        yield from self._coordinator.commit(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id, offsets, answer
        )

    def _fetch(self, exchange: RequestContext, request: OffsetFetchRequest) -> Steps:
        error, group = self._coordinator.offsets(request.group_id)
        held: Mapping[TopicPartition, CommittedOffset] = {} if group is None else group.offsets
        # Up to version 1 a response has no error of its own: each partition has it.
        of_each = error if exchange.header.api_version < _VERSION_WITH_GROUP_ERROR else ErrorCode.NONE
        topics: dict[str, list[OffsetFetchPartitionResult]] = {}
        wanted: Iterable[TopicPartition] = ()
        if error is ErrorCode.NONE or of_each is not ErrorCode.NONE:
            wanted = tuple(held) if request.topics is None else _named(request.topics)
        for number, (topic, index) in enumerate(wanted, 1):
            committed = held.get((topic, index))
            unstable = request.require_stable and group is not None and group.is_unstable((topic, index))
            topics.setdefault(topic, []).append(
                OffsetFetchPartitionResult(index, NO_OFFSET, "", UNSTABLE if unstable else of_each)
                if committed is None or unstable
                else OffsetFetchPartitionResult(
                    index, committed.offset, committed.metadata, of_each, committed.leader_epoch
                )
            )
            if number % SLICE == 0:
                yield None
        exchange.answer_made(
            lambda: OffsetFetchResponse(
                tuple(OffsetFetchTopicResult(name, tuple(results)) for name, results in topics.items()), error
            )
        )

    def _delete_offsets(self, exchange: RequestContext, request: OffsetDeleteRequest) -> Steps:
        partitions = ((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
        topics: dict[str, list[OffsetDeletePartitionResult]] = {}
        error = self._coordinator.deletion_refusal(request.group_id)
        while error is ErrorCode.NONE and (some := list(islice(partitions, SLICE))):
            known = self._metadata.snapshot.topics
            there = [(topic, index) for topic, index in some if index in known.get(topic, ())]
            results = dict.fromkeys(some, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            results |= self._coordinator.delete_offsets(request.group_id, there)
            for (topic, index), result in results.items():
                topics.setdefault(topic, []).append(OffsetDeletePartitionResult(index, result))
            yield None
        exchange.answer_made(
            lambda: OffsetDeleteResponse(
                error, tuple(OffsetDeleteTopicResult(name, tuple(those)) for name, those in topics.items())
            )
        )

    # Administration.

    def _describe(self, exchange: RequestContext, request: DescribeGroupsRequest) -> Steps:
        described = []
        for group_id in request.groups:
            described.append(self._described(group_id))
            if len(described) % SLICE == 0:
                yield None
        exchange.answer_made(lambda: DescribeGroupsResponse(tuple(described)))

    def _described(self, group_id: str) -> DescribedGroup:
        error, group = self._coordinator.group(group_id)
        if error is not ErrorCode.NONE:
            return DescribedGroup(error, group_id, "", "", "", ())
        if group is None:
            return DescribedGroup(ErrorCode.NONE, group_id, "Dead", "", "", ())
        return DescribedGroup(
            ErrorCode.NONE,
            group_id,
            group.state.name,
            group.protocol_type or "",
            (group.protocol or "") if group.state is Stable else "",
            tuple(_members(group)),
        )

    def _list(self, exchange: RequestContext, request: ListGroupsRequest) -> Steps:
        states = frozenset(request.states_filter[:STATES_MAX])
        error, groups = self._coordinator.groups()
        listed = []
        for number, group in enumerate(groups, 1):
            if not request.states_filter or group.state.name in states:
                listed.append(ListedGroup(group.id, group.protocol_type or "", group.state.name))
            if number % SLICE == 0:
                yield None
        exchange.answer_made(lambda: ListGroupsResponse(error, tuple(listed)))

    def _delete(self, exchange: RequestContext, request: DeleteGroupsRequest) -> Steps:
        results: dict[str, DeletedGroup] = {}
        for name in request.groups_names:
            if name not in results:
                results[name] = DeletedGroup(name, self._coordinator.delete(name))
                if len(results) % SLICE == 0:
                    yield None
        exchange.answer_made(lambda: DeleteGroupsResponse(tuple(results.values())))


def java_address(host: str) -> str:
    """A client's address as Kafka's coordinator has it: `/127.0.0.1`, the text of Java's InetAddress, which writes all
    eight groups of an IPv6 address. What is no address stays as it is."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    groups = address.exploded.split(":")
    return "/" + (address.exploded if len(groups) == 1 else ":".join(f"{int(one, 16):x}" for one in groups))


def _named(topics: Sequence[OffsetFetchTopic]) -> Iterator[TopicPartition]:
    return ((topic.name, index) for topic in topics for index in topic.partition_indexes)


def _committed(request: OffsetCommitRequest, errors: Errors) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topic_results(request.topics, OffsetCommitTopicResult, OffsetCommitPartitionResult, errors)
    )


def _members(group: ConsumerGroup) -> list[DescribedGroupMember]:
    """Metadata and assignments in a stable group alone, as of Kafka."""
    stable = group.state is Stable and group.protocol is not None
    return [
        DescribedGroupMember(
            member.id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol) if stable and group.protocol is not None else b"",
            member.assignment if stable else b"",
            member.instance_id,
        )
        for member in group.members.values()
    ]
