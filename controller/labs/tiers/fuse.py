"""A FUSE file system whose files are on throttled devices, with seeks that are waited for and a block cache.

    python -m controller.labs.tiers.fuse

It speaks the kernel's protocol (linux/fuse.h, 7.31) on /dev/fuse and mounts in a mount namespace of its own, so that
the mount ends with the process. A file is named by where it is: `ssd.P.S`, `hdd.P.S` or `blk.P.S` (behind the block
cache), partition P, segment S; a `mem.P.S` is on no device, and shows what the file system itself takes. Every such
name exists, with a segment's size; what was not written has any content.
Its first line of standard input is its configuration. At each further line it prints its counts as a line of JSON and
counts anew; at the end of the input it ends. Until the second line reads are answered at once, without a device, for a
page cache that is to be filled.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import mmap
import os
import queue
import struct
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from controller.labs.tiers.caches import BlockCache, WritePolicy
from statemachines.device_model import CompetingStreams, DeviceModel, add_evenly

IN_HEADER = struct.Struct("<IIQQIIIHH")
OUT_HEADER = struct.Struct("<IiQ")
INIT_OUT = struct.Struct("<IIIIHHIIHHII6I")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("<QQQQII")
ATTRIBUTES_OUT = struct.Struct("<QII")
OPEN_OUT = struct.Struct("<QIi")
IO_IN = struct.Struct("<QQIIQII")
WRITE_OUT = struct.Struct("<II")

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE = 1, 2, 3, 4, 14, 15, 16
RELEASE, FSYNC, FLUSH, INIT, INTERRUPT, BATCH_FORGET = 18, 20, 25, 26, 36, 42
ASYNC_READ, BIG_WRITES, WRITEBACK_CACHE, MAX_PAGES = 1, 1 << 5, 1 << 16, 1 << 22
KEEP_CACHE = 2
PAGE = 4096
MOST_LATE = 2000
MOST_IN_BACKGROUND = (1024, 1023)
"""Requests of read-ahead and write-back that the kernel has under way, and above which it reads nothing ahead."""
MOST_AHEAD_S = 0.05
"""A device that was late makes up for at most so much."""
FOREVER_S = 1 << 30
DIRECTORY_MODE, FILE_MODE = 0o040755, 0o100644
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


@dataclass(frozen=True, slots=True)
class DeviceTask:
    """A request to a device: `data` is None for a read. `done` gets what was read."""

    stream: object
    at: int
    nbytes: int
    data: bytes | None
    done: Callable[[bytes], None]


def ending_the_process(work: Callable[[], None]) -> None:
    """Run a thread's work. Without it requests would wait for ever, so its end is the end of the process."""
    status = 1
    try:
        work()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


