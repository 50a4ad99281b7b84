"""`camerlengo bench cold-reads`: producing to and fetching from one topic beside readers of another's cold records.

The log is on a file system of its own, on a loop device whose bandwidth for the broker is limited (blkio of cgroups
v1). The records that are read there are evicted from the page cache first. Linux only, as root.

    python -m tests.benchmarks.cold_reads probe|readers|slow_times '{...}'

are its child processes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import tenacity

from controller.broker.settings import Address, address, address_text
from controller.broker.tier_settings import MIB
from controller.cli.values import number_from
from controller.hosts.local_cluster import BrokerChild, LocalCluster, ask_broker
from controller.protocol.client import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from controller.protocol.framing import FrameBuffer, framed
from controller.protocol.produce import ACKS_LEADER, ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from controller.storage.batches import Record, encode_batch, headers_of, whole_bytes
from controller.storage.segment import RECENT_MS
from controller.system import read_from_device
from tests.benchmarks.broker import cpu_s, percentile
from tests.benchmarks.clusters import Child
from tests.benchmarks.common import CouldNotRun, add_count, add_output, circumstances, integers, show

Span: TypeAlias = tuple[float, float]
MODULE = "tests.benchmarks.cold_reads"
BLKIO = Path("/sys/fs/cgroup/blkio")
HOT, COLD = "hot", "cold"
HOT_BYTES = 100
COLD_RECORD_BYTES = 16 * 1024
BATCH_RECORDS = 32
FETCH_BYTES = MIB
HOT_BEHIND = 50
"""Records before the end at which a hot fetch begins."""
FETCH_VERSION, PRODUCE_VERSION = 11, 8
LIMIT_S = 60.0
START_S = 0.1
WARM_UP_S = 1.0
SAMPLE_S = 0.001
"""Between two samples of how fast a CPU computes."""
LATE_S = 0.0005
LOOP = 500
"""Rounds of the loop that measures it: some 10 us."""
SLOW = 3.0
"""Times the usual duration of that loop."""
REALTIME_PRIORITY = 10
"""Of all but the readers, which have one less: they stand for clients on other machines."""
SEGMENT_MB = 8
TIERED = {
    "log.dirs.tiers": "ssd,hdd",
    "log.segment.bytes": str(SEGMENT_MB * MIB),
    "camerlengo.tier.ssd.bytes": str(512 * MIB),
    "camerlengo.tier.ssd.evict.above.percent": "1",
    "camerlengo.tier.ssd.evict.to.percent": "0",
}
"""Only the segments that are written to stay on the SSD."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a ZooKeeper and one broker, whose log lies on a device of limited bandwidth. A client produces records"
        " of 100 bytes with acks=1 to the topic hot, and another fetches its latest records, in turn, at random"
        " intervals; latency is counted from when a request was due. Beside them, N readers fetch records of the"
        " topic cold that are not in the page cache. The table has p50 and p99 by the number of readers, and the"
        " ratio of p99 to that of the same round without readers. --realtime keeps other processes of the machine out"
        " of the figures: all run with real-time priority, the readers with a lower one than the two clients, and the"
        " broker has a CPU of its own, as if the clients were elsewhere. Requests are left out (in percent) that meet"
        " a time at which the machine takes three times its usual time to compute or, with --realtime, begins late"
        " what is first, and those that waited for these: a virtual machine has such times."
        " With --tiered that device is an HDD with the cold records, beside an SSD directory for what is written."
        " Needs Linux, root, losetup, mkfs.ext4 and the blkio controller of cgroups v1."
    )
    parser.add_argument("--readers", type=integers(0), default=(0, 1, 8, 32), metavar="N,...", help="(0,1,8,32)")
    add_count(parser, "--rate", 200, "requests per second of each of the two clients")
    add_count(parser, "--megabytes-per-second", 10, "bandwidth of the device, for reads and for writes")
    add_count(parser, "--cold-megabytes", 192, "size of the cold topic")
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="run with real-time priority (SCHED_RR), the broker on one CPU, its clients on others",
    )
    parser.add_argument("--tiered", action="store_true", help="a log on two tiers instead of a plain one")
    add_count(parser, "--runs", 1, "number of rounds; the output has medians")
    parser.add_argument("--seconds", type=number_from(), default=8.0, metavar="S", help="duration of each run (8)")
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    _require(arguments.rate * arguments.seconds)
    before = os.getloadavg()[0]
    if arguments.realtime and sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REALTIME_PRIORITY))  # children inherit it
    cpus = os.sched_getaffinity(0) if sys.platform == "linux" else set()
    of_broker = {min(cpus)} if arguments.realtime and len(cpus) > 1 else cpus
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="camerlengo-cold-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        device = stack.enter_context(_device(folder, 3 * arguments.cold_megabytes + 256))
        data = folder / "cluster"
        data.mkdir()
        (data / "logs-1").symlink_to(folder / "mounted")
        _run_on(of_broker)
        stack.callback(_run_on, cpus)
        cluster = stack.enter_context((TieredCluster if arguments.tiered else LocalCluster)(1, data_dir=data))
        _run_on(cpus - of_broker or cpus)
        at = cluster.brokers[1].ready_at()
        assert at is not None
        fill(at, arguments.cold_megabytes + (2 * SEGMENT_MB if arguments.tiered else 0))
        if arguments.tiered:
            await_cold(data / "ssd" / f"{COLD}-0", cold_records(arguments.cold_megabytes))
        time.sleep(2 * RECENT_MS / 1_000)  # until then a broker takes it that what it has written is in the page cache
        pid = cluster.brokers[1].pid
        group = stack.enter_context(_throttled(device, pid, arguments.megabytes_per_second))
        logs = sorted((folder / "mounted").glob(f"{COLD}-0*/*.log"))
        each = list(arguments.readers) * arguments.runs
        rows = [_measured(at, pid, group, logs, readers, arguments) for readers in each]
    found = {"benchmark": "cold-reads", "rows": _medians(rows), "circumstances": circumstances(before)}
    show(arguments, found, table(found))
    return 0


