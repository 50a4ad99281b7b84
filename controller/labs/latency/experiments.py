"""The published experiments at full size on the queueing model, each with the ratio that was published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from controller.labs.latency.cluster_model import (
    BatchModel,
    ClusterModel,
    ClusterShape,
    PartitionModel,
    ProduceModel,
    latencies_ms,
)
from controller.labs.latency.machines import VirtualTime
from controller.labs.latency.parts import PARTS
from controller.labs.latency.producer_model import ProducerLoad, ProducerModel
from controller.labs.latency.statistics import r_squared

RECORD_BYTES = 516
LOAD_BYTES_S = 90e6
"""Of all producers of the experiments with a fixed load."""


class ModelOutcome(msgspec.Struct, frozen=True):
    """`produces_s`: produce requests a second and broker. `busy`: the largest share of a broker's handlers in use,
    which includes their wait for a core; `cores_busy`: of a broker's cores, 0 if they have no number.
    `received` and `sent`: bytes a second of a broker's log, mean. `wait_ms`: of a produce request in a broker's queue,
    mean."""

    latency_ms: NDArray[np.float64]
    bystander_ms: NDArray[np.float64]
    produces_s: float
    records_s: float
    busy: float
    cores_busy: float
    received: float
    sent: float
    wait_ms: float
    events: int

    def quantile(self, share: float, *, bystander: bool = False) -> float:
        values = (self.bystander_ms if bystander else self.latency_ms).sum(axis=1)
        return float(np.quantile(values, share)) if len(values) else float("nan")

    def row(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "MB/s": round(self.records_s * RECORD_BYTES / 1e6, 1),
            "produce requests/s a broker": round(self.produces_s),
            "busy": round(self.busy, 3),
            "cores busy": round(self.cores_busy, 3),
            "p50 ms": round(self.quantile(0.5), 2),
            "p99 ms": round(self.quantile(0.99), 2),
        }
        if len(self.latency_ms):
            found |= {
                f"{name} p50/p99": f"{np.quantile(one, 0.5):.2f}/{np.quantile(one, 0.99):.2f}"
                for name, one in zip(PARTS, self.latency_ms.T, strict=True)
            }
        return found


def simulate(
    shape: ClusterShape,
    load: ProducerLoad,
    *,
    partitions: int = 108,
    replicas: int = 3,
    consumers: int = 9,
    bystanders: int = 0,
    large_bytes: int = 0,
    slow_polls: tuple[float, float, float] = (0.0, 0.0, 0.0),
    warm_s: float = 0.5,
    seconds: float = 3.0,
    drain_s: float = 0.5,
    seed: int = 1,
) -> ModelOutcome:
    """`bystanders`: partitions of a second topic, to which one producer sends 20 records a second each. `large_bytes`:
    of a request that one more producer sends every 0.3 s. `slow_polls`: as `ClusterModel.slow_polls`."""
    time = VirtualTime()
    cluster = ClusterModel(shape, time)
    cluster.slow_polls = slow_polls
    random = Random(seed)
    topic = cluster.add_topic(partitions, replicas, consumers)
    producers = [ProducerModel(cluster, load, topic, number, random) for number in range(load.producers)]
    if bystanders:
        few = ProducerLoad(1, 20.0, linger_ms=load.linger_ms, trogdor=False)
        for partition in cluster.add_topic(bystanders, replicas, 1, bystander=True):
            ProducerModel(cluster, few, [partition], partition.leader.number, random)
    if large_bytes:
        LargeRequests(cluster, topic[0], large_bytes)
    events = time.run_until(warm_s)
    before = _counts(cluster, producers)
    events += time.run_until(warm_s + seconds)
    produces, records, received, sent, waited = (np.array(_counts(cluster, producers)) - np.array(before)) / seconds
    busy = max(broker.handlers.busy_until(time.now_s) for broker in cluster.brokers) / time.now_s
    cores_busy = max(0.0 if one.cores is None else one.cores.busy_s / one.cores.count for one in cluster.brokers)
    cores_busy /= time.now_s
    events += time.run_until(warm_s + seconds + drain_s)  # what was sent in time arrives
    main, beside = (
        latencies_ms(cluster.delivered, bystander=one, from_s=warm_s, to_s=warm_s + seconds) for one in (False, True)
    )
    count = shape.brokers
    rates = (float(produces / count), float(records), busy, cores_busy, float(received / count), float(sent / count))
    return ModelOutcome(main, beside, *rates, float(waited / max(produces, 1.0)) * 1e3, events)


class LargeRequests:
    """A producer of one record in a batch of `size_bytes`, every `EVERY_S`."""

    EVERY_S = 0.3
    zone = 0
    acks_all = True

    def __init__(self, cluster: ClusterModel, partition: PartitionModel, size_bytes: int) -> None:
        self._cluster = cluster
        self._partition = partition
        self._size_bytes = size_bytes
        cluster.time.at(self.EVERY_S, self._send)

    def _send(self) -> None:
        time = self._cluster.time
        batch = BatchModel(self._partition, time.now_s, 0.0)
        batch.count, batch.size_bytes, batch.requested_s = 1, self._size_bytes, time.now_s
        self._cluster.produce(ProduceModel(self, self._partition.leader, [batch]))
        time.at(time.now_s + self.EVERY_S, self._send)

    def acknowledged(self, request: ProduceModel) -> None:
        """The next one is sent by time."""


def _counts(cluster: ClusterModel, producers: list[ProducerModel]) -> tuple[float, ...]:
    return (
        sum(broker.produces for broker in cluster.brokers),
        sum(one.acknowledged_records for one in producers),
        sum(broker.received_bytes for broker in cluster.brokers),
        sum(broker.sent_bytes for broker in cluster.brokers),
        sum(broker.waited_s for broker in cluster.brokers),
    )


LZ4_RATIO = 0.996
"""Of uniformly random values, as published; E8 measures it. Bytes of a batch are still those of one with lz4."""


def fixed_load(producers: int, **changed: Any) -> ProducerLoad:
    """That of the publication, from producers as Trogdor's ProduceBench has them by default: it names partitions in
    turn, sends what a period allows at once and flushes, in the same periods of the clock for all producers."""
    load = ProducerLoad(
        producers, LOAD_BYTES_S / RECORD_BYTES / producers, in_turn=True, aligned=True, compression=LZ4_RATIO
    )
    return replace(load, **changed)


def regular_load(producers: int, **changed: Any) -> ProducerLoad:
    """The same records at regular gaps, with Kafka's default partitioner."""
    return fixed_load(producers, **{"trogdor": False, "in_turn": False, "aligned": False} | changed)


