"""Transactions at their coordinator and at the partitions: epochs, decisions, markers, time, and what is read back."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from controller.broker.broker import Broker
from controller.broker.transactions.coordinator import WRITE_AGAIN_MS
from controller.broker.transactions.markers import DELETED_AFTER_MS
from controller.broker.transactions.transaction import (
    TRANSACTIONS_TOPIC,
    Transition,
    read_transaction,
    read_transaction_key,
    transaction_key,
    transaction_value,
)
from controller.core.channels import PeerUnreachable
from controller.protocol.client import COORDINATOR_OF_TRANSACTION, FindCoordinatorRequest
from controller.protocol.codec import SUPPORTED, ApiKey, decode_request, encode_response_body, request_header
from controller.protocol.control import LEADER_DURING_DELETE
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from controller.protocol.groups import OffsetFetchRequest, OffsetFetchTopic
from controller.protocol.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from controller.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from controller.storage import OutOfResources, PartitionLog
from controller.storage.batches import HEADER_BYTES, Record, decode_records, encode_batch, headers_of
from controller.storage.transactions import TRANSACTIONAL
from statemachines.transaction import (
    CompleteAbort,
    CompleteCommit,
    Empty,
    Ongoing,
    PrepareAbort,
    PrepareCommit,
    TransactionState,
)
from tests.broker.data_harness import DataBroker
from tests.broker.harness import Deferred, live, metadata, settings
from tests.storage.batches import batch

TIMEOUT_MS = 60_000
FIRST_ID = 1_000
FENCED = ErrorCode.PRODUCER_FENCED


class TransactionBroker(DataBroker):
    """Broker 1 leads the only partition of __transaction_state, of __consumer_offsets and of `t`, alone in the ISR."""

    def __init__(self) -> None:
        super().__init__()
        self._given = FIRST_ID - 1
        self.broker = Broker(
            settings(log_dirs="logs"),
            self.identity,
            self.events,
            lambda: self.is_controller,
            self.clock,
            self.trace,
            self.peers,
            self.logs,
            configs=self.configs,
            producer_ids=self._give,
        )
        self.states = self.lead(TRANSACTIONS_TOPIC, isr=(1,))
        self.offsets = self.lead("__consumer_offsets", isr=(1,))
        self.written = self.lead("t", isr=(1,))
        self.wait()

    def _give(self, answer: Any) -> None:
        self._given += 1
        answer(InitProducerIdResponse(ErrorCode.NONE, self._given, 0))

    def wait(self, ms: float = 10.0) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)

    def init(self, given: tuple[int, int] = (-1, -1), *, name: str = "x", version: int = 4) -> Any:
        return self.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(name, TIMEOUT_MS, *given), version)

    def begun(self, name: str = "x") -> tuple[int, int]:
        """A producer: its id and epoch."""
        answer = self.init(name=name)
        while answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            self.wait()
            answer = self.init(name=name)
        assert answer.error_code == ErrorCode.NONE
        return answer.producer_id, answer.producer_epoch

    def add(self, producer: tuple[int, int], *topics: str, name: str = "x", version: int = 3) -> ErrorCode:
        named = tuple(AddPartitionsToTxnTopic(topic, (0,)) for topic in topics or ("t",))
        answer = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest(name, *producer, named), version)
        return ErrorCode(answer.results[0].results[0].error_code)

    def produce(self, producer: tuple[int, int], sequence: int = 0, topic: str = "t") -> ErrorCode:
        data = batch(1, producer=(*producer, sequence), attributes=TRANSACTIONAL)
        request = ProduceRequest(-1, 1_000, (ProduceTopic(topic, (ProducePartition(0, data),)),))
        answer = self.ask(ApiKey.PRODUCE, request, 8)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def begin_end(self, producer: tuple[int, int], commits: bool, version: int = 3) -> Deferred:
        return self.begin(ApiKey.END_TXN, EndTxnRequest("x", *producer, commits), version)

    def end(self, producer: tuple[int, int], commits: bool, version: int = 3) -> ErrorCode:
        return ErrorCode(self.begin_end(producer, commits, version).value().error_code)

    def commit_offset(self, producer: tuple[int, int], offset: int, **given: Any) -> ErrorCode:
        one = TxnOffsetCommitRequestPartition(0, offset, "")
        request = TxnOffsetCommitRequest(
            "x", "g", *producer, (TxnOffsetCommitRequestTopic("t", (one,)),), given.pop("generation", -1), **given
        )
        answer = self.ask(ApiKey.TXN_OFFSET_COMMIT, request)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def committed(self, *, stable: bool = False) -> int | ErrorCode:
        request = OffsetFetchRequest("g", (OffsetFetchTopic("t", (0,)),), stable)
        one = self.ask(ApiKey.OFFSET_FETCH, request).topics[0].partitions[0]
        return ErrorCode(one.error_code) if one.error_code else int(one.committed_offset)

    def read(self, isolation: int = READ_COMMITTED, offset: int = 0) -> Any:
        topics = (FetchTopic("t", (FetchPartition(0, offset, 1 << 20),)),)
        answer = self.ask(ApiKey.FETCH, FetchRequest(0, 1, topics, isolation_level=isolation))
        return answer.responses[0].partitions[0]

    def end_offset(self, isolation: int) -> int:
        request = ListOffsetsRequest((ListOffsetsTopic("t", (ListOffsetsPartition(0, -1),)),), -1, isolation)
        return int(self.ask(ApiKey.LIST_OFFSETS, request).topics[0].partitions[0].offset)

    def state(self, name: str = "x") -> TransactionState:
        """The last that is written."""
        return self.recorded()[name]

    def recorded(self) -> dict[str, TransactionState]:
        log = self.states.log
        assert log is not None
        found: dict[str, TransactionState] = {}
        offset = 0
        while offset < log.log_end_offset:
            data = log.read(offset, 1).read()
            (header,) = headers_of(data)
            for record in decode_records(header, data[HEADER_BYTES:]):
                name = read_transaction_key(record.key)
                found.pop(name, None)
                if record.value is not None:
                    found[name] = read_transaction(name, record.value).state
            offset = header.next_offset
        return found

    def lose_and_lead(self, epoch: int) -> None:
        """Another broker coordinates for a while."""
        self.follow(TRANSACTIONS_TOPIC, epoch=epoch)
        self.lead(TRANSACTIONS_TOPIC, epoch=epoch + 1, isr=(1,))
        self.wait()

    def markers(self) -> list[tuple[int, WriteTxnMarkersRequest]]:
        """What other brokers were asked to write, by port."""
        found = []
        for place, (port, key, body, _) in enumerate(self.peers.asked):
            if key is ApiKey.WRITE_TXN_MARKERS:
                frame = request_header(key, self.peers.asked_in[place], 1, "c") + body
                value = decode_request(frame, SUPPORTED).value
                assert isinstance(value, WriteTxnMarkersRequest)
                found.append((port, value))
        return found

    def answer_markers(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Of the last request."""
        place = max(place for place, one in enumerate(self.peers.asked) if one[1] is ApiKey.WRITE_TXN_MARKERS)
        _, request = self.markers()[-1]
        results = tuple(
            WritableTxnMarkerResult(
                one.producer_id,
                tuple(
                    WritableTxnMarkerTopicResult(
                        topic.name, tuple(WritableTxnMarkerPartitionResult(i, error) for i in topic.partition_indexes)
                    )
                    for topic in one.topics
                ),
            )
            for one in request.markers
        )
        version = self.peers.asked_in[place]
        body = encode_response_body(ApiKey.WRITE_TXN_MARKERS, version, WriteTxnMarkersResponse(results))
        self.peers.asked[place][3].resolve(body)
        self.wait(0.0)


