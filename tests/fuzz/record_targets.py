"""Requests about records, and record batches, into a whole node that has logs on a disk in memory.

A frame goes in as it comes off a connection. A batch goes in as a producer would send it, with its length and its CRC
made right, so that what it says within is met by who appends it, looks for a timestamp in it and hands it out.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping, Sequence

from crc32c import crc32c

from controller.protocol.admin import (
    OPERATION_APPEND,
    OPERATION_SET,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DescribableLogDirTopic,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ReplacedConfig,
)
from controller.protocol.client import FindCoordinatorRequest
from controller.protocol.codec import SUPPORTED, ApiKey, decode_response, encode_request
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
from controller.protocol.framing import Part
from controller.protocol.produce import (
    InitProducerIdRequest,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from controller.protocol.schema import RequestValue
from controller.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from controller.storage.batches import Record, encode_batch, encode_record
from tests.broker.data_node import DataNode
from tests.broker.harness import frame_of, header
from tests.fuzz.crash import Crash
from tests.storage.batches import START_MS, batch

NODE_LIFE = 500
"""Inputs that one node gets before another takes its place."""
BRANCHES_MS = 5.0
"""Virtual time after each input, for what is answered from ZooKeeper or at a short timeout."""
SMALLEST = 61
PRODUCE_VERSION, LIST_VERSION, FETCH_VERSION = 8, 6, 12


def produce(records: bytes, acks: int = 1) -> ProduceRequest:
    return ProduceRequest(acks, 1_000, (ProduceTopic("t", (ProducePartition(0, records),)),))


def offsets(timestamp: int) -> ListOffsetsRequest:
    return ListOffsetsRequest((ListOffsetsTopic("t", (ListOffsetsPartition(0, timestamp),)),))


def fetch(offset: int, replica: int = -1) -> FetchRequest:
    one = FetchPartition(0, offset, 1 << 20, log_start_offset=0)
    return FetchRequest(0, 1, (FetchTopic("t", (one,)),), replica_id=replica)


RECORD_EXAMPLES: Mapping[ApiKey, Sequence[RequestValue]] = {
    ApiKey.PRODUCE: (produce(batch(3)), produce(batch(1, producer=(7, 0, 0)), -1), produce(batch(2), 0)),
    ApiKey.FETCH: (fetch(0), fetch(0, replica=2), fetch(5)),
    ApiKey.LIST_OFFSETS: (offsets(-1), offsets(START_MS), offsets(-2)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        OffsetForLeaderEpochRequest((OffsetForLeaderTopic("t", (OffsetForLeaderPartition(0, 0),)),)),
    ),
    ApiKey.INIT_PRODUCER_ID: (InitProducerIdRequest(None, 1_000), InitProducerIdRequest("x", 1_000)),
    ApiKey.FIND_COORDINATOR: (FindCoordinatorRequest("group"),),
    ApiKey.ADD_PARTITIONS_TO_TXN: (AddPartitionsToTxnRequest("x", 0, 0, (AddPartitionsToTxnTopic("t", (0,)),)),),
    ApiKey.ADD_OFFSETS_TO_TXN: (AddOffsetsToTxnRequest("x", 0, 0, "group"),),
    ApiKey.END_TXN: (EndTxnRequest("x", 0, 0, True), EndTxnRequest("x", 0, 0, False)),
    ApiKey.WRITE_TXN_MARKERS: (
        WriteTxnMarkersRequest((WritableTxnMarker(7, 0, True, (WritableTxnMarkerTopic("t", (0,)),), 0),)),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        TxnOffsetCommitRequest(
            "x",
            "group",
            0,
            0,
            (TxnOffsetCommitRequestTopic("t", (TxnOffsetCommitRequestPartition(0, 1, None),)),),
        ),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        DescribeLogDirsRequest(None),
        DescribeLogDirsRequest((DescribableLogDirTopic("t", (0, 1)),)),
    ),
    ApiKey.DELETE_RECORDS: (DeleteRecordsRequest((DeleteRecordsTopic("t", (DeleteRecordsPartition(0, 1),)),), 1_000),),
    ApiKey.DESCRIBE_CONFIGS: (
        DescribeConfigsRequest(
            (
                DescribeConfigsResource(RESOURCE_TOPIC, "t", ("retention.ms",)),
                DescribeConfigsResource(RESOURCE_BROKER, "1"),
            )
        ),
    ),
    ApiKey.ALTER_CONFIGS: (
        AlterConfigsRequest((AlterConfigsResource(RESOURCE_TOPIC, "t", (ReplacedConfig("flush.ms", "5"),)),)),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        IncrementalAlterConfigsRequest(
            (
                IncrementalAlterConfigsResource(
                    RESOURCE_TOPIC,
                    "t",
                    (
                        AlterableConfig("cleanup.policy", OPERATION_APPEND, "compact"),
                        AlterableConfig("segment.bytes", OPERATION_SET, "1000"),
                    ),
                ),
                IncrementalAlterConfigsResource(
                    RESOURCE_BROKER, "", (AlterableConfig("log.retention.ms", OPERATION_SET, "5"),)
                ),
            )
        ),
    ),
}


def record_frames() -> list[bytes]:
    return [
        encode_request(header(key, version), value)
        for key, values in RECORD_EXAMPLES.items()
        for value in values
        for version in range(SUPPORTED[key].first, SUPPORTED[key].last + 1)
    ]


def sound_batches() -> list[bytes]:
    records = [Record(n, START_MS + n, b"key", b"value", (("name", b"x"), ("none", None))) for n in range(3)]
    packed = gzip.compress(b"".join(encode_record(one, 0, START_MS) for one in records), mtime=0)
    return [
        batch(1),
        batch(5, step_ms=3),
        batch(2, producer=(9, 1, 0)),
        encode_batch(records),
        encode_batch(records, attributes=1, payload=packed),
    ]


class RecordTarget:
    """Frames into a node that leads partition 0 of "t" and of the internal topics."""

    def __init__(self) -> None:
        self._fed = 0
        self._node: DataNode | None = None

    def node(self) -> DataNode:
        if self._node is None or self._fed % NODE_LIFE == 0:
            self._node = DataNode("t", "__consumer_offsets", "__transaction_state")
        self._fed += 1
        return self._node

    def feed(self, frame: bytes) -> str:
        answers = self.answers(self.node(), frame)
        if not answers:
            return "answered later"
        return "connection closed" if answers[0] is None else "answered"

    def answers(self, node: DataNode, frame: bytes) -> list[bytes | None]:
        """What was answered within a few milliseconds. Crash."""
        answers: list[Sequence[Part] | None] = []
        node.node.broker.receive(frame, answers.append)
        node.settle(BRANCHES_MS)
        faults = node.trace.notes("error")
        node.trace.recorder.records.clear()
        if faults:
            raise Crash(faults[0])
        if node.failure is not None:
            raise Crash(f"the node ends: {node.failure!r}")
        if len(answers) > 1:
            raise Crash(f"{len(answers)} answers")
        return [frame_of(parts) for parts in answers]


class BatchTarget(RecordTarget):
    """Batches whose length and CRC are right, appended, looked through by time and read back."""

    def feed(self, data: bytes) -> str:
        node = self.node()
        records = repaired(data)
        version = 3 if self._fed % 2 else PRODUCE_VERSION
        (answer,) = self.answers(node, encode_request(header(ApiKey.PRODUCE, version), produce(records)))
        assert answer is not None
        _, response = decode_response(ApiKey.PRODUCE, version, answer)
        assert isinstance(response, ProduceResponse)
        result = response.responses[0].partition_responses[0]
        if result.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
            raise Crash(f"{result}")
        if result.error_code:
            return "refused"
        partition = node.node.broker.replicas.partition("t", 0)
        assert partition is not None
        assert partition.log is not None
        partition.high_watermark = partition.log.log_end_offset
        for timestamp in (0, START_MS + 1, 2**62, -3):  # one a request: a partition may be named once
            self.answers(node, encode_request(header(ApiKey.LIST_OFFSETS, LIST_VERSION), offsets(timestamp)))
        self.answers(node, encode_request(header(ApiKey.FETCH, FETCH_VERSION), fetch(result.base_offset)))
        return "taken"


def repaired(data: bytes) -> bytes:
    """The batch with the magic, the length and the CRC that it would have."""
    if len(data) < SMALLEST:
        return data
    whole = bytearray(data)
    struct.pack_into(">i", whole, 8, len(whole) - 12)
    whole[16] = 2
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[21:])))
    return bytes(whole)