class ThrottledDevice:
    """A block device that one thread serves in order, once `start` was called. It waits for the seeks and the rest of
    the transfer: the kernel throttles the bytes by slices of 100 ms, so that a burst of less takes no time there."""

    def __init__(
        self,
        path: str | None,
        model: DeviceModel,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Without a path, what is read is empty and takes no time."""
        self._clock = clock
        self._sleep = sleep
        self._file = -1 if path is None else os.open(path, os.O_RDWR | os.O_DIRECT)
        self._size = 0 if path is None else os.lseek(self._file, 0, os.SEEK_END)
        self._buffer = mmap.mmap(-1, 1 << 20)
        self._model = model
        self._tasks: queue.SimpleQueue[tuple[DeviceTask, int, float]] = queue.SimpleQueue()
        self._streams = CompetingStreams()
        self._lock = threading.Lock()
        self._last: object = None
        self._owed_s = self._free_at = 0.0
        self.interval_s = interval_s
        self.writes: dict[int, float] = {}
        self.read = 0
        self.late_s: deque[float] = deque(maxlen=MOST_LATE)
        """How much longer than the model's the last services took; less than 0 where one made up for others."""

    def start(self) -> ThrottledDevice:
        threading.Thread(target=ending_the_process, args=(self._serve,), daemon=True).start()
        return self

    def submit(self, task: DeviceTask) -> None:
        with self._lock:
            self._tasks.put((task, self._streams.add(task.stream), self._clock()))

    def _serve(self) -> None:
        while True:
            self.serve_next()

    def serve_next(self) -> None:
        """Carry out the next request, in no less time than its service takes."""
        task, streams, submitted = self._tasks.get()
        service = self._model.service_s(task.nbytes, streams, task.stream == self._last)
        self._last = task.stream
        before = max(submitted, self._free_at, self._clock() - MOST_AHEAD_S)  # the last answer took time, too
        found = self.carry_out(task)
        self._wait(service - (self._clock() - before))
        self._free_at = self._clock()
        self.late_s.append(self._free_at - before - service)
        with self._lock:
            self._streams.remove(task.stream)
        if task.data is not None:
            add_evenly(self.writes, task.nbytes, before, self._free_at, self.interval_s)
        else:
            self.read += task.nbytes
        task.done(found)

    def _wait(self, seconds: float) -> None:
        """Wait; the next waits are shorter by what this one, or the work before it, took too long."""
        self._owed_s = max(self._owed_s + seconds, -MOST_AHEAD_S)
        if self._owed_s > 0.0002:
            before = self._clock()
            self._sleep(self._owed_s)
            self._owed_s -= self._clock() - before

    def carry_out(self, task: DeviceTask) -> bytes:
        if self._file < 0:
            return bytes(task.nbytes)
        nbytes = -(-task.nbytes // PAGE) * PAGE
        at = task.at // PAGE * PAGE % (self._size - nbytes)
        view = memoryview(self._buffer)[:nbytes]
        if task.data is None:
            os.preadv(self._file, [view], at)
            return bytes(view[: task.nbytes])
        view[: task.nbytes] = task.data
        os.pwritev(self._file, [view], at)
        return b""


class BlockDevices:
    """The devices behind the files, and the block cache between them where there is one."""

    def __init__(self, config: dict[str, Any]) -> None:
        def opened(kind: str) -> list[ThrottledDevice]:
            given = config[f"{kind}_model"]
            model = DeviceModel(**given | {"seeks_s": tuple(map(tuple, given["seeks_s"]))})
            return [ThrottledDevice(path, model, config["interval_s"]).start() for path in config[kind]]

        self.hdds, self.ssds = opened("hdd"), opened("ssd")
        self.memory = ThrottledDevice(None, DeviceModel(math.inf), config["interval_s"]).start()
        self.chunk: int = config["chunk"]
        self.read_ahead: int = config["read_ahead"]
        self.segment: int = config["segment"]
        self.counts: Counter[str] = Counter()
        self.cache: BlockCache | None = None
        self._to_clean: list[deque[int]] = [deque() for _ in self.hdds]
        self._cleaning = [False] * len(self.hdds)
        self._lock = threading.RLock()
        self._read_to: dict[tuple[str, int, int], dict[int, int]] = {}
        self.preparing = True
        if config["policy"] is not None:
            self.cache = BlockCache(config["blocks"], WritePolicy(config["policy"]), config["ways"])
            self.cache.preload(config["held"], config["dirty"])

    def io(self, name: tuple[str, int, int], at: int, nbytes: int, data: bytes | None, who: int,
           done: Callable[[bytes], None]) -> None:  # fmt: skip
        kind, partition, segment = name
        if self.preparing:
            done(bytes(nbytes))
            return
        place = (partition * 7919 + segment) * self.segment + at
        hdd = self.hdds[partition % len(self.hdds)]
        ssd = self.ssds[partition % len(self.hdds) * len(self.ssds) // len(self.hdds)]
        task = DeviceTask((name, data is None and self._reader(name, at, nbytes)), place, nbytes, data, done)
        if kind == "blk":
            assert self.cache is not None
            with self._lock:
                self._cached_io(partition, segment * self.segment + at, task, hdd, ssd, who)
            return
        if kind == "mem":
            self.memory.submit(task)
            return
        if data is None:
            self.counts[f"{who} {kind}"] += nbytes
        (ssd if kind == "ssd" else hdd).submit(task)

    def _reader(self, name: tuple[str, int, int], at: int, nbytes: int) -> int:
        """Return which of the file's streams a read belongs to: one that came to within a chunk of it, whichever thread
        reads, as a device sees it."""
        read_to = self._read_to.setdefault(name, {})
        near = (stream for stream, end in read_to.items() if abs(at - end) <= self.chunk)
        stream = next(near, len(read_to) + 1)
        read_to[stream] = at + nbytes
        return stream

    def _cached_io(
        self, partition: int, at: int, task: DeviceTask, hdd: ThrottledDevice, ssd: ThrottledDevice, who: int
    ) -> None:
        """Read or write in a block. What is read is the whole block, or one of the parts that are read ahead."""
        assert self.cache is not None
        block = partition << 24 | at // self.chunk
        if task.data is None:
            part = (at % self.chunk // task.nbytes, self.chunk // task.nbytes)
            work = self.cache.read(block, *part)
            self.counts[f"{who} {'ssd' if work.fast else 'hdd'}"] += task.nbytes

            def filled(found: bytes) -> None:
                task.done(found)
                ssd.submit(DeviceTask(task.stream, task.at, task.nbytes, found, lambda _: None))

            (ssd if work.fast else hdd).submit(
                DeviceTask(task.stream, task.at, task.nbytes, None, filled if work.fill else task.done)
            )
        else:
            work = self.cache.write(block)
            left = [work.fast + work.slow]

            def written(_: bytes) -> None:
                with self._lock:
                    left[0] -= 1
                    last = not left[0]
                if last:
                    task.done(b"")

            for device in [ssd] * work.fast + [hdd] * work.slow:
                device.submit(DeviceTask(task.stream, task.at, task.nbytes, task.data, written))
        for each in work.cleaned:
            disk = (each >> 24) % len(self.hdds)
            self._to_clean[disk].append(each)
            self._clean(disk)

    def _clean(self, disk: int) -> None:
        """Copy the next dirty block of a disk to it, and the one after that when it is there."""
        with self._lock:
            if self._cleaning[disk] or not self._to_clean[disk]:
                return
            self._cleaning[disk] = True
            at = self._to_clean[disk].popleft() * self.chunk

        def cleaned(_: bytes) -> None:
            self._cleaning[disk] = False
            self._clean(disk)

        ssd = self.ssds[disk * len(self.ssds) // len(self.hdds)]
        ssd.submit(DeviceTask("clean", at, self.chunk, None, lambda found: self.hdds[disk].submit(
            DeviceTask("clean", at, self.chunk, found, cleaned))))  # fmt: skip

    def stats(self) -> dict[str, Any]:
        """Return the counts since the last call: bytes read by thread and device, bytes written by interval."""
        counts, self.counts = self.counts, Counter()
        devices = {f"hdd{at}": each for at, each in enumerate(self.hdds)}
        devices |= {f"ssd{at}": each for at, each in enumerate(self.ssds)}
        writes = {}
        for name, each in devices.items():
            writes[name], each.writes = [*each.writes.items()], {}
        late = {"hdd": [*_late_s(self.hdds)], "ssd": [*_late_s(self.ssds)]}
        return {"counts": counts, "writes": writes, "late": late}


def _late_s(devices: list[ThrottledDevice]) -> Iterator[float]:
    """Yield how late the last services were, and forget them."""
    for device in devices:
        while device.late_s:
            yield device.late_s.popleft()


class KernelConnection:
    """What a file system receives from the kernel on a descriptor of /dev/fuse, and its answers."""

    def __init__(self, kernel: int) -> None:
        self._kernel = kernel

    def requests(self) -> Iterator[tuple[int, int, int, int, bytes]]:
        """Yield operation, number, node, thread and body of each request that wants an answer, until the file system is
        unmounted."""
        while True:
            try:
                message = os.read(self._kernel, (1 << 20) + PAGE)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                raise
            _, opcode, unique, node, _, _, thread, _, _ = IN_HEADER.unpack_from(message)
            if opcode not in (FORGET, BATCH_FORGET, INTERRUPT):
                yield opcode, unique, node, thread, message[IN_HEADER.size :]

    def answer(self, unique: int, data: bytes = b"", error: int = 0) -> None:
        try:
            os.writev(self._kernel, [OUT_HEADER.pack(OUT_HEADER.size + len(data), -error, unique), data])
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.ENODEV):  # the request was interrupted, or the mount ended
                raise


def init_answer(read_ahead: int, pages: int) -> bytes:
    """Return the answer to INIT: the protocol's version, read-ahead in bytes, and pages of the largest request."""
    flags = ASYNC_READ | BIG_WRITES | WRITEBACK_CACHE | MAX_PAGES
    return INIT_OUT.pack(7, 31, read_ahead, flags, *MOST_IN_BACKGROUND, pages * PAGE, 1, pages, 0, 0, 0, *[0] * 6)


class FileSystem:
    """The kernel's requests, answered. `serve` returns when the file system is unmounted."""

    def __init__(self, kernel: int, devices: BlockDevices) -> None:
        self._connection = KernelConnection(kernel)
        self._answer = self._connection.answer
        self._devices = devices
        self._nodes: dict[str, int] = {}
        self._names: dict[int, tuple[str, int, int]] = {}

    def serve(self) -> None:
        for opcode, unique, node, thread, body in self._connection.requests():
            self._handle(opcode, unique, node, thread, body)

    def _handle(self, opcode: int, unique: int, node: int, thread: int, body: bytes) -> None:
        if opcode == READ:
            _, at, nbytes, *_ = IO_IN.unpack_from(body)
            self._devices.io(self._names[node], at, nbytes, None, thread, lambda found: self._answer(unique, found))
        elif opcode == WRITE:
            _, at, nbytes, *_ = IO_IN.unpack_from(body)
            answer = WRITE_OUT.pack(nbytes, 0)
            data = body[IO_IN.size :]
            self._devices.io(self._names[node], at, nbytes, data, 0, lambda _: self._answer(unique, answer))
        elif opcode == INIT:
            self._answer(unique, init_answer(self._devices.read_ahead, max(1, self._devices.chunk // PAGE)))
        elif opcode == LOOKUP:
            self._lookup(unique, body.rstrip(b"\0").decode())
        elif opcode in (GETATTR, SETATTR):
            self._answer(unique, ATTRIBUTES_OUT.pack(FOREVER_S, 0, 0) + self._attributes(node))
        elif opcode == OPEN:
            self._answer(unique, OPEN_OUT.pack(node, KEEP_CACHE, 0))
        elif opcode in (RELEASE, FLUSH, FSYNC):
            self._answer(unique)
        else:
            self._answer(unique, error=errno.ENOSYS)

    def _lookup(self, unique: int, name: str) -> None:
        kind, _, rest = name.partition(".")
        partition, _, segment = rest.partition(".")
        if kind not in ("ssd", "hdd", "blk", "mem") or not (partition.isdigit() and segment.isdigit()):
            self._answer(unique, error=errno.ENOENT)
            return
        node = self._nodes.setdefault(name, len(self._nodes) + 2)
        self._names[node] = (kind, int(partition), int(segment))
        self._answer(unique, ENTRY.pack(node, 0, FOREVER_S, FOREVER_S, 0, 0) + self._attributes(node))

    def _attributes(self, node: int) -> bytes:
        size, mode = (0, DIRECTORY_MODE) if node == 1 else (self._devices.segment, FILE_MODE)
        return ATTRIBUTES.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, PAGE, 0)


def mount(kernel: int, folder: str) -> None:
    """Mount in a mount namespace of this process. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={kernel},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    for failed in (
        partial(libc.unshare, CLONE_NEWNS),
        partial(libc.mount, b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        partial(libc.mount, b"camerlengo-lab", folder.encode(), b"fuse", 0, options),
    ):
        if failed():
            raise OSError(ctypes.get_errno(), f"{folder}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    config = json.loads(sys.stdin.readline())
    (Path(config["cgroup"]) / "cgroup.procs").write_text("0")
    sys.setswitchinterval(0.0005)
    kernel = os.open("/dev/fuse", os.O_RDWR)
    devices = BlockDevices(config)
    mount(kernel, config["mount"])
    serve = FileSystem(kernel, devices).serve
    threading.Thread(target=ending_the_process, args=(serve,), daemon=True).start()
    print("mounted", flush=True)
    for _ in sys.stdin:
        devices.preparing = False
        print(json.dumps(devices.stats()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
