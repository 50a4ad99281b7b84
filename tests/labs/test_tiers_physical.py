"""Physical runs of the tiers lab: refusals anywhere, and on a machine that can: a run, and nothing left after it."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.labs.tiers import driver, physical
from controller.labs.tiers.caches import PageCache
from controller.labs.tiers.driver import DriverJob, LabDriver
from controller.labs.tiers.figures import Case, LabRun, figures
from controller.labs.tiers.physical import BLKIO, MEMORY, PREFIX, PhysicalUnavailable, Rig, physical_load, require
from controller.labs.tiers.placement import FlushTurns
from controller.labs.tiers.workload import ARCHITECTURES, Flush
from controller.storage.disk_files import FileDisk
from tests.processes import eventually

CACHESTAT = 451
"""The number of the system call, the same on all architectures but Alpha."""
NEEDED = (
    "dev/fuse",
    "dev/loop-control",
    "sys/fs/cgroup/blkio/blkio.throttle.read_bps_device",
    "sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def unavailable() -> str:
    try:
        require()
    except PhysicalUnavailable as error:
        return str(error)
    return ""


on_devices = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can")


def left_behind(process: int) -> list[str]:
    mark = f"{PREFIX}-{process}"
    found = [str(path) for hierarchy in (BLKIO, MEMORY) for path in hierarchy.glob(f"{mark}*")]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if mark in line]
    backing = Path("/sys/block").glob("loop*/loop/backing_file")
    return found + mounts + [str(path) for path in backing if mark in path.read_text()]


@pytest.mark.parametrize("missing", NEEDED)
def test_a_machine_without_what_is_needed_is_refused_by_name(tmp_path: Path, missing: str) -> None:
    for name in NEEDED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    require(tmp_path, uid=0, system="linux", kernel="6.5.0")
    (tmp_path / missing).unlink()
    with pytest.raises(PhysicalUnavailable, match=f"--physical needs .*: /{missing} does not exist"):
        require(tmp_path, uid=0, system="linux", kernel="6.5.0")


def test_other_users_and_systems_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PhysicalUnavailable, match="needs root"):
        require(tmp_path, uid=1000, system="linux", kernel="6.5.0")
    for system, kernel in (("darwin", "24.1.0"), ("linux", "6.4.16-generic"), ("linux", "5.15.0")):
        with pytest.raises(PhysicalUnavailable, match=f"needs Linux 6.5, for cachestat, got {system} {kernel}"):
            require(tmp_path, uid=0, system=system, kernel=kernel)


@pytest.mark.parametrize("action", ["pageout", "stat"])
def test_a_machine_that_pages_memory_out_is_found(action: str, tmp_path: Path) -> None:
    assert not physical.pages_memory_out(tmp_path)
    scheme = tmp_path / "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/0"
    scheme.mkdir(parents=True)
    (scheme / "action").write_text(f"{action}\n")
    assert physical.pages_memory_out(tmp_path) is (action == "pageout")


def test_the_command_ends_with_3_where_it_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise PhysicalUnavailable("--physical needs root: it makes loop devices, mounts and cgroups")

    monkeypatch.setattr(physical, "require", refuse)
    assert main(["lab", "tiers", "--physical", "--quick"]) == 3
    assert "camerlengo lab: --physical needs root" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["16", "130", "many"])
def test_a_page_cache_of_another_size_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lab", "tiers", "--physical", "--cache-mb", size])
    assert ended.value.code == 2
    assert "--cache-mb" in capsys.readouterr().err


def test_a_physical_load_has_the_published_ratios() -> None:
    for megabytes in (64, 128):
        ratios = physical_load(megabytes).ratios()
        assert ratios["least lag over cache time"] == pytest.approx(1.25)
        assert ratios["longest lag over cache time"] == pytest.approx(18.75)
        assert ratios["SSD bandwidth over traffic"] == pytest.approx(5.88, rel=0.01)
        assert ratios["HDD bandwidth, one reader, over traffic"] == pytest.approx(7.82, rel=0.01)
        assert ratios["jobs per HDD"] == 20
        assert ratios["fetch over read-ahead"] == 8
        assert ratios["fetch over page cache"] == pytest.approx(0.001, rel=0.05)
        few = physical_load(megabytes, jobs_per_hdd=4).ratios()
        assert few == pytest.approx(ratios | {"jobs per HDD": 4})


@on_devices
@pytest.mark.parametrize("architecture", [ARCHITECTURES[1], ARCHITECTURES[5]], ids=lambda each: each.name)
def test_a_run_on_devices_reads_where_the_architecture_says_and_leaves_nothing(architecture: object) -> None:
    load = replace(physical_load(64), warm_s=2.0, measured_s=2.0)
    run = LabRun(next(each for each in ARCHITECTURES if each is architecture), Flush.Rate, Case.Both)
    least = 0.5 * load.traffic * load.measured_s / load.chunk
    may_read_hdds = architecture is not ARCHITECTURES[5]
    # On a machine that is busy with something else less is written in time, and the consumer with the longest lag falls
    # behind what is on the SSD.
    for _ in range(10):
        with Rig(load) as rig:
            found = rig.run(run, seed=1)
            assert left_behind(os.getpid()) != []
        assert left_behind(os.getpid()) == []
        result = figures([found], load.chunk, load.measured_s)
        if len(found.writes) > least and (may_read_hdds or not result["HDD share"]):
            break
    assert len(found.writes) > least
    assert found.cold_reads
    assert found.real_time_reads
    assert result["SSD hit rate"] > 0
    assert may_read_hdds or result["HDD share"] == result["real-time HDD share"] == 0


def test_a_flush_by_count_includes_what_is_in_the_segment_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out stays dirty until the kernel finds it where it evicts, and writes all that is dirty."""
    driver = LabDriver(DriverJob(physical_load(32), ARCHITECTURES[0], Flush.Count, 1, str(tmp_path), ""))
    chunks = range(-driver.load.flush_chunks, 2 * driver.devices.per_segment)
    for path in {driver.place(0, number, "hdd")[0] for number in chunks}:
        Path(path).touch()
    wrote, synced, left = set[str](), set[str](), list[set[str]]()

    def path_of(file: int) -> str:
        return os.readlink(f"/proc/self/fd/{file}")

    def note(_what: str, _due: float, _done: float) -> None:
        if driver.unflushed[0] == 0:
            left.append(wrote - synced)
            wrote.clear()
            synced.clear()
        if len(left) * driver.load.flush_chunks > driver.devices.per_segment + 2 * driver.load.flush_chunks:
            raise StopIteration

    monkeypatch.setattr(driver, "wait_until", lambda _due_s: None)
    monkeypatch.setattr(driver, "note", note)
    monkeypatch.setattr(os, "pwrite", lambda file, _data, _at: wrote.add(path_of(file)))
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.add(path_of(file)))
    with pytest.raises(StopIteration):
        driver.produce(0)
    assert not any(left)


