"""The coordinator of consumer groups: answers their requests, and sets the timers that end what they wait for.

A rebalance has two waits. Members are asked to join the next generation: the wait ends when all have, or after the
largest of their rebalance timeouts, and who has not joined is removed. Then the leader, a member, sends the assignments
of all. They are answered when the group is written to __consumer_offsets. A group that was empty waits a while for more
members first (group.initial.rebalance.delay.ms, prolonged while members come, up to their rebalance timeout).

For the broker's thread alone. What must last is written by the `GroupStore`, which also says which groups this broker
coordinates. Rules, order of checks and codes: Kafka 2.8's GroupCoordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from controller.broker.groups.bounds import PendingIds, member_bytes
from controller.broker.groups.group import CONSUMER_PROTOCOL, ConsumerGroup, GroupMember, TopicPartition
from controller.broker.groups.offsets_topic import CommittedOffset
from controller.broker.groups.store import GroupStore, ProducerIdAndEpoch
from controller.broker.request_context import SLICE, Steps
from controller.broker.settings import BrokerSettings
from controller.clock import Clock
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import joined, size_bytes
from controller.protocol.groups import (
    NO_GENERATION,
    NO_MEMBER,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from statemachines.group import CompletingRebalance, Dead, Empty, PreparingRebalance, Stable

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1_000
"""A new member that waits for its first generation is removed after so long, whatever its session timeout: its client
may be gone, and a JoinGroup that waits sends no heartbeats."""

HOLD_MS = 1_000
"""A JoinGroup waits for so long at most while its group is loaded: its connection takes no other request meanwhile."""

Errors = Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class JoiningClient:
    """Who sent a request. `new_member_id`: of a member that is not static, a JoinGroup without a member id is answered
    with one to join with (KIP-394)."""

    id: str
    host: str
    new_member_id: bool = False


def join_error(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error, NO_GENERATION, None, "", member_id)


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error, b"")


class GroupCoordinator:
    """`new_id` returns a text that no other call has returned: the end of a member id. `note(level, message)` writes to
    the log."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: GroupStore,
        clock: Clock,
        new_id: Callable[[], str],
        note: Callable[[str, str], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._note = note
        self._pending = PendingIds()
        self._held_bytes = 0
        """Of requests that wait until their groups are loaded."""
        store.of_loads.append(self._loaded)
        store.of_unloads.append(self._unloaded)

    # Joining.

    def join(
        self,
        request: JoinGroupRequest,
        client: JoiningClient,
        answer: Callable[[JoinGroupResponse], None],
        *,
        may_wait: bool = True,
    ) -> None:
        """`may_wait`: until the group is loaded, rather than have the client ask again and again."""
        member_id = request.member_id
        error = self._store.refusal(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and may_wait:
            held_bytes = _bytes(request, client)
            if self._store.has_place_for(self._held_bytes + held_bytes):
                self._held_bytes += held_bytes

                def go_on() -> None:
                    self._held_bytes -= held_bytes
                    self.join(request, client, answer, may_wait=False)

                self._store.topic.when_loaded(request.group_id, HOLD_MS, go_on)
                return
        if error is not None:
            answer(join_error(member_id, error))
            return
        settings = self._settings
        if (
            not settings.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= (settings.group_max_session_timeout_ms)
        ):
            answer(join_error(member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
            return
        group = self._store.group(request.group_id)
        if group is None:
            if member_id != NO_MEMBER:
                answer(join_error(member_id, ErrorCode.UNKNOWN_MEMBER_ID))
                return
            if self._store.is_full:
                answer(join_error(NO_MEMBER, ErrorCode.GROUP_MAX_SIZE_REACHED))
                return
            group = self._store.add(request.group_id)
        if not self._has_place(group, member_id):
            self._remove(group, member_id)
            answer(join_error(NO_MEMBER, ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif not self._store.has_place_for(_more_bytes(group, request, client)):
            answer(join_error(member_id, ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif member_id == NO_MEMBER:
            self._join_unknown(group, request, client, answer)
        else:
            self._join_known(group, request, client, answer)
        self._end_join_if_all_are_there(group)
        self._forget_unused(group)

    def _forget_unused(self, group: ConsumerGroup) -> None:
        """A group that never had a generation, and in which nothing is left, is not kept until the next look."""
        if group.state is Empty and group.generation == 0 and not group.offsets:
            self._store.delete_offsets(group, ())

    def _has_place(self, group: ConsumerGroup, member_id: str) -> bool:
        most = self._settings.group_max_size
        if group.state is PreparingRebalance:
            member = group.members.get(member_id)
            return (member is not None and member.join is not None) or group.joined < most
        if group.state in (CompletingRebalance, Stable):
            return member_id in group.members or len(group.members) < most
        return True

    def _join_unknown(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        client: JoiningClient,
        answer: Callable[[JoinGroupResponse], None],
    ) -> None:
        protocols = _protocols(request)
        instance_id = request.group_instance_id
        if not group.accepts(request.protocol_type, protocols):
            answer(join_error(NO_MEMBER, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        member_id = f"{client.id if instance_id is None else instance_id}-{self._new_id()}"
        if instance_id is not None and instance_id in group.static_members:
            self._rejoin_static(group, member_id, instance_id, protocols, answer)
        elif client.new_member_id and instance_id is None:
            group.pending[member_id] = self._clock.call_later(
                request.session_timeout_ms, lambda: self._pending_expired(group, member_id)
            )
            self._pending.add(4 * len(member_id) + len(group.id), lambda: self._take_back(group, member_id))
            answer(join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))
        else:
            self._add(group, member_id, request, client, answer)

    def _join_known(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        client: JoiningClient,
        answer: Callable[[JoinGroupResponse], None],
    ) -> None:
        member_id, instance_id, protocols = request.member_id, request.group_instance_id, _protocols(request)
        if not group.accepts(request.protocol_type, protocols):
            answer(join_error(member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        if member_id in group.pending:
            self._add(group, member_id, request, client, answer)
            return
        if group.is_fenced(member_id, instance_id):
            answer(join_error(member_id, ErrorCode.FENCED_INSTANCE_ID))
            return
        member = group.members.get(member_id)
        if member is None or (instance_id is not None and instance_id not in group.static_members):
            answer(join_error(member_id, ErrorCode.UNKNOWN_MEMBER_ID))
            return
        is_leader = group.leader == member_id
        # Without a change of its metadata a member may repeat its JoinGroup: it did not get the answer. A leader that
        # joins a stable group wants a rebalance, because it has seen a change that concerns the assignments.
        unchanged = member.protocols == protocols
        if group.state is Empty:
            answer(join_error(member_id, ErrorCode.UNKNOWN_MEMBER_ID))
        elif unchanged and (group.state is CompletingRebalance or (group.state is Stable and not is_leader)):
            answer(self._joined(group, member, with_members=is_leader and group.state is CompletingRebalance))
        else:
            group.set_protocols(member, protocols)
            group.await_join(member, answer)
            self._rebalance(group, f"member {member_id} joins again")

    def _joined(self, group: ConsumerGroup, member: GroupMember, *, with_members: bool) -> JoinGroupResponse:
        return JoinGroupResponse(
            ErrorCode.NONE,
            group.generation,
            group.protocol,
            group.leader or "",
            member.id,
            group.described_members() if with_members else (),
            group.protocol_type,
        )

    def _add(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: JoinGroupRequest,
        client: JoiningClient,
        answer: Callable[[JoinGroupResponse], None],
    ) -> None:
        rebalance_timeout_ms = request.rebalance_timeout_ms
        if rebalance_timeout_ms < 0:
            rebalance_timeout_ms = request.session_timeout_ms
        member = GroupMember(
            member_id,
            request.group_instance_id,
            client.id,
            client.host,
            request.session_timeout_ms,
            rebalance_timeout_ms,
            _protocols(request),
            is_new=True,
            join=answer,
        )
        if group.state is PreparingRebalance and group.generation == 0:
            group.has_new_member = True
        pending = group.pending.pop(member_id, None)
        if pending is not None:
            pending.cancel()
        group.add(member, request.protocol_type)
        self._expect(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance(group, f"member {member_id} joins")

    def _rejoin_static(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str,
        protocols: tuple[tuple[str, bytes], ...],
        answer: Callable[[JoinGroupResponse], None],
    ) -> None:
        """A static member has restarted: it gets a new member id, and what the old one's assignment was."""
        old_id, leader = group.static_members[instance_id], group.leader
        member = group.members[old_id]
        old_protocols = member.protocols
        group.answer_join(member, join_error(old_id, ErrorCode.FENCED_INSTANCE_ID))
        _answer_sync(member, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        group.unsynced.pop(old_id, None)
        group.replace(old_id, member_id, instance_id)
        self._expect(group, member, member.session_timeout_ms)
        group.set_protocols(member, protocols)
        group.await_join(member, answer)
        if group.state is Stable and group.select_protocol() == group.protocol:

            def stored(error: ErrorCode) -> None:
                if error is not ErrorCode.NONE and group.members.get(member_id) is member:
                    group.set_protocols(member, old_protocols)
                    group.answer_join(member, join_error(NO_MEMBER, error))
                    group.replace(member_id, old_id, instance_id)
                    return
                # With the leader's old id, which it does not have: it must not assign in a stable group.
                joined = self._joined(group, member, with_members=False)
                group.answer_join(
                    member,
                    JoinGroupResponse(
                        joined.error_code,
                        joined.generation_id,
                        joined.protocol_name,
                        leader or "",
                        member_id,
                        (),
                        joined.protocol_type,
                    ),
                )

            self._store.store_group(group, {one.id: one.assignment for one in group.members.values()}, stored)
        else:
            self._rebalance(group, f"static member {instance_id} joins again")

    # A rebalance.

    def _rebalance(self, group: ConsumerGroup, reason: str) -> None:
        """Ask all members to join the next generation, unless that is under way."""
        if not group.can_rebalance:
            return
        if group.state is CompletingRebalance:
            self._propagate(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._end_sync_wait(group)
        settings, was_empty = self._settings, group.state is Empty
        group.move(PreparingRebalance, self._clock.wall_ms())
        self._note("info", f"group {group.id} rebalances after generation {group.generation}: {reason}")
        group.is_first_wait, group.has_new_member = was_empty, False
        if was_empty:
            delay_ms = settings.group_initial_rebalance_delay_ms
            group.grace_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        else:
            delay_ms = group.rebalance_timeout_ms
        self._wait_for_joins(group, delay_ms)
        self._end_join_if_all_are_there(group)

    def _wait_for_joins(self, group: ConsumerGroup, delay_ms: int) -> None:
        if group.joining is not None:
            group.joining.cancel()
        group.joining = self._clock.call_later(delay_ms, lambda: self._join_wait_over(group))

    def _join_wait_over(self, group: ConsumerGroup) -> None:
        group.joining = None
        if group.state is not PreparingRebalance:
            return
        if group.is_first_wait and group.has_new_member and group.grace_ms > 0:
            group.has_new_member = False
            delay_ms = min(self._settings.group_initial_rebalance_delay_ms, group.grace_ms)
            group.grace_ms -= delay_ms
            self._wait_for_joins(group, max(delay_ms, 1))
            return
        self._end_join(group)

    def _end_join_if_all_are_there(self, group: ConsumerGroup) -> None:
        if group.state is PreparingRebalance and not group.is_first_wait and group.has_all_joined():
            self._end_join(group)

    def _end_join(self, group: ConsumerGroup) -> None:
        """Begin the next generation with the members that have joined."""
        if group.joining is not None:
            group.joining.cancel()
            group.joining = None
        group.is_first_wait = False
        for member in group.unjoined():
            if member.instance_id is None:
                self._note("info", f"group {group.id}: member {member.id} has not joined, and is removed")
                group.remove(member.id)
        if group.members and not group.elect_joined_leader():
            # Static members alone, none of which has joined: their sessions will expire.
            self._wait_for_joins(group, group.rebalance_timeout_ms)
            return
        wall_ms = self._clock.wall_ms()
        group.begin_generation(wall_ms)
        if not group.members:
            self._store.store_group(group, {}, lambda error: self._noted(group, error))
            return
        self._note("info", f"group {group.id}: generation {group.generation} with {len(group.members)} members")
        for member in tuple(group.members.values()):
            group.unsynced[member.id] = None
            group.answer_join(member, self._joined(group, member, with_members=group.leader == member.id))
            member.is_new = False
            self._expect(group, member, member.session_timeout_ms)
        generation = group.generation
        group.syncing = self._clock.call_later(
            group.rebalance_timeout_ms, lambda: self._sync_wait_over(group, generation)
        )

    def _noted(self, group: ConsumerGroup, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self._note("warning", f"group {group.id}: that it is empty could not be written: {error.name}")

    # Assignments.

    def sync(
        self, request: SyncGroupRequest, assignments: Mapping[str, bytes], answer: Callable[[SyncGroupResponse], None]
    ) -> None:
        """`assignments`: those of the request, by member id."""
        error = self._store.refusal(request.group_id)
        if error is not None:
            # What was under way before the groups were loaded is lost: the member joins again.
            is_loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            answer(sync_error(ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error))
            return
        group = self._store.group(request.group_id)
        member_id = request.member_id
        member = None if group is None else group.members.get(member_id)
        if group is not None and group.is_fenced(member_id, request.group_instance_id):
            answer(sync_error(ErrorCode.FENCED_INSTANCE_ID))
        elif group is None or member is None or group.state is Empty:
            answer(sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        elif request.generation_id != group.generation:
            answer(sync_error(ErrorCode.ILLEGAL_GENERATION))
        elif request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (
            None,
            group.protocol,
        ):
            answer(sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif group.state is PreparingRebalance:
            answer(sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        elif group.state is Stable:
            self._synced(group, member_id)
            answer(_assignment_of(group, member))
            self._expect(group, member, member.session_timeout_ms)
        else:
            member.sync = answer
            self._synced(group, member_id)
            if group.leader == member_id:
                self._assign(group, assignments)

    def _assign(self, group: ConsumerGroup, given: Mapping[str, bytes]) -> None:
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        generation = group.generation

        def stored(error: ErrorCode) -> None:
            # Another member may have joined meanwhile.
            if group.state is not CompletingRebalance or group.generation != generation:
                return
            if error is not ErrorCode.NONE:
                self._propagate(group, error)
                self._rebalance(group, f"the assignments could not be written: {error.name}")
                return
            for member in group.members.values():
                group.set_assignment(member, assignments.get(member.id, b""))
            group.move(Stable, self._clock.wall_ms())
            self._propagate(group, ErrorCode.NONE)

        self._store.store_group(group, assignments, stored)

    def _propagate(self, group: ConsumerGroup, error: ErrorCode) -> None:
        """Answer the members that wait for their assignments; each has its whole session timeout again."""
        for member in tuple(group.members.values()):
            if error is not ErrorCode.NONE:
                group.set_assignment(member, b"")
            if member.sync is not None:
                _answer_sync(member, _assignment_of(group, member) if error is ErrorCode.NONE else sync_error(error))
                self._expect(group, member, member.session_timeout_ms)

    def _synced(self, group: ConsumerGroup, member_id: str) -> None:
        group.unsynced.pop(member_id, None)
        if not group.unsynced:
            self._end_sync_wait(group)

    def _end_sync_wait(self, group: ConsumerGroup) -> None:
        group.unsynced.clear()
        if group.syncing is not None:
            group.syncing.cancel()
            group.syncing = None

    def _sync_wait_over(self, group: ConsumerGroup, generation: int) -> None:
        """Remove the members that have joined the generation and not asked for their assignments."""
        group.syncing = None
        if group.generation != generation or group.state not in (CompletingRebalance, Stable) or not group.unsynced:
            return
        gone = list(group.unsynced)
        for member_id in gone:
            group.remove(member_id)
        self._rebalance(group, f"members {', '.join(gone)} have not asked for their assignments")

    # Members that stay, leave, or are not heard from.

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self._store.refusal(group_id)
        if error is not None:
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        group = self._store.group(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.is_fenced(member_id, instance_id):
            return ErrorCode.FENCED_INSTANCE_ID
        member = group.members.get(member_id)
        if member is None or group.state is Empty:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._expect(group, member, member.session_timeout_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PreparingRebalance else ErrorCode.NONE

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> tuple[ErrorCode, list[LeftMember]]:
        error = self._store.refusal(group_id)
        if error is not None:
            return error, []
        group = self._store.group(group_id)
        return ErrorCode.NONE, [
            LeftMember(one.member_id, one.group_instance_id, self._leave(group, one)) for one in members
        ]

    def _leave(self, group: ConsumerGroup | None, leaving: LeavingMember) -> ErrorCode:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member_id != NO_MEMBER and group.is_fenced(member_id, instance_id):
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id in group.pending:
            group.pending.pop(member_id).cancel()
            self._end_join_if_all_are_there(group)
            return ErrorCode.NONE
        member = group.members.get(group.static_members.get(instance_id or "", member_id))
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._remove_and_rebalance(group, member, f"member {member.id} leaves")
        return ErrorCode.NONE

    def _expect(self, group: ConsumerGroup, member: GroupMember, timeout_ms: int) -> None:
        """The member is expected to be heard from within `timeout_ms`."""
        if member.session is not None:
            member.session.cancel()
        member.session = self._clock.call_later(timeout_ms, lambda: self._silent(group, member))

    def _silent(self, group: ConsumerGroup, member: GroupMember) -> None:
        member.session = None
        if group.state is Dead or group.members.get(member.id) is not member:
            return
        if member.is_waiting and not member.is_new:
            return  # its session goes on when it is answered
        self._remove_and_rebalance(group, member, f"member {member.id} was not heard from")

    def _pending_expired(self, group: ConsumerGroup, member_id: str) -> None:
        if group.pending.pop(member_id, None) is not None:
            self._end_join_if_all_are_there(group)
            self._forget_unused(group)

    def _take_back(self, group: ConsumerGroup, member_id: str) -> None:
        """The id was given out so many ids ago that it is not waited for any longer."""
        timer = group.pending.get(member_id)
        if timer is not None:
            timer.cancel()
            self._pending_expired(group, member_id)

    def _remove(self, group: ConsumerGroup, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is not None:
            group.answer_join(member, join_error(NO_MEMBER, ErrorCode.UNKNOWN_MEMBER_ID))
            _answer_sync(member, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
            group.remove(member_id)

    def _remove_and_rebalance(self, group: ConsumerGroup, member: GroupMember, reason: str) -> None:
        self._remove(group, member.id)
        if group.state in (Stable, CompletingRebalance):
            self._rebalance(group, reason)
        else:
            self._end_join_if_all_are_there(group)

    # Offsets.

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        answer: Callable[[Errors], None],
    ) -> Steps:
        error = self._store.refusal(group_id, may_be_empty=True)
        group = None if error is not None else self._store.group(group_id)
        if error is None and group is None:
            if generation >= 0:
                error = ErrorCode.ILLEGAL_GENERATION
            elif self._store.is_full:
                error = ErrorCode.POLICY_VIOLATION
            else:
                group = self._store.add(group_id)
        if group is not None:
            error = self._commit_refusal(group, member_id, instance_id, generation)
        if error is not None or group is None:
            answer(dict.fromkeys(offsets, error or ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            yield from self._store.store_offsets(group, offsets, answer)

    def _commit_refusal(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode | None:
        if group.is_fenced(member_id, instance_id):
            return ErrorCode.FENCED_INSTANCE_ID
        if generation < 0 and group.state is Empty:
            return None  # the group keeps offsets alone
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is CompletingRebalance:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._expect(group, member, member.session_timeout_ms)
        return None

    def commit_in_transaction(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        producer: ProducerIdAndEpoch,
        offsets: Mapping[TopicPartition, CommittedOffset],
        answer: Callable[[Errors], None],
    ) -> Steps:
        """Commit offsets that count once the producer's transaction has committed. `member_id` "" and a negative
        generation are not checked."""
        error = self._store.refusal(group_id)
        if error is None and self._store.is_full and self._store.group(group_id) is None:
            error = ErrorCode.POLICY_VIOLATION
        if error is None:
            group = self._store.add(group_id)
            error = _transaction_refusal(group, member_id, instance_id, generation)
        if error is not None:
            answer(dict.fromkeys(offsets, error))
        else:
            yield from self._store.store_offsets(group, offsets, answer, producer)

    def end_transaction(self, index: int, producer_id: int, *, commits: bool) -> None:
        """See GroupStore.end_transaction."""
        self._store.end_transaction(index, producer_id, commits=commits)

    def partition_of(self, group_id: str) -> int:
        """The partition of __consumer_offsets that the group belongs to."""
        return self._store.topic.index_of(group_id)

    def offsets(self, group_id: str) -> tuple[ErrorCode, ConsumerGroup | None]:
        """The group whose committed offsets are asked for. None without an error: it has committed none."""
        error = self._store.refusal(group_id, may_be_empty=True)
        return (error, None) if error is not None else (ErrorCode.NONE, self._store.group(group_id))

    def deletion_refusal(self, group_id: str) -> ErrorCode:
        """Why no offset of the group may be deleted; NONE if some may."""
        error = self._store.refusal(group_id)
        if error is not None:
            return error
        group = self._store.group(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        is_used_otherwise = group.state is not Empty and group.protocol_type != CONSUMER_PROTOCOL
        return ErrorCode.NON_EMPTY_GROUP if is_used_otherwise else ErrorCode.NONE

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """Delete these offsets, except those of topics to which members subscribe. The error of each."""
        error = self.deletion_refusal(group_id)
        group = self._store.group(group_id) if error is ErrorCode.NONE else None
        if group is None:
            return dict.fromkeys(partitions, error)
        kept = group.state is not Empty
        errors = {
            key: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if kept and group.is_subscribed(key[0]) else ErrorCode.NONE
            for key in partitions
        }
        self._store.delete_offsets(
            group, [key for key, error in errors.items() if error is ErrorCode.NONE], keep_group=True
        )
        return errors

    def start(self) -> None:
        """Look for offsets to delete every `offsets.retention.check.interval.ms`."""
        self._clock.call_later(self._settings.offsets_retention_check_interval_ms, self._look_for_expired)

    def _look_for_expired(self) -> None:
        self.start()
        self.expire_offsets()

    def expire_offsets(self) -> None:
        """Delete the offsets that are kept no longer, and the groups that have nothing left."""
        retention_ms = self._settings.offsets_retention_minutes * 60_000
        wall_ms = self._clock.wall_ms()
        for group in self._store.topic.entries():
            self._store.delete_offsets(group, list(group.expired_offsets(wall_ms, retention_ms)))

    # Administration.

    def groups(self) -> tuple[ErrorCode, list[ConsumerGroup]]:
        """All groups that are coordinated here. The error says that some are being loaded."""
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._store.topic.is_loading else ErrorCode.NONE
        return error, self._store.topic.entries()

    def group(self, group_id: str) -> tuple[ErrorCode, ConsumerGroup | None]:
        """None without an error: there is no such group."""
        error = self._store.refusal(group_id, may_be_empty=True)
        return (error, None) if error is not None else (ErrorCode.NONE, self._store.group(group_id))

    def delete(self, group_id: str) -> ErrorCode:
        error = self._store.refusal(group_id, may_be_empty=True)
        if error is not None:
            return error
        group = self._store.group(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not Empty:
            return ErrorCode.NON_EMPTY_GROUP
        self._store.delete_offsets(group, list(group.offsets), with_group=True)
        return ErrorCode.NONE

    # What the controller says.

    def metadata_changed(self) -> None:
        """See CoordinatedTopic.metadata_changed."""
        self._store.topic.metadata_changed()

    def partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """Delete what is committed for partitions of topics that are being deleted (handleDeletedPartitions)."""
        self._store.topic.drive(self._forget(partitions))

    def _forget(self, partitions: Collection[TopicPartition]) -> Steps:
        for number, group in enumerate(self._store.topic.entries(), 1):
            if group.state is not Dead:
                group.drop_all_open(partitions)
                gone = [key for key in group.offsets if key in partitions]
                if gone:
                    self._store.delete_offsets(group, gone)
            if number % SLICE == 0:
                yield None

    # This broker becomes the coordinator of groups, or ceases to be.

    def _loaded(self, group: ConsumerGroup) -> None:
        for member in group.members.values():
            self._expect(group, member, member.session_timeout_ms)
        if len(group.members) > self._settings.group_max_size:
            self._rebalance(group, "it has more members than group.max.size")

    def _unloaded(self, group: ConsumerGroup) -> None:
        group.move(Dead, self._clock.wall_ms())
        for timer in (group.joining, group.syncing, *group.pending.values()):
            if timer is not None:
                timer.cancel()
        group.pending.clear()
        for member in group.members.values():
            if member.session is not None:
                member.session.cancel()
            group.answer_join(member, join_error(member.id, ErrorCode.NOT_COORDINATOR))
            _answer_sync(member, sync_error(ErrorCode.NOT_COORDINATOR))


def _transaction_refusal(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode | None:
    if group.is_fenced(member_id, instance_id):
        return ErrorCode.FENCED_INSTANCE_ID
    if member_id != NO_MEMBER and member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation >= 0 and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return None


def _more_bytes(group: ConsumerGroup, request: JoinGroupRequest, client: JoiningClient) -> int:
    """How much more the group's members hold if the request's is one of them."""
    member = group.members.get(group.static_members.get(request.group_instance_id or "", request.member_id))
    return _bytes(request, client) - (0 if member is None else member.size_bytes)


def _bytes(request: JoinGroupRequest, client: JoiningClient) -> int:
    """How much a member with this request holds."""
    metadata = ((one.name, size_bytes(one.metadata)) for one in request.protocols)
    return member_bytes(request.member_id, client.id, request.group_instance_id, metadata)


def _protocols(request: JoinGroupRequest) -> tuple[tuple[str, bytes], ...]:
    return tuple((one.name, joined([one.metadata])) for one in request.protocols)


def _assignment_of(group: ConsumerGroup, member: GroupMember) -> SyncGroupResponse:
    return SyncGroupResponse(ErrorCode.NONE, member.assignment, group.protocol_type, group.protocol)


def _answer_sync(member: GroupMember, response: SyncGroupResponse) -> None:
    answer, member.sync = member.sync, None
    if answer is not None:
        answer(response)
