"""What a log is after a crash, case by case: torn tails are cut, flushed bytes that changed are an error that names
file and position, and take the log directory offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.storage import CorruptLog, LogDirectory, LogOffline, LogSettings, PartitionLog, headers_of
from controller.storage.disk_files import FileDisk
from tests.storage.batches import START_MS, Clock, batch, offset_for_timestamp

PARTITION = ("torn", 3)
SETTINGS = LogSettings(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1)
SIZE = len(batch())


def opened(path: Path) -> LogDirectory:
    return LogDirectory(FileDisk(), str(path / "logs"), lambda _: SETTINGS, Clock())


def filled(path: Path, *, count: int, flush_at: int) -> LogDirectory:
    """`count` batches of one record, flushed and checkpointed after `flush_at` of them, and not closed."""
    directory = opened(path)
    log = directory.create(PARTITION)
    for number in range(count):
        log.append_as_leader(batch(timestamp_ms=START_MS + number), number // 10)
        if number + 1 == flush_at:
            log.flush()
            directory.checkpoint_recovery_points()
    directory.unlock()
    return directory


def segment(path: Path, base: int) -> Path:
    return path / "logs" / "torn-3" / f"{base:020d}.log"


def change(path: Path, edit: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    edit(data)
    path.write_bytes(data)


def cut_short(data: bytearray) -> None:
    del data[-7:]


def cut_to_a_header(data: bytearray) -> None:
    del data[-SIZE + 61 :]


def cut_within_a_header(data: bytearray) -> None:
    del data[-SIZE + 30 :]


def zeroed(data: bytearray) -> None:
    data[-SIZE:] = bytes(SIZE)


def zeroed_values(data: bytearray) -> None:
    data[-10:] = bytes(10)


def one_bit(data: bytearray) -> None:
    data[-1] ^= 1


def another_length(data: bytearray) -> None:
    data[-SIZE + 8 : -SIZE + 12] = b"\x7f\xff\xff\xff"


def a_negative_length(data: bytearray) -> None:
    data[-SIZE + 8 : -SIZE + 12] = b"\xff\xff\xff\xff"


def an_older_offset(data: bytearray) -> None:
    # Before what the CRC covers: only the order of offsets tells.
    data[-SIZE : -SIZE + 8] = (0).to_bytes(8)


def cut_whole_batch(data: bytearray) -> None:
    del data[-SIZE:]


TEARS = (
    cut_short,
    cut_to_a_header,
    cut_within_a_header,
    zeroed,
    zeroed_values,
    one_bit,
    another_length,
    a_negative_length,
    an_older_offset,
)


@pytest.mark.parametrize("tear", TEARS, ids=lambda tear: str(tear.__name__))
def test_a_torn_last_batch_is_cut_off(tmp_path: Path, tear: Callable[[bytearray], object]) -> None:
    filled(tmp_path, count=6, flush_at=4)
    change(segment(tmp_path, 0), tear)
    directory = opened(tmp_path)
    log = directory.logs[PARTITION]
    assert log.log_end_offset == 5
    assert log.cut_bytes > 0
    assert segment(tmp_path, 0).stat().st_size == 5 * SIZE
    assert log.append_as_leader(batch(), 1).base_offset == 5
    directory.close()


@pytest.mark.parametrize("tear", TEARS, ids=lambda tear: str(tear.__name__))
def test_the_same_below_the_recovery_point_takes_the_directory_offline(
    tmp_path: Path, tear: Callable[[bytearray], object]
) -> None:
    filled(tmp_path, count=6, flush_at=6)
    change(segment(tmp_path, 0), tear)
    before = segment(tmp_path, 0).read_bytes()
    failures: list[Exception] = []
    directory = LogDirectory(FileDisk(), str(tmp_path / "logs"), lambda _: SETTINGS, Clock(), failures.append)
    cause = directory.health.cause
    assert isinstance(cause, CorruptLog)
    assert (cause.file, cause.position) == (str(segment(tmp_path, 0)), 5 * SIZE)
    assert failures == [cause]
    assert directory.logs == {}
    with pytest.raises(LogOffline, match=r"00000000\.log at"):
        directory.create(("other", 0))
    directory.close()
    assert segment(tmp_path, 0).read_bytes() == before, "what is damaged is evidence, and is left alone"


def test_sound_batches_after_damage_do_not_hide_it(tmp_path: Path) -> None:
    filled(tmp_path, count=6, flush_at=5)
    change(segment(tmp_path, 0), lambda data: data.__setitem__(SIZE + 70, data[SIZE + 70] ^ 1))
    cause = opened(tmp_path).health.cause
    assert isinstance(cause, CorruptLog)
    assert cause.position == SIZE


def test_a_flushed_log_that_is_shorter_is_a_loss_though_every_batch_in_it_is_sound(tmp_path: Path) -> None:
    filled(tmp_path, count=6, flush_at=6)
    change(segment(tmp_path, 0), lambda data: data.__delitem__(slice(4 * SIZE, None)))
    cause = opened(tmp_path).health.cause
    assert isinstance(cause, CorruptLog)
    assert "ends at offset 4, though offsets up to 6" in str(cause)


def test_a_flushed_log_that_is_gone_is_a_loss(tmp_path: Path) -> None:
    filled(tmp_path, count=6, flush_at=6)
    segment(tmp_path, 0).unlink()
    assert "no segment, though offsets up to 6" in str(opened(tmp_path).health.cause)


def test_segments_after_a_torn_one_go_with_its_tail(tmp_path: Path) -> None:
    directory = filled(tmp_path, count=40, flush_at=2)
    bases = directory.logs[PARTITION].segment_offsets
    assert len(bases) > 3
    change(segment(tmp_path, bases[1]), cut_short)
    log = opened(tmp_path).logs[PARTITION]
    assert log.segment_offsets == bases[:2]
    assert log.log_end_offset == bases[2] - 1
    assert not segment(tmp_path, bases[2]).exists()


def test_a_segment_that_is_missing_among_unflushed_ones_ends_the_log(tmp_path: Path) -> None:
    directory = filled(tmp_path, count=40, flush_at=2)
    bases = directory.logs[PARTITION].segment_offsets
    segment(tmp_path, bases[2]).unlink()
    log = opened(tmp_path).logs[PARTITION]
    assert log.segment_offsets == bases[:2]
    assert log.log_end_offset == bases[2]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage", [None, b"", b"\x01", bytes(24), b"\xff" * 48, b"\x00\x00\x00\x03\x00\x00\x00\x09" * 3]
)
def test_an_index_that_is_missing_or_unsound_is_built_again(tmp_path: Path, suffix: str, damage: bytes | None) -> None:
    directory = opened(tmp_path)
    log = directory.create(PARTITION)
    for number in range(40):
        log.append_as_leader(batch(timestamp_ms=START_MS + number), 0)
    bases = log.segment_offsets
    directory.close()
    sound = {}
    for base in bases:
        path = segment(tmp_path, base).with_suffix(suffix)
        sound[path] = path.read_bytes()
        path.unlink() if damage is None else path.write_bytes(damage)
    directory = opened(tmp_path)
    assert directory.was_clean
    log = directory.logs[PARTITION]
    for offset in range(40):
        assert headers_of(log.read(offset, 1).read())[0].base_offset == offset
        found = offset_for_timestamp(log, START_MS + offset)
        assert found is not None
        assert found.offset == offset
    directory.close()
    if damage is None:
        assert {path: path.read_bytes() for path in sound} == sound


def test_an_index_of_another_segment_is_not_believed(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    log = directory.create(PARTITION)
    for number in range(40):
        log.append_as_leader(batch(number % 5 + 1, timestamp_ms=START_MS + number), 0)
    first, second = log.segment_offsets[:2]
    directory.close()
    other = segment(tmp_path, first).with_suffix(".index")
    other.write_bytes(segment(tmp_path, second).with_suffix(".index").read_bytes())
    log = opened(tmp_path).logs[PARTITION]
    for offset in range(second):
        found = headers_of(log.read(offset, 1).read())[0]
        assert found.base_offset <= offset <= found.last_offset


def test_a_clean_shutdown_reads_no_batch_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = opened(tmp_path)
    log = directory.create(PARTITION)
    for _ in range(40):
        log.append_as_leader(batch(), 0)
    directory.close()
    assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()
    monkeypatch.setattr("controller.storage.segment.crc_holds", lambda *_: pytest.fail("a batch was read"))
    directory = opened(tmp_path)
    assert directory.logs[PARTITION].log_end_offset == 40
    assert not (tmp_path / "logs" / ".kafka_cleanshutdown").exists()


def test_a_crash_after_a_clean_start_is_recovered_from_the_recovery_point(tmp_path: Path) -> None:
    filled(tmp_path, count=6, flush_at=6)
    opened(tmp_path).close()
    directory = opened(tmp_path)
    directory.logs[PARTITION].append_as_leader(batch(), 1)
    directory.unlock()
    change(segment(tmp_path, 0), cut_short)
    assert opened(tmp_path).logs[PARTITION].log_end_offset == 6


def test_damage_that_a_read_meets_takes_the_directory_offline(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    log = directory.create(PARTITION)
    for _ in range(5):
        log.append_as_leader(batch(), 0)
    log.flush()
    directory.close()
    directory = opened(tmp_path)
    change(segment(tmp_path, 0), lambda data: data.__setitem__(slice(SIZE, SIZE + 40), bytes(40)))
    with pytest.raises(LogOffline, match="at 74: magic 0"):
        directory.logs[PARTITION].read(2, 1000)
    assert isinstance(directory.health.cause, CorruptLog)
    with pytest.raises(LogOffline):
        directory.logs[PARTITION].append_as_leader(batch(), 0)


def test_a_failed_sync_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = opened(tmp_path)
    log: PartitionLog = directory.create(PARTITION)
    log.append_as_leader(batch(), 0)

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("controller.storage.disk_files.OpenFile.sync", fail)
        with pytest.raises(LogOffline):
            log.flush()
    with pytest.raises(LogOffline, match="Input/output error"):
        log.flush()
    assert log.recovery_point == 0


def test_a_directory_is_held_by_one_process(tmp_path: Path) -> None:
    from controller.storage import AlreadyLocked

    directory = opened(tmp_path)
    with pytest.raises(AlreadyLocked):
        opened(tmp_path)
    directory.close()
    opened(tmp_path).close()


@pytest.mark.parametrize(("text", "position"), [("version: 0\ntopic_id: abc", 2), ("version: 1\n", 1)])
def test_unreadable_partition_metadata_is_named_with_its_line(tmp_path: Path, text: str, position: int) -> None:
    filled(tmp_path, count=3, flush_at=3)
    name = "torn-3/partition.metadata"
    (tmp_path / "logs" / name).write_text(text)
    cause = opened(tmp_path).health.cause
    assert isinstance(cause, CorruptLog)
    assert (cause.file, cause.position) == (str(tmp_path / "logs" / name), position)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("name", "content", "position"),
    [
        ("recovery-point-offset-checkpoint", b"", 1),
        ("recovery-point-offset-checkpoint", b"1\n0\n", 1),
        ("recovery-point-offset-checkpoint", b"0\n", 2),
        ("recovery-point-offset-checkpoint", b"0\n2\na 0 1\n", 2),
        ("recovery-point-offset-checkpoint", b"0\n" + b"9" * 5_000 + b"\n", 2),
        ("recovery-point-offset-checkpoint", "0\n\u0663\n".encode(), 2),
        ("log-start-offset-checkpoint", b"0\n1\na 0 x\n", 3),
        ("log-start-offset-checkpoint", b"0\n1\na 0 9223372036854775808\n", 3),
        ("replication-offset-checkpoint", b"0\n1\na 0\n", 3),
        ("replication-offset-checkpoint", b"", 1),
        ("replication-offset-checkpoint", b"\xff\x00", 1),
        ("torn-3/leader-epoch-checkpoint", b"0\n2\n5 0\n4 9\n", 4),
        ("torn-3/leader-epoch-checkpoint", b"", 1),
    ],
)
def test_a_start_goes_on_without_a_damaged_checkpoint_and_names_it(
    tmp_path: Path, name: str, content: bytes, position: int, clean: bool
) -> None:
    directory = filled(tmp_path, count=3, flush_at=3)
    if clean:
        opened(tmp_path).close()
    epochs = directory.logs[PARTITION].epochs.entries()
    (tmp_path / "logs" / name).write_bytes(content)
    directory = opened(tmp_path)
    assert directory.health.cause is None
    (warning,) = directory.health.warnings
    assert warning.startswith(f"{tmp_path / 'logs' / name} at {position}: ")
    log = directory.logs[PARTITION]
    assert (log.log_end_offset, log.epochs.entries()) == (3, epochs)
    directory.write_high_watermarks({PARTITION: 3})
    directory.close()
    assert opened(tmp_path).health.warnings == [], "it is written anew"


@pytest.mark.parametrize("content", [b"", b"\x00" * 40])
def test_without_recovery_points_every_batch_is_checked(tmp_path: Path, content: bytes) -> None:
    filled(tmp_path, count=6, flush_at=6)
    opened(tmp_path).close()
    (tmp_path / "logs" / "recovery-point-offset-checkpoint").write_bytes(content)
    change(segment(tmp_path, 0), one_bit)
    log = opened(tmp_path).logs[PARTITION]
    assert (log.log_end_offset, log.cut_bytes > 0) == (5, True)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", [1, 2])
def test_a_sealed_segment_that_is_missing_is_a_loss(tmp_path: Path, which: int, clean: bool) -> None:
    directory = filled(tmp_path, count=40, flush_at=40)
    bases = directory.logs[PARTITION].segment_offsets
    if clean:
        opened(tmp_path).close()
    segment(tmp_path, bases[which]).unlink()
    cause = opened(tmp_path).health.cause
    assert isinstance(cause, CorruptLog)
    assert cause.file == str(segment(tmp_path, bases[which - 1]))
    assert f"ends at offset {bases[which]}, but the next one begins at {bases[which + 1]}" in str(cause)


def fewer_records(data: bytearray) -> None:
    data[57:61] = bytes(4)


@pytest.mark.parametrize("edit", [lambda data: data.extend(bytes(data)), fewer_records])
def test_damage_to_another_segment_does_not_pass_for_compaction(
    tmp_path: Path, edit: Callable[[bytearray], object]
) -> None:
    """Batches that come twice, or a count of records that was changed, are no work of the cleaner's."""
    directory = filled(tmp_path, count=40, flush_at=20)
    bases = directory.logs[PARTITION].segment_offsets
    segment(tmp_path, bases[1]).unlink()
    change(segment(tmp_path, bases[-1]), edit)
    cause = opened(tmp_path).health.cause
    assert isinstance(cause, CorruptLog)
    assert f"begins at {bases[2]}" in str(cause)


