"""The rules for setting a finalized feature to another level, as in Kafka 2.8's controller with ZooKeeper (KIP-584).

Pure: the input is levels, the output the new level or a reason for refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.protocol.admin import UPGRADE, FeatureUpdate

MIN_LEVEL, MAX_LEVEL = "min_version_level", "max_version_level"
MIN_SUPPORTED, MAX_SUPPORTED = "min_version", "max_version"

Levels = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class FeatureRefused:
    """In words."""

    why: str


def decide(
    update: FeatureUpdate, finalized: Levels, supported: Iterable[Levels]
) -> Mapping[str, int] | FeatureRefused | None:
    """The feature's new levels; None: it is finalized no more. `supported`: what each live broker says that it can."""
    name, wanted = update.feature, update.max_version_level
    downgrade = update.allow_downgrade or update.upgrade_type > UPGRADE
    existing = finalized.get(name)
    if not name:
        return FeatureRefused("a feature's name can't be empty")
    if wanted < 1:
        if not downgrade:
            return FeatureRefused(f"level {wanted} deletes feature {name}, which takes a downgrade")
        return (
            None if existing is not None else FeatureRefused(f"feature {name} is not finalized, and can't be deleted")
        )
    if existing is not None and not {MIN_LEVEL, MAX_LEVEL} <= existing.keys():
        return FeatureRefused(f"the levels of feature {name} can't be read")
    if existing is not None and (reason := _against(name, wanted, downgrade, existing)) is not None:
        return FeatureRefused(reason)
    ranges = [one.get(name) for one in supported]
    known = [one for one in ranges if one is not None and {MIN_SUPPORTED, MAX_SUPPORTED} <= one.keys()]
    if not known:
        return FeatureRefused(f"feature {name} is not supported by any broker")
    lowest = existing[MIN_LEVEL] if existing is not None else max(one[MIN_SUPPORTED] for one in known)
    fit = [one for one in known if one[MIN_SUPPORTED] <= lowest <= wanted <= one[MAX_SUPPORTED]]
    if len(fit) < len(ranges):
        return FeatureRefused(f"{len(ranges) - len(fit)} brokers can't do feature {name} at level {wanted}")
    return {MIN_LEVEL: lowest, MAX_LEVEL: wanted}


def _against(name: str, wanted: int, downgrade: bool, existing: Mapping[str, int]) -> str | None:
    """Return the error of a step from the current level, or None."""
    now = existing[MAX_LEVEL]
    if wanted == now:
        return f"feature {name} is finalized at level {now} already"
    if wanted < now and not downgrade:
        return f"from level {now} to {wanted} feature {name} takes a downgrade"
    if wanted > now and downgrade:
        return f"from level {now} to {wanted} is no downgrade of feature {name}"
    if wanted < existing[MIN_LEVEL]:
        return f"level {wanted} is below feature {name}'s least level {existing[MIN_LEVEL]}"
    return None
