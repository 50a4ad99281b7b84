"""A partition that Kafka 2.8.2 wrote: read here, appended anew here, and the same bytes."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest

from controller.storage import EpochStart, LogCheckpoint, LogDirectory, LogSettings, PartitionLog, headers_of
from controller.storage.batches import HEADER_BYTES, Record, decode_records
from controller.storage.checkpoints import (
    decode_epochs,
    decode_offsets,
    decode_topic_id,
    encode_epochs,
    encode_offsets,
    encode_topic_id,
)
from controller.storage.disk_files import FileDisk
from controller.storage.producer_states import ProducerStates
from tests.storage.batches import Clock, offset_for_timestamp

KAFKA = Path(__file__).parents[1] / "data" / "kafka-2.8.2" / "log"
PROOF = KAFKA / "proof-0"
FIRST = "00000000000000000000"


def opened(directory: Path, *, clean: bool = False) -> PartitionLog:
    return PartitionLog(FileDisk(), str(directory), LogSettings(), Clock(), known=LogCheckpoint(clean=clean))


def proof_batches() -> list[bytes]:
    data = (PROOF / f"{FIRST}.log").read_bytes()
    found, position = [], 0
    for header in headers_of(data):
        found.append(data[position : position + header.size_bytes])
        position += header.size_bytes
    return found


@pytest.mark.parametrize("clean", [True, False], ids=["as closed", "as after a crash"])
def test_kafkas_partition_is_read(tmp_path: Path, clean: bool) -> None:
    shutil.copytree(PROOF, tmp_path / "proof-0")
    log = opened(tmp_path / "proof-0", clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (0, 1954)
    # Epoch 7 began at the log's end and has no batch: Kafka too lets go of it when it opens the log.
    assert log.epochs.entries() == (EpochStart(0, 0), EpochStart(2, 1631))
    assert base64.urlsafe_b64encode(log.topic_id) == b"JUNfP4VSTOWZ_6Tfc-zTPA=="
    records: list[Record] = []
    position = 0
    data = log.read(0, 1 << 20).read()
    for header in headers_of(data):
        records += decode_records(header, data[position + HEADER_BYTES : position + header.size_bytes])
        position += header.size_bytes
    assert [record.offset for record in records] == list(range(1954))
    assert all(record.key is not None and record.value == b"v" + record.key for record in records)


def test_a_log_that_kafka_closed_and_is_only_opened_and_closed_keeps_its_bytes(tmp_path: Path) -> None:
    shutil.copytree(PROOF, tmp_path / "proof-0")
    log = opened(tmp_path / "proof-0", clean=True)
    log.close()
    for file in PROOF.iterdir():
        if file.name != "leader-epoch-checkpoint":
            assert (tmp_path / "proof-0" / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_kafkas_batches_appended_anew_give_kafkas_files(tmp_path: Path, role: str) -> None:
    log = opened(tmp_path)
    for data in proof_batches():
        header = headers_of(data)[0]
        if role == "follower":
            log.append_as_follower(data)
        else:
            # A producer sends offsets from 0 on, and knows no leader epoch.
            log.append_as_leader(bytes(8) + data[8:12] + b"\xff\xff\xff\xff" + data[16:], header.leader_epoch)
    log.assign_epoch(7, 1954)
    log.close()
    for name in (f"{FIRST}.log", f"{FIRST}.index", "00000000000000001954.snapshot", "leader-epoch-checkpoint"):
        assert (tmp_path / name).read_bytes() == (PROOF / name).read_bytes(), name
    # Kafka's leader decodes uncompressed records, and its time index names the very record with the largest timestamp;
    # here, as with its follower and with compressed batches, it names the last record of the batch.
    ours, kafkas = (tmp_path / f"{FIRST}.timeindex").read_bytes(), (PROOF / f"{FIRST}.timeindex").read_bytes()
    assert len(ours) == len(kafkas)
    assert [at for at in range(0, len(ours), 12) if ours[at : at + 12] != kafkas[at : at + 12]] == [24]
    assert ours[24:32] == kafkas[24:32]
    assert (int.from_bytes(ours[32:]), int.from_bytes(kafkas[32:])) == (1953, 1870)


def test_one_byte_of_another_value_is_found(tmp_path: Path) -> None:
    shutil.copytree(PROOF, tmp_path / "proof-0")
    path = tmp_path / "proof-0" / f"{FIRST}.log"
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1
    path.write_bytes(data)
    assert opened(tmp_path / "proof-0").log_end_offset == 1003


def test_every_timestamp_of_kafkas_partition_leads_to_its_first_record(tmp_path: Path) -> None:
    shutil.copytree(PROOF, tmp_path / "proof-0")
    log = opened(tmp_path / "proof-0", clean=True)
    first: list[tuple[int, int]] = []
    for data in proof_batches():
        for record in decode_records(headers_of(data)[0], data[HEADER_BYTES:]):
            if not first or record.timestamp_ms > first[-1][0]:
                first.append((record.timestamp_ms, record.offset))
    assert len(first) > 30
    for timestamp_ms, offset in first:
        found = offset_for_timestamp(log, timestamp_ms)
        assert found is not None
        assert (found.timestamp_ms, found.offset) == (timestamp_ms, offset)
    assert offset_for_timestamp(log, first[-1][0] + 1) is None


def test_kafkas_checkpoints_are_read_and_written_back_to_the_byte() -> None:
    name = "replication-offset-checkpoint"
    data = (KAFKA / name).read_bytes()
    offsets = decode_offsets(name, data)
    assert offsets["proof", 0] == 1954
    assert encode_offsets(offsets) == data
    data = (PROOF / "leader-epoch-checkpoint").read_bytes()
    assert encode_epochs(decode_epochs("epochs", data)) == data
    data = (PROOF / "partition.metadata").read_bytes()
    assert encode_topic_id(decode_topic_id("metadata", data)) == data
    data = (PROOF / "00000000000000001954.snapshot").read_bytes()
    assert ProducerStates.decode("snapshot", data).encode() == data


def test_kafkas_log_directory_is_opened(tmp_path: Path) -> None:
    shutil.copytree(KAFKA, tmp_path / "logs")
    directory = LogDirectory(FileDisk(), str(tmp_path / "logs"), lambda _: LogSettings(), Clock())
    assert directory.health.cause is None
    assert list(directory.logs) == [("proof", 0)]
    assert directory.high_watermarks["proof", 0] == directory.logs["proof", 0].log_end_offset == 1954
    directory.close()