@pytest.mark.parametrize("clean", [True, False])
def test_a_sealed_segment_that_is_cut_renamed_or_there_twice_is_a_loss(tmp_path: Path, clean: bool) -> None:
    def cut(bases: tuple[int, ...]) -> None:
        change(segment(tmp_path, bases[1]), cut_whole_batch)

    def renamed(bases: tuple[int, ...]) -> None:
        segment(tmp_path, bases[1]).rename(segment(tmp_path, bases[1] + 1))

    def twice(bases: tuple[int, ...]) -> None:
        segment(tmp_path, bases[1] + 1).write_bytes(segment(tmp_path, bases[1]).read_bytes())

    def emptied(bases: tuple[int, ...]) -> None:
        change(segment(tmp_path, bases[2]), bytearray.clear)

    for number, damage in enumerate((cut, renamed, twice, emptied)):
        folder = tmp_path / str(number)
        directory = filled(folder, count=40, flush_at=40)
        bases = directory.logs[PARTITION].segment_offsets
        if clean:
            opened(folder).close()
        (tmp_path / "logs").unlink(missing_ok=True)
        (tmp_path / "logs").symlink_to(folder / "logs")
        damage(bases)
        cause = opened(folder).health.cause
        assert isinstance(cause, CorruptLog), damage.__name__
        assert ".log" in cause.file


