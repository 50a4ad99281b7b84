"""Advice on settings from the queueing model: which part of the latency exceeds a target, and what to change.

The search is a coordinate descent. It takes the settings in the order in which they concern the largest part, tries all
values of one, keeps the best, and repeats until a sweep changes nothing or the target is met. If it is not met, the
search begins again elsewhere, at `STARTS`. It tries fewer settings than there are combinations, so it may end in a
local optimum; `acceptance` measures how far from the best that is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from controller.labs.latency.cluster_model import ClusterShape, ServiceTimes
from controller.labs.latency.experiments import ModelOutcome, simulate
from controller.labs.latency.parts import PARTS
from controller.labs.latency.producer_model import ProducerLoad

Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class WorkloadToAdvise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster and its load, with the names of Kafka's settings where there are such. `compression_ratio`: bytes on
    the wire by bytes of records. Decoding raises msgspec.ValidationError for what makes no sense."""

    producers: Count = 90
    partitions: Count = 108
    consumers: Count = 9
    record_bytes: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 516
    arrivals: Literal["regular", "bursts"] = "regular"
    compression_ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    brokers: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 9
    zones: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    replication_factor: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
    num_io_threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    acks: Literal["1", "all"] = "all"
    linger_ms: Annotated[float, msgspec.Meta(ge=0, le=60_000)] = 0.0
    batch_size: Annotated[int, msgspec.Meta(ge=1_000, le=1_048_576)] = 16_384
    num_replica_fetchers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    num_network_threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 3

    def __post_init__(self) -> None:
        if self.replication_factor > self.brokers:
            raise ValueError(
                f"replication_factor is {self.replication_factor}: expected at most brokers, {self.brokers}"
            )


VALUES: Mapping[str, Sequence[float]] = {
    "linger_ms": (0.0, 1.0, 2.0, 5.0, 10.0, 20.0),
    "batch_size": (16_384, 65_536, 262_144),
    "num_replica_fetchers": (1, 4),
}
"""What may be changed, and to what."""
NAMES = {name: name.replace("_", ".") for name in VALUES}
COSTS: Mapping[str, tuple[str, str]] = {
    "linger_ms": ("each record may wait as long for others", "more and smaller requests"),
    "batch_size": ("memory of producers: this size for each partition that they send to", "more and smaller requests"),
    "num_replica_fetchers": ("threads and connections of each broker to each other one", "fewer fetches side by side"),
}
"""Of a larger value, and of a smaller one."""
CONCERN: Mapping[str, Sequence[str]] = {
    "produce": ("linger_ms", "batch_size", "num_replica_fetchers"),
    "publish": ("linger_ms", "batch_size", "num_replica_fetchers"),
    "commit": ("num_replica_fetchers", "linger_ms", "batch_size"),
    "catch-up": ("num_replica_fetchers", "linger_ms", "batch_size"),
    "fetch": ("linger_ms", "batch_size", "num_replica_fetchers"),
}
"""In which order settings are tried, by the part that is largest."""
STARTS: Sequence[Mapping[str, float]] = (
    {"linger_ms": 5.0, "batch_size": 65_536, "num_replica_fetchers": 4},
    {"linger_ms": 0.0, "batch_size": 262_144, "num_replica_fetchers": 1},
    {"linger_ms": 5.0, "batch_size": 16_384, "num_replica_fetchers": 1},
)
"""Where else the search begins if it does not reach the target from the settings that there are."""
WARM_S, DRAIN_S = 0.2, 0.3


class Prediction(msgspec.Struct, frozen=True):
    """Of a workload with some settings. `latency_ms`: the quantile that is asked for. `parts_ms`: means of the parts of
    the records at or beyond it. `requests_s`: produce requests a second and broker. `delivers`: the share of the
    throughput that the cluster takes."""

    latency_ms: float
    parts_ms: Mapping[str, float]
    requests_s: float
    busy: float
    delivers: float

    @property
    def largest(self) -> str:
        return max(self.parts_ms, key=lambda name: self.parts_ms[name])


class Change(msgspec.Struct, frozen=True):
    setting: str
    before: float
    after: float
    prediction: Prediction


class Advice(msgspec.Struct, frozen=True):
    """`tried`: how many settings were simulated."""

    now: Prediction
    changes: tuple[Change, ...]
    workload: WorkloadToAdvise
    tried: int

    @property
    def prediction(self) -> Prediction:
        return _after(self.now, self.changes)


def _after(now: Prediction, changes: Sequence[Change]) -> Prediction:
    return changes[-1].prediction if changes else now


def _chosen(tried: Mapping[float, Prediction], target_ms: float) -> float:
    """Of the values that meet the target the one with the least work for brokers; else the one with the lowest
    latency."""
    meeting = [one for one, prediction in tried.items() if prediction.latency_ms <= target_ms]
    if meeting:
        return min(meeting, key=lambda one: tried[one].busy)
    return min(tried, key=lambda one: tried[one].latency_ms)


