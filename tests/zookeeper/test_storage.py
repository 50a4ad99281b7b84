"""A ZooKeeper server's files: what is recovered from them whole, cut, damaged, and after a crash of the machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from controller.zookeeper.operations import Create
from controller.zookeeper.server import files
from controller.zookeeper.server.files import DataDirectory, DataDirectoryInUse
from controller.zookeeper.server.log import DamagedDataFile, frame, header
from controller.zookeeper.server.storage import Storage
from tests.zookeeper.storage_desk import Desk, Dump, LossyDirectory, LossyFile, recovered

Written = tuple[Path, list[Dump]]
"""A data directory, and its state after each zxid."""


def written(path: Path, steps: int, *, seed: int, snapshot_transactions: int = 1 << 30) -> Written:
    random = Random(seed)
    desk = Desk(DataDirectory(path), snapshot_transactions=snapshot_transactions)
    dumps = [desk.dump()]
    for _ in range(steps):
        desk.step(random)
        dumps.append(desk.dump())
        if random.random() < 0.3:
            desk.settle()
    desk.settle()
    desk.storage.close()
    return path, dumps


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return written(tmp_path_factory.mktemp("small") / "data", 20, seed=1)


@pytest.fixture
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For thousands of recoveries, whose files need not survive anything."""
    monkeypatch.setattr(files, "sync_data", lambda _fd: None)


def holding(target: Path, name: str, content: bytes) -> Path:
    target.mkdir(exist_ok=True)
    (target / name).write_bytes(content)
    return target


def only_log(data: Path) -> Path:
    (log,) = data.glob("log.*")
    return log


@pytest.mark.parametrize("snapshot_transactions", [1 << 30, 7])
def test_what_was_written_is_recovered(tmp_path: Path, snapshot_transactions: int) -> None:
    for seed in range(3):
        data, dumps = written(tmp_path / str(seed), 120, seed=seed, snapshot_transactions=snapshot_transactions)
        assert recovered(data) == (120, dumps[-1], [])


@pytest.mark.usefixtures("without_syncs")
def test_a_log_that_is_cut_anywhere_holds_the_transactions_before(tmp_path: Path, small: Written) -> None:
    data, dumps = small
    log = only_log(data)
    content = log.read_bytes()
    last = 0
    for size in range(len(content) + 1):
        zxid, state, warnings = recovered(holding(tmp_path / "cut", log.name, content[:size]))
        assert state == dumps[zxid]
        assert zxid >= last
        last = zxid
        once_more = recovered(tmp_path / "cut")
        assert once_more[:2] == (zxid, state), "what was cut off stays cut off"
        assert not once_more[2] or not warnings
    assert last == len(dumps) - 1


@pytest.mark.usefixtures("without_syncs")
def test_a_flipped_bit_is_found_or_was_in_the_last_group(tmp_path: Path, small: Written) -> None:
    data, dumps = small
    log = only_log(data)
    content = log.read_bytes()
    last_group = content.rindex(b"ZKgp")
    before_last = recovered(holding(tmp_path / "cut", log.name, content[:last_group]))[0]
    random = Random(1)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << random.randrange(8)
        holding(tmp_path / "flipped", log.name, bytes(damaged))
        if at < last_group:
            with pytest.raises(DamagedDataFile, match=r"log\.0+1, offset \d+: expected "):
                recovered(tmp_path / "flipped")
        else:
            zxid, state, warnings = recovered(tmp_path / "flipped")
            assert (zxid, state) == (before_last, dumps[before_last])
            assert f"cut off {len(content) - last_group} bytes from offset {last_group}" in warnings[0]


def test_a_frame_in_the_data_of_a_znode_is_not_taken_for_one(tmp_path: Path) -> None:
    desk = Desk(DataDirectory(tmp_path / "data"))
    desk.write([Create("/a", b"")])
    desk.settle()
    desk.write([Create("/b", frame(b"\x90", 0) + header(b"ZKpylog1", 1, 0) + frame(b"\x90", 0))])
    desk.settle()
    desk.storage.close()
    log = only_log(tmp_path / "data")
    log.write_bytes(log.read_bytes()[:-1])
    zxid, _, warnings = recovered(tmp_path / "data")
    assert zxid == 1
    assert "an incomplete group of transactions" in warnings[0]


