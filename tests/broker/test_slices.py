"""Large requests are handled in short slices, and refused above a limit.

A slice's length is its CPU time on the thread that handles requests; jobs run elsewhere and do not count.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from controller.broker.broker import Broker
from controller.broker.request_context import LARGE_AT_ONCE, Gate, Job, Steps, finish, resumed
from controller.protocol.admin import (
    RESOURCE_TOPIC,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from controller.protocol.client import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from controller.protocol.codec import ApiKey, decode_response, encode_request
from controller.protocol.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from controller.protocol.errors import ErrorCode
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
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from controller.protocol.schema import RequestValue
from tests.broker import harness
from tests.broker.data_harness import DataBroker
from tests.broker.data_node import DataNode
from tests.broker.harness import BrokerUnderTest, frame_of, header

pytestmark = pytest.mark.usefixtures("frozen")
SLICE_CPU_S = 0.1
"""Slices take some milliseconds; a machine that does much else makes that several times as much."""
MANY = 30_000


@pytest.fixture(name="frozen")
def what_was_there_is_not_collected() -> Iterator[None]:
    """As in a broker's process: a collection is not to go through all that other tests have left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Sliced:
    """Runs a request's steps as a host does, and measures each slice."""

    def __init__(self, broker: Broker, key: ApiKey, version: int, value: RequestValue) -> None:
        self.longest_s = 0.0
        self.slices = 0
        self.jobs = 0
        self.answers: list[bytes | None] = []
        self.driven: list[Steps] = []
        broker.drive = self.driven.append
        frame = encode_request(header(key, version), value)
        steps = self.measured(lambda: broker.begin(frame, lambda parts: self.answers.append(frame_of(parts))))
        if steps is not None:
            self.run(steps)
        while self.driven:
            self.run(self.driven.pop(0))

    def run(self, steps: Steps) -> None:
        yielded = None
        while True:
            try:
                if isinstance(yielded, Job):
                    self.jobs += 1
                    job = yielded
                    result = job.call()
                    yielded = self.measured(lambda result=result: steps.send(result))  # type: ignore[misc]
                else:
                    if isinstance(yielded, Gate) and not yielded.enter(lambda: self.driven.append(steps)):
                        return
                    yielded = self.measured(lambda: steps.send(None))
            except StopIteration:
                return

    def measured(self, call: Callable[[], Any]) -> Any:
        began_s = time.thread_time()
        try:
            return call()
        finally:
            self.slices += 1
            self.longest_s = max(self.longest_s, time.thread_time() - began_s)


def names(count: int) -> tuple[MetadataRequestTopic, ...]:
    return tuple(MetadataRequestTopic(f"n{number}") for number in range(count))


def informed(under_test: BrokerUnderTest) -> Broker:
    """It knows the live brokers, and no topic."""
    under_test.ask(ApiKey.UPDATE_METADATA, harness.metadata())
    return under_test.broker


LARGE: list[tuple[ApiKey, int, RequestValue]] = [
    (ApiKey.METADATA, 8, MetadataRequest(names(MANY))),
    (ApiKey.METADATA, 9, MetadataRequest(names(MANY))),
    (ApiKey.FETCH, 4, FetchRequest(0, 1, (FetchTopic("t", tuple(FetchPartition(i, 0, 1) for i in range(MANY))),))),
    (
        ApiKey.FETCH,
        11,
        FetchRequest(500, 1, (FetchTopic("t", tuple(FetchPartition(i, 0, 1) for i in range(MANY))),), session_epoch=0),
    ),
    (
        ApiKey.LIST_OFFSETS,
        4,
        ListOffsetsRequest((ListOffsetsTopic("t", tuple(ListOffsetsPartition(i, 1_000) for i in range(MANY))),)),
    ),
    (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        3,
        OffsetForLeaderEpochRequest(
            (OffsetForLeaderTopic("t", tuple(OffsetForLeaderPartition(i, -1, 0) for i in range(MANY))),)
        ),
    ),
    (
        ApiKey.PRODUCE,
        7,
        ProduceRequest(1, 1_000, (ProduceTopic("t", tuple(ProducePartition(i, b"x") for i in range(MANY))),)),
    ),
    (
        ApiKey.DELETE_RECORDS,
        1,
        DeleteRecordsRequest(
            (DeleteRecordsTopic("t", tuple(DeleteRecordsPartition(i, 1) for i in range(MANY))),), 1_000
        ),
    ),
]


@pytest.mark.parametrize(("key", "version", "value"), LARGE, ids=lambda one: getattr(one, "name", ""))
def test_a_large_request_is_answered_in_short_slices(key: ApiKey, version: int, value: RequestValue) -> None:
    sliced = Sliced(informed(DataBroker()), key, version, value)
    assert len(sliced.answers) == 1
    assert sliced.answers[0] is not None
    decode_response(key, version, sliced.answers[0])
    assert sliced.slices > MANY // 600
    assert sliced.jobs >= 2, "it is read and its answer written by jobs"
    assert sliced.longest_s < SLICE_CPU_S


def test_an_answer_in_slices_is_the_one_that_is_made_at_once() -> None:
    value = MetadataRequest((*names(5_000), *names(10)))
    sliced = Sliced(informed(BrokerUnderTest()), ApiKey.METADATA, 8, value)
    at_once: list[bytes | None] = []
    frame = encode_request(header(ApiKey.METADATA, 8), value)
    informed(BrokerUnderTest()).receive(frame, lambda parts: at_once.append(frame_of(parts)))
    assert sliced.answers == at_once
    assert at_once[0] is not None
    answered = decode_response(ApiKey.METADATA, 8, at_once[0])[1]
    assert len(answered.topics) == 5_000, "a topic that is named twice is answered once"  # type: ignore[attr-defined]