class Adviser:
    """Predicts by simulation of `seconds`, each combination of settings once."""

    def __init__(
        self, times: ServiceTimes, share: float, throughput_bytes_s: float, *, seconds: float = 0.5, seed: int = 1
    ) -> None:
        self._times = times
        self._share = share
        self._throughput = throughput_bytes_s
        self._seconds = seconds
        self._seed = seed
        self._known: dict[WorkloadToAdvise, Prediction] = {}

    def predict(self, workload: WorkloadToAdvise) -> Prediction:
        found = self._known.get(workload)
        if found is None:
            found = self._known[workload] = self._summary(self._simulated(workload))
        return found

    def _simulated(self, one: WorkloadToAdvise) -> ModelOutcome:
        shape = ClusterShape(
            self._times,
            one.brokers,
            min(one.zones, one.brokers),
            one.num_io_threads,
            one.num_replica_fetchers,
            network_threads=one.num_network_threads if self._times.network_us else 0,
        )
        load = ProducerLoad(
            one.producers,
            self._throughput / one.record_bytes / one.producers,
            one.record_bytes,
            one.linger_ms,
            one.batch_size,
            one.acks == "all",
            trogdor=one.arrivals == "bursts",
            compression=one.compression_ratio,
        )
        counts: dict[str, Any] = {
            "partitions": one.partitions,
            "replicas": one.replication_factor,
            "consumers": one.consumers,
        }
        return simulate(shape, load, **counts, warm_s=WARM_S, seconds=self._seconds, drain_s=DRAIN_S, seed=self._seed)

    def _summary(self, outcome: ModelOutcome) -> Prediction:
        latency_ms = outcome.latency_ms.sum(axis=1)
        if not len(latency_ms):
            return Prediction(float("inf"), dict.fromkeys(PARTS, 0.0), outcome.produces_s, outcome.busy, 0.0)
        value = float(np.quantile(latency_ms, self._share))
        beyond = outcome.latency_ms[latency_ms >= value].mean(axis=0)
        sent = len(latency_ms) / self._seconds
        parts = {name: float(one) for name, one in zip(PARTS, beyond, strict=True)}
        return Prediction(value, parts, outcome.produces_s, outcome.busy, min(outcome.records_s / sent, 1.0))

    def advise(self, workload: WorkloadToAdvise, target_ms: float) -> Advice:
        """Return the changes that meet the target, or those that come closest."""
        before = len(self._known)
        now = self.predict(workload)
        changes = self._descended(workload, target_ms)
        for start in STARTS:
            if _after(now, changes).latency_ms <= target_ms:
                break
            jump = [(name, value) for name, value in start.items() if value != getattr(workload, name)]
            others = self._changed(workload, jump)
            there = replace(workload, **dict(jump))
            others += self._descended(there, target_ms)
            if _after(now, others).latency_ms < _after(now, changes).latency_ms * 0.999:
                chosen = {one.setting: one.after for one in others}
                changes = self._changed(
                    workload, [one for one in chosen.items() if one[1] != getattr(workload, one[0])]
                )
        final = replace(workload, **{one.setting: one.after for one in changes})
        return Advice(now, tuple(changes), final, len(self._known) - before)

    def _changed(self, workload: WorkloadToAdvise, values: Sequence[tuple[str, float]]) -> list[Change]:
        """One change after the other."""
        changes = []
        for setting, value in values:
            before = getattr(workload, setting)
            workload = replace(workload, **{setting: value})
            changes.append(Change(setting, before, value, self.predict(workload)))
        return changes

    def _descended(self, workload: WorkloadToAdvise, target_ms: float) -> list[Change]:
        best = self.predict(workload)
        changes: list[Change] = []
        moved = True
        while moved and best.latency_ms > target_ms:
            moved = False
            for setting in CONCERN[best.largest]:
                tried = {value: self.predict(replace(workload, **{setting: value})) for value in VALUES[setting]}
                value = _chosen(tried, target_ms)
                if tried[value].latency_ms < best.latency_ms * 0.999:
                    changes.append(Change(setting, getattr(workload, setting), value, tried[value]))
                    workload, best, moved = replace(workload, **{setting: value}), tried[value], True
                if best.latency_ms <= target_ms:
                    break
        return changes

    def exhaustive(self, workload: WorkloadToAdvise) -> Prediction:
        """Return the best of all combinations."""
        return min((self.predict(one) for one in combinations(workload)), key=lambda one: one.latency_ms)


def combinations(workload: WorkloadToAdvise) -> Iterator[WorkloadToAdvise]:
    for values in itertools.product(*VALUES.values()):
        yield replace(workload, **dict(zip(VALUES, values, strict=True)))


def random_workload(random: Random) -> tuple[WorkloadToAdvise, float]:
    """A small cluster and its throughput in bytes a second: few records, so that hundreds of runs take minutes."""
    brokers = random.choice((3, 4, 6))
    record_bytes = random.choice((128, 516, 2_000))
    producers = random.choice((3, 10, 30))
    records_s = random.choice((500, 2_000, 5_000))
    workload = WorkloadToAdvise(
        producers,
        random.choice((6, 24, 96)),
        random.choice((1, 3)),
        record_bytes,
        random.choice(("regular", "bursts")),
        random.choice((1.0, 0.3)),
        brokers,
        random.choice((1, 3)),
        random.choice((1, 2, 3)),
        random.choice((1, 2, 8)),
        "all",
        random.choice(VALUES["linger_ms"]),
        int(random.choice(VALUES["batch_size"])),
        int(random.choice(VALUES["num_replica_fetchers"])),
    )
    return workload, float(records_s * record_bytes)


def acceptance(times: ServiceTimes, seed: int, records: int = 1_000) -> dict[str, Any]:
    """How far the adviser's choice is from the best of all combinations, for the workload of a seed. A simulation has
    about `records` records at least."""
    workload, throughput = random_workload(Random(seed))
    seconds = max(0.2, records * workload.record_bytes / throughput)
    adviser = Adviser(times, 0.99, throughput, seconds=seconds, seed=seed)
    advice = adviser.advise(workload, 0.0)
    best = adviser.exhaustive(workload)
    return {
        "seed": seed,
        "before ms": round(advice.now.latency_ms, 3),
        "chosen ms": round(advice.prediction.latency_ms, 3),
        "best ms": round(best.latency_ms, 3),
        "by best": round(advice.prediction.latency_ms / best.latency_ms, 4),
        "tried": advice.tried,
    }