def acks(shape: ClusterShape, seconds: float) -> dict[str, Any]:
    """E1: nine producers as fast as they can."""
    runs = {
        name: simulate(shape, fixed_load(9, records_s=0.0, acks_all=acks_all), seconds=seconds, drain_s=0.0)
        for name, acks_all in (("acks=1", False), ("acks=all", True))
    }
    change = runs["acks=all"].records_s / runs["acks=1"].records_s - 1
    return {"rows": {name: one.row() for name, one in runs.items()}, "change of throughput": round(change, 3)}


ARRIVALS: Mapping[str, Callable[..., ProducerLoad]] = {"Trogdor's bursts": fixed_load, "regular": regular_load}
"""How the records of a fixed load come: it is not published how Trogdor was set."""


def linger(shape: ClusterShape, seconds: float) -> dict[str, Any]:
    """E2: 90 producers."""
    settings = (("linger 0, 16 KB", 0.0, 16_384), ("linger 5, 16 KB", 5.0, 16_384), ("linger 5, 128 KB", 5.0, 131_072))
    found: dict[str, Any] = {"rows": {}}
    for arrivals, load in ARRIVALS.items():
        runs = {
            f"{name}, {arrivals}": simulate(shape, load(90, linger_ms=linger_ms, batch_bytes=size), seconds=seconds)
            for name, linger_ms, size in settings
        }
        none, some, large = runs.values()
        found["rows"] |= {name: one.row() for name, one in runs.items()}
        found[arrivals] = {
            "requests, 0 ms by 5 ms": _ratio(none.produces_s, some.produces_s),
            "p50, 5 ms by 0 ms": _ratio(some.quantile(0.5), none.quantile(0.5)),
            "p99, 5 ms by 0 ms": _ratio(some.quantile(0.99), none.quantile(0.99)),
            "p50, 128 KB by 16 KB": _ratio(large.quantile(0.5), some.quantile(0.5)),
            "p99, 128 KB by 16 KB": _ratio(large.quantile(0.99), some.quantile(0.99)),
        }
    return found


