"""The settings of logs on two tiers: which log directories are on SSDs and which on HDDs, how full an SSD may be, and
how fast sealed segments are copied. Without `log.dirs.tiers` all directories are alike, as Kafka's are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from statemachines.tier_placement import CopyRate, Tier

MIB = 1024 * 1024
TIER_NAMES = "log.dirs.tiers"

Parsers = Callable[[int, int], Callable[[str], int]]


@dataclass(frozen=True, slots=True)
class TierSettings:
    """`tiers`: of each log directory, in their order; empty on a broker without tiers. `ssd_bytes`: what the segments
    on one SSD directory may take, 0 for the size of its file system. The percentages are of that."""

    tiers: tuple[Tier, ...] = ()
    ssd_bytes: int = 0
    evict_above_percent: int = 80
    evict_to_percent: int = 70
    full_percent: int = 95
    copy_rate: int = 100 * MIB
    copy_rate_min: int = MIB
    produce_p99_ms: int = 0
    interval_ms: int = 1_000

    def first_rate(self) -> CopyRate:
        """A fixed rate without a limit for the produce latency, else one that begins in the middle and follows it."""
        if not self.produce_p99_ms:
            return CopyRate(self.copy_rate, self.copy_rate, self.copy_rate)
        middle = (self.copy_rate_min + self.copy_rate) / 2
        urgent = (self.evict_above_percent + self.full_percent) / 200
        return CopyRate(middle, self.copy_rate_min, self.copy_rate, self.produce_p99_ms, urgent)


_FIELDS: Mapping[str, tuple[str, str, int, int]] = {
    "camerlengo.tier.ssd.bytes": ("ssd_bytes", "0", 0, 2**63 - 1),
    "camerlengo.tier.ssd.evict.above.percent": ("evict_above_percent", "80", 1, 100),
    "camerlengo.tier.ssd.evict.to.percent": ("evict_to_percent", "70", 0, 100),
    "camerlengo.tier.ssd.full.percent": ("full_percent", "95", 1, 100),
    "camerlengo.tier.copy.bytes.per.second": ("copy_rate", str(100 * MIB), 1, 2**63 - 1),
    "camerlengo.tier.copy.bytes.per.second.min": ("copy_rate_min", str(MIB), 1, 2**63 - 1),
    "camerlengo.tier.copy.produce.p99.ms": ("produce_p99_ms", "0", 0, 2**31 - 1),
    "camerlengo.tier.interval.ms": ("interval_ms", "1000", 1, 2**31 - 1),
}


def tier_table(
    integer: Parsers, names: Callable[[str], tuple[str, ...]]
) -> Mapping[str, tuple[str, str | None, Callable[[str], Any]]]:
    """What a table of the broker's settings has for tiers: the field, the default and the parser of each name."""
    table: dict[str, tuple[str, str | None, Callable[[str], Any]]] = {TIER_NAMES: ("tier_names", None, names)}
    for name, (meaning, default, least, most) in _FIELDS.items():
        table[name] = (f"tier_{meaning}", default, integer(least, most))
    return table


def take_tiers(fields: dict[str, Any], log_dirs: Sequence[str]) -> tuple[TierSettings, list[str]]:
    """Take what `tier_table` parsed out of `fields`, and return what is wrong with it."""
    tier_names = fields.pop("tier_names")
    values = {meaning: fields.pop(f"tier_{meaning}") for meaning, *_ in _FIELDS.values()}
    if tier_names is None:
        return TierSettings(**values), []
    given = f"{TIER_NAMES}={','.join(tier_names)}"
    known = [one.value for one in Tier]
    problems = [f"{given}: expected {' or '.join(known)}, got {one}" for one in tier_names if one.lower() not in known]
    if len(tier_names) != len(log_dirs):
        problems.append(f"{given}: expected a tier for each of the {len(log_dirs)} directories of log.dirs")
    for tier in known:
        if not problems and tier not in [one.lower() for one in tier_names]:
            problems.append(f"{given}: expected at least one {tier}")
    evict, target, full = (values[one] for one in ("evict_above_percent", "evict_to_percent", "full_percent"))
    if not target <= evict <= full:
        problems.append(
            f"camerlengo.tier.ssd.evict.to.percent={target}: expected at most evict.above.percent={evict}, and that at "
            f"most full.percent={full}"
        )
    if values["produce_p99_ms"] and values["copy_rate_min"] > values["copy_rate"]:
        problems.append(
            f"camerlengo.tier.copy.bytes.per.second.min={values['copy_rate_min']}: expected at most "
            f"camerlengo.tier.copy.bytes.per.second={values['copy_rate']}"
        )
    if problems:
        return TierSettings(), problems
    return TierSettings(tuple(Tier(one.lower()) for one in tier_names), **values), []
