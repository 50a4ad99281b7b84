"""Simulated members of a consumer group: join, sync, heartbeat, read from the committed offsets, commit.

Each life of a member is a process of its own, so that it can stand still and die. What a member does follows Kafka's
consumer: it finds the coordinator, joins with the id that it is given (KIP-394), assigns as the leader, heartbeats
three times a session, commits what it has read, and commits once more before it joins again.
One request is under way to the coordinator at a time, so that no commit overtakes another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from controller.clock import Clock
from controller.core.channels import PeerError
from controller.machine.process import Process, ProcessClock, ProcessState
from controller.protocol import ApiKey, ErrorCode, decode_response_body, encode_request_body
from controller.protocol.client import FindCoordinatorRequest, FindCoordinatorResponse
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
from controller.scenarios.records.group_history import GROUP, FormerMember, GroupLog, MemberAssignment
from controller.scenarios.records.workload import PartitionName
from controller.simulator.consumer import REQUEST_TIMEOUT_MS, SimulatedConsumer, offset_of
from controller.simulator.network import Address
from controller.simulator.randomness import Streams
from controller.simulator.routes import BACKOFF_MS, Pipeline, Routes, keep_going

COMMIT_EACH_MS = 250.0
HEARTBEATS_A_SESSION = 3.0
STEP_MS = 40.0
REBALANCE_TIMEOUT_MS = 4_000
JOIN_PATIENCE_MS = 2.0 * REBALANCE_TIMEOUT_MS
"""Longer than the coordinator may wait for the other members."""
PROTOCOL = "range"
CONSUMER = "consumer"
_VERSION = b"\0\0"
_FIND, _JOIN, _SYNC, _HEARTBEAT, _LEAVE, _COMMIT, _FETCH = 3, 7, 5, 4, 4, 8, 7
_JOIN_ANEW = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION)
"""Errors after which a member has no id any more."""
_REJOIN = (*_JOIN_ANEW, ErrorCode.REBALANCE_IN_PROGRESS)
_ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)

Connect = Callable[[Process, ProcessClock, Address, str], Pipeline]
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


class _Life:
    """A member from its start to its end. `leave` ends it in order, the end of its process at once."""

    def __init__(self, member: SimulatedMember, life: int, *, static: bool) -> None:
        self.process = Process(f"member-{member.number}")
        self.clock = ProcessClock(member.world, self.process)
        self.leaving = False
        self.superseded = False
        """Another has come in its place; an error that ends its membership ends it."""
        self.assignment: MemberAssignment | None = None
        self._member = member
        self._instance = f"instance-{member.number}" if static else None
        name = f"member-{member.number}"
        self._rng = member.streams.stream(f"records/{name}/{life}")

        def connect(address: Address) -> Pipeline:
            return member.connect(self.process, self.clock, address, name)

        self._connect = connect
        self.routes = Routes(connect, self.clock, self._rng, member.brokers, member.partitions)
        self._coordinator: int | None = None
        self._pipeline: Pipeline | None = None
        self._asked_ms = 0.0
        self._id, self._generation = NO_MEMBER, NO_GENERATION
        self._consumer: SimulatedConsumer | None = None
        self._sent: dict[int, int] = {}  # the offset that was last committed, by place
        keep_going(self._run())

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
        self.process.die()  # and with it its connections and timers

    def keep_to(self, among: Collection[int]) -> None:
        self.routes.keep_to(among)
        if self._coordinator not in among:
            self._coordinator = None
            if self._pipeline is not None:
                self._pipeline.close()

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
        """Over a connection to the coordinator alone: a JoinGroup holds up what comes after it. Raises PeerError; the
        coordinator is then looked for again."""
        while self._coordinator is None:
            await self._find()
        if self._pipeline is None or self._pipeline.broken is not None:
            self._pipeline = self._connect(self._member.brokers[self._coordinator])
        self._asked_ms = self.clock.now_ms()
        try:
            body = await self._pipeline.ask(key, version, encode_request_body(key, version, request), timeout_ms)
        except PeerError:
            self._coordinator = None
            raise
        return decode_response_body(key, version, body)

    async def _find(self) -> None:
        request = FindCoordinatorRequest(GROUP)
        try:
            answer = await self.routes.ask(
                self.routes.anybody(), ApiKey.FIND_COORDINATOR, _FIND, request, REQUEST_TIMEOUT_MS
            )
        except PeerError:
            await self.clock.sleep(BACKOFF_MS)
            return
        assert isinstance(answer, FindCoordinatorResponse)
        if answer.error_code == ErrorCode.NONE and answer.node_id in self.routes.nodes:
            if self._pipeline is not None:
                self._pipeline.close()
            self._coordinator, self._pipeline = answer.node_id, None
        else:
            await self.clock.sleep(BACKOFF_MS)

    def _refused(self, code: int) -> bool:
        """Return whether a request was refused for now. Raises _Rejoin."""
        error = ErrorCode(code)
        if error in _JOIN_ANEW and self.superseded and self._instance is not None:
            now_ms = self.clock.now_ms()
            former = FormerMember(self._member.number, self._id, error.name, self._asked_ms, now_ms)
            self._member.log.ended(former)
        if error in _REJOIN:
            raise _Rejoin(error)
        if error in _ELSEWHERE:
            self._coordinator = None
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
            member.number,
            self._id,
            self._generation,
            places,
            self.clock.now_ms(),
            static=self._instance is not None,
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
        self._consumer = SimulatedConsumer(self.assignment.reader, self.routes, starts)
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
        due = {place: consumer.positions[place] for place in consumer.places if self._is_due(place, consumer)}
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
        while self._coordinator is None:
            await self._find()
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

    def _is_due(self, place: int, consumer: SimulatedConsumer) -> bool:
        return consumer.positions[place] > self._sent.get(place, 0)


class SimulatedMember:
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
    ) -> None:
        self.number = number
        self.connect = connect
        self.world = world
        self.streams = streams
        self.brokers = dict(brokers)
        self.partitions = tuple(partitions)
        self.log = log
        self.session_ms = session_ms
        self.readers: list[SimulatedConsumer] = []
        self._static = static
        self._lives = 0
        self._former: list[_Life] = []
        self._life: _Life | None = None

    @property
    def is_running(self) -> bool:
        return self._life is not None and self._life.process.alive

    @property
    def takes_part(self) -> bool:
        return self._life is not None and self.is_running and not self._life.leaving

    @property
    def is_paused(self) -> bool:
        return self._life is not None and self._life.process.state is ProcessState.PAUSED

    def begin(self) -> None:
        """Start, unless it runs already."""
        if not self.is_running:
            self._lives += 1
            self._life = _Life(self, self._lives, static=self._static)
        elif self._life is not None and self._life.leaving:
            self.world.call_later(BACKOFF_MS, self.begin)

    def leave(self) -> None:
        if self._life is not None:
            self._life.leaving = True

    def die(self) -> None:
        if self._life is not None and self.is_running:
            self._life.end()

    def end_former(self) -> None:
        """Those in whose place others have come are not waited for."""
        for life in self._former:
            if life.process.alive:
                life.end()

    def keep_to(self, among: Collection[int] | None) -> None:
        """Ask these brokers alone from now on, as a client would whose other brokers are cut off; None: all."""
        if among is None:
            return
        self.brokers = {node: address for node, address in self.brokers.items() if node in among}
        if self._life is not None and self.is_running:
            self._life.keep_to(among)

    def replace(self) -> Callable[[], None]:
        """The member stands still, and another takes its place under its name (and group.instance.id). Return what has
        the former one go on."""
        former = self._life
        assert former is not None
        former.process.pause()
        former.superseded = True
        if former.assignment is not None:
            self.log.gave_up(former.assignment, self.world.now_ms())
        self._life = None
        self._former.append(former)
        self.begin()
        return former.process.resume

    def pause(self) -> None:
        if self._life is not None:
            self._life.process.pause()

    def resume(self) -> None:
        if self._life is not None:
            self._life.process.resume()
