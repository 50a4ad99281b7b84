"""Kafka's logs become events: every line of real ones is accounted for, whole or in pieces, and the odd ones are kept
apart with what is wrong with them."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from controller.pipeline import reading
from controller.pipeline.event_table import EVENTS, FIELDS, OWN
from controller.pipeline.log_parsing import (
    CONTINUATION,
    CONTROLLER,
    EMPTY,
    EVENT,
    NO_SUCH_TIME,
    STATE_CHANGES,
    TORN,
    UNKNOWN_FORM,
    UNKNOWN_TEXT,
    LogFile,
    LogText,
    Parsed,
    parse_lines,
)
from controller.pipeline.reading import DAMAGED, Chunk, NothingToRead, chunks_of, parsed_blocks

LOGS = Path(__file__).parents[1] / "data" / "kafka-2.8.2" / "logs"
STATE_CHANGE = LOGS / "broker-3" / "state-change.log"
SHOWN = (
    "at",
    "place",
    "node",
    "event",
    "controller_epoch",
    "topic",
    "partition",
    "leader",
    "leader_epoch",
    "isr",
    "error",
)


def rows(parsed: Iterable[Parsed]) -> list[dict[str, Any]]:
    batches = [batch for part in parsed for batch in part.events]
    table = pa.Table.from_batches(batches, EVENTS).sort_by([("file", "ascending"), ("place", "ascending")])
    found: list[dict[str, Any]] = table.select(SHOWN).to_pylist()
    return found


def kinds(parsed: Iterable[Parsed]) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in parsed:
        found.update(part.kinds)
    return found


def of_lines(*lines: str) -> Parsed:
    places = pa.array(range(len(lines)), pa.int64())
    return parse_lines(pa.array(lines, pa.string()), places, LogFile("r", "f", 7))


def only(line: str) -> dict[str, Any]:
    parsed = of_lines(line)
    assert parsed.kinds == {EVENT: 1}, parsed.leftovers
    (batch,) = parsed.events
    return {name: value for name, value in batch.to_pylist()[0].items() if value is not None}


def test_every_line_of_a_real_cluster_is_an_event_or_part_of_a_stack_trace() -> None:
    found = kinds(part for chunk in chunks_of([LOGS]) for part in parsed_blocks(chunk))
    lines = sum(len(file.read_text().splitlines()) for file in LOGS.rglob("*.log"))
    assert found == {EVENT: 1537, CONTINUATION: 1940}
    assert found.total() == lines


@pytest.mark.parametrize(("chunk_bytes", "block_bytes"), [(1_000, 700), (4_096, 100_000), (77_777, 5_000), (9, 50_000)])
def test_a_log_in_pieces_gives_the_same_events(
    chunk_bytes: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "state-change.log"
    path.write_bytes(b"what the rotation left of a line\n\tat somewhere\n" + STATE_CHANGE.read_bytes()[100_000:150_000])
    whole = [*parsed_blocks(chunks_of([path])[0])]
    monkeypatch.setattr(reading, "BLOCK_BYTES", block_bytes)
    pieces = [part for chunk in chunks_of([path], chunk_bytes) for part in parsed_blocks(chunk)]
    assert rows(pieces) == rows(whole)
    assert kinds(pieces) == kinds(whole)
    assert len(rows(whole)) > 50


def test_a_stack_trace_longer_than_a_block_is_cut_and_still_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "controller.log"
    head = "[2026-11-21 08:10:31,573] INFO [Controller id=3] Resigned (kafka.controller.KafkaController)\n"
    path.write_text(head + "\tat a.b.C(D.scala:1)\n" * 500 + head)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 300)
    monkeypatch.setattr(reading, "LONGEST_RECORD_BYTES", 1_000)
    assert kinds(parsed_blocks(chunks_of([path])[0])) == {EVENT: 2, CONTINUATION: 500}


def test_a_gzipped_log_gives_the_same_events(tmp_path: Path) -> None:
    path = tmp_path / "broker-3" / "state-change.log.2026-11-21-08.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(STATE_CHANGE.read_bytes()))
    (plain,), (zipped,) = chunks_of([STATE_CHANGE]), chunks_of([tmp_path])
    assert rows(parsed_blocks(zipped)) == rows(parsed_blocks(plain))


def test_compressed_data_that_end_early_are_said_to(tmp_path: Path) -> None:
    path = tmp_path / "state-change.log.gz"
    path.write_bytes(gzip.compress(STATE_CHANGE.read_bytes())[:-3_000])
    found = kinds(parsed_blocks(chunks_of([path])[0]))
    assert found[DAMAGED] == 1


def test_lines_that_are_no_event_are_kept_apart_with_the_reason() -> None:
    parsed = of_lines(
        "[2026-11-21 08:05:35,743] INFO [Controller id=3 epoch=2] Changed partition __consumer_offsets-5 from Offl",
        "[2026-11-21 08:05:35,743] INFO [Controller id=3] The cat is on the roof (kafka.controller.KafkaController)",
        "[2026-02-30 08:05:35,743] INFO [Controller id=3] Resigned (kafka.controller.KafkaController)",
        "\x00\x00\x00",
        "",
        "java.io.IOException: Connection to 1 was disconnected before the response was read",
        "\tat kafka.utils.ShutdownableThread.run(ShutdownableThread.scala:96)",
        "Caused by: java.lang.InterruptedException",
        "\t... 12 more",
    )
    assert parsed.kinds == {TORN: 1, UNKNOWN_TEXT: 1, NO_SUCH_TIME: 1, UNKNOWN_FORM: 1, EMPTY: 1, CONTINUATION: 4}
    left = [row for batch in parsed.leftovers for row in batch.to_pylist()]
    assert {(row["place"], row["why"]) for row in left} == {
        (0, TORN),
        (1, UNKNOWN_TEXT),
        (2, NO_SUCH_TIME),
        (3, UNKNOWN_FORM),
    }


HEAD_3 = "[2024-05-01 10:00:00,001] INFO [Controller id=1 epoch=5] "
STATE = " (state.change.logger)"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            f"{HEAD_3}Changed partition my-topic.x-12 from OfflinePartition to OnlinePartition with state LeaderAndIsr("
            f"leader=2, leaderEpoch=7, isr=List(2, 3), leaderRecoveryState=RECOVERED, partitionEpoch=9){STATE}",
            {"topic": "my-topic.x", "partition": 12, "leader": 2, "leader_epoch": 7, "isr": [2, 3], "zk_version": 9},
            id="3.2",
        ),
        pytest.param(
            f"{HEAD_3}Changed partition t-0 from OnlinePartition to OnlinePartition with state LeaderAndIsr(leader=2, "
            "leaderEpoch=7, isrWithBrokerEpoch=List(BrokerState(brokerId=2, brokerEpoch=-1), BrokerState(brokerId=3, "
            f"brokerEpoch=41)), leaderRecoveryState=RECOVERED, partitionEpoch=9){STATE}",
            {"topic": "t", "leader": 2, "isr": [2, 3], "zk_version": 9, "controller_epoch": 5},
            id="3.5",
        ),
        pytest.param(
            f"{HEAD_3}Partition t-0 state changed to (Leader:-1,ISR:2,LeaderRecoveryState:RECOVERED,LeaderEpoch:8,"
            f"ZkVersion:10,ControllerEpoch:5) after removing replica 1 from the ISR as part of transition to "
            f"OfflineReplica{STATE}",
            {"leader": -1, "isr": [2], "leader_epoch": 8, "why": "replica offline", "replica": 1},
            id="3.x replica offline",
        ),
        pytest.param(
            "[2024-05-01 10:00:00,001] INFO [Broker id=1] Leader t-0 with topic id Some(abc) starts at leader epoch 3 "
            "from offset 10 with partition epoch 4, high watermark 10, ISR [1,2], adding replicas [] and removing "
            f"replicas [] . Previous leader Some(2) and previous leader epoch was 2.{STATE}",
            {"event": "ReplicaRoleApplied", "role": "leader", "leader_epoch": 3, "isr": [1, 2], "node": 1},
            id="3.x leader",
        ),
        pytest.param(
            "[2024-05-01 10:00:00,001] INFO [Broker id=1] Follower t-0 starts at leader epoch 3 from offset 10 with "
            f"partition epoch 4 and high watermark 10. Current leader is 2. Previous leader epoch was 2.{STATE}",
            {"role": "follower", "leader": 2, "leader_epoch": 3},
            id="3.x follower",
        ),
        pytest.param(
            "[2024-05-01 10:00:00,001] WARN [Broker id=2] Ignoring LeaderAndIsr request from controller 1 with "
            "correlation id 4 since its controller epoch 5 is old. Latest known controller epoch is 6"
            f"{STATE}",
            {"event": "RequestRefused", "controller": 1, "controller_epoch": 5, "known_epoch": 6},
            id="a stale controller",
        ),
        pytest.param(
            "[2024-05-01 10:00:00,001] INFO Resigned (kafka.controller.KafkaController)",
            {"event": "ControllerResigned", "node": 7},
            id="a line that does not say whose it is",
        ),
        pytest.param(
            "[2023-10-04 18:33:49,243] TRACE [Controller id=3] Leader imbalance ratio for broker 3 is 0.0 "
            "(kafka.controller.KafkaController)",
            {"event": "Noted", "level": "TRACE", "message": "Leader imbalance ratio for broker 3 is 0.0", "node": 3},
            id="a controller at TRACE",
        ),
        pytest.param(
            "[2023-10-04 18:33:49,101] TRACE [Broker id=3] Cached leader info UpdateMetadataPartitionState(topicName="
            "'t', partitionIndex=0, controllerEpoch=74, leader=3, leaderEpoch=12, isr=[3], zkVersion=12, replicas=[3], "
            "offlineReplicas=[]) for partition t-0 in response to UpdateMetadata request sent by controller 3 epoch 74 "
            f"with correlation id 3{STATE}",
            {"event": "Noted", "level": "TRACE", "leader": None, "node": 3},
            id="a broker at TRACE",
        ),
        pytest.param(
            "[2023-10-04 18:33:49,092] TRACE [Controller id=3 epoch=74] Received response {error_code=0,_tagged_fields"
            f"={{}}}} for request UPDATE_METADATA with correlation id 3 sent to broker k:9 (id: 1 rack: null){STATE}",
            {"event": "Noted", "controller_epoch": 74},
            id="an answer at TRACE",
        ),
    ],
)
def test_texts_of_several_versions(line: str, expected: dict[str, Any]) -> None:
    found = only(line)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("text", [*STATE_CHANGES, *CONTROLLER], ids=lambda text: f"{text.event}: {text.phrase}")
def test_what_a_text_spells_are_columns_of_the_table(text: LogText) -> None:
    assert {*text.groups, *text.constants} <= FIELDS.keys()
    assert not {*text.groups, *text.constants} & OWN.keys()


def test_a_path_with_nothing_to_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("")
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NothingToRead, match=str(path)):
            chunks_of([path])


def test_a_brokers_number_is_that_of_its_folder() -> None:
    assert {(chunk.file.node, chunk.start) for chunk in chunks_of([LOGS])} == {(1, 0), (2, 0), (3, 0)}
    assert isinstance(chunks_of([LOGS])[0], Chunk)