class TieredCluster(LocalCluster):
    """Its broker has the directory of a plain log for an HDD, and one on an SSD."""

    def broker_child(self, number: int, settings: Mapping[str, str]) -> BrokerChild:
        both = f"{self.folder / 'ssd'},{settings['log.dirs']}"
        return super().broker_child(number, {**settings, **TIERED, "log.dirs": both})


def await_cold(ssd: Path, end: int, limit_s: float = LIMIT_S) -> None:
    """Until the cold topic's records before this offset are on the HDD alone."""
    deadline = time.monotonic() + limit_s
    while (first := min(int(path.stem) for path in ssd.glob("*.log"))) < end:
        if time.monotonic() > deadline:
            raise CouldNotRun(f"{ssd} has records from {first} on after {limit_s:g} s: expected none before {end}")
        time.sleep(0.1)


def _require(requests: float) -> None:
    if requests < 100:
        raise CouldNotRun(f"cold-reads needs 100 requests in a run for p99, got {requests:g}: --rate times --seconds")
    if sys.platform != "linux" or os.geteuid() != 0:
        raise CouldNotRun("cold-reads needs Linux and root: it mounts a loop device and limits its bandwidth")
    missing = [name for name in ("losetup", "mkfs.ext4", "mount", "umount") if shutil.which(name) is None]
    if missing:
        raise CouldNotRun(f"cold-reads needs {', '.join(missing)}: not found in PATH")
    if not (BLKIO / "blkio.throttle.read_bps_device").exists():
        raise CouldNotRun(f"cold-reads needs the blkio controller of cgroups v1: expected it at {BLKIO}")