def test_slices_are_due_on_time_however_late_the_thread_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: count from when it woke. A disk that is half busy then falls behind after seconds."""
    driver = LabDriver(DriverJob(physical_load(32), ARCHITECTURES[0], Flush.Rate, 1, "", ""))
    (home,) = {driver.placed.home(0).name}
    turns, due = FlushTurns(driver.load), [0.0]
    for owner in (driver.turns[home], turns):
        for _ in range(10):
            owner.add(0)
    while (turn := turns.next()) is not None:
        due.append(due[-1] + turn[1])
    clock, woken = [0.0], [0.0]

    def wait_until(due_s: float) -> None:
        clock[0] = max(clock[0], due_s) + 0.001
        woken.append(clock[0])
        if len(woken) == len(due):
            raise StopIteration

    monkeypatch.setattr(driver, "now", lambda: clock[0])
    monkeypatch.setattr(driver, "wait_until", wait_until)
    with pytest.raises(StopIteration):
        driver.pace(home)
    assert woken[1:] == pytest.approx([at + 0.001 for at in due[1:]])


def _content(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # it is not there yet, or no more
        return ""


@on_devices
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_an_interrupted_run_leaves_nothing(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "controller.cli", "lab", "tiers", "--physical", "--quick"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        processes = MEMORY / f"{PREFIX}-{process.pid}" / "cgroup.procs"
        eventually(lambda: bool(_content(processes)), "a process in the run's cgroup")
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
    assert left_behind(process.pid) == []


@on_devices
def test_cgroups_of_killed_runs_are_removed_by_the_next() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    stale = MEMORY / f"{PREFIX}-{ended.pid}"
    stale.mkdir()
    physical.remove_stale_cgroups()
    assert not stale.exists()


class CacheStat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "written_back", "evicted", "lately_evicted")]


def cached_bytes(file: int, what: str = "cached") -> int:
    """Return how much of a file the page cache has, what is being read included (cachestat, Linux 6.5)."""
    found, everything = CacheStat(), (ctypes.c_uint64 * 2)(0, 0)
    if ctypes.CDLL(None, use_errno=True).syscall(CACHESTAT, file, everything, ctypes.byref(found), 0):
        pytest.skip(f"cachestat: {os.strerror(ctypes.get_errno())}")
    return int(getattr(found, what)) * mmap.PAGESIZE


READER = """
import mmap, os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
file, shared = os.open(sys.argv[2], os.O_RDONLY), mmap.mmap(-1, 9 << 20)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
for megabyte in range(96):
    os.pread(file, 1 << 20, megabyte << 20)
    if megabyte >= 87:
        print(megabyte, flush=True)
        sys.stdin.readline()
        shared.write(bytes(1 << 20))