@pytest.fixture
def broker() -> TransactionBroker:
    return TransactionBroker()


# Producers.


def test_the_leader_of_its_partition_coordinates_a_transactional_id(broker: TransactionBroker) -> None:
    answer = broker.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest("x", COORDINATOR_OF_TRANSACTION))
    assert (answer.error_code, answer.node_id) == (ErrorCode.NONE, 1)


def test_each_producer_gets_the_next_epoch_of_the_same_id(broker: TransactionBroker) -> None:
    assert [broker.begun() for _ in range(3)] == [(FIRST_ID, 0), (FIRST_ID, 1), (FIRST_ID, 2)]
    assert broker.begun("y") == (FIRST_ID + 1, 0)
    broker.lose_and_lead(1)
    assert broker.begun() == (FIRST_ID, 3)


def test_a_producer_without_a_transactional_id_gets_an_id_of_its_own(broker: TransactionBroker) -> None:
    answer = broker.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(None, -1))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.NONE, FIRST_ID, 0)
    assert broker.recorded() == {}


@pytest.mark.parametrize(
    ("name", "timeout_ms", "given", "error"),
    [
        ("", 1, (-1, -1), ErrorCode.INVALID_REQUEST),
        (None, 1, (7, -1), ErrorCode.INVALID_REQUEST),
        ("x", 1, (-1, 3), ErrorCode.INVALID_REQUEST),
        ("x", 0, (-1, -1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("x", 900_001, (-1, -1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_what_is_refused_takes_no_id(
    broker: TransactionBroker, name: str | None, timeout_ms: int, given: tuple[int, int], error: ErrorCode
) -> None:
    answer = broker.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(name, timeout_ms, *given))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (error, -1, -1)
    assert broker.begun() == (FIRST_ID, 0)


def test_a_producer_that_names_its_epoch_gets_the_next_and_once(broker: TransactionBroker) -> None:
    """KIP-360: after a lost answer it asks with the same epoch, and gets the same answer."""
    producer = broker.begun()
    first, again = broker.init(producer), broker.init(producer)
    assert (first.producer_epoch, again.producer_epoch) == (1, 1)
    broker.begun()  # another producer, with epoch 2
    assert broker.init(producer).error_code == ErrorCode.PRODUCER_FENCED
    assert broker.init(producer, version=3).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.init((FIRST_ID + 5, 0)).error_code == ErrorCode.PRODUCER_FENCED


def test_when_the_epochs_are_used_up_there_is_another_id(broker: TransactionBroker) -> None:
    log = broker.states.log
    assert log is not None
    change = Transition(CompleteCommit, 5, 5, 2**15 - 2, -1, TIMEOUT_MS, {}, 1, 1)
    broker.follow(TRANSACTIONS_TOPIC, epoch=1)
    record = Record(log.log_end_offset, 0, transaction_key("x"), transaction_value(change))
    log.append_as_follower(encode_batch([record], leader_epoch=1))
    broker.lead(TRANSACTIONS_TOPIC, epoch=2, isr=(1,))
    broker.wait()
    assert broker.begun() == (FIRST_ID, 0)


# A transaction.


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_from_its_beginning_to_its_end(broker: TransactionBroker, commits: bool) -> None:
    producer = broker.begun()
    assert broker.state() is Empty
    assert (broker.add(producer), broker.state()) == (ErrorCode.NONE, Ongoing)
    assert broker.produce(producer) == ErrorCode.NONE
    assert (broker.end_offset(0), broker.end_offset(READ_COMMITTED)) == (1, 0)
    waiting = broker.read()
    assert (waiting.records, waiting.high_watermark, waiting.last_stable_offset) == (b"", 1, 0)
    assert broker.end(producer, commits) == ErrorCode.NONE
    assert broker.state() is (PrepareCommit if commits else PrepareAbort)
    assert broker.end(producer, commits) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.add(producer) == ErrorCode.CONCURRENT_TRANSACTIONS
    broker.wait()
    assert broker.state() is (CompleteCommit if commits else CompleteAbort)
    assert broker.end(producer, commits) == ErrorCode.NONE, "sent again after a lost answer"
    assert broker.end(producer, not commits) == ErrorCode.INVALID_TXN_STATE
    assert (broker.end_offset(0), broker.end_offset(READ_COMMITTED)) == (2, 2)
    found = broker.read()
    aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions]
    assert aborted == ([] if commits else [(FIRST_ID, 0)])
    assert broker.read(0).aborted_transactions is None
    (first, marker) = headers_of(found.records)
    assert (first.is_control, marker.is_control, marker.producer_id) == (False, True, FIRST_ID)


def test_a_fetch_waits_until_the_transaction_has_ended(broker: TransactionBroker) -> None:
    producer = broker.begun()
    broker.add(producer)
    broker.produce(producer)
    topics = (FetchTopic("t", (FetchPartition(0, 0, 1 << 20),)),)
    fetch = broker.begin(ApiKey.FETCH, FetchRequest(5_000, 1, topics, isolation_level=READ_COMMITTED))
    broker.append(broker.written)
    broker.wait(100)
    assert not fetch.answered
    broker.end(producer, True)
    broker.wait(0)
    assert len(headers_of(fetch.value().responses[0].partitions[0].records)) == 3


@pytest.mark.parametrize(("version", "error"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)])
def test_a_zombie_is_fenced_by_its_epoch(broker: TransactionBroker, version: int, error: ErrorCode) -> None:
    zombie = broker.begun()
    broker.add(zombie)
    broker.produce(zombie)
    assert broker.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS, "its transaction is aborted first"
    broker.wait()
    assert broker.state() is CompleteAbort
    assert broker.begun() == (FIRST_ID, 2), "epoch 1 has fenced"
    assert broker.add(zombie, version=version) == error
    assert broker.end(zombie, True, version=version) == error
    assert broker.produce(zombie, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    offsets = broker.ask(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest("x", *zombie, "g"), version)
    assert offsets.error_code == error
    assert broker.add((FIRST_ID + 1, 2)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.add((1, 0), name="unknown") == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_partitions_that_are_not_there_are_not_added_nor_the_others(broker: TransactionBroker) -> None:
    producer = broker.begun()
    named = tuple(AddPartitionsToTxnTopic(name, (0,)) for name in ("t", "none", TRANSACTIONS_TOPIC))
    answer = broker.ask(ApiKey.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest("x", *producer, named))
    assert [topic.results[0].error_code for topic in answer.results] == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]
    assert broker.state() is Empty


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(broker: TransactionBroker) -> None:
    producer = broker.begun()
    broker.add(producer)
    broker.produce(producer)
    broker.wait(TIMEOUT_MS - 100)
    assert broker.state() is Ongoing
    broker.wait(200)
    assert broker.state() is CompleteAbort
    assert broker.end(producer, True) == ErrorCode.PRODUCER_FENCED
    assert broker.end_offset(READ_COMMITTED) == 2


def test_a_timeout_goes_on_at_the_next_coordinator(broker: TransactionBroker) -> None:
    broker.add(broker.begun())
    broker.wait(TIMEOUT_MS - 1_000)
    broker.lose_and_lead(1)
    broker.wait(2_000)
    assert broker.state() is CompleteAbort


def test_a_transaction_that_began_in_the_future_has_no_more_than_its_timeout(broker: TransactionBroker) -> None:
    broker.add(broker.begun())
    broker.clock._epoch_ms -= 3_600_000
    broker.lose_and_lead(1)
    broker.wait(TIMEOUT_MS + 1_000)
    assert broker.state() is CompleteAbort


def test_an_id_that_is_not_used_is_forgotten(broker: TransactionBroker) -> None:
    assert broker.broker.transactions is not None
    broker.begun()
    broker.add(broker.begun("open"), name="open")
    week_ms = 7 * 24 * 3600 * 1000
    coordinator = broker.broker.transactions.coordinator
    broker.wait(week_ms + 1)
    coordinator.expire()
    assert "x" not in broker.recorded()
    assert broker.begun() == (FIRST_ID + 2, 0)


# Markers.


def test_markers_go_to_the_leader_and_to_the_next_one_when_it_has_moved(broker: TransactionBroker) -> None:
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, 2)))
    producer = broker.begun()
    broker.add(producer, "t", "far")
    broker.produce(producer)
    broker.end(producer, True)
    broker.wait(0)
    ((port, request),) = broker.markers()
    topics = (WritableTxnMarkerTopic("far", (0,)),)
    assert (port, request.markers) == (9092, (WritableTxnMarker(*producer, True, topics, 0),))
    broker.answer_markers(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, 3)))
    assert broker.state() is PrepareCommit
    broker.wait(2_000)
    assert [port for port, _ in broker.markers()] == [9092, 9093]
    broker.peers.asked[-1][3].fail(PeerUnreachable("gone"))
    broker.wait(2_000)
    assert [port for port, _ in broker.markers()] == [9092, 9093, 9093]
    broker.answer_markers()
    assert broker.state() is CompleteCommit