def _run_on(cpus: Iterable[int]) -> None:
    """This process and those that it starts from now on."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, cpus)


@contextmanager
def _device(folder: Path, megabytes: int) -> Iterator[str]:
    """The number of a loop device with a file system, mounted at `mounted` in the folder."""
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    loop = subprocess.run(["losetup", "--find", "--show", image], check=True, capture_output=True, text=True).stdout
    try:
        # Where the file system can: a device takes no CPU, whereas a thread of the kernel would copy all that is read.
        subprocess.run(["losetup", "--direct-io=on", loop.strip()], check=False, capture_output=True)
        subprocess.run(["mount", loop.strip(), mounted], check=True)
        try:
            shutil.rmtree(mounted / "lost+found")
            number = mounted.stat().st_dev
            yield f"{os.major(number)}:{os.minor(number)}"
        finally:
            subprocess.run(["umount", "--lazy", mounted], check=True)
    finally:
        subprocess.run(["losetup", "--detach", loop.strip()], check=True)


@contextmanager
def _throttled(device: str, pid: int, megabytes: int) -> Iterator[Path]:
    """The control group in which the device is slow, with this process in it."""
    group = BLKIO / f"camerlengo-bench-{os.getpid()}"
    group.mkdir()
    try:
        for kind in ("read", "write"):
            (group / f"blkio.throttle.{kind}_bps_device").write_text(f"{device} {megabytes * MIB}\n")
        (group / "cgroup.procs").write_text(str(pid))
        yield group
        (BLKIO / "cgroup.procs").write_text(str(pid))
    finally:
        for member in (group / "cgroup.procs").read_text().split():
            (BLKIO / "cgroup.procs").write_text(member)
        group.rmdir()


def fill(at: Address, megabytes: int) -> None:
    topics = tuple(CreatableTopic(name, 1, 1) for name in (HOT, COLD))
    made = ask_broker(at, ApiKey.CREATE_TOPICS, 4, CreateTopicsRequest(topics, int(LIMIT_S * 1_000)), LIMIT_S)
    assert isinstance(made, CreateTopicsResponse)
    client = BenchClient(at)
    refused = tenacity.retry_if_exception_type(RuntimeError)
    patient = tenacity.Retrying(
        retry=refused, wait=tenacity.wait_fixed(0.1), stop=tenacity.stop_after_delay(LIMIT_S), reraise=True
    )
    value = os.urandom(COLD_RECORD_BYTES)
    batch = batch_of([value] * BATCH_RECORDS)
    for _ in range(megabytes * MIB // len(batch)):
        patient(client.produce, COLD, batch)  # an SSD that is full refuses records until some are on the HDD
    hot = batch_of([bytes(HOT_BYTES)])
    for _ in range(2 * HOT_BEHIND):
        client.produce(HOT, hot)


def cold_records(megabytes: int) -> int:
    return megabytes * MIB // COLD_RECORD_BYTES // BATCH_RECORDS * BATCH_RECORDS


def batch_of(values: Sequence[bytes]) -> bytes:
    now_ms = int(time.time() * 1_000)
    return encode_batch([Record(number, now_ms, None, value) for number, value in enumerate(values)])


def _evict(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _drain(group: Path, log: Path) -> None:
    """Return once the device has read what it was asked for in the run before, which comes first."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        read_from_device(str(log))
    finally:
        (BLKIO / "cgroup.procs").write_text(str(os.getpid()))