def producers(shape: ClusterShape, seconds: float) -> dict[str, Any]:
    """E3: 90 and 900 producers with the same load."""
    found: dict[str, Any] = {"rows": {}}
    for arrivals, load in ARRIVALS.items():
        few, many = (simulate(shape, load(one), seconds=seconds) for one in (90, 900))
        found["rows"] |= {f"90 producers, {arrivals}": few.row(), f"900 producers, {arrivals}": many.row()}
        found[arrivals] = {
            f"p{share * 100:g}, 900 by 90": _ratio(many.quantile(share), few.quantile(share)) for share in (0.5, 0.99)
        }
    return found


def _ratio(value: float, other: float) -> float:
    return round(float(value / other), 3)


def partitions(shape: ClusterShape, seconds: float) -> dict[str, Any]:
    """E4: a topic of 5 MB/s grows to 800 partitions a broker, beside one of 9 partitions."""
    found: dict[str, Any] = {"rows": {}}
    counts = (108, 900, 1_800, 3_600, 5_400, 7_200)
    for fetchers in (1, 2, 4):
        runs = {}
        for count in counts:
            load = fixed_load(9, records_s=5e6 / RECORD_BYTES / 9)
            one = simulate(replace(shape, fetchers=fetchers), load, partitions=count, bystanders=9, seconds=seconds)
            runs[count] = one
            found["rows"][f"{count} partitions, {fetchers} fetchers"] = {
                "p99 ms": round(one.quantile(0.99), 2),
                "p99 ms beside": round(one.quantile(0.99, bystander=True), 2),
                "busy": round(one.busy, 3),
            }
        for name, beside in (("the topic", False), ("the topic beside", True)):
            slope, _, fit = r_squared(counts, [one.quantile(0.99, bystander=beside) for one in runs.values()])
            found[f"{fetchers} fetchers, {name}: ms for 1,000 partitions, R^2"] = [round(slope * 1e3, 3), round(fit, 4)]
    return found


def replication(shape: ClusterShape, seconds: float) -> dict[str, Any]:
    """E5: bytes of a broker's log against rf*w written and r+(rf-1)*w read."""
    found: dict[str, Any] = {"rows": {}}
    worst = 0.0
    for replicas in (1, 2, 3, 5):
        load = ProducerLoad(90, 45e6 / RECORD_BYTES / 90)
        one = simulate(shape, load, replicas=replicas, warm_s=0.3, seconds=seconds, drain_s=0.1)
        share = load.size_bytes(load.records_a_batch) / load.records_a_batch
        w = one.records_s * share / shape.brokers
        written, read = one.received / (replicas * w), one.sent / (w + (replicas - 1) * w)
        worst = max(worst, abs(written - 1), abs(read - 1))
        found["rows"][f"rf {replicas}"] = {"written by rf*w": round(written, 4), "read by r+(rf-1)*w": round(read, 4)}
    return found | {"largest difference": round(worst, 4)}


def negative_claims(shape: ClusterShape, seconds: float, pairs: int = 6) -> dict[str, Any]:
    """E6: equivalence of the end-to-end latency with acks=1 and acks=all, by pairs of runs with the same seed: the 90%
    interval of the mean ratio lies within 5% of 1 (two one-sided tests)."""
    found: dict[str, Any] = {}
    for share in (0.5, 0.99):
        found[f"p{share * 100:g}"] = []
    for seed in range(1, pairs + 1):
        both = [simulate(shape, fixed_load(90, acks_all=one), seconds=seconds, seed=seed) for one in (True, False)]
        for share in (0.5, 0.99):
            found[f"p{share * 100:g}"].append(both[0].quantile(share) / both[1].quantile(share))
    for name in list(found):
        ratios = np.array(found[name])
        half = 2.015 * ratios.std(ddof=1) / np.sqrt(len(ratios))  # Student's t, 5 degrees of freedom, 95%
        interval = [round(float(ratios.mean() - half), 4), round(float(ratios.mean() + half), 4)]
        found[name] = {"all by 1": interval, "equivalent within 5%": bool(interval[0] >= 0.95 and interval[1] <= 1.05)}
    return found


SWEEP = (4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 384, 512, 768, 1_024, 1_536, 2_048)
"""Producers for nine brokers."""