def test_the_oldest_segments_that_are_missing_are_said(tmp_path: Path) -> None:
    directory = filled(tmp_path, count=40, flush_at=40)
    bases = directory.logs[PARTITION].segment_offsets
    opened(tmp_path).close()
    segment(tmp_path, bases[0]).unlink()
    directory = opened(tmp_path)
    assert directory.logs[PARTITION].log_start_offset == bases[1]
    (warning,) = directory.health.warnings
    assert f"offsets 0 to {bases[1]} are missing" in warning


@pytest.mark.parametrize("clean", [True, False])
def test_the_gaps_of_a_compacted_log_are_sound(tmp_path: Path, clean: bool) -> None:
    """Kafka's cleaner takes records out of batches, batches out of segments, and the last ones of a segment too."""
    directory = opened(tmp_path)
    directory.create(PARTITION).append_as_follower(batch(1, base_offset=0) + batch(1, base_offset=4))
    directory.close()
    for base, offset in ((10, 10), (20, 23)):
        segment(tmp_path, base).write_bytes(batch(1, base_offset=offset))
    (tmp_path / "logs" / "recovery-point-offset-checkpoint").write_text("0\n1\ntorn 3 24\n")
    if clean:
        (tmp_path / "logs" / ".kafka_cleanshutdown").write_bytes(b"")
    directory = opened(tmp_path)
    assert directory.health.cause is None
    log = directory.logs[PARTITION]
    assert (log.segment_offsets, log.log_end_offset) == ((0, 10, 20), 24)
    assert headers_of(log.read(5, 1).read())[0].base_offset == 10