def snapshots(data: Path) -> list[Path]:
    return sorted(data.glob("snapshot.*"))


def test_three_snapshots_are_kept_and_the_logs_after_the_oldest(tmp_path: Path) -> None:
    data, dumps = written(tmp_path / "data", 300, seed=3, snapshot_transactions=20)
    kept = snapshots(data)
    assert len(kept) == 3
    logs = sorted(data.glob("log.*"))
    zxids = [int(each.name.partition(".")[2], 16) for each in (*kept, *logs)]
    assert zxids[3] == zxids[0] + 1
    # Each of the three is enough, with the log.
    for snapshot in reversed(kept):
        assert recovered(data)[:2] == (300, dumps[-1])
        content = bytearray(snapshot.read_bytes())
        content[len(content) // 2] ^= 1
        snapshot.write_bytes(bytes(content))
    with pytest.raises(DamagedDataFile, match="expected transaction 0x1, found 0x"):
        recovered(data)


def test_a_damaged_snapshot_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    data, dumps = written(tmp_path / "data", 100, seed=3, snapshot_transactions=20)
    newest = snapshots(data)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    zxid, state, (warning,) = recovered(data)
    assert (zxid, state) == (100, dumps[-1])
    assert warning.startswith(f"passed over a damaged snapshot: {newest}, offset ")


def test_a_missing_log_is_refused(tmp_path: Path) -> None:
    data, _ = written(tmp_path / "data", 200, seed=4, snapshot_transactions=20)
    logs = sorted(data.glob("log.*"))
    logs[-2].unlink()
    for snapshot in snapshots(data)[-2:]:
        snapshot.unlink()
    with pytest.raises(DamagedDataFile, match="expected transaction 0x"):
        recovered(data)


def test_a_snapshot_that_an_interrupted_server_left_is_removed(tmp_path: Path) -> None:
    data, dumps = written(tmp_path / "data", 10, seed=5)
    (data / "snapshot.0000000000000005.tmp").write_bytes(b"half")
    assert recovered(data) == (10, dumps[-1], [])
    assert not list(data.glob("*.tmp"))


def test_a_directory_has_one_server(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryInUse, match=f"{tmp_path}: another ZooKeeper server"):
        DataDirectory(tmp_path)
    first.close()
    DataDirectory(tmp_path).close()


@pytest.fixture
def crashes(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)


def crash_often(base: Path, seed: int) -> None:
    random = Random(seed)
    directory = LossyDirectory(base / "data-0")
    desk = Desk(directory, snapshot_transactions=15)
    try:
        dumps = [desk.dump()]
        for crash in range(6):
            for _ in range(random.randrange(40)):
                desk.step(random)
                dumps.append(desk.dump())
                if random.random() < 0.5:
                    desk.pump(random.choice([None, 0.001]))
            acknowledged = desk.acknowledged
            directory.crash(base / f"data-{crash + 1}", random)
            desk.settle()
            desk.storage.close()
            directory = LossyDirectory(base / f"data-{crash + 1}")
            desk = Desk(directory, snapshot_transactions=15)
            assert acknowledged <= desk.storage.zxid < len(dumps)
            del dumps[desk.storage.zxid + 1 :]
            assert desk.dump() == dumps[-1]
            desk.acknowledged = desk.storage.zxid
    finally:
        desk.storage.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_of_the_machine_loses_nothing_acknowledged(crashes: Path, seed: int) -> None:
    crash_often(crashes, seed)


def unsynced(prefix: str) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        sync = LossyFile.sync
        monkeypatch.setattr(LossyFile, "sync", lambda file: None if file.path.name.startswith(prefix) else sync(file))

    return plant


def names_unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossyDirectory, "sync_names", lambda _directory: None)


def early_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "_wait_durable", lambda _storage, _zxid: True)


@pytest.mark.parametrize("plant", [unsynced("log."), unsynced("snapshot."), names_unsynced, early_snapshot])
def test_a_planted_fault_is_found(
    crashes: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, DamagedDataFile)):  # noqa: PT012 - any of the seeds may find it
        for seed in range(100):
            (crashes / str(seed)).mkdir()
            crash_often(crashes / str(seed), seed)
