"""`camerlengo lab latency --own-stamps`: each part of a latency from stamps of its own, on brokers in this process.

Probes in the brokers stamp appends and high watermarks, and proxies stamp what clients send. With `--kill-leader` the
leader of the first partition is killed halfway. What the probes say of produce requests is compared with the stages
that the brokers' servers measure by themselves (`request_stages`).

The two stamps of a border are less than a microsecond apart, unless the system gives the core to another process
between them: then milliseconds are in no part. So the thread's CPU clock is read before the first and after the second,
in the brokers and in the proxies alike. What the thread spent off its core in between is counted to the part that ends
(`BorderEnd.until`). CPU time between them stays in no part, and the machine's interrupts are CPU time of the thread's,
20 to 50 µs each: the closer the two stamps, the fewer fall between them. The figures say how often the core was lost
and how long. Python's cyclic garbage collector is off meanwhile: the stamps themselves would make it take milliseconds,
at any place.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from controller.broker.broker import Broker
from controller.broker.partition import Partition, PartitionEvents
from controller.broker.records.writes import ProduceHandler
from controller.broker.settings import address
from controller.chaos.protocol_proxy import BorderBegin, BorderEnd, Observations, ProtocolProxies, count_of, crc_of
from controller.hosts.request_stages import STAGES, RequestStages, Slot
from controller.labs.latency.parts import Parts, Received, joined, quantiles_ms
from controller.labs.latency.stamps import AppendedBatch, RequestTimes, Watermark, parts_of_stamps, request_parts_ms
from controller.labs.latency.workload import Workload, topics_of
from controller.protocol.codec import ApiKey
from controller.storage.log import PartitionLog
from controller.testing import Kafka
from controller.testing.incarnation import Incarnation
from controller.testing.memory_host import MemoryHost

Key = tuple[str, int]
_PRODUCE = int(ApiKey.PRODUCE)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's cyclic garbage collector."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Probes:
    """What brokers of this process write and commit. Used on the cluster's thread."""

    def __init__(self) -> None:
        self.appended: defaultdict[Key, list[AppendedBatch]] = defaultdict(list)
        self.watermarks: defaultdict[Key, list[Watermark]] = defaultdict(list)
        self.slots: list[Slot] = []
        """Of produce requests, by their number."""
        self.handled_s: list[float] = []
        """When their handlers returned."""
        self.answered_s: dict[int, float] = {}
        """When their answers were given, by the `id` of their slot."""
        self.off_core_s: list[float] = []
        """Between the two stamps of a border, where that was more than 1 ms."""
        self.stages: list[RequestStages] = []
        """Of every incarnation."""
        self.on_first_append: Callable[[], None] | None = None
        self._slot: Slot | None = None
        self._batch: tuple[int, int, int] | None = None
        self._written: Key | None = None

    def _end(self, end: BorderEnd, begin: BorderBegin) -> float:
        """When the part before a border has ended."""
        ended_s = end.until(begin)
        if ended_s - end.wall_s > 1e-3:
            self.off_core_s.append(ended_s - end.wall_s)
        return ended_s

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Methods of brokers call the probes, until the end of the block."""
        begin, append, appended = Broker.begin, PartitionLog.append_checked, PartitionEvents.appended
        taken = ProduceHandler._append
        moved = PartitionEvents.high_watermark_moved
        start, answer = Incarnation.start, Slot.__call__

        def begin_(broker: Broker, frame: bytes, respond: Any, client: Any = None) -> Any:
            if isinstance(respond, Slot) and respond.kind == _PRODUCE:
                self._slot = respond
                self.slots.append(respond)
            try:
                return begin(broker, frame, respond, client)
            finally:
                if self._slot is not None:
                    self.handled_s.append(time.monotonic())
                self._slot = None

        def append_(log: PartitionLog, checked: Any, *words: Any) -> Any:
            done = append(log, checked, *words)
            if not done.duplicate and self._slot is not None:
                self._batch = (crc_of(checked.batches), done.base_offset, count_of(checked.batches))
            return done

        def appended_(events: PartitionEvents, partition: Partition) -> None:
            appended(events, partition)
            if self._batch is not None:
                self._written = partition.key

        def taken_(handler: ProduceHandler, *words: Any) -> Any:
            part = taken(handler, *words)
            end, begin = BorderEnd(), BorderBegin()
            batch, key, slot = self._batch, self._written, self._slot
            if batch is not None and key is not None and slot is not None:
                number = len(self.slots) - 1
                one = AppendedBatch(*batch, self._end(end, begin), begin.wall_s, number, slot.arrived_s)
                self.appended[key].append(one)
                if self.on_first_append is not None:
                    self.on_first_append()
                    self.on_first_append = None
            self._batch = self._written = None
            return part

        def moved_(events: PartitionEvents, partition: Partition) -> None:
            end, begin = BorderEnd(), BorderBegin()
            if partition.leading is not None:
                mark = Watermark(partition.high_watermark, self._end(end, begin), begin.wall_s)
                self.watermarks[partition.key].append(mark)
            moved(events, partition)

        def answer_(slot: Slot, parts: Any) -> None:
            if slot.kind == _PRODUCE:
                self.answered_s[id(slot)] = time.monotonic()
            answer(slot, parts)

        def start_(incarnation: Incarnation) -> None:
            incarnation.server.stages = RequestStages()
            self.stages.append(incarnation.server.stages)
            start(incarnation)

        with (
            patch.object(Broker, "begin", begin_),
            patch.object(PartitionLog, "append_checked", append_),
            patch.object(PartitionEvents, "appended", appended_),
            patch.object(ProduceHandler, "_append", taken_),
            patch.object(PartitionEvents, "high_watermark_moved", moved_),
            patch.object(Incarnation, "start", start_),
            patch.object(Slot, "__call__", answer_),
        ):
            yield

    def requests(self) -> list[RequestTimes]:
        """The produce requests that were answered."""
        appended_s: dict[int, float] = {}
        committed_s: dict[int, float] = {}
        for key, batches in self.appended.items():
            marks = sorted(self.watermarks[key], key=lambda one: one.moved_s)
            ends = np.maximum.accumulate(np.array([one.offset for one in marks])) if marks else np.empty(0)
            for batch in batches:
                at = int(np.searchsorted(ends, batch.base_offset + batch.count - 1, side="right"))
                if at < len(marks) and self.slots[batch.request].answered_s:
                    number = batch.request
                    appended_s[number] = max(appended_s.get(number, 0.0), batch.written_s)
                    committed_s[number] = max(committed_s.get(number, 0.0), marks[at].moved_s)
        return [
            RequestTimes(
                self.slots[number].arrived_s,
                appended_s[number],
                self.handled_s[number],
                at_s,
                max(self.answered_s[id(self.slots[number])], self.handled_s[number]),
            )
            for number, at_s in committed_s.items()
        ]


class ClientProxies:
    """Proxies for the brokers' clients on the cluster's own thread: they wait for no lock of the interpreter's. A
    context manager. `bootstrap`: their addresses."""

    def __init__(self, kafka: Kafka, seen: Observations) -> None:
        host = kafka._host
        assert isinstance(host, MemoryHost)
        assert host._network is not None
        self._kafka, self._network = kafka, host._network
        self._proxies = ProtocolProxies(seen)
        self.bootstrap = ""

    def __enter__(self) -> ClientProxies:
        async def listen() -> list[int]:
            return [await self._proxies.proxy(address(broker.address)) for broker in self._kafka.brokers.values()]

        ports = asyncio.run_coroutine_threadsafe(listen(), self._network.loop).result(10.0)
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        return self

    def kill(self, broker: int) -> None:
        """Clients are refused by the proxy as they would be by the system."""
        self._network.call(lambda: self._proxies.refuse(address(self._kafka.brokers[broker].address)))
        self._kafka.broker(broker).kill()

    def __exit__(self, *_: object) -> None:
        self._network.call(self._proxies.close)


def measured(
    workload: Workload, arguments: argparse.Namespace, run: Callable[[str, Observations], Any]
) -> dict[str, Any]:
    """Run the clients by `run`, which returns the rows of the consumer, and return the figures."""
    seen, probes = Observations(each_batch=True), Probes()
    settings = {"offsets.topic.replication.factor": "1", "group.initial.rebalance.delay.ms": "0"}
    killed_s: list[float] = []
    with (
        uncollected(),
        probes.installed(),
        Kafka(arguments.brokers, settings=settings) as kafka,
        ClientProxies(kafka, seen) as proxies,
    ):
        names = list(topics_of(workload))
        for name, one in topics_of(workload).items():
            kafka.create_topic(name, partitions=one.num_partitions, replication_factor=one.replication_factor)

        def kill() -> None:
            leader = kafka.leader(names[0], 0)
            if leader is not None:
                killed_s.append(time.monotonic())
                proxies.kill(leader)

        timer = threading.Timer(arguments.seconds / 2, kill)
        if arguments.kill_leader:
            probes.on_first_append = timer.start
        try:
            found = run(proxies.bootstrap, seen)
        finally:
            timer.cancel()
    return _figures(found, seen, probes, workload, killed_s) | {"leaders killed": len(killed_s)}


def _figures(
    found: Any, seen: Observations, probes: Probes, workload: Workload, killed_s: Sequence[float]
) -> dict[str, Any]:
    rows = found.rows
    places = [(topic, index) for topic, one in topics_of(workload).items() for index in range(one.num_partitions)]
    each = []
    for number, key in enumerate(places):
        own = rows[rows[:, 0] == number]
        own = own[np.argsort(own[:, 1], kind="stable")]
        received = Received(own[:, 1], own[:, 2] / 1e9, own[:, 3] / 1e9)
        fetched = [one for one in seen.fetched[key] if one.replica < 0]
        if len(own):
            parts = parts_of_stamps(
                received, seen.requested[key], probes.appended[key], probes.watermarks[key], fetched
            )
            each.append(parts)
    parts = joined(each)
    missing = np.isnan(parts.parts_ms).any(axis=1)
    gaps = np.abs(parts.parts_ms.sum(axis=1) - parts.end_to_end_ms)[~missing]
    shares = np.abs(parts.parts_ms.sum(axis=1) / parts.end_to_end_ms - 1.0)[~missing]
    return {
        "records": len(rows),
        "sent, not delivered": [
            sum(one["sent"] for one in found.producers),
            sum(one["unsent"] + len(one["errors"]) for one in found.producers),
        ],
        "records without a stamp": int(missing.sum()),
        "share that adds up within 1%": round(float(parts.adds_up.mean()), 5),
        "records that do not add up": misses(parts, killed_s),
        "largest error of a sum": round(float(shares.max()), 5) if len(shares) else None,
        "gaps ms p50, p99.9, largest": [round(float(np.quantile(gaps, one)), 4) for one in (0.5, 0.999, 1.0)],
        "worst latency ms": round(float(parts.end_to_end_ms.max()), 1),
        "parts ms": _rounded(parts),
        "off the core between two stamps, times and longest ms": [
            len(probes.off_core_s),
            round(max(probes.off_core_s, default=0.0) * 1e3, 2),
        ],
        "compared": compared(probes),
    }


MISSES_SHOWN = 10


def misses(parts: Parts, killed_s: Sequence[float]) -> list[dict[str, Any]]:
    """The first records whose parts do not add up: when they were due, in seconds after the first record and after the
    leader's kill, their latency, how much of it is in no part, and the parts, in ms."""
    found = []
    for number in np.flatnonzero(~parts.adds_up)[:MISSES_SHOWN]:
        due_s, latency_ms, row = parts.due_s[number], parts.end_to_end_ms[number], parts.parts_ms[number]
        found.append(
            {
                "due s": round(float(due_s - parts.due_s[0]), 3),
                "after the kill s": [round(float(due_s - one), 3) for one in killed_s],
                "latency, in no part ms": [round(float(one), 4) for one in (latency_ms, latency_ms - row.sum())],
                "parts ms": [round(float(one), 4) for one in row],
            }
        )
    return found


