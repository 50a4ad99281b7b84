"""The largest request of every API that a broker answers takes no long slice of the thread that handles requests.

A slice's length is its CPU time there: reading the frame, each step of the handler, and what its answer causes later.
Jobs and the controller's events run on other threads and do not count, but for garbage collections, which stop every
thread. Each API of the broker's own table needs a row
here: an API without one fails the first test.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from controller.broker.request_context import Gate, Job, Steps
from controller.clock import Timer, VirtualClock
from controller.hosts.process import COLLECTOR
from controller.protocol import groups, security, transactions
from controller.protocol.admin import (
    OPERATION_SET,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DescribableLogDirTopic,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    FeatureUpdate,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListedTopic,
    ListPartitionReassignmentsRequest,
    LogDirToMoveTo,
    ReassignablePartition,
    ReassignableTopic,
    ReplacedConfig,
    ReplicasToMove,
    UpdateFeaturesRequest,
)
from controller.protocol.client import (
    ApiVersionsRequest,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from controller.protocol.codec import SUPPORTED, ApiKey, encode_request
from controller.protocol.control import (
    AllocateProducerIdsRequest,
    AlterIsrPartition,
    AlterIsrRequest,
    AlterIsrTopic,
    ControlledShutdownRequest,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from controller.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from controller.protocol.produce import InitProducerIdRequest, ProducePartition, ProduceRequest, ProduceTopic
from controller.protocol.schema import RequestValue
from tests.broker.data_node import DataNode
from tests.broker.harness import header, live

pytestmark = pytest.mark.usefixtures("frozen")
LONGEST_CPU_S = 0.1
CLIENT = 98_000
"""Entries of a client's request: `camerlengo.request.entries.max` counts the topics around them, too."""
CONTROL = 100_000
"""Partitions in a controller's request."""
A_TOPIC = 100
"""Partitions."""
LONGEST_MS = 300_000
"""Virtual time until the answer."""


