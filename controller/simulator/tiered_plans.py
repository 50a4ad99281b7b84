"""Draw an SSD and HDDs for the brokers of a plan, and the faults of these devices.

Segments are small and the SSD holds a few of them, so that within seconds of records segments are copied and evicted.
A lost HDD leaves nothing to copy to: the SSD fills up and refuses appends until the device is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec.structs import replace

from controller.scenarios.faults import BreakLogDirectory, CreateTopic, SlowDevice
from controller.scenarios.language import Happening, Plan, PlanRecords
from controller.simulator.randomness import Streams, times

TIERS = 0.35
"""The probability that brokers of a run with records have tiers."""
LOG_DIRECTORIES = ("/logs/a", "/logs/b", "/logs/c")
BETWEEN_LOST_MS = (800.0, 4_000.0)
LOST_MS = (300.0, 1_500.0, 4_000.0)
SSD_BYTES = (12_000, 20_000, 60_000)
SEGMENT_BYTES = (4_000, 8_000)
ROLL_MS = (200, 1_000, 5_000)
COPY_RATES = (20_000, 100_000)
"""Above what the fastest clients write, transactional ones too (16,000), so that an SSD that was full does not stay
so."""
TOPIC = "tiered"


def with_tiers(plan: Plan, *, forced: bool = False) -> Plan:
    """Return the plan with tiers, or as it was. `forced`: with tiers, and with records if it has none."""
    rng = Streams(plan.seed).stream("swarm-tiers")
    if forced:
        plan = _with_records(plan, rng, TOPIC)
    if plan.records is None or not (forced or rng.random() < TIERS):
        return plan
    tiers = rng.choice((("ssd", "hdd"), ("ssd", "hdd", "hdd"), ("hdd", "ssd", "hdd"), ("ssd", "hdd", "ssd")))
    paths = LOG_DIRECTORIES[: len(tiers)]
    settings = dict(plan.cluster.settings) | {
        "log.dirs": ",".join(paths),
        "log.dirs.tiers": ",".join(tiers),
        "log.segment.bytes": str(rng.choice(SEGMENT_BYTES)),
        "log.roll.ms": str(rng.choice(ROLL_MS)),
        "camerlengo.tier.ssd.bytes": str(rng.choice(SSD_BYTES)),
        "camerlengo.tier.copy.bytes.per.second": str(rng.choice(COPY_RATES)),
        "camerlengo.tier.interval.ms": rng.choice(("50", "200")),
        "camerlengo.follower.tier": rng.choice(("ssd", "ssd", "hdd")),
    }
    lost = list(_lost(rng, plan, tiers)) if rng.random() < 0.7 else []
    happenings = sorted((*plan.happenings, *lost), key=lambda each: each.at_ms)
    return replace(plan, cluster=replace(plan.cluster, settings=settings), happenings=tuple(happenings))


def _lost(rng: Random, plan: Plan, tiers: tuple[str, ...]) -> Iterator[Happening]:
    """A device is lost with all that is on it, and later is there again with all of it, as behind a controller that
    failed."""
    kind = rng.choice(("ssd", "hdd", "any"))
    paths = [path for path, tier in zip(LOG_DIRECTORIES, tiers, strict=False) if kind in (tier, "any")]
    for at_ms in times(rng, 1_500.0, BETWEEN_LOST_MS, plan.calm_ms):
        node, for_ms = rng.choice(list(plan.cluster.nodes)), rng.choice(LOST_MS)
        # All HDDs of a broker, so that nothing can be copied, or one of them.
        for path in paths if kind == "hdd" and rng.random() < 0.5 else [rng.choice(paths)]:
            yield BreakLogDirectory(at_ms=at_ms, node=node, directory=path, for_ms=for_ms, unreadable=True)


SLOW_DEVICES = 0.1
"""The probability that devices of a run with records are slow now and then."""
BETWEEN_SLOW_MS = (500.0, 3_000.0)
SLOW_MS = (100.0, 800.0, 3_000.0)
SEEKS_MS = (5.0, 50.0, 400.0, 5_000.0)
"""The longest: a device that hangs while it is slow."""


def with_slow_devices(plan: Plan, *, forced: bool = False) -> Plan:
    """Return the plan with devices that take time for rolls, flushes and deletions, or as it was. `forced`: with them,
    and with records if it has none."""
    rng = Streams(plan.seed).stream("swarm-slow-devices")
    if forced:
        plan = _with_records(plan, rng, "records")
    before = dict(plan.cluster.settings)
    if forced:
        before.setdefault("log.dirs", ",".join(LOG_DIRECTORIES[:2]))
    paths = [path for path in str(before.get("log.dirs", "")).split(",") if path]
    if plan.records is None or not paths or not (forced or rng.random() < SLOW_DEVICES):
        return plan
    settings = {
        "camerlengo.device.timeout.ms": rng.choice(("200", "1500", "15000")),
        "log.segment.bytes": str(rng.choice(SEGMENT_BYTES)),
        "log.flush.interval.messages": rng.choice(("1", "7", "1000000")),
    } | before

    def slow_at(at_ms: float) -> SlowDevice:
        return SlowDevice(
            at_ms=at_ms,
            node=rng.choice(list(plan.cluster.nodes)),
            directory=rng.choice(paths),
            a_seek_ms=rng.choice(SEEKS_MS),
            for_ms=rng.choice(SLOW_MS),
        )

    slow = [slow_at(at_ms) for at_ms in times(rng, 1_000.0, BETWEEN_SLOW_MS, plan.calm_ms)]
    if forced and not slow:
        slow.append(slow_at(1_000.0))
    happenings = sorted((*plan.happenings, *slow), key=lambda each: each.at_ms)
    return replace(plan, cluster=replace(plan.cluster, settings=settings), happenings=tuple(happenings))


def _with_records(plan: Plan, rng: Random, topic: str) -> Plan:
    if plan.records is not None:
        return plan
    rest = [_ending(one) for one in plan.happenings]
    records = PlanRecords(topic=topic, rate_per_s=rng.choice((10.0, 25.0)), idempotent=rng.random() < 0.6, in_flight=5)
    first, again = (
        CreateTopic(at_ms=at_ms, topic=topic, partitions=rng.randint(1, 3), replication_factor=3)
        for at_ms in (600.0, 3_900.0)
    )
    created = (first, replace(again, partitions=first.partitions))
    happenings = sorted((*rest, *created), key=lambda each: each.at_ms)
    lag_ms = str(rng.choice((1_000, 3_000, 10_000)))
    settings = {"replica.lag.time.max.ms": lag_ms} | dict(plan.cluster.settings)
    return replace(
        plan, records=records, cluster=replace(plan.cluster, settings=settings), happenings=tuple(happenings)
    )


def _ending(happening: Happening) -> Happening:
    """Without a device there is an end to what the SSD takes: where clients write, none is broken for good."""
    if isinstance(happening, BreakLogDirectory) and not happening.for_ms:
        return replace(happening, for_ms=LOST_MS[-1])
    return happening