def test_a_replacement_that_the_cleaner_did_not_end_is_completed(tmp_path: Path) -> None:
    directory = filled(tmp_path, count=40, flush_at=40)
    bases = directory.logs[PARTITION].segment_offsets
    opened(tmp_path).close()
    whole = b"".join(segment(tmp_path, base).read_bytes() for base in bases[1:3])
    swap = segment(tmp_path, bases[1]).with_suffix(".log.swap")
    swap.write_bytes(whole)
    segment(tmp_path, bases[1]).rename(segment(tmp_path, bases[1]).with_suffix(".log.deleted"))
    segment(tmp_path, bases[1]).with_suffix(".index.swap").write_bytes(b"x")
    directory = opened(tmp_path)
    assert directory.health.cause is None
    assert "replacement of segments by the log cleaner was completed" in directory.health.warnings[0]
    log = directory.logs[PARTITION]
    assert log.segment_offsets == (bases[0], bases[1], *bases[3:])
    for offset in range(40):
        assert headers_of(log.read(offset, 1).read())[0].base_offset == offset
    assert not [path for path in swap.parent.iterdir() if path.suffix in (".swap", ".deleted")]


def test_an_unfinished_replacement_is_undone(tmp_path: Path) -> None:
    directory = filled(tmp_path, count=40, flush_at=40)
    bases = directory.logs[PARTITION].segment_offsets
    segment(tmp_path, bases[1]).with_suffix(".log.cleaned").write_bytes(b"half")
    segment(tmp_path, bases[2]).with_suffix(".log.swap").write_bytes(b"half")
    directory = opened(tmp_path)
    assert directory.health.cause is None
    assert directory.logs[PARTITION].segment_offsets == bases