def test_a_partition_without_a_leader_gets_its_marker_when_it_has_one(broker: TransactionBroker) -> None:
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, 2)))
    producer = broker.begun()
    broker.add(producer, "far")
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, -1)))
    broker.end(producer, True)
    broker.wait(60_000)
    assert (broker.markers(), broker.state()) == ([], PrepareCommit)
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, 3)))
    broker.wait(1_000)
    broker.answer_markers()
    assert broker.state() is CompleteCommit


def test_a_deleted_partition_needs_no_marker(broker: TransactionBroker) -> None:
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, 2)))
    producer = broker.begun()
    broker.add(producer, "t", "far")
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, LEADER_DURING_DELETE)))
    broker.end(producer, True)
    broker.wait(DELETED_AFTER_MS - 1_000)
    assert broker.state() is PrepareCommit, "the metadata may lag behind"
    broker.wait(3_000)
    assert broker.state() is CompleteCommit


@pytest.mark.parametrize("error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_who_is_fenced_writes_no_more_markers(broker: TransactionBroker, error: ErrorCode) -> None:
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, 2)))
    producer = broker.begun()
    broker.add(producer, "far")
    broker.end(producer, True)
    broker.wait(0)
    broker.answer_markers(error)
    broker.wait(60_000)
    assert (len(broker.markers()), broker.state()) == (1, PrepareCommit)


