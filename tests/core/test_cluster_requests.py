"""What is asked of a controller about the cluster as a whole: features at other levels, blocks of producer ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from controller.clock import spawn
from controller.core.events import AllocateProducerIdsRequested, UpdateFeaturesRequested
from controller.core.handlers import features
from controller.core.handlers.features import FeatureRefused, decide
from controller.core.leadership import ControllerSettings
from controller.protocol.admin import SAFE_DOWNGRADE, FeatureUpdate, UpdateFeaturesRequest, UpdateFeaturesResponse
from controller.protocol.control import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.codecs import (
    FeatureZnode,
    decode_broker_registration,
    decode_feature,
    decode_producer_id_block,
    encode_broker_registration,
    encode_feature,
)
from tests.core.driving import Cluster, Host
from tests.core.test_broker_changes import cluster_of
from tests.core.test_isr_changes import broker_epoch

# -- producer ids


def allocate(cluster: Cluster, host: Host, broker: int, stale_by: int = 0) -> AllocateProducerIdsResponse:
    answers: list[AllocateProducerIdsResponse] = []
    row = cluster.server.row(paths.broker(broker))
    epoch = 1 if row is None else row.stat.czxid - stale_by
    host.events.put(AllocateProducerIdsRequested(AllocateProducerIdsRequest(broker, epoch), answers.append))
    cluster.settle()
    (answer,) = answers
    return answer


def last_block(cluster: Cluster) -> tuple[int, int, int]:
    row = cluster.server.row(paths.PRODUCER_ID_BLOCK)
    assert row is not None
    block = decode_producer_id_block(row.path, row.data)
    return block.broker_id, block.block_start, block.block_end


def test_blocks_follow_each_other_and_those_that_brokers_take_themselves() -> None:
    cluster, host = cluster_of(1, 2)
    assert allocate(cluster, host, 2) == AllocateProducerIdsResponse(0, 0, 1_000)
    own = cluster.wait(spawn(BrokerDataWrites(cluster.client).next_producer_id_block(1)))
    assert (own.block_start, own.block_end) == (1_000, 1_999)
    assert allocate(cluster, host, 2) == AllocateProducerIdsResponse(0, 2_000, 1_000)
    assert last_block(cluster) == (2, 2_000, 2_999)


@pytest.mark.parametrize(
    ("broker", "stale_by", "error"),
    [(9, 0, ErrorCode.BROKER_ID_NOT_REGISTERED), (2, 1, ErrorCode.STALE_BROKER_EPOCH)],
)
def test_a_stranger_and_an_earlier_life_get_no_ids(broker: int, stale_by: int, error: ErrorCode) -> None:
    cluster, host = cluster_of(1, 2)
    assert allocate(cluster, host, broker, stale_by) == AllocateProducerIdsResponse(error)
    row = cluster.server.row(paths.PRODUCER_ID_BLOCK)
    assert row is not None
    assert not row.data


@pytest.mark.parametrize(
    "data",
    [b"{", b'{"version":1,"broker":1,"block_start":"9223372036854774000","block_end":"9223372036854774999"}'],
    ids=["damaged", "the last ones are out"],
)
def test_without_a_block_to_give_it_says_so_and_leaves_what_is_there(data: bytes) -> None:
    cluster, host = cluster_of(1, 2)
    cluster.put(paths.PRODUCER_ID_BLOCK, data)
    assert allocate(cluster, host, 2) == AllocateProducerIdsResponse(ErrorCode.UNKNOWN_SERVER_ERROR)
    row = cluster.server.row(paths.PRODUCER_ID_BLOCK)
    assert row is not None
    assert row.data == data
    assert host.failures() == []


def test_wherever_its_controller_dies_nobody_gets_the_same_ids_twice() -> None:
    """From every interrupted prefix: the block of a write that was made and not answered is nobody's."""
    for await_ in range(1, 4):
        cluster, host = cluster_of(1, 2)
        first = allocate(cluster, host, 2)
        answers: list[AllocateProducerIdsResponse] = []
        asked = AllocateProducerIdsRequest(2, broker_epoch(cluster, 2))
        host.die_at_await = host.awaits + await_
        host.events.put(AllocateProducerIdsRequested(asked, answers.append))
        cluster.settle()
        other = cluster.host(3)
        cluster.until(lambda other=other: other.controller.active)  # type: ignore[misc]
        again = allocate(cluster, other, 2)
        starts = [one.producer_id_start for one in (first, *answers, again)]
        assert again.error_code == 0
        assert len(set(starts)) == len(starts), await_


# -- features


LEVELS = {"min_version_level": 1, "max_version_level": 3}
CAN = {"min_version": 1, "max_version": 5}


@dataclass(frozen=True, slots=True)
class Case:
    """`to`: the feature's levels afterwards (None: finalized no more), or a part of why not."""

    update: FeatureUpdate
    to: Mapping[str, int] | str | None
    finalized: Mapping[str, int] | None = field(default_factory=lambda: LEVELS)
    others: Mapping[str, int] | None = field(default_factory=lambda: CAN)