def test_a_replacement_that_is_damaged_is_a_loss(tmp_path: Path) -> None:
    directory = filled(tmp_path, count=40, flush_at=40)
    bases = directory.logs[PARTITION].segment_offsets
    swap = segment(tmp_path, bases[1]).with_suffix(".log.swap")
    swap.write_bytes(b"half")
    cause = opened(tmp_path).health.cause
    assert isinstance(cause, CorruptLog)
    assert cause.file == str(swap)
    assert swap.exists()


def test_what_is_no_partitions_is_left_alone_and_said(tmp_path: Path) -> None:
    directory = filled(tmp_path, count=3, flush_at=3)
    logs = tmp_path / "logs"
    files = ("plain-0", "torn-3/1.log", "torn-3/x.log", "torn-3/\u0663.snapshot", "gone-0.00-delete")
    for name in files:
        (logs / name).write_bytes(b"x")
    for name in ("torn-03", "\u0663-\u0663", "lost+found", "odd-1.00-delete/within/deeper", "t-99999999999"):
        (logs / name).mkdir(parents=True)
    (logs / "recovery-point-offset-checkpoint").write_text("0\n2\ntorn 3 3\nremoved 0 7\n")
    directory = opened(tmp_path)
    assert directory.health.cause is None
    assert [*directory.logs] == [PARTITION]
    assert (logs / "odd-1.00-delete" / "within" / "deeper").is_dir()
    assert [name for name in files if not (logs / name).exists()] == []
    said = "\n".join(directory.health.warnings)
    for what in (
        "plain-0: expected a directory",
        "1.log: not the name",
        "x.log: not the name",
        "odd-1.00-delete is not",
    ):
        assert what in said
    assert "removed-0 is missing, though offsets up to 7 were flushed" in said