@pytest.mark.parametrize("commits", [True, False])
def test_the_next_coordinator_carries_out_what_was_decided(broker: TransactionBroker, commits: bool) -> None:
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, 2)))
    producer = broker.begun()
    broker.add(producer, "far")
    broker.end(producer, commits)
    broker.wait(0)
    broker.lose_and_lead(1)
    broker.answer_markers(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    requests = [request.markers[0] for _, request in broker.markers()]
    assert [(one.transaction_result, one.coordinator_epoch) for one in requests] == [(commits, 0), (commits, 2)]
    broker.answer_markers()
    assert broker.state() is (CompleteCommit if commits else CompleteAbort)


def test_who_coordinates_no_more_writes_no_more_markers(broker: TransactionBroker) -> None:
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, 2)))
    producer = broker.begun()
    broker.add(producer, "far")
    broker.end(producer, True)
    broker.wait(0)
    broker.follow(TRANSACTIONS_TOPIC, epoch=1)
    broker.answer_markers(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    broker.wait(60_000)
    assert len(broker.markers()) == 1
    assert broker.broker.transactions is not None
    assert broker.broker.transactions.markers.under_way == 0


def test_a_completion_that_is_not_written_is_tried_again(broker: TransactionBroker) -> None:
    producer = broker.begun()
    broker.add(producer)
    broker.end(producer, True)
    broker.configs.min_insync_of[TRANSACTIONS_TOPIC] = 2
    broker.wait(3 * WRITE_AGAIN_MS)
    assert broker.state() is PrepareCommit
    broker.configs.min_insync_of[TRANSACTIONS_TOPIC] = 1
    broker.wait(WRITE_AGAIN_MS)
    assert broker.state() is CompleteCommit


def test_a_completion_that_a_full_disk_refuses_is_tried_again(
    broker: TransactionBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log directory stays online, and this broker the coordinator: no other would write it."""
    append = PartitionLog.append_checked

    def refused(log: PartitionLog, *given: Any, **named: Any) -> Any:
        if log is broker.states.log:
            raise OutOfResources("logs", OSError(errno.ENOSPC, "the SSD is full"))
        return append(log, *given, **named)

    producer = broker.begun()
    broker.add(producer)
    broker.end(producer, True)
    with monkeypatch.context() as full:
        full.setattr(PartitionLog, "append_checked", refused)
        broker.wait(3 * WRITE_AGAIN_MS)
        assert broker.state() is PrepareCommit
    broker.wait(WRITE_AGAIN_MS)
    assert broker.state() is CompleteCommit


def test_a_decision_that_is_not_written_is_none(broker: TransactionBroker) -> None:
    producer = broker.begun()
    broker.add(producer)
    broker.configs.min_insync_of[TRANSACTIONS_TOPIC] = 2
    assert broker.end(producer, True) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.configs.min_insync_of[TRANSACTIONS_TOPIC] = 1
    assert broker.end(producer, False) == ErrorCode.NONE
    broker.wait()
    assert broker.state() is CompleteAbort


def test_a_producer_is_refused_for_good_only_by_who_can_write(broker: TransactionBroker) -> None:
    """Found by the swarm: a coordinator that was cut off, and deposed, refused by what it had known before."""
    producer = broker.begun()
    broker.add(producer)
    broker.end(producer, True)
    broker.wait()
    broker.configs.min_insync_of[TRANSACTIONS_TOPIC] = 2
    assert broker.end(producer, False) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.configs.min_insync_of[TRANSACTIONS_TOPIC] = 1
    assert broker.end(producer, False) == ErrorCode.INVALID_TXN_STATE
    assert broker.state() is CompleteCommit


def test_an_older_coordinators_marker_is_refused_by_a_partition(broker: TransactionBroker) -> None:
    def write(epoch: int) -> int:
        topics = (WritableTxnMarkerTopic("t", (0,)),)
        request = WriteTxnMarkersRequest((WritableTxnMarker(7, 0, False, topics, epoch),))
        answer = broker.ask(ApiKey.WRITE_TXN_MARKERS, request)
        return int(answer.markers[0].topics[0].partitions[0].error_code)

    assert [write(4), write(3), write(4)] == [0, ErrorCode.TRANSACTION_COORDINATOR_FENCED, 0]


def test_markers_for_what_is_not_led_here_say_so(broker: TransactionBroker) -> None:
    topics = (WritableTxnMarkerTopic("none", (0,)), WritableTxnMarkerTopic("t", (0,)))
    request = WriteTxnMarkersRequest((WritableTxnMarker(7, 0, True, topics, 1),))
    (marker,) = broker.ask(ApiKey.WRITE_TXN_MARKERS, request).markers
    errors = [topic.partitions[0].error_code for topic in marker.topics]
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert broker.ask(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest(())).markers == ()


# Offsets.


@pytest.mark.parametrize("reloads", [False, True])
@pytest.mark.parametrize("commits", [True, False])
def test_offsets_count_when_their_transaction_has_committed(
    broker: TransactionBroker, commits: bool, reloads: bool
) -> None:
    producer = broker.begun()
    answer = broker.ask(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest("x", *producer, "g"))
    assert answer.error_code == ErrorCode.NONE
    assert broker.commit_offset(producer, 5) == ErrorCode.NONE
    if reloads:
        broker.follow("__consumer_offsets", epoch=1)
        broker.lead("__consumer_offsets", epoch=2, isr=(1,))
        broker.wait()
    assert (broker.committed(), broker.committed(stable=True)) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("__consumer_offsets", 0, 2)))
    broker.end(producer, commits)
    broker.wait(0)
    assert (broker.committed(), broker.committed(stable=True)) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("__consumer_offsets", 0, 1)))
    broker.answer_markers(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    broker.wait(2_000)
    assert broker.state() is (CompleteCommit if commits else CompleteAbort)
    expected = 5 if commits else -1
    assert (broker.committed(), broker.committed(stable=True)) == (expected, expected)


@pytest.mark.parametrize("commits", [True, False])
def test_a_marker_that_is_written_while_offsets_are_loaded_counts(broker: TransactionBroker, commits: bool) -> None:
    producer = broker.begun()
    broker.ask(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest("x", *producer, "g"))
    assert broker.commit_offset(producer, 5) == ErrorCode.NONE
    broker.follow("__consumer_offsets", epoch=1)
    broker.offsets.high_watermark = 0
    broker.lead("__consumer_offsets", epoch=2, isr=(1, 2))
    broker.wait()
    broker.end(producer, commits)
    broker.wait()
    assert broker.commit_offset(producer, 6) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.follower_fetches(broker.offsets)
    broker.wait()
    expected = 5 if commits else -1
    assert (broker.committed(stable=True), broker.state()) == (expected, CompleteCommit if commits else CompleteAbort)


def test_a_transactional_id_that_was_read_counts_once_it_is_replicated(broker: TransactionBroker) -> None:
    producer = broker.begun()
    broker.follow(TRANSACTIONS_TOPIC, epoch=1)
    broker.states.high_watermark = 0
    broker.lead(TRANSACTIONS_TOPIC, epoch=2, isr=(1, 2))
    broker.wait(TIMEOUT_MS)
    assert broker.init().error_code == broker.add(producer) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.follower_fetches(broker.states)
    broker.lead(TRANSACTIONS_TOPIC, epoch=3, isr=(1,))
    broker.wait()
    assert broker.begun() == (producer[0], producer[1] + 1)


def test_a_member_that_is_not_one_commits_no_offsets(broker: TransactionBroker) -> None:
    producer = broker.begun()
    assert broker.commit_offset(producer, 5, member_id="m") == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.commit_offset(producer, 5, generation=3) == ErrorCode.ILLEGAL_GENERATION


def test_offsets_that_are_not_written_are_not_pending(broker: TransactionBroker) -> None:
    producer = broker.begun()
    broker.configs.min_insync_of["__consumer_offsets"] = 2
    assert broker.commit_offset(producer, 5) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert broker.committed(stable=True) == -1


def test_a_fenced_producer_commits_no_offsets(broker: TransactionBroker) -> None:
    zombie = broker.begun()
    broker.ask(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest("x", *zombie, "g"))
    broker.begun()
    assert broker.commit_offset(zombie, 5) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.committed(stable=True) == -1


# Records.


def test_a_record_that_can_not_be_read_is_named_and_the_others_count(broker: TransactionBroker) -> None:
    broker.begun()
    log = broker.states.log
    assert log is not None
    broker.follow(TRANSACTIONS_TOPIC, epoch=1)
    for key, value in ((None, b""), (b"", None), (b"\x00\x09", b""), (transaction_key("y"), b"\x00\x00\x01")):
        log.append_as_follower(encode_batch([Record(log.log_end_offset, 0, key, value)], leader_epoch=1))
    broker.lead(TRANSACTIONS_TOPIC, epoch=2, isr=(1,))
    broker.wait()
    assert broker.begun() == (FIRST_ID, 1)
    assert len([note for note in broker.trace.notes("error") if note.endswith("it is passed over")]) == 4


KAFKAS: dict[str, tuple[TransactionState, int, int, list[tuple[str, int]]]] = {
    "000000000000000003e800020000ea6000ffffffff000001a20a233460ffffffffffffffff": (Empty, 1_000, 2, []),
    "000000000000000003e800020000ea60010000000100066f72646572730000000200000000000000010000"
    "01a20a233476000001a20a233476": (
        Ongoing,
        1_000,
        2,
        [("orders", 0), ("orders", 1)],
    ),
    "000000000000000003e800010000ea60030000000200125f5f636f6e73756d65725f6f666673657473000000010000000000066f7264657273"
    "000000020000000000000001000001a20a233239000001a20a230b88": (
        PrepareAbort,
        1_000,
        1,
        [("__consumer_offsets", 0), ("orders", 0), ("orders", 1)],
    ),
    "000000000000000003e800020000ea600400000000000001a20a2334a9000001a20a233476": (CompleteCommit, 1_000, 2, []),
}
"""Values that a Kafka 2.8.2 coordinator has written to __transaction_state."""


@pytest.mark.parametrize("data", KAFKAS)
def test_kafkas_records_are_read_and_written_alike(data: str) -> None:
    state, producer_id, epoch, partitions = KAFKAS[data]
    read = read_transaction("mixed", bytes.fromhex(data))
    assert (read.state, read.producer_id, read.producer_epoch, list(read.partitions), read.timeout_ms) == (
        state,
        producer_id,
        epoch,
        partitions,
        60_000,
    )
    times = read.start_ms, read.updated_ms
    change = Transition(state, producer_id, -1, epoch, -1, read.timeout_ms, read.partitions, *times)
    assert transaction_value(change).hex() == data
    assert transaction_key("mixed").hex() == "000000056d69786564"
    assert read_transaction_key(bytes.fromhex("000000056d69786564")) == "mixed"


def test_a_broker_that_is_gone_is_not_waited_for(broker: TransactionBroker) -> None:
    """It would not answer for a minute; its partitions have other leaders by then."""
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, 2)))
    producer = broker.begun()
    broker.add(producer, "far")
    broker.end(producer, True)
    broker.wait(0)
    assert broker.peers.closed == []
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("far", 0, 3), brokers=live(1, 3)))
    assert broker.peers.closed == [9092]
    assert broker.broker.transactions is not None
    broker.broker.transactions.close()
    assert broker.peers.closed == [9092, 9092]
