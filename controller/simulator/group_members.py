"""Simulated members of a consumer group: join, sync, heartbeat, read from the committed offsets, commit.

Each life of a member is a process of its own, so that it can stand still and die. What a member does follows Kafka's
consumer: it finds the coordinator, joins with the id that it is given (KIP-394), assigns as the leader, heartbeats
three times a session, commits what it has read, and commits once more before it joins again.
One request is under way to the coordinator at a time, so that no commit overtakes another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from controller.clock import Clock
from controller.core.channels import PeerError
from controller.machine.process import ProcessState
from controller.protocol import ApiKey, ErrorCode
from controller.protocol.client import COORDINATOR_OF_GROUP, COORDINATOR_OF_TRANSACTION
from controller.protocol.compiler import layout
from controller.protocol.fetch import EARLIEST_TIMESTAMP
from controller.protocol.framing import joined
from controller.protocol.groups import (
    NO_GENERATION,
    NO_MEMBER,
    ConsumerAssignedTopic,
    ConsumerAssignment,
    ConsumerSubscription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from controller.protocol.schema import RequestValue, ResponseValue
from controller.protocol.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from controller.scenarios.records.group_checks import NOT_COMMITTED
from controller.scenarios.records.group_history import GROUP, FormerMember, GroupLog, MemberAssignment
from controller.scenarios.records.workload import PartitionName
from controller.simulator.consumer import REQUEST_TIMEOUT_MS, SimulatedConsumer, offset_of
from controller.simulator.network import Address
from controller.simulator.randomness import Streams
from controller.simulator.routes import BACKOFF_MS, Connect, CoordinatorLink, Routes, keep_going
from controller.simulator.transactional_client import (
    FencedByCluster,
    RestartableClient,
    SimulatedLife,
    TransactionalProducer,
    TransactionFailed,
)
from controller.simulator.transformer import Transformer, TransformSetup

COMMIT_EACH_MS = 250.0
HEARTBEATS_A_SESSION = 3.0
STEP_MS = 40.0
REBALANCE_TIMEOUT_MS = 4_000
JOIN_PATIENCE_MS = 2.0 * REBALANCE_TIMEOUT_MS
"""Longer than the coordinator may wait for the other members."""
PROTOCOL = "range"
CONSUMER = "consumer"
_VERSION = b"\0\0"
_TXN_COMMIT = 3
_JOIN, _SYNC, _HEARTBEAT, _LEAVE, _COMMIT, _FETCH = 7, 5, 4, 4, 8, 7
_JOIN_ANEW = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION)
"""Errors after which a member has no id any more."""
_REJOIN = (*_JOIN_ANEW, ErrorCode.REBALANCE_IN_PROGRESS)
_ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)

Places = tuple[int, ...]


def subscription(topics: Sequence[str]) -> bytes:
    return _VERSION + layout(ConsumerSubscription.message, 0).write(ConsumerSubscription(tuple(topics)))


def assignment_bytes(partitions: Sequence[PartitionName]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    value = ConsumerAssignment(tuple(ConsumerAssignedTopic(name, tuple(those)) for name, those in topics.items()))
    return _VERSION + layout(ConsumerAssignment.message, 0).write(value)


def assigned_partitions(data: bytes) -> list[PartitionName]:
    """The partitions in an assignment; empty for a member that has none."""
    if not data:
        return []
    value = layout(ConsumerAssignment.message, 0).read(data, len(_VERSION), rest_allowed=True)
    assert isinstance(value, ConsumerAssignment)
    return [(one.topic, number) for one in value.topics for number in one.partitions]


def dealt(leader: str, members: Sequence[str], partitions: Sequence[PartitionName]) -> dict[str, list[PartitionName]]:
    """Deal the partitions out in turn: to the leader, then to the other members in the order of their ids. Two leaders
    would thus assign differently."""
    ordered = sorted(members, key=lambda one: (one != leader, one))
    return {member: list(partitions[place :: len(ordered)]) for place, member in enumerate(ordered)}


class _Rejoin(Exception):
    """The member has to join again; without its id if `anew`."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.anew = error in _JOIN_ANEW


