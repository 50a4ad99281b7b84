"""What is counted of a history, how long its operations took around faults, and its way to files and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.figures import (
    InjectedFault,
    Latency,
    RecordCounts,
    around_faults,
    count_records,
    fetch_times,
    latency,
    produce_times,
)
from controller.scenarios.records.history import (
    ACKNOWLEDGED,
    FAILED,
    INDETERMINATE,
    History,
    Reached,
    ReadLog,
    SendLog,
    acknowledged_ends,
    history_of,
    same,
)
from controller.scenarios.records.payload import (
    LEAST_BYTES,
    ForeignRecord,
    Payload,
    decode_payload,
    encode_payload,
)
from controller.scenarios.records.table import read_history, write_history
from controller.scenarios.records.transaction_history import COMMITTED, ClientTransactions
from tests.scenarios.records.histories import PARTITIONS, Story, sound


def with_transactions() -> History:
    """Two clients of one transactional id: the second fences the first, which has a transaction open. A reader of
    committed records consumes in the second one's transaction."""
    old, new = SendLog(0, "orders"), SendLog(1, "orders")
    assert old.transactions is not None
    assert new.transactions is not None
    old.transactions.initialised(0.0, 1.0)
    first = old.transactions.began(2.0)
    old.ended(old.sent(0, 0, 2.0, first), ACKNOWLEDGED, 3.0, offset=0)
    old.transactions.committing(first, 3.0)
    old.transactions.ended(first, COMMITTED, 4.0)
    old.sent(0, 1, 5.0, old.transactions.began(5.0))
    new.transactions.initialised(6.0, 7.0)
    second = new.transactions.began(8.0)
    reader = ReadLog(0, committed=True, transactions=new.transactions)
    reader.read(0, 0, 0, 0, 0, 9.0, poll=3)
    reader.consumed(0, second)
    new.ended(new.sent(0, 1, 9.0, second), ACKNOWLEDGED, 10.0, offset=0)
    new.transactions.offset_sent(second, 0, 1)
    new.transactions.committing(second, 11.0)
    return history_of(PARTITIONS, [old, new], [reader], committed_offsets=[1, -1])


def test_transactions_of_all_clients_are_rows_of_one_table() -> None:
    history = with_transactions()
    transactions = history.transactions
    assert transactions is not None
    assert history.sends.transaction.tolist() == [0, 1, 2]
    assert history.reads.transaction.tolist() == [2]
    assert transactions.transactions.incarnation.tolist() == [0, 0, 1]
    assert transactions.transactions.outcome.tolist() == [COMMITTED, INDETERMINATE, INDETERMINATE]
    assert transactions.incarnations.producer.tolist() == [0, 1]
    assert transactions.transactional_ids == ("orders",)
    assert transactions.committed_readers == {0}
    assert transactions.offsets.transaction.tolist() == [2]


def test_transactions_come_back_from_their_files(tmp_path: Path) -> None:
    history = with_transactions()
    write_history(history, tmp_path)
    assert same(read_history(tmp_path), history)
    assert not same(sound().history(), history)


def test_a_transaction_needs_its_producer_id_and_ends_once() -> None:
    log = ClientTransactions(0, "orders")
    with pytest.raises(ValueError, match="before init_transactions"):
        log.began(0.0)
    log.initialised(0.0, 1.0)
    log.ended(log.began(1.0), COMMITTED, 2.0)
    with pytest.raises(ValueError, match="a second time"):
        log.ended(0, COMMITTED, 3.0)
    with pytest.raises(ValueError, match="no transactional client"):
        ReadLog(0).consumed(0, 0)


def test_every_operation_is_counted_by_its_end() -> None:
    story = sound()
    story.send(0, 0, FAILED, write=0)
    story.send(0, 0, INDETERMINATE, write=2)
    story.logs[1].pop()
    assert count_records(DeliveryAudit(story.history())) == RecordCounts(
        sent=22, acknowledged=20, failed=1, indeterminate=1, read=40, lost=1, duplicated=1, reordered=0
    )


def test_what_was_not_seen_is_not_counted_as_none() -> None:
    story = sound()
    story.reached[0] = Reached.PART
    counts = count_records(DeliveryAudit(story.history()))
    assert (counts.lost, counts.duplicated, counts.reordered) == (None, None, None)
    story.final = False
    assert count_records(DeliveryAudit(story.history())).lost is None