def _rounded(parts: Parts) -> dict[str, dict[str, float]]:
    return {name: {key: round(one, 3) for key, one in row.items()} for name, row in quantiles_ms(parts).items()}


def compared(probes: Probes) -> dict[str, Any]:
    """Means of publish and commit of produce requests: by the probes and by the brokers' stages, and their ratio."""
    requests = probes.requests()
    means = request_parts_ms(requests)
    count, sums_ms = _stages(probes.stages)
    at = {name: float(sums_ms[STAGES.index(name)]) / max(count, 1) for name in STAGES}
    stages = {"publish": at["RequestQueue"] + at["Local"], "commit": at["Remote"]}
    found: dict[str, Any] = {"requests by probes and by stages": [len(requests), count]}
    alone = (("append", stages["publish"]), ("high watermark", stages["commit"]))
    for name, stage_ms in (*stages.items(), *alone):
        found[name] = {
            "probes ms": round(means[name], 4),
            "stages ms": round(stage_ms, 4),
            "ratio": round(means[name] / stage_ms, 4) if stage_ms else None,
        }
    return found


def _stages(stages: Sequence[RequestStages]) -> tuple[int, Any]:
    times = [one.times().get("Produce") for one in stages]
    known = [one for one in times if one is not None]
    return sum(one.count for one in known), sum((one.sums_ms for one in known), np.zeros(len(STAGES)))