class _Life(SimulatedLife):
    """A member from its start to its end. `leave` ends it in order, the end of its process at once."""

    def __init__(self, member: SimulatedMember, life: int, *, static: bool) -> None:
        super().__init__(member, life, GROUP, COORDINATOR_OF_GROUP)
        self.leaving = False
        self.assignment: MemberAssignment | None = None
        self._member = member
        self._instance = f"instance-{member.number}" if static else None
        self._transformer = None if member.transforms is None else self._new_transformer(member.transforms)
        self._taken = 0
        """The rows of the reader that transactions have consumed."""
        self._rejoins: ErrorCode | None = None
        self._id, self._generation = NO_MEMBER, NO_GENERATION
        self._consumer: SimulatedConsumer | None = None
        self._sent: dict[int, int] = {}  # the offset that was last committed, by place
        keep_going(self._run())

    def _new_transformer(self, setup: TransformSetup) -> Transformer:
        member, connect = self._member, self._connect
        self._outputs = Routes(connect, self.clock, self._rng, member.brokers, setup.partitions)
        self._outputs.learn()
        name = f"transformer-{member.number}"
        link = CoordinatorLink(name, COORDINATOR_OF_TRANSACTION, self._outputs, connect, member.brokers)
        producer = TransactionalProducer(
            name, setup.logs.new(name), self._outputs, link, setup.workload.timeout_ms, member.stages
        )
        setup.producers.append(producer)
        return Transformer(producer, setup, member.stages)

    async def _run(self) -> None:
        self.routes.learn()
        while not self.leaving:
            try:
                await self._join()
                await self._take_part()
            except _Rejoin as again:
                if again.anew and self.superseded:
                    break
                self._id = NO_MEMBER if again.anew else self._id
            self.give_up()
            await self.clock.sleep(self._rng.uniform(0.5, 1.0) * BACKOFF_MS)
        if self.superseded:
            self.end()
            return
        if self._id != NO_MEMBER and self._instance is None:  # a static member keeps its place
            with suppress(PeerError):  # its session ends it
                await self._ask(ApiKey.LEAVE_GROUP, _LEAVE, LeaveGroupRequest(GROUP, (LeavingMember(self._id),)))
        self.end()

    def end(self) -> None:
        self.give_up()
        super().end()

    def gave_way(self) -> None:
        """It has given up its partitions then; an error that ends its membership ends it from now on."""
        if self.assignment is not None:
            self._member.log.gave_up(self.assignment, self._member.world.now_ms())

    def keep_to(self, among: Collection[int]) -> None:
        super().keep_to(among)
        if self._transformer is not None:
            self._outputs.keep_to(among)
            self._transformer.producer.link.keep_to(among)

    def give_up(self) -> None:
        """Read no more of what was assigned."""
        if self._consumer is not None:
            self._consumer.stop()
            self._consumer = None
        if self.assignment is not None:
            self._member.log.gave_up(self.assignment, self._member.world.now_ms())
            self.assignment = None

    # -- requests

    async def _ask(
        self, key: ApiKey, version: int, request: RequestValue, timeout_ms: float = REQUEST_TIMEOUT_MS
    ) -> ResponseValue:
        """Raises PeerError; the coordinator is then looked for again."""
        return await self.link.ask(key, version, request, timeout_ms)

    def _refused(self, code: int) -> bool:
        """Return whether a request was refused for now. Raises _Rejoin."""
        error = ErrorCode(code)
        if error in _JOIN_ANEW and self.superseded and self._instance is not None:
            now_ms = self.clock.now_ms()
            former = FormerMember(self._member.number, self._id, error.name, self.link.asked_ms, now_ms)
            self._member.log.ended(former)
        if error in _REJOIN:
            raise _Rejoin(error)
        if error in _ELSEWHERE:
            self.link.forget()
        return error is not ErrorCode.NONE

    # -- a rebalance

    async def _join(self) -> None:
        """Until the member has its assignment, and has begun to read."""
        member = self._member
        metadata = subscription(sorted({topic for topic, _ in member.partitions}))
        while True:
            request = JoinGroupRequest(
                GROUP,
                member.session_ms,
                self._id,
                CONSUMER,
                (JoinGroupProtocol(PROTOCOL, metadata),),
                REBALANCE_TIMEOUT_MS,
                self._instance,
            )
            try:
                answer = await self._ask(ApiKey.JOIN_GROUP, _JOIN, request, JOIN_PATIENCE_MS)
            except PeerError:
                await self.clock.sleep(BACKOFF_MS)
                continue
            assert isinstance(answer, JoinGroupResponse)
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._id = answer.member_id
            elif not self._refused(answer.error_code):
                self._id, self._generation = answer.member_id, answer.generation_id
                if await self._sync(answer):
                    return
            else:
                await self.clock.sleep(BACKOFF_MS)

    async def _sync(self, joined_group: JoinGroupResponse) -> bool:
        member = self._member
        given: tuple[SyncGroupAssignment, ...] = ()
        if joined_group.leader == self._id:
            shares = dealt(self._id, [one.member_id for one in joined_group.members], member.partitions)
            given = tuple(SyncGroupAssignment(name, assignment_bytes(those)) for name, those in shares.items())
        request = SyncGroupRequest(GROUP, self._generation, self._id, given, self._instance, CONSUMER, PROTOCOL)
        try:
            answer = await self._ask(ApiKey.SYNC_GROUP, _SYNC, request, JOIN_PATIENCE_MS)
        except PeerError:
            await self.clock.sleep(BACKOFF_MS)
            return False
        assert isinstance(answer, SyncGroupResponse)
        if self._refused(answer.error_code):
            await self.clock.sleep(BACKOFF_MS)
            return False
        places = tuple(member.partitions.index(name) for name in assigned_partitions(joined([answer.assignment])))
        self.assignment = member.log.assigned(
            member.number, self._id, self._generation, places, self.clock.now_ms(), static=self._instance is not None
        )
        await self._resume(places)
        return True

    async def _resume(self, places: Places) -> None:
        """Read from the committed offsets on; from the beginning of a partition that has none."""
        assert self.assignment is not None
        self._sent = {}
        starts = dict.fromkeys(places, 0)
        while places:
            wanted = tuple(OffsetFetchTopic(topic, those) for topic, those in self._by_topic(places).items())
            sent_ms = self.clock.now_ms()
            try:
                answer = await self._ask(ApiKey.OFFSET_FETCH, _FETCH, OffsetFetchRequest(GROUP, wanted, True))
            except PeerError:
                await self.clock.sleep(BACKOFF_MS)
                continue
            assert isinstance(answer, OffsetFetchResponse)
            if self._refused(answer.error_code):
                await self.clock.sleep(BACKOFF_MS)
                continue
            if any(one.error_code != ErrorCode.NONE for topic in answer.topics for one in topic.partitions):
                await self.clock.sleep(BACKOFF_MS)  # a transaction that has ended is not in the offsets yet
                continue
            for topic in answer.topics:
                for one in topic.partitions:
                    place = self._member.partitions.index((topic.name, one.partition_index))
                    offset = one.committed_offset
                    self._member.log.read(self._member.number, place, offset, sent_ms, self.clock.now_ms())
                    starts[place] = offset
            break
        for place, offset in starts.items():
            if offset < 0:
                start = await offset_of(self.routes, place, EARLIEST_TIMESTAMP)
                starts[place] = start or 0
            else:
                self._sent[place] = offset
        transactions = None if self._transformer is None else self._transformer.producer.transactions
        self._taken = 0
        self._consumer = SimulatedConsumer(
            self.assignment.reader, self.routes, starts, committed=transactions is not None, transactions=transactions
        )
        self._member.readers.append(self._consumer)
        self._consumer.begin()

    def _by_topic(self, places: Sequence[int]) -> dict[str, tuple[int, ...]]:
        topics: dict[str, tuple[int, ...]] = {}
        for place in places:
            topic, number = self._member.partitions[place]
            topics[topic] = (*topics.get(topic, ()), number)
        return topics

    # -- a stable group

    async def _take_part(self) -> None:
        """Until the group rebalances, or the member leaves. Raises _Rejoin."""
        heartbeat_ms = self._member.session_ms / HEARTBEATS_A_SESSION
        next_heartbeat_ms = next_commit_ms = self.clock.now_ms()
        while not self.leaving:
            now_ms = self.clock.now_ms()
            try:
                if now_ms >= next_commit_ms:
                    next_commit_ms = now_ms + COMMIT_EACH_MS
                    await self._commit()
                if now_ms >= next_heartbeat_ms:
                    next_heartbeat_ms = now_ms + heartbeat_ms
                    await self._heartbeat()
            except PeerError:
                next_heartbeat_ms = now_ms  # to the next coordinator, in the same generation
            await self.clock.sleep(STEP_MS)
        with suppress(PeerError):  # what was read since the last commit is read again
            await self._commit()

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(GROUP, self._generation, self._id, self._instance)
        answer = await self._ask(ApiKey.HEARTBEAT, _HEARTBEAT, request)
        assert isinstance(answer, HeartbeatResponse)
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            await self._commit()  # what was read is committed before the partitions may go to others
        self._refused(answer.error_code)

    async def _commit(self) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        if self._transformer is not None:
            await self._transform(self._transformer, consumer)
            return
        due = {one: at for one in consumer.places if (at := consumer.positions[one]) > self._sent.get(one, 0)}
        if not due:
            return
        log, member = self._member.log, self._member
        topics = tuple(
            OffsetCommitTopic(
                topic,
                tuple(
                    OffsetCommitPartition(number, due[member.partitions.index((topic, number))], "")
                    for number in numbers
                ),
            )
            for topic, numbers in self._by_topic(list(due)).items()
        )
        request = OffsetCommitRequest(GROUP, topics, self._generation, self._id, self._instance)
        await self.link.found()
        now_ms = self.clock.now_ms()
        numbers = {
            place: log.committing(member.number, self._id, self._generation, place, offset, now_ms)
            for place, offset in due.items()
        }
        answer = await self._ask(ApiKey.OFFSET_COMMIT, _COMMIT, request)
        assert isinstance(answer, OffsetCommitResponse)
        codes = []
        for topic in answer.topics:
            for one in topic.partitions:
                place = member.partitions.index((topic.name, one.partition_index))
                error = ErrorCode(one.error_code)
                log.committed(numbers[place], self.clock.now_ms(), "" if error is ErrorCode.NONE else error.name)
                codes.append(error)
                if error is ErrorCode.NONE:
                    self._sent[place] = due[place]
        for code in codes:
            self._refused(code)

    async def _transform(self, transformer: Transformer, consumer: SimulatedConsumer) -> None:
        """One transaction, and if it was not committed from the committed offsets on again."""
        numbers: list[int] = []

        async def send_offsets(offsets: Mapping[int, int]) -> None:
            await self._send_offsets(transformer.producer.identity, offsets, numbers)

        outcome: str | None = None
        """Why the offsets do not count; None where that is not known."""
        try:
            taken = await transformer.consume(consumer.log, self._taken, send_offsets)
            outcome = NOT_COMMITTED if taken is None else ""
        except TransactionFailed:
            taken = None
        except FencedByCluster:
            if self.superseded:
                raise _Rejoin(ErrorCode.UNKNOWN_MEMBER_ID) from None
            taken = None
        if outcome is not None:
            for number in numbers:
                self._member.log.committed(number, self.clock.now_ms(), outcome)
        if taken is not None:
            self._taken = taken
            return
        if self._rejoins is not None:
            error, self._rejoins = self._rejoins, None
            raise _Rejoin(error)
        await self._begin_again()

    async def _begin_again(self) -> None:
        """From the committed offsets, with a reader of its own, in the same generation."""
        former = self.assignment
        self.give_up()
        if former is not None:
            self.assignment = self._member.log.assigned(
                former.client,
                former.member_id,
                former.generation,
                former.partitions,
                self.clock.now_ms(),
                static=former.static,
            )
            await self._resume(former.partitions)

    async def _send_offsets(
        self, identity: tuple[str, int, int], offsets: Mapping[int, int], numbers: list[int]
    ) -> None:
        """TxnOffsetCommit until it is answered; `numbers` receives the commits. Raises TransactionFailed, and
        FencedByCluster."""
        member, log = self._member, self._member.log
        name, producer_id, epoch = identity
        topics = tuple(
            TxnOffsetCommitRequestTopic(
                topic,
                tuple(
                    TxnOffsetCommitRequestPartition(each, offsets[member.partitions.index((topic, each))], "")
                    for each in those
                ),
            )
            for topic, those in self._by_topic(list(offsets)).items()
        )
        request = TxnOffsetCommitRequest(
            name, GROUP, producer_id, epoch, topics, self._generation, self._id, self._instance
        )
        await self.link.found()
        now_ms = self.clock.now_ms()
        numbers += [
            log.committing(member.number, self._id, self._generation, place, offset, now_ms)
            for place, offset in offsets.items()
        ]
        while True:
            answer = await self.link.ask_until_answered(
                ApiKey.TXN_OFFSET_COMMIT, _TXN_COMMIT, request, REQUEST_TIMEOUT_MS
            )
            assert isinstance(answer, TxnOffsetCommitResponse)
            errors = {ErrorCode(one.error_code) for topic in answer.topics for one in topic.partitions}
            if errors == {ErrorCode.NONE}:
                return
            error = min(errors - {ErrorCode.NONE})
            if error in _JOIN_ANEW:
                self._rejoins = error
                raise TransactionFailed(error.name)
            if error in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
                raise FencedByCluster(error.name)
            if error in _ELSEWHERE:
                self.link.forget()
            await self.clock.sleep(BACKOFF_MS)


class SimulatedMember(RestartableClient[_Life]):
    """One client of the group, over its lives. `readers`: what it read, one for each assignment."""

    def __init__(
        self,
        number: int,
        connect: Connect,
        world: Clock,
        streams: Streams,
        brokers: Mapping[int, Address],
        partitions: Sequence[PartitionName],
        log: GroupLog,
        session_ms: int,
        *,
        static: bool = False,
        transforms: TransformSetup | None = None,
    ) -> None:
        super().__init__(f"member-{number}", connect, world, streams, brokers, partitions)
        self.transforms = transforms
        self.number = number
        self.log = log
        self.session_ms = session_ms
        self.readers: list[SimulatedConsumer] = []
        self._static = static

    @property
    def takes_part(self) -> bool:
        return self._life is not None and self.is_running and not self._life.leaving

    @property
    def is_paused(self) -> bool:
        return self._life is not None and self._life.process.state is ProcessState.PAUSED

    def begin(self) -> None:
        if not self.is_running:
            self._lives += 1
            self._life = _Life(self, self._lives, static=self._static)
        elif self._life is not None and self._life.leaving:
            self.world.call_later(BACKOFF_MS, self.begin)

    def leave(self) -> None:
        if self._life is not None:
            self._life.leaving = True