def _measured(
    at: Address, pid: int, group: Path, logs: Sequence[Path], readers: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    _drain(group, logs[0])
    for path in logs:
        _evict(path)
    given = {"at": address_text(at), "seconds": arguments.seconds, "rate": arguments.rate, "readers": readers}
    given["records"] = cold_records(arguments.cold_megabytes)
    with ExitStack() as stack:
        others = [stack.enter_context(closing(start("readers", given)))] if readers else []
        before_s = cpu_s(pid)
        found, *rates = [one.ask() for one in (stack.enter_context(closing(start("probe", given))), *others)]
    row: dict[str, Any] = {"readers": readers, "cpu_s": round(cpu_s(pid) - before_s, 2)}
    row["left_out_percent"] = round(100 * statistics.mean(found.pop("left_out")), 1)
    for what, latencies in found.items():
        if not latencies:
            raise CouldNotRun(f"no {what} request is left: the machine was slow beside each of them")
        row[what] = {f"p{percent:g}": percentile(latencies, percent) for percent in (50, 99)}
        row[what]["max"] = round(max(latencies), 2)
    row["mb_per_s"] = round(rates[0] / 1e6, 1) if readers else 0.0
    return row


def start(what: str, given: Mapping[str, Any]) -> Child:
    """On the CPUs of the thread that calls, which it would not inherit: a thread of its own starts processes."""
    cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    return Child(MODULE, what, json.dumps({**given, "cpus": cpus}))


def _medians(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    base = [row for row in rows if row["readers"] == 0]
    for readers in dict.fromkeys(row["readers"] for row in rows):
        those = [row for row in rows if row["readers"] == readers]
        median: dict[str, Any] = {"readers": readers}
        for what in ("produce", "fetch"):
            median[what] = {name: percentile([row[what][name] for row in those], 50) for name in ("p50", "p99", "max")}
        for name in ("mb_per_s", "cpu_s", "left_out_percent"):
            median[name] = percentile([row[name] for row in those], 50)
        for what in ("produce", "fetch") if base else ():
            ratios = [row[what]["p99"] / without[what]["p99"] for row, without in zip(those, base, strict=True)]
            median[what] |= {"ratio": round(statistics.median(ratios), 2), "ratios": [round(one, 2) for one in ratios]}
        found.append(median)
    return found


def table(found: Mapping[str, Any]) -> str:
    of_broker = f"{'readers':>7}{'MB/s':>6}{'CPU s':>7}{'left out':>9}"
    lines = [f"{of_broker}  produce ms: p50, p99, max, ratio   fetch ms: ..."]
    for row in found["rows"]:
        sides = "   ".join(
            f"{row[what]['p50']:>8.2f}{row[what]['p99']:>8.2f}{row[what]['max']:>8.1f}{row[what].get('ratio', 0):>7.2f}"
            for what in ("produce", "fetch")
        )
        of_broker = f"{row['readers']:>7}{row['mb_per_s']:>6.1f}{row['cpu_s']:>7.2f}{row['left_out_percent']:>9.1f}"
        lines.append(f"{of_broker}  {sides}")
    return "\n".join([*lines, found["circumstances"]])


# -- the clients


class BenchClient:
    """One connection, one request at a time."""

    def __init__(self, at: Address) -> None:
        self.socket = socket.create_connection(at, LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameBuffer(64 * MIB)

    def send_fetch(self, topic: str, offset: int, max_bytes: int) -> None:
        asked = FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(0, 0, (FetchTopic(topic, (asked,)),), max_bytes=max_bytes)
        header = RequestHeader(ApiKey.FETCH, FETCH_VERSION, 1, "bench")
        self.socket.sendall(framed(encode_request(header, request)))

    def received(self) -> bytes | None:
        """Read once; the answer, when it is complete."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker closed the connection")
        frames = self._frames.feed(data)
        return frames[0] if frames else None

    def answer(self) -> bytes:
        while (frame := self.received()) is None:
            pass
        return frame

    def fetch(self, topic: str, offset: int, max_bytes: int) -> memoryview:
        self.send_fetch(topic, offset, max_bytes)
        return records_of(self.answer())

    def produce(self, topic: str, batch: bytes) -> int:
        """The offset of the batch."""
        request = ProduceRequest(ACKS_LEADER, 30_000, (ProduceTopic(topic, (ProducePartition(0, batch),)),))
        header = RequestHeader(ApiKey.PRODUCE, PRODUCE_VERSION, 1, "bench")
        self.socket.sendall(framed(encode_request(header, request)))
        response = decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, self.answer())[1]
        assert isinstance(response, ProduceResponse)
        result = response.responses[0].partition_responses[0]
        if result.error_code != ErrorCode.NONE:
            raise RuntimeError(f"produce to {topic}: {result.error_code}")
        return result.base_offset


def records_of(frame: bytes) -> memoryview:
    response = decode_response(ApiKey.FETCH, FETCH_VERSION, frame)[1]
    assert isinstance(response, FetchResponse)
    data = response.responses[0].partitions[0]
    if data.error_code != ErrorCode.NONE:
        raise RuntimeError(f"fetch: {data.error_code!r}")
    assert isinstance(data.records, bytes | memoryview)
    return memoryview(data.records)


def probe(given: Mapping[str, Any]) -> dict[str, list[float]]:
    """A fetch is due half an interval after a produce, so that they don't meet: how close two clients began would
    decide p99 otherwise. The intervals are random, so that no request keeps step with the device."""
    at, rate = address(given["at"]), given["rate"]
    batch = batch_of([bytes(HOT_BYTES)])
    producer, fetcher = BenchClient(at), BenchClient(at)
    end = producer.produce(HOT, batch)

    def produce() -> None:
        nonlocal end
        end = producer.produce(HOT, batch)

    def fetch() -> None:
        if not len(fetcher.fetch(HOT, max(end - HOT_BEHIND, 0), FETCH_BYTES)):
            raise RuntimeError("a hot fetch found nothing")

    warm = int(rate * min(WARM_UP_S, given["seconds"] / 4))
    after_s = list(accumulate(random.uniform(0.75, 1.25) / rate for _ in range(int(rate * given["seconds"]))))
    measured: dict[str, list[Span]] = {}
    with closing(start("slow_times", {})) as watching:
        began_s = time.perf_counter() + START_S

        def measure(kind: str, step: Callable[[], None], first_s: float) -> None:
            measured[kind] = _requests(step, [first_s + one for one in after_s])[warm:]

        kinds = (("produce", produce, began_s), ("fetch", fetch, began_s + 0.5 / rate))
        with ThreadPoolExecutor() as pool:
            list(pool.map(measure, *zip(*kinds, strict=True)))
        slow = watching.ask()
    found = {kind: at_usual_speed(requests, slow) for kind, requests in measured.items()}
    return found | {"left_out": [1.0 - len(found[kind]) / len(requests) for kind, requests in measured.items()]}


def at_usual_speed(requests: Sequence[Span], slow: Sequence[Span]) -> list[float]:
    """Latencies in ms of requests (when due, when answered), but for those that are left out: they meet a time (from,
    to) at which the machine was slow, or waited for such a request."""
    found, is_out, before_s = [], False, 0.0
    for due_s, answered_s in requests:
        meets = any(from_s <= answered_s and due_s <= to_s for from_s, to_s in slow)
        is_out = meets or (is_out and due_s < before_s)
        before_s = answered_s
        if not is_out:
            found.append((answered_s - due_s) * 1_000.0)
    return found


def _requests(step: Callable[[], None], due_s: Sequence[float]) -> list[Span]:
    found = []
    for one_s in due_s:
        if (wait_s := one_s - time.perf_counter()) > 0:
            time.sleep(wait_s)
        step()
        found.append((one_s, time.perf_counter()))
    return found


class SpeedSample(NamedTuple):
    """How much later than due it was taken, and the CPU time of a loop that is always the same."""

    began_s: float
    late_s: float
    loop_ns: int


def slow_times(_given: Mapping[str, Any]) -> list[Span]:
    """See `slow_among`, on each CPU, until the input has something. With real-time priority it is above all that is
    measured, so that only the machine's host makes it late."""
    is_first = os.sched_getscheduler(0) == os.SCHED_RR
    found: list[Span] = []
    ended = threading.Event()

    def watch(cpu: int) -> None:
        with suppress(OSError):  # not one of ours
            _run_on({cpu})
            if is_first:
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REALTIME_PRIORITY + 1))
            samples = []
            while not ended.is_set():
                began_s = time.perf_counter()
                time.sleep(SAMPLE_S)
                late_s = time.perf_counter() - began_s - SAMPLE_S if is_first else 0.0
                began_ns = time.thread_time_ns()  # of this thread: the time of others does not count
                for _ in range(LOOP):
                    pass
                samples.append(SpeedSample(began_s, late_s, time.thread_time_ns() - began_ns))
            found.extend(slow_among(samples))

    threads = [threading.Thread(target=watch, args=(cpu,)) for cpu in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    ended.set()
    for thread in threads:
        thread.join()
    return found


def slow_among(samples: Sequence[SpeedSample]) -> list[Span]:
    """When the machine was slow, from and to: a sample was late, or its loop took SLOW times the median. Until the next
    but one, since what was held up is made good then."""
    usual_ns = statistics.median(one.loop_ns for one in samples)
    slow = [at for at, one in enumerate(samples) if one.late_s >= LATE_S or one.loop_ns >= SLOW * usual_ns]
    return [(samples[at].began_s, samples[at + 2].began_s if at + 2 < len(samples) else math.inf) for at in slow]


def readers(given: Mapping[str, Any]) -> float:
    """Fetch without a pause, each reader from a place of its own, until the input has something. Bytes per second."""
    if os.sched_getscheduler(0) == os.SCHED_RR:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REALTIME_PRIORITY - 1))
    at, count, records = address(given["at"]), given["readers"], given["records"]
    began_s = time.perf_counter()
    clients = [BenchClient(at) for _ in range(count)]
    by_socket = {client.socket.fileno(): number for number, client in enumerate(clients)}
    offsets = [number * records // count for number in range(count)]
    asking = list(range(count))
    read_bytes = 0
    while True:
        while asking:
            number = asking.pop()
            clients[number].send_fetch(COLD, offsets[number], FETCH_BYTES)
        for fd in select.select([0, *by_socket], [], [])[0]:
            if fd == 0:
                return read_bytes / (time.perf_counter() - began_s)
            number = by_socket[fd]
            frame = clients[number].received()
            if frame is None:
                continue
            data = records_of(frame)
            read_bytes += len(data)
            headers = headers_of(data[: whole_bytes(data)])
            offsets[number] = headers[-1].next_offset % records if headers else 0
            asking.append(number)


def main(words: list[str]) -> None:
    kind, text = words
    work: Sequence[Callable[[Mapping[str, Any]], Any]] = (probe, readers, slow_times)
    given = json.loads(text)
    _run_on(given["cpus"])
    print("null", flush=True)  # begun
    print(json.dumps({one.__name__: one for one in work}[kind](given)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
