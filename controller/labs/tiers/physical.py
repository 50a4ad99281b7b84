"""Runs on throttled devices of this machine: Linux, root, FUSE, loop devices, and the cgroups of version 1.

A run has a process for the file system (`fuse`), in a blkio cgroup that throttles the loop devices, and one for the
workload (`driver`), in a memory cgroup that bounds its page cache. Loop devices detach and mounts end with the
processes that use them, so that only cgroups and a directory remain to be removed, which `Rig` does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import pickle
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from controller.labs.tiers.driver import HOST_OPERATIONS, DriverJob
from controller.labs.tiers.figures import Case, LabMeasurement, LabRun, mean
from controller.labs.tiers.placement import CachedStore, Devices, phases, store_of
from controller.labs.tiers.workload import ARCHITECTURES, Flush, HostLatency, LabWorkload
from statemachines.device_model import MB

BLKIO, MEMORY = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup/memory")
PREFIX = "camerlengo-lab"
LOOP_SET_FD, LOOP_SET_STATUS64, LOOP_GET_FREE = 0x4C00, 0x4C04, 0x4C82
AUTOCLEAR, FLAGS_AT, STATUS_BYTES = 4, 52, 232
DEVICE_BYTES = 64 << 20
FLUSH_OVER_TRAFFIC = 2e6 * 200 / 170e6
"""The published rate of flushes of a segment over the traffic of a partition."""
TIME_RATIO = 1 / 3
"""Seconds of a request in a physical run over those at the published scale."""
BOUND_S = 0.25
"""How often the size of the page cache is seen to. The kernel counts what is on its lists then, for memory.stat."""


class PhysicalUnavailable(Exception):
    """This machine can't run the physical lab. The message names what is missing."""


def require(
    root: Path = Path("/"), uid: int | None = None, system: str = sys.platform, kernel: str = platform.release()
) -> None:
    """Raise PhysicalUnavailable unless the machine has what a physical run needs."""
    if system != "linux" or [int(number) for number in re.findall(r"\d+", kernel)[:2]] < [6, 5]:
        raise PhysicalUnavailable(f"--physical needs Linux 6.5, for cachestat, got {system} {kernel}")
    if (os.geteuid() if uid is None else uid) != 0:
        raise PhysicalUnavailable("--physical needs root: it makes loop devices, mounts and cgroups")
    for path, what in {
        "dev/fuse": "FUSE",
        "dev/loop-control": "loop devices",
        "sys/fs/cgroup/blkio/blkio.throttle.read_bps_device": "the blkio cgroup of version 1",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "the memory cgroup of version 1",
    }.items():
        if not (root / path).exists():
            raise PhysicalUnavailable(f"--physical needs {what}: /{path} does not exist")


def pages_memory_out(root: Path = Path("/")) -> bool:
    """Whether DAMON takes pages away on this machine that its page cache would keep."""
    schemes = (root / "sys/kernel/mm/damon/admin/kdamonds").glob("*/contexts/*/schemes/*/action")
    return any(path.read_text().strip() == "pageout" for path in schemes)


def physical_load(cache_mb: float = 128.0, jobs_per_hdd: int = 20) -> LabWorkload:
    """Return half a broker with a page cache of so many MB that holds 8 s of traffic.

    Requests take a third of the published scale's time, and lags a sixtieth: page cache, SSDs and lags have the
    published ratios to each other, devices to traffic. A fetch is larger against the page cache: with fewer jobs and
    partitions on a disk, the time between two fetches of a job is shorter against what the page cache holds.
    """
    load = LabWorkload().scaled(1 / 16, TIME_RATIO, 0.5)
    rate = cache_mb * MB / 8.0 / load.traffic
    chunk, jobs = 1024.0 * cache_mb, jobs_per_hdd * load.hdds
    flush_rate = FLUSH_OVER_TRAFFIC * load.traffic * rate / jobs
    return replace(
        load,
        page_cache=cache_mb * MB,
        traffic=load.traffic * rate,
        hdd=load.hdd.scaled(rate, 1.0).of_pieces(round(chunk / 8)),
        ssd=load.ssd.scaled(rate, 1.0),
        partitions=jobs,
        jobs=jobs,
        chunk=chunk,
        read_ahead=chunk / 8,
        receive_buffer=load.receive_buffer * rate,
        send_buffer=load.send_buffer * rate,
        near_s=8.0,
        least_lag_s=10.0,
        most_lag_s=150.0,
        segment=2400 // jobs * chunk,  # as much in all active segments, and unflushed, with any number of partitions
        record=chunk / 128,
        flush_records=200 // jobs * 128,
        flush_rate=flush_rate,
        flush_slice=chunk / 4,
        copy_piece=chunk / 4,
        counted_s=BOUND_S,
        flush_every_s=chunk / flush_rate,
        warm_s=8.0,
        measured_s=8.0,
    )