CASES = {
    "higher": Case(FeatureUpdate("f", 4), {"min_version_level": 1, "max_version_level": 4}),
    "new": Case(FeatureUpdate("f", 2), {"min_version_level": 1, "max_version_level": 2}, finalized=None),
    "lower": Case(FeatureUpdate("f", 2, True), {"min_version_level": 1, "max_version_level": 2}),
    "lower, in later words": Case(
        FeatureUpdate("f", 2, upgrade_type=SAFE_DOWNGRADE), {"min_version_level": 1, "max_version_level": 2}
    ),
    "gone": Case(FeatureUpdate("f", 0, True), None),
    "without a name": Case(FeatureUpdate("", 2), "can't be empty"),
    "gone, and no downgrade": Case(FeatureUpdate("f", 0), "takes a downgrade"),
    "gone, and never there": Case(FeatureUpdate("f", 0, True), "is not finalized", finalized=None),
    "the same": Case(FeatureUpdate("f", 3), "already"),
    "lower, and no downgrade": Case(FeatureUpdate("f", 2), "takes a downgrade"),
    "higher, and a downgrade": Case(FeatureUpdate("f", 4, True), "no downgrade"),
    "below the least": Case(
        FeatureUpdate("f", 1, True), "least level", finalized={"min_version_level": 2, "max_version_level": 3}
    ),
    "higher than a broker can": Case(FeatureUpdate("f", 6), "1 brokers can't"),
    "one that nobody can": Case(FeatureUpdate("f", 4), "not supported by any broker", others=None),
    "levels that are none": Case(FeatureUpdate("f", 4), "can't be read", finalized={}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_level_that_features_may_be_set_to(case: Case) -> None:
    finalized = {} if case.finalized is None else {"f": case.finalized}
    outcome = decide(case.update, finalized, [{} if case.others is None else {"f": case.others}])
    if isinstance(case.to, str):
        assert isinstance(outcome, FeatureRefused)
        assert case.to in outcome.why
    else:
        assert outcome == case.to


def test_every_live_broker_has_to_support_it() -> None:
    outcome = decide(FeatureUpdate("f", 4), {}, [{"f": CAN}, {}])
    assert isinstance(outcome, FeatureRefused)


def featured(*supporting: int) -> tuple[Cluster, Host]:
    """Brokers 1 and 2, of which `supporting` say that they can do "f"; finalized are f and g."""
    cluster, host = cluster_of(1, 2)
    for broker in supporting:
        path = paths.broker(broker)
        row = cluster.server.row(path)
        assert row is not None
        old = decode_broker_registration(path, row.data)
        data = encode_broker_registration(
            type(old)(broker, old.endpoints, features={"f": CAN}, timestamp_ms=1, version=5)
        )
        cluster.put(path, data)
    cluster.put(paths.FEATURE, encode_feature(FeatureZnode(features={"f": LEVELS, "g": LEVELS})))
    cluster.settle()
    return cluster, host


def update(
    cluster: Cluster, host: Host, *updates: FeatureUpdate, validate_only: bool = False
) -> UpdateFeaturesResponse:
    answers: list[UpdateFeaturesResponse] = []
    asked = UpdateFeaturesRequest(updates, validate_only=validate_only)
    host.events.put(UpdateFeaturesRequested(asked, answers.append))
    cluster.settle()
    (answer,) = answers
    return answer


def finalized(cluster: Cluster) -> Mapping[str, Mapping[str, int]]:
    row = cluster.server.row(paths.FEATURE)
    assert row is not None
    return decode_feature(row.path, row.data).features


def test_features_that_may_change_do_and_each_other_is_told_why_not() -> None:
    cluster, host = featured(1, 2)
    answer = update(cluster, host, FeatureUpdate("f", 5), FeatureUpdate("g", 5), FeatureUpdate("h", 1))
    assert [(one.feature, one.error_code) for one in answer.results] == [
        ("f", ErrorCode.NONE),
        ("g", ErrorCode.INVALID_REQUEST),
        ("h", ErrorCode.INVALID_REQUEST),
    ]
    assert finalized(cluster) == {"f": {"min_version_level": 1, "max_version_level": 5}, "g": LEVELS}
    assert update(cluster, host, FeatureUpdate("g", 0, True)).results[0].error_code == ErrorCode.NONE
    assert set(finalized(cluster)) == {"f"}


def test_validated_only_and_refused_nothing_is_written() -> None:
    cluster, host = featured(1)
    before = cluster.server.row(paths.FEATURE)
    assert update(cluster, host, FeatureUpdate("f", 5)).results[0].error_code == ErrorCode.INVALID_REQUEST, "2 can't"
    valid = update(cluster, host, FeatureUpdate("g", 0, True), validate_only=True)
    assert valid.results[0].error_code == ErrorCode.NONE
    after = cluster.server.row(paths.FEATURE)
    assert before is not None
    assert after is not None
    assert after.stat == before.stat


def test_below_protocol_2_7_there_are_none_and_a_damaged_znode_is_left() -> None:
    cluster = Cluster()
    host = cluster.host(1, ControllerSettings(inter_broker_protocol="2.6"))
    assert update(cluster, host, FeatureUpdate("f", 5)).error_code == ErrorCode.INVALID_REQUEST
    cluster, host = featured(1, 2)
    cluster.put(paths.FEATURE, b"{")
    assert update(cluster, host, FeatureUpdate("f", 5)).error_code == ErrorCode.FEATURE_UPDATE_FAILED
    assert host.failures() == []


def test_a_rule_that_looks_at_no_broker_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = features.decide
    monkeypatch.setattr(
        "controller.core.handlers.features.decide",
        lambda asked, finalized, _supported: whole(asked, finalized, [{"f": CAN}]),
    )
    cluster, host = featured(1)
    assert update(cluster, host, FeatureUpdate("f", 5)).results[0].error_code == ErrorCode.NONE