def load_sweep(shape: ClusterShape, seconds: float) -> dict[str, Any]:
    """E7: the mean wait of a produce request against busy/idle, with one server for each broker. The load grows by its
    number of producers, each with 200 records a second. "produce alone" has neither followers nor consumers: requests
    come whatever the queue is, as the formula supposes, while a fetch waits for the answer to the one before."""
    nine = replace(shape, threads=1)
    found: dict[str, Any] = {"rows": {}}
    for name, replicas, consumers in (("produce alone", 1, 0), ("with fetches", min(3, shape.brokers), 9)):
        shape = nine if consumers else replace(nine, brokers=1, zones=1)  # without replication each is by itself
        xs, ys = [], []
        for count in SWEEP:
            producers = max(round(count * (4 if replicas == 1 else 1) * shape.brokers / 9), 1)
            load = ProducerLoad(producers, 200.0, trogdor=False, linger_ms=0.0)
            counts: dict[str, Any] = {"replicas": replicas, "consumers": consumers}
            one = simulate(shape, load, **counts, warm_s=0.3, seconds=seconds, drain_s=0.0)
            if one.busy > 0.9:
                break  # no steady state in so few seconds
            xs.append(one.busy / (1 - one.busy))
            ys.append(one.wait_ms)
            found["rows"][f"{name}, {load.producers} producers, busy {one.busy:.3f}"] = {
                "busy/idle": round(xs[-1], 3),
                "wait ms": round(ys[-1], 4),
            }
        if len(xs) > 2:
            slope, start, fit = r_squared(xs, ys)
            found[name] = {"ms = a + b * busy/idle": [round(start, 4), round(slope, 4)], "R^2": round(fit, 4)}
    return found


def compression(shape: ClusterShape, seconds: float) -> dict[str, Any]:
    """E8: bytes on the wire by bytes of records, as measured for random, a quarter random and constant values with
    lz4."""
    rows = {
        f"ratio {ratio:g}": simulate(shape, fixed_load(90, compression=ratio), seconds=seconds).row()
        for ratio in (1.0, 0.3, 0.1)
    }
    return {"rows": rows}


def interference(shape: ClusterShape, seconds: float) -> dict[str, Any]:
    """E9: a request of 10 MB every 0.3 s among small ones; bursts with and without linger."""
    load = regular_load(90)
    alone, beside = (simulate(shape, load, large_bytes=size, seconds=seconds) for size in (0, 10_000_000))
    rows = {"alone": alone.row(), "10 MB requests": beside.row()}
    for linger_ms in (0.0, 5.0):
        one = simulate(shape, fixed_load(90, linger_ms=linger_ms), seconds=seconds)
        rows[f"bursts, linger {linger_ms:g}"] = one.row()
    return {"rows": rows, "p99, 10 MB by alone": _ratio(beside.quantile(0.99), alone.quantile(0.99))}


def collecting(shape: ClusterShape, seconds: float) -> dict[str, Any]:
    """E12: 900 small producers, and the same records through 9 collecting proxies: their way there takes the network of
    a zone."""
    many, few = (simulate(shape, regular_load(one), seconds=seconds) for one in (900, 9))
    hop_ms = shape.same_zone_ms
    return {
        "rows": {"900 producers": many.row(), "9 collecting proxies": few.row()},
        "requests, 900 by 9": _ratio(many.produces_s, few.produces_s),
        "p50, collected by 900": _ratio(few.quantile(0.5) + hop_ms, many.quantile(0.5)),
        "p99, collected by 900": _ratio(few.quantile(0.99) + hop_ms, many.quantile(0.99)),
    }


def slow_consumers(shape: ClusterShape, seconds: float) -> dict[str, Any]:
    """E13: nine consumers that take twice as long for a record as there is for it, for 5 s (half of a shorter run)."""
    load = regular_load(90)
    slow_s = min(5.0, seconds / 2)
    slow_us = 2e6 * 9 / (load.records_s * 90)
    usual = simulate(shape, load, seconds=seconds)
    slow = simulate(shape, load, seconds=seconds, slow_polls=(0.5, 0.5 + slow_s, slow_us))
    return {
        "rows": {"as fast as the producers": usual.row(), f"half as fast for {slow_s:g} s": slow.row()},
        "largest latency ms": round(float(slow.latency_ms.sum(axis=1).max()), 1),
    }


EXPERIMENTS = {
    "E1": acks,
    "E2": linger,
    "E3": producers,
    "E4": partitions,
    "E5": replication,
    "E6": negative_claims,
    "E7": load_sweep,
    "E8": compression,
    "E9": interference,
    "E12": collecting,
    "E13": slow_consumers,
}