class Rig:
    """The devices, cgroups and directory of physical runs; a context manager."""

    def __init__(self, load: LabWorkload) -> None:
        self.load = load
        self._stack = ExitStack()
        self.loops: dict[str, list[str]] = {"hdd": [], "ssd": []}

    def __enter__(self) -> Rig:
        require()
        remove_stale_cgroups()
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{PREFIX}-{os.getpid()}-")))
            (self.folder / "mount").mkdir()
            self.blkio = stack.enter_context(cgroup(BLKIO))
            self.memory = stack.enter_context(cgroup(MEMORY))
            for kind, number, model in (("hdd", self.load.hdds, self.load.hdd), ("ssd", self.load.ssds, self.load.ssd)):
                for _ in range(number):
                    path = stack.enter_context(loop_device(self.folder))
                    self.loops[kind].append(path)
                    device = os.stat(path).st_rdev
                    for limit in ("read_bps", "write_bps"):
                        line = f"{os.major(device)}:{os.minor(device)} {round(model.bandwidth)}"
                        (self.blkio / f"blkio.throttle.{limit}_device").write_text(line)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, run: LabRun, seed: int) -> LabMeasurement:
        """Carry out one cell, in fresh processes on a fresh mount."""
        load = run.case.of(self.load)
        with self._file_system(run, load) as files, self._process("driver") as driver:
            mount = f"/proc/{files.pid}/root{self.folder}/mount"
            job = DriverJob(load, run.architecture, run.flush, seed, mount, str(self.memory))
            driver.stdin.write(pickle.dumps(job))
            driver.stdin.flush()
            _line(driver)
            _ask(files)  # from here on its devices take time
            driver.stdin.write(b"go\n")
            driver.stdin.close()
            _line(driver)
            with self._bound_page_cache() as sizes:
                _line(driver)
                _ask(files)
                begun = time.monotonic()
                found = json.loads(_line(driver))
                stats = _ask(files)
            files.kill()  # first, or the driver's end would wait until what is dirty is written
            return replace(_measurement(load, found, stats, begun), page_cache=mean(sizes))

    def concurrent_reads(self, kind: str, readers: int, seconds: float = 1.0) -> float:
        """Return the MB/s that so many sequential readers of one device get together, past the page cache."""
        nbytes, chunk = [0] * readers, round(self.load.chunk)

        def read(at: int) -> None:
            with mmap.mmap(-1, chunk) as buffer:
                file = os.open(f"{mount}/{kind}.0.{at}", os.O_RDONLY | os.O_DIRECT)
                while time.monotonic() < end:
                    nbytes[at] += os.preadv(file, [buffer], nbytes[at] % round(self.load.segment))
                os.close(file)

        with self._file_system(LabRun(ARCHITECTURES[0], Flush.Rate, Case.Lagging), self.load) as files:
            _ask(files)
            mount = f"/proc/{files.pid}/root{self.folder}/mount"
            begun = time.monotonic()
            end = begun + seconds
            threads = [threading.Thread(target=read, args=(at,), daemon=True) for at in range(readers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return sum(nbytes) / MB / (time.monotonic() - begun)

    @contextmanager
    def _bound_page_cache(self) -> Iterator[list[int]]:
        """Limit the cgroup to the page cache and what the driver uses besides, which grows: see to it again and again.
        Yield the sizes of the page cache, in bytes."""
        sizes: list[int] = []
        is_over = threading.Event()

        def bound() -> None:
            while True:
                used = int((self.memory / "memory.usage_in_bytes").read_text())
                stat = dict(line.split() for line in (self.memory / "memory.stat").read_text().splitlines())
                sizes.append(int(stat["active_file"]) + int(stat["inactive_file"]))
                limit = round(self.load.page_cache) + used - sizes[-1]
                with suppress(OSError):  # too much is dirty: at the next look
                    (self.memory / "memory.limit_in_bytes").write_text(str(limit))
                if is_over.wait(BOUND_S):
                    return

        thread = threading.Thread(target=bound)
        thread.start()
        try:
            yield sizes
        finally:
            is_over.set()
            thread.join()

    @contextmanager
    def _file_system(self, run: LabRun, load: LabWorkload) -> Iterator[Any]:
        devices = Devices(load, phases(load, 0))
        store = store_of(run.architecture.storage, devices)
        config: dict[str, Any] = {"mount": f"{self.folder}/mount", "policy": None, "cgroup": str(self.blkio)}
        chunk = round(load.chunk)
        config |= {"chunk": chunk, "read_ahead": chunk // load.windows, "interval_s": load.sample_s, **self.loops}
        config |= {"segment": devices.per_segment * chunk}
        config |= {"hdd_model": asdict(load.hdd), "ssd_model": asdict(load.ssd)}
        if isinstance(store, CachedStore):
            config |= store.config()
        with self._process("fuse") as process:
            process.stdin.write(json.dumps(config).encode() + b"\n")
            process.stdin.flush()
            _line(process)
            yield process

    @contextmanager
    def _process(self, module: str) -> Iterator[Any]:
        """Run a module of this package, and kill it at the end."""
        command = [sys.executable, "-m", f"{__package__}.{module}"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _line(process: Any) -> bytes:
    line: bytes = process.stdout.readline()
    if not line:
        raise PhysicalUnavailable(f"--physical: {process.args[-1]} ended with status {process.wait()}")
    return line


def _ask(files: Any) -> dict[str, Any]:
    files.stdin.write(b"stats\n")
    files.stdin.flush()
    stats: dict[str, Any] = json.loads(_line(files))
    return stats


def _measurement(load: LabWorkload, found: dict[str, Any], stats: dict[str, Any], begun: float) -> LabMeasurement:
    result = LabMeasurement(found["writes"], found["cold"], found["jobs"], interval_s=load.sample_s)
    late = (tuple(stats["late"][kind]) for kind in ("hdd", "ssd"))
    result.host = HostLatency(*(tuple(found[f"host {each}"]) for each in HOST_OPERATIONS), *late)
    given = {
        f"{kind} {device}": sum(stats["counts"].get(f"{each} {device}", 0) for each in found[f"{kind} threads"])
        for kind in ("cold", "hot")
        for device in ("hdd", "ssd")
    }
    result.count_reads({name: nbytes / load.chunk for name, nbytes in given.items()})
    first = int(begun / load.sample_s) + 1
    for name, writes in stats["writes"].items():
        at = dict(writes)
        result.disk_writes[name] = [
            at.get(first + each, 0.0) for each in range(int(load.measured_s / load.sample_s) - 2)
        ]
    return result


@contextmanager
def cgroup(hierarchy: Path) -> Iterator[Path]:
    """Make a cgroup of this process's number; remove it when its processes have ended."""
    path = hierarchy / f"{PREFIX}-{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        deadline = time.monotonic() + 1.0
        while True:
            try:
                path.rmdir()
                break
            except OSError:  # a killed process is still in it
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)


def remove_stale_cgroups() -> None:
    """Remove the cgroups of runs that were killed."""
    for hierarchy in (BLKIO, MEMORY):
        for path in hierarchy.glob(f"{PREFIX}-*"):
            if not Path(f"/proc/{path.name.rpartition('-')[2]}").exists():
                with suppress(OSError):
                    path.rmdir()


@contextmanager
def loop_device(folder: Path) -> Iterator[str]:
    """Make a loop device of an unnamed sparse file. It detaches when nothing has it open."""
    with tempfile.TemporaryFile(dir=folder) as backing, open("/dev/loop-control", "rb") as control:
        backing.truncate(DEVICE_BYTES)
        for _ in range(20):
            path = f"/dev/loop{fcntl.ioctl(control, LOOP_GET_FREE)}"
            with open(path, "rb+", buffering=0) as loop:
                try:
                    fcntl.ioctl(loop, LOOP_SET_FD, backing.fileno())
                except OSError as error:
                    if error.errno == errno.EBUSY:  # another process took it
                        continue
                    raise
                status = bytearray(STATUS_BYTES)
                status[FLAGS_AT] = AUTOCLEAR
                fcntl.ioctl(loop, LOOP_SET_STATUS64, bytes(status))
                yield path
                return
    raise PhysicalUnavailable("--physical: no free loop device")