def test_percentiles() -> None:
    times = produce_times(sound().history()).took_ms
    assert latency(times) == Latency(20, 5.0, 5.0, 5.0, 5.0)
    assert latency(times[:0]) is None


def with_an_outage() -> DeliveryAudit:
    """A record every 10 ms for a second, to two partitions in turn. From 300 to 600 ms partition 1 does not answer:
    what is sent to it then is acknowledged at 600 ms and a bit. A consumer has each record 2 ms after that."""
    log, reads = SendLog(0), ReadLog(0)
    offsets = [0, 0]
    for number in range(100):
        at_ms, place = number * 10.0, number % 2
        ended_ms = 600.0 + number / 100 if place == 1 and 300 <= at_ms < 600 else at_ms + 1.0
        sequence = log.sent(place, place, at_ms)
        log.ended(sequence, ACKNOWLEDGED, ended_ms, offset=offsets[place])
        reads.read(place, offsets[place], 0, sequence, place, ended_ms + 2.0)
        offsets[place] += 1
    return DeliveryAudit(history_of(PARTITIONS, [log], [reads]))


def test_latencies_are_told_before_during_and_after_a_fault() -> None:
    before_all, fault, later = (
        InjectedFault(-1.0, "kill", "9"),
        InjectedFault(295.0, "kill", "1"),
        InjectedFault(800.0, "cut", "1->2"),
    )
    first, second = around_faults(with_an_outage(), [before_all, fault, later])
    assert first.fault == fault
    assert first.recovered_at_ms is not None
    assert 600.0 <= first.recovered_at_ms < 601.0
    assert first.produce.before == Latency(30, 1.0, 1.0, 1.0, 1.0)
    assert first.produce.during is not None
    assert first.produce.during.worst_ms == pytest.approx(290.31)
    assert first.produce.after == Latency(19, 1.0, 1.0, 1.0, 1.0)
    assert first.fetch.before == Latency(30, 3.0, 3.0, 3.0, 3.0)
    assert second.produce.before == first.produce.after
    assert second.recovered_at_ms == 811.0


def test_a_fault_that_is_not_over_before_the_next_has_not_been_recovered_from() -> None:
    first, second = around_faults(
        with_an_outage(), [InjectedFault(295.0, "cut", "1->2"), InjectedFault(400.0, "kill", "1")]
    )
    assert first.recovered_at_ms is None
    assert first.produce.after is None
    assert second.recovered_at_ms is not None


def test_a_run_without_records_has_no_latencies() -> None:
    assert around_faults(DeliveryAudit(history_of(PARTITIONS, [], [])), [InjectedFault(1.0, "kill", "1")]) == ()


def test_a_record_counts_when_a_consumer_first_has_it() -> None:
    story = sound(1)
    story.consumers[0].read(0, 0, 0, 0, 0, 500.0)
    assert fetch_times(DeliveryAudit(story.history())).took_ms.tolist() == [50.0, 50.0]


def test_ends_are_those_of_the_acknowledged() -> None:
    story = Story()
    for _ in range(3):
        story.send(0, 1)
    assert acknowledged_ends(2, story.sends) == [0, 3]


def test_a_history_survives_its_files(tmp_path: Path) -> None:
    story = sound()
    story.send(0, 0, INDETERMINATE)
    story.sends[1].ended(story.sends[1].sent(1, 1, 7.0), FAILED, 8.0, error="too large")
    story.troubles.append("gave up")
    story.sends[1].renewed = True
    story.reached[1] = Reached.PART
    history = story.history()
    write_history(history, tmp_path)
    again = read_history(tmp_path)
    assert same(again, history)
    assert again.errors == ("", "too large")
    again.sends.offset[0] += 1
    assert not same(again, history)


def test_files_that_are_no_history_are_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    for name in ("sends.parquet", "reads.parquet"):
        parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / name)
    with pytest.raises(ValueError, match="not a history"):
        read_history(tmp_path)


def test_a_payload_tells_where_it_came_from() -> None:
    payload = Payload(3, 7, 2**40, 1234.5)
    value = encode_payload(payload, 100)
    assert len(value) == 100
    assert decode_payload(value) == payload
    assert decode_payload(encode_payload(payload, LEAST_BYTES)) == payload


@pytest.mark.parametrize("value", [None, b"", b"hello", b"cmlr", b"x" * 100])
def test_a_foreign_value_is_named(value: bytes | None) -> None:
    with pytest.raises(ForeignRecord):
        decode_payload(value)