"""


def has_more(sizes: list[int], count: int) -> bool:
    return len(sizes) > count


@on_devices
def test_the_page_cache_keeps_its_size_while_the_process_needs_more_of_other_memory(tmp_path: Path) -> None:
    """Anonymous shared memory is in the cgroup's `cache`, too, and is no page cache."""
    load = replace(physical_load(64), page_cache=32 << 20)
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 96 << 20)
    file = os.open(tmp_path / "file", os.O_RDONLY)
    with Rig(load) as rig:
        command = [sys.executable, "-c", READER, str(rig.memory), str(tmp_path / "file")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            with rig._bound_page_cache() as sizes:
                for _ in range(8):
                    process.stdin.write(b"\n")
                    process.stdin.flush()
                    assert process.stdout.readline()
                    eventually(partial(has_more, sizes, len(sizes) + 1), "two looks at the size")
            process.kill()
            cached = cached_bytes(file)
    os.close(file)
    assert cached == pytest.approx(load.page_cache, abs=2 << 20)


@on_devices
def test_linux_reads_ahead_as_the_model_does() -> None:
    """A window on demand, and the next one as soon as the first page of a window is read; not what is there."""
    load = physical_load(128)
    window = round(load.chunk) // load.windows
    with Rig(load) as rig, rig._file_system(LabRun(ARCHITECTURES[0], Flush.Rate, Case.Lagging), load) as files:
        name = f"/proc/{files.pid}/root{rig.folder}/mount/mem.0"
        file = os.open(f"{name}.1", os.O_RDONLY)
        assert [(os.pread(file, window, at * window), cached_bytes(file) // window)[1] for at in range(6)] == [
            2, 3, 4, 5, 6, 7
        ]  # fmt: skip
        os.close(file)
        file = os.open(f"{name}.2", os.O_RDONLY)
        for at in range(3):
            os.posix_fadvise(file, at * window, window, os.POSIX_FADV_WILLNEED)
        assert [(os.pread(file, window, at * window), cached_bytes(file) // window)[1] for at in range(6)] == [
            3, 3, 3, 5, 6, 7
        ]  # fmt: skip
        os.close(file)
        file = os.open(f"{name}.3", os.O_RDONLY)
        assert [(os.pread(file, window, at * window), cached_bytes(file) // window)[1] for at in range(16, 20)] == [
            1, 3, 4, 5
        ], "the first of a random place on its own"  # fmt: skip
        os.close(file)
        file = os.open(f"{name}.4", os.O_RDONLY)
        os.kill(files.pid, signal.SIGSTOP)
        threads = list(Path(f"/proc/{files.pid}/task").glob("*/stat"))
        eventually(lambda: all(") T " in one.read_text() for one in threads), "each of its threads is stopped")
        reader = threading.Thread(target=os.pread, args=(file, window, 0))
        reader.start()
        eventually(lambda: cached_bytes(file) > 0, "a window is asked for")
        time.sleep(0.2)
        assert cached_bytes(file) == window, "the second one is read when the first is there"
        os.kill(files.pid, signal.SIGCONT)
        reader.join()
        os.close(file)


KEEPER = """
import os, pathlib, sys, time
from controller.labs.tiers.driver import keep, mapped
from controller.system import _cached_pages, keep_in_cache
CHUNK, CAPACITY, CHUNKS = 1 << 20, 40, 100
group, file = pathlib.Path(sys.argv[1]), os.open(sys.argv[2], os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
def keep_in_driver(file, at, nbytes, map_=mapped(file, CHUNKS * CHUNK)):
    keep(map_ + at, nbytes)
keeping = {"system": keep_in_cache, "driver": keep_in_driver}[sys.argv[3]]
(group / "cgroup.procs").write_text("0")
used = int((group / "memory.usage_in_bytes").read_text())
(group / "memory.limit_in_bytes").write_text(str(used + CAPACITY * CHUNK))
for number in range(CHUNKS):
    for part in range(0, CHUNK, CHUNK // 8):
        os.posix_fadvise(file, number * CHUNK + part, CHUNK // 8, os.POSIX_FADV_WILLNEED)
    while _cached_pages(file, number * CHUNK, CHUNK) < CHUNK // 4096:
        time.sleep(0.001)
    what = dict(enumerate(sys.argv[4:], CAPACITY // 2)).get(number)
    if what == "keep":
        keeping(file, 0, CHUNK)
        keeping(file, number * CHUNK, CHUNK)  # the kernel moves pages between lists some at a time
    elif what:
        os.pread(file, CHUNK, 0)
    if _cached_pages(file, 0, CHUNK) < CHUNK // 4096:
        break
print(number)
"""


@on_devices
@pytest.mark.parametrize("where", ["system", "driver"])
def test_linux_keeps_as_the_model_does(tmp_path: Path, where: str) -> None:
    """A chunk is read ahead, then others; half of the page cache later it is kept, or read. When is it evicted?"""
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(100 << 20))
        file.flush()
        os.fsync(file.fileno())
        for what in ((), ("read",), ("keep",), ("keep", "keep"), ("keep", "read"), ("read", "keep")):
            cache, expected = PageCache(40), 0
            for number in range(100):
                cache.insert(number, 0.0)
                if (done := dict(enumerate(what, 20)).get(number)) == "keep":
                    cache.keep(0)
                elif done:
                    cache.ready_at(0)
                expected += 0 in cache

            def evicted_after(what: Sequence[str] = what) -> int:
                while cached_bytes(file.fileno()):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                with physical.cgroup(MEMORY) as group:
                    command = [sys.executable, "-c", KEEPER, str(group), str(tmp_path / "file"), where, *what]
                    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

            eventually(lambda: abs(evicted_after() - expected) <= 3, f"evicted after {expected}: {what}")  # noqa: B023


@on_devices
@pytest.mark.parametrize("where", ["broker", "driver"])
def test_what_is_kept_of_a_file_of_fuse_is_not_written(where: str) -> None:
    """Planted: unmap it, as files of other systems: all of it is written, and no thread can map memory meanwhile."""
    load = physical_load(128)
    with Rig(load) as rig, rig._file_system(LabRun(ARCHITECTURES[0], Flush.Rate, Case.Lagging), load) as files:
        file = FileDisk().open(f"/proc/{files.pid}/root{rig.folder}/mount/mem.0.1")
        os.pwrite(fd := file.fileno(), bytes(round(load.chunk)), 0)
        before = cached_bytes(fd, "dirty")
        if where == "broker":
            file.keeping(0, round(load.chunk)).read_in()
        else:
            at = driver.mapped(fd, round(load.segment))
            driver.keep(at, round(load.chunk))
        assert cached_bytes(fd, "dirty") == before > 0
        del file
    if where == "driver":
        driver.LIBC.munmap(ctypes.c_void_p(at), ctypes.c_size_t(round(load.segment)))


@on_devices
def test_a_throttled_hdd_slows_down_with_concurrent_readers_and_an_ssd_does_not() -> None:
    with Rig(physical_load(128)) as rig:
        hdd, ssd = (
            {readers: rig.concurrent_reads(kind, readers, seconds=0.5) for readers in (1, 8)} for kind in ("hdd", "ssd")
        )
    assert hdd[8] / hdd[1] < min(0.5, ssd[8] / ssd[1])
