"""UpdateFeatures: the levels in /feature, changed by request. Brokers of this project support no feature, so that what
Kafka's brokers beside them can is what decides.
"""

from __future__ import annotations

from dataclasses import replace

from controller.core.events import UpdateFeaturesRequested
from controller.core.feature_rules import FeatureRefused, Levels, decide
from controller.core.term import Term
from controller.core.znode_changes import NeverStill, change_znode
from controller.protocol.admin import UpdatedFeature, UpdateFeaturesRequest, UpdateFeaturesResponse
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import FeatureZnode, decode_broker_registration, decode_feature, encode_feature
from controller.zookeeper.operations import DamagedZnode, Znode


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