def test_a_request_that_names_more_than_one_may_closes_its_connection() -> None:
    broker = BrokerUnderTest()
    frame = encode_request(header(ApiKey.METADATA, 8), MetadataRequest(names(100_001)))
    assert broker.send(frame) is None
    (note,) = broker.trace.notes("warning")
    assert "camerlengo.request.entries.max=100000" in note


def test_only_some_large_requests_are_handled_at_the_same_time() -> None:
    broker = BrokerUnderTest().broker
    frame = encode_request(header(ApiKey.METADATA, 8), MetadataRequest(names(3_000)))
    answers: list[object] = []
    begun = [broker.begin(frame, answers.append) for _ in range(LARGE_AT_ONCE + 1)]
    gates = []
    woken: list[int] = []
    for number, steps in enumerate(begun):
        assert steps is not None
        gate = next(steps)
        assert isinstance(gate, Gate)
        gates.append(gate.enter(lambda number=number: woken.append(number)))  # type: ignore[misc]
    assert gates == [True] * LARGE_AT_ONCE + [False]
    first, *_, last = begun
    assert first is not None
    assert last is not None
    _rest(first)
    assert woken == [LARGE_AT_ONCE]
    _rest(last)
    assert len(answers) == 2


def _rest(steps: Steps) -> None:
    """Those behind a gate that was passed."""
    try:
        yielded = steps.send(None)
        while True:
            yielded = resumed(steps, yielded) if isinstance(yielded, Job) else steps.send(None)
    except StopIteration:
        return


def test_a_job_that_fails_costs_its_request_alone() -> None:
    def steps() -> Steps:
        try:
            yield Job(lambda: 1 // 0)
        except ZeroDivisionError:
            return "told"

    assert finish(steps()) == "told"


def leader_and_isr(count: int) -> LeaderAndIsrRequest:
    request = harness.leader_and_isr(1, 0, broker_epoch=-1)
    (topic,) = request.topic_states
    (state,) = topic.partition_states
    states = tuple(replace(state, partition_index=index) for index in range(count))
    return replace(request, topic_states=(LeaderAndIsrTopicState("t", states, topic.topic_id),))


def test_roles_of_many_partitions_are_taken_in_short_slices_and_their_files_made_by_jobs() -> None:
    broker = DataBroker()
    sliced = Sliced(broker.broker, ApiKey.LEADER_AND_ISR, 5, leader_and_isr(3_000))
    assert len(sliced.answers) == 1
    assert len(broker.logs.directories[0].logs) == 3_000
    assert sliced.slices >= 30
    assert sliced.jobs >= 30
    assert sliced.longest_s < SLICE_CPU_S
    states = tuple(StopReplicaPartitionState(index, -2, True) for index in range(3_000))
    stop = StopReplicaRequest(1, 1, (StopReplicaTopicState("t", states),), -1)
    stopped = Sliced(broker.broker, ApiKey.STOP_REPLICA, 3, stop)
    assert len(stopped.answers) == 1
    assert not broker.logs.directories[0].logs
    assert stopped.slices >= 30
    assert stopped.longest_s < SLICE_CPU_S


def test_configs_of_many_resources_are_described_in_slices_and_up_to_a_limit() -> None:
    node = DataNode("t", camerlengo_response_max_bytes="100000")
    request = DescribeConfigsRequest((DescribeConfigsResource(RESOURCE_TOPIC, "t"),) * 300)
    results = node.ask(ApiKey.DESCRIBE_CONFIGS, request).results
    codes = [result.error_code for result in results]
    assert len(codes) == 300
    assert codes == sorted(codes), "the first are described"
    assert set(codes) == {ErrorCode.NONE, ErrorCode.POLICY_VIOLATION}
    assert "camerlengo.response.max.bytes=100000" in results[-1].error_message


@pytest.mark.parametrize(
    ("counts", "codes"),
    [
        ((2**31 - 1,), [ErrorCode.INVALID_PARTITIONS]),
        ((10_001, 1), [ErrorCode.INVALID_PARTITIONS]),
        ((10_000, 10_000, 1), [ErrorCode.POLICY_VIOLATION]),
    ],
)
def test_topics_with_too_many_partitions_are_refused_and_the_others_asked_for(
    counts: tuple[int, ...], codes: list[ErrorCode]
) -> None:
    broker = BrokerUnderTest(controller=True)
    topics = tuple(CreatableTopic(f"t{number}", count, 1) for number, count in enumerate(counts))
    begun = broker.begin(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics))
    asked = [topic for event in broker.events.put_so_far for topic in event.value.topics]
    assert len(asked) == len(counts) - 1
    more = tuple(CreatePartitionsTopic(f"p{number}", count, None) for number, count in enumerate(counts))
    begun_more = broker.begin(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(more, 1_000, False))
    broker.clock.advance_to(broker.clock.now_ms() + 120_000)
    for results in (begun.value().topics, begun_more.value().results):
        refused = [
            one for one in results if one.error_code in (ErrorCode.INVALID_PARTITIONS, ErrorCode.POLICY_VIOLATION)
        ]
        assert [one.error_code for one in refused] == codes
        assert "camerlengo." in refused[0].error_message
