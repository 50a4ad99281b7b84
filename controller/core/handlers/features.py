"""UpdateFeatures: the levels in /feature, changed by request. Brokers of this project support no feature, so that what
Kafka's brokers beside them can is what decides.

The rules for setting a finalized feature to another level, as in Kafka 2.8's controller with ZooKeeper (KIP-584).

Pure: the input is levels, the output the new level or a reason for refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from controller.core.events import UpdateFeaturesRequested
from controller.core.leadership import Term
from controller.core.znode_changes import NeverStill, change_znode
from controller.protocol.admin import (
    UPGRADE,
    FeatureUpdate,
    UpdatedFeature,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import FeatureZnode, decode_broker_registration, decode_feature, encode_feature
from controller.zookeeper.operations import DamagedZnode, Znode

MIN_LEVEL, MAX_LEVEL = "min_version_level", "max_version_level"
MIN_SUPPORTED, MAX_SUPPORTED = "min_version", "max_version"

Levels = Mapping[str, Mapping[str, int]]


class FeatureRefused(msgspec.Struct, frozen=True):
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


async def update_features(term: Term, event: UpdateFeaturesRequested) -> None:
    """Each feature is answered for itself; those that may change are written together."""
    asked = event.value
    if not term.settings.versions.feature_znode:
        event.refuse(ErrorCode.INVALID_REQUEST, "features are kept from inter-broker protocol 2.7 on")
        return
    supported = await _supported(term)
    results: tuple[UpdatedFeature, ...] = ()

    def changed(row: Znode | None) -> bytes | None:
        nonlocal results
        feature = FeatureZnode() if row is None else decode_feature(row.path, row.data)
        levels, results = _decided(asked, feature.features, supported)
        if asked.validate_only or levels == feature.features:
            return None
        return encode_feature(replace(feature, features=levels))

    try:
        await change_znode(term, paths.FEATURE, changed)
    except (DamagedZnode, NeverStill) as error:
        term.note("error", f"features not updated: {error}")
        failed = ErrorCode.FEATURE_UPDATE_FAILED
        results = tuple(
            one if one.error_code else UpdatedFeature(one.feature, int(failed), str(error)) for one in results
        )
        event.respond(UpdateFeaturesResponse(int(ErrorCode.NONE if results else failed), None, results))
        return
    event.respond(UpdateFeaturesResponse(int(ErrorCode.NONE), None, results))


async def _supported(term: Term) -> list[Levels]:
    """Return the supported features of each registration. An unreadable registration supports none."""
    reading = await term.zookeeper.read([paths.broker(broker) for broker in term.context.broker_ids])
    found: list[Levels] = []
    for row in reading.rows:
        if row is None:
            continue  # gone since; its event is on its way
        try:
            found.append(decode_broker_registration(row.path, row.data).features)
        except DamagedZnode as damaged:
            term.note("error", str(damaged))
            found.append({})
    return found


def _decided(
    asked: UpdateFeaturesRequest, finalized: Levels, supported: list[Levels]
) -> tuple[Levels, tuple[UpdatedFeature, ...]]:
    levels = dict(finalized)
    results: list[UpdatedFeature] = []
    for update in {one.feature: one for one in asked.feature_updates}.values():
        outcome = decide(update, finalized, supported)
        if isinstance(outcome, FeatureRefused):
            results.append(UpdatedFeature(update.feature, int(ErrorCode.INVALID_REQUEST), outcome.why))
            continue
        if outcome is None:
            del levels[update.feature]
        else:
            levels[update.feature] = outcome
        results.append(UpdatedFeature(update.feature, int(ErrorCode.NONE)))
    return levels, tuple(results)