def spread(topic: Callable[..., Any], partition: Callable[[int], Any] = int, count: int = CLIENT) -> tuple[Any, ...]:
    """So many partitions in topics of `A_TOPIC`."""
    partitions = tuple(partition(index) for index in range(A_TOPIC))
    return tuple(topic(f"n{number}", partitions) for number in range(count // A_TOPIC))


def single(topic: Callable[..., Any], partition: Callable[[int], Any] = int, count: int = CLIENT) -> tuple[Any, ...]:
    """So many partitions in one topic."""
    return (topic("t", tuple(partition(index) for index in range(count))),)


def named(make: Callable[[str], Any], count: int = CLIENT, prefix: str = "n") -> tuple[Any, ...]:
    return tuple(make(f"{prefix}{number}") for number in range(count))


def update_metadata(epoch: int = 1) -> UpdateMetadataRequest:
    def state(index: int) -> UpdateMetadataPartitionState:
        return UpdateMetadataPartitionState(index, epoch, 1, epoch, (1, 2, 3), epoch, (1, 2, 3))

    return UpdateMetadataRequest(1, epoch, spread(UpdateMetadataTopicState, state, CONTROL), live(1, 2, 3))


def leader_and_isr() -> LeaderAndIsrRequest:
    def state(index: int) -> LeaderAndIsrPartitionState:
        return LeaderAndIsrPartitionState(index, 1, 2, 0, (2, 3), 0, (2, 3))

    return LeaderAndIsrRequest(1, 1, spread(LeaderAndIsrTopicState, state, CONTROL), ())


def stop_replica() -> StopReplicaRequest:
    return StopReplicaRequest(
        1, 1, spread(StopReplicaTopicState, lambda index: StopReplicaPartitionState(index, 1, True), CONTROL)
    )


def altered(name: str) -> AlterConfigsResource:
    return AlterConfigsResource(RESOURCE_TOPIC, name, (ReplacedConfig("retention.ms", "1"),))


def altered_config(name: str) -> AlterableConfig:
    return AlterableConfig(name, OPERATION_SET, "1")


Row = tuple[int | None, Callable[[], RequestValue]]
"""A version (None: the latest) and what makes the request."""
ROWS: Mapping[ApiKey, tuple[Row, ...]] = {
    ApiKey.PRODUCE: (
        (7, lambda: ProduceRequest(1, 1_000, single(ProduceTopic, lambda i: ProducePartition(i, b"x")))),
        (7, lambda: ProduceRequest(-1, 1_000, spread(ProduceTopic, lambda i: ProducePartition(i, None)))),
    ),
    ApiKey.FETCH: (
        (4, lambda: FetchRequest(0, 1, single(FetchTopic, lambda i: FetchPartition(i, 0, 1)))),
        (11, lambda: FetchRequest(500, 1, spread(FetchTopic, lambda i: FetchPartition(i, 0, 1)), session_epoch=0)),
    ),
    ApiKey.LIST_OFFSETS: (
        (None, lambda: ListOffsetsRequest(single(ListOffsetsTopic, lambda i: ListOffsetsPartition(i, 1_000)))),
        (None, lambda: ListOffsetsRequest(spread(ListOffsetsTopic, lambda i: ListOffsetsPartition(i, -1)))),
    ),
    ApiKey.METADATA: (
        (8, lambda: MetadataRequest(named(MetadataRequestTopic))),
        (None, lambda: MetadataRequest(None)),
    ),
    ApiKey.LEADER_AND_ISR: ((None, leader_and_isr),),
    ApiKey.STOP_REPLICA: ((None, stop_replica),),
    ApiKey.UPDATE_METADATA: ((None, lambda: update_metadata(2)),),
    ApiKey.CONTROLLED_SHUTDOWN: ((None, lambda: ControlledShutdownRequest(3, 1)),),
    ApiKey.FIND_COORDINATOR: ((None, lambda: FindCoordinatorRequest("g" * 30_000)),),
    ApiKey.API_VERSIONS: ((None, lambda: ApiVersionsRequest("a" * 30_000, "1")),),
    ApiKey.CREATE_TOPICS: (
        (None, lambda: CreateTopicsRequest(named(lambda name: CreatableTopic(name, 1, 1)), 1_000)),
        (None, lambda: CreateTopicsRequest(named(lambda name: CreatableTopic(name, 1, 1), 20_000, "x"), 1_000, True)),
    ),
    ApiKey.DELETE_TOPICS: ((5, lambda: DeleteTopicsRequest(named(DeleteTopicState), 1_000)),),
    ApiKey.DELETE_RECORDS: (
        (None, lambda: DeleteRecordsRequest(single(DeleteRecordsTopic, lambda i: DeleteRecordsPartition(i, 1)), 1_000)),
    ),
    ApiKey.INIT_PRODUCER_ID: ((None, lambda: InitProducerIdRequest(None, 1_000)),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        (
            3,
            lambda: OffsetForLeaderEpochRequest(single(OffsetForLeaderTopic, lambda i: OffsetForLeaderPartition(i, 0))),
        ),
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        (None, lambda: DescribeConfigsRequest(named(lambda name: DescribeConfigsResource(RESOURCE_TOPIC, name)))),
        (None, lambda: DescribeConfigsRequest((DescribeConfigsResource(RESOURCE_TOPIC, "t", named(str)),))),
    ),
    ApiKey.ALTER_CONFIGS: (
        (None, lambda: AlterConfigsRequest(named(altered, CLIENT // 2, "x"))),
        (
            None,
            lambda: AlterConfigsRequest(
                (AlterConfigsResource(RESOURCE_TOPIC, "t", named(lambda name: ReplacedConfig(name, "1"))),)
            ),
        ),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        (
            None,
            lambda: IncrementalAlterConfigsRequest(
                named(
                    lambda name: IncrementalAlterConfigsResource(
                        RESOURCE_TOPIC, name, (altered_config("retention.ms"),)
                    ),
                    CLIENT // 2,
                    "x",
                )
            ),
        ),
        (
            None,
            lambda: IncrementalAlterConfigsRequest(
                (IncrementalAlterConfigsResource(RESOURCE_TOPIC, "t", named(altered_config)),)
            ),
        ),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        (None, lambda: AlterReplicaLogDirsRequest((LogDirToMoveTo("logs", single(ReplicasToMove)),))),
        (None, lambda: AlterReplicaLogDirsRequest((LogDirToMoveTo("logs", spread(ReplicasToMove)),))),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        (None, lambda: DescribeLogDirsRequest(single(DescribableLogDirTopic))),
        (None, lambda: DescribeLogDirsRequest(spread(DescribableLogDirTopic))),
    ),
    ApiKey.CREATE_PARTITIONS: (
        (None, lambda: CreatePartitionsRequest(named(lambda name: CreatePartitionsTopic(name, 1)), 1_000)),
        (
            None,
            lambda: CreatePartitionsRequest(named(lambda name: CreatePartitionsTopic(name, 1), 20_000, "x"), 1_000),
        ),
    ),
    ApiKey.ELECT_LEADERS: (
        (None, lambda: ElectLeadersRequest(single(ElectLeadersTopic), 1_000)),
        (None, lambda: ElectLeadersRequest(spread(ElectLeadersTopic), 1_000)),
        (None, lambda: ElectLeadersRequest(None, 1_000)),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        (
            None,
            lambda: AlterPartitionReassignmentsRequest(
                spread(ReassignableTopic, lambda index: ReassignablePartition(index, None)), 1_000
            ),
        ),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        (None, lambda: ListPartitionReassignmentsRequest(spread(ListedTopic), 1_000)),
        (None, lambda: ListPartitionReassignmentsRequest(None, 1_000)),
    ),
    ApiKey.ALTER_ISR: (
        (
            0,
            lambda: AlterIsrRequest(
                1, spread(AlterIsrTopic, lambda index: AlterIsrPartition(index, 0, (1,)), CONTROL), 1
            ),
        ),
    ),
    ApiKey.UPDATE_FEATURES: ((None, lambda: UpdateFeaturesRequest(named(lambda name: FeatureUpdate(name, 1)), 1_000)),),
    ApiKey.ALLOCATE_PRODUCER_IDS: ((None, lambda: AllocateProducerIdsRequest(1, 1)),),
    ApiKey.JOIN_GROUP: (
        (
            None,
            lambda: groups.JoinGroupRequest(
                "g", 10_000, "m", "consumer", named(lambda name: groups.JoinGroupProtocol(name, b""))
            ),
        ),
    ),
    ApiKey.SYNC_GROUP: (
        (
            None,
            lambda: groups.SyncGroupRequest("g", 1, "m", named(lambda name: groups.SyncGroupAssignment(name, b"a"))),
        ),
    ),
    ApiKey.HEARTBEAT: ((None, lambda: groups.HeartbeatRequest("g", 1, "m")),),
    ApiKey.LEAVE_GROUP: ((None, lambda: groups.LeaveGroupRequest("g", named(groups.LeavingMember))),),
    ApiKey.OFFSET_COMMIT: (
        (
            None,
            lambda: groups.OffsetCommitRequest(
                "g", spread(groups.OffsetCommitTopic, lambda i: groups.OffsetCommitPartition(i, 1, ""))
            ),
        ),
        (
            0,
            lambda: groups.OffsetCommitRequest(
                "g", single(groups.OffsetCommitTopic, lambda i: groups.OffsetCommitPartition(i, 1, None))
            ),
        ),
    ),
    ApiKey.OFFSET_FETCH: (
        (None, lambda: groups.OffsetFetchRequest("g", spread(groups.OffsetFetchTopic))),
        (1, lambda: groups.OffsetFetchRequest("g", single(groups.OffsetFetchTopic))),
    ),
    ApiKey.OFFSET_DELETE: (
        (
            None,
            lambda: groups.OffsetDeleteRequest("g", spread(groups.OffsetDeleteTopic, groups.OffsetDeletePartition)),
        ),
    ),
    ApiKey.DESCRIBE_GROUPS: ((None, lambda: groups.DescribeGroupsRequest(named(str))),),
    ApiKey.LIST_GROUPS: ((None, lambda: groups.ListGroupsRequest(named(str))),),
    ApiKey.DELETE_GROUPS: ((None, lambda: groups.DeleteGroupsRequest(named(str))),),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        (
            None,
            lambda: transactions.AddPartitionsToTxnRequest("t", 1, 0, spread(transactions.AddPartitionsToTxnTopic)),
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: ((None, lambda: transactions.AddOffsetsToTxnRequest("t", 1, 0, "g")),),
    ApiKey.END_TXN: ((None, lambda: transactions.EndTxnRequest("t", 1, 0, True)),),
    ApiKey.WRITE_TXN_MARKERS: (
        (
            None,
            lambda: transactions.WriteTxnMarkersRequest(
                (transactions.WritableTxnMarker(1, 0, True, spread(transactions.WritableTxnMarkerTopic), 0),)
            ),
        ),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        (
            None,
            lambda: transactions.TxnOffsetCommitRequest(
                "t",
                "g",
                1,
                0,
                spread(
                    transactions.TxnOffsetCommitRequestTopic,
                    lambda i: transactions.TxnOffsetCommitRequestPartition(i, 1, ""),
                ),
            ),
        ),
    ),
    ApiKey.DESCRIBE_ACLS: ((None, lambda: security.DescribeAclsRequest(1, None, None, None, 1, 1, 1)),),
    ApiKey.CREATE_ACLS: (
        (
            None,
            lambda: security.CreateAclsRequest(named(lambda name: security.AclCreation(2, name, "User:u", "*", 3, 3))),
        ),
    ),
    ApiKey.SASL_HANDSHAKE: ((None, lambda: security.SaslHandshakeRequest("PLAIN")),),
    ApiKey.SASL_AUTHENTICATE: ((None, lambda: security.SaslAuthenticateRequest(b"x" * 500_000)),),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        (
            None,
            lambda: security.DescribeClientQuotasRequest(
                named(lambda name: security.QuotaFilterComponent("user", 0, name)), False
            ),
        ),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        (
            None,
            lambda: security.AlterClientQuotasRequest(
                named(
                    lambda name: security.QuotaAlteration(
                        (security.QuotaEntityPart("user", name),), (security.QuotaOperation("k", 1.0, False),)
                    ),
                    CLIENT // 3,
                ),
                False,
            ),
        ),
        (
            None,
            lambda: security.AlterClientQuotasRequest(
                (
                    security.QuotaAlteration(
                        named(lambda name: security.QuotaEntityPart("user", name), CLIENT // 3),
                        named(lambda name: security.QuotaOperation(name, 1.0, True), CLIENT // 3),
                    ),
                ),
                False,
            ),
        ),
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        (None, lambda: security.DescribeUserScramCredentialsRequest(named(security.UserName))),
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        (
            None,
            lambda: security.AlterUserScramCredentialsRequest(
                named(lambda name: security.ScramCredentialDeletion(name, 1)), ()
            ),
        ),
    ),
    ApiKey.DELETE_ACLS: (
        (
            None,
            lambda: security.DeleteAclsRequest(
                named(lambda name: security.DeleteAclsFilter(2, name, None, None, 1, 1))
            ),
        ),
    ),
}


class Stopwatch:
    """CPU time of what runs on the thread that handles requests, slice by slice, and of garbage collections."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.slices = 0
        self._elsewhere_s = 0.0
        self._collection_s = 0.0

    def slice(self, call: Callable[[], Any]) -> Any:
        began_s, elsewhere_s = time.thread_time(), self._elsewhere_s
        try:
            return call()
        finally:
            self.slices += 1
            spent_s = time.thread_time() - began_s - (self._elsewhere_s - elsewhere_s)
            self.longest_s = max(self.longest_s, spent_s)

    def collected(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_s = time.thread_time()
        else:
            self.longest_s = max(self.longest_s, time.thread_time() - self._collection_s)

    def elsewhere(self, call: Callable[[], Any]) -> Any:
        """What another thread does in a real broker."""
        began_s, before_s = time.thread_time(), self._elsewhere_s
        try:
            return call()
        finally:
            self._elsewhere_s = before_s + time.thread_time() - began_s


class OnEventThread:
    """The controller's coroutine, whose time is not the loop's."""

    def __init__(self, task: Any, watch: Stopwatch) -> None:
        self._task = task
        self._watch = watch

    def send(self, value: Any) -> Any:
        return self._watch.elsewhere(lambda: self._task.send(value))


class MeasuredClock(VirtualClock):
    def __init__(self) -> None:
        super().__init__()
        self.watch = Stopwatch()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return super().call_later(delay_ms, lambda: self.watch.slice(callback))


class MeasuredNode(DataNode):
    """A whole node that knows of `CONTROL` partitions, and measures one request."""

    def __init__(self) -> None:
        self.measured_clock = MeasuredClock()
        super().__init__("t", clock=self.measured_clock)
        self.driven: list[Steps] = []
        self.on_slice: Callable[[], object] = lambda: None
        process = self.node.process
        self.node.process = lambda event: OnEventThread(process(event), self.watch)  # type: ignore[assignment, return-value, method-assign]
        self.handled(ApiKey.UPDATE_METADATA, SUPPORTED[ApiKey.UPDATE_METADATA].last, update_metadata())

    @property
    def watch(self) -> Stopwatch:
        return self.measured_clock.watch

    def handled(self, key: ApiKey, version: int, value: RequestValue) -> Stopwatch:
        frame = encode_request(header(key, version), value)
        del value
        gc.freeze()
        self.measured_clock.watch = watch = Stopwatch()
        gc.callbacks.append(watch.collected)
        try:
            self._handle(frame, watch)
        finally:
            gc.callbacks.remove(watch.collected)
        return watch

    def _handle(self, frame: bytes, watch: Stopwatch) -> None:
        answers: list[object] = []
        self.node.broker.drive = self.driven.append
        steps = watch.slice(lambda: self.node.broker.begin(frame, answers.append))
        self._run(steps)
        until_ms = self.clock.now_ms() + LONGEST_MS
        while not answers:
            while self.driven:
                self._run(self.driven.pop(0))
            assert self.clock.now_ms() < until_ms, "it is answered"
            assert answers or self.clock.step()
        assert len(answers) == 1

    def _run(self, steps: Steps | None) -> None:
        yielded = None
        try:
            while steps is not None:
                self.on_slice()
                if isinstance(yielded, Job):
                    result = yielded.call()
                    yielded = self.watch.slice(lambda result=result: steps.send(result))  # type: ignore[misc]
                else:
                    assert not isinstance(yielded, Gate) or yielded.enter(lambda: None)
                    yielded = self.watch.slice(lambda: steps.send(None))
        except StopIteration:
            return


@pytest.fixture(scope="module")
def node() -> MeasuredNode:
    gc.collect()
    return MeasuredNode()


@pytest.fixture(name="frozen")
def collector_of_a_broker() -> Iterator[None]:
    """A collection is not to go through all that other tests have left."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTOR)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def measured(node: MeasuredNode, key: ApiKey, row: Row) -> float:
    version, make = row
    return node.handled(key, SUPPORTED[key].last if version is None else version, make()).longest_s


def test_every_api_that_a_broker_answers_has_a_row() -> None:
    assert set(ROWS) == set(DataNode("t").node.broker.apis)


@pytest.mark.parametrize(
    ("key", "row"), [(key, row) for key, rows in ROWS.items() for row in rows], ids=lambda one: getattr(one, "name", "")
)
def test_the_largest_request_is_handled_in_short_slices(node: MeasuredNode, key: ApiKey, row: Row) -> None:
    assert measured(node, key, row) < LONGEST_CPU_S


LATER_EPOCH = 1_000
CONTROLLERS_ALONE = (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_TOPICS, ApiKey.ELECT_LEADERS)


def test_the_largest_requests_are_refused_in_short_slices(node: MeasuredNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a broker that is not the controller, and by one that has heard of a later controller."""
    monkeypatch.setattr(node.node.broker, "_is_controller", lambda: False)
    for key in CONTROLLERS_ALONE:
        for row in ROWS[key]:
            assert measured(node, key, row) < LONGEST_CPU_S, key
    monkeypatch.setattr(node.node.broker.replicas, "controller_epoch", LATER_EPOCH)
    for key in (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA):
        for row in ROWS[key]:
            assert measured(node, key, row) < LONGEST_CPU_S, key


def test_metadata_of_many_partitions_are_taken_whole(node: MeasuredNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a job makes the next snapshot, clients see the one before; then all of the next one."""
    metadata = node.node.broker.metadata
    before = metadata.snapshot
    seen: list[int] = []
    monkeypatch.setattr(
        node, "on_slice", lambda: seen.append(0 if metadata.snapshot is before else id(metadata.snapshot))
    )
    monkeypatch.setattr(node.node.broker.control, "confirmed", LATER_EPOCH)
    measured(node, ApiKey.UPDATE_METADATA, (None, lambda: update_metadata(3)))
    assert metadata.snapshot.topics["n7"][7].controller_epoch == 3
    assert set(seen) == {0, id(metadata.snapshot)}
    assert seen == sorted(seen, key=bool)
    assert seen.count(0) > 2
