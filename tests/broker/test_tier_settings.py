"""The settings of logs on two tiers: what is taken, and what is refused with which words."""

from __future__ import annotations

import pytest

from controller.broker.settings import BadSettings, parse_settings
from controller.broker.tier_settings import MIB, TierSettings
from statemachines.tier_placement import Tier

NEEDED = {"broker.id": "1", "zookeeper.connect": "zk:2181", "listeners": "PLAINTEXT://localhost:9092"}
DIRS = {"log.dirs": "/ssd,/hdd1,/hdd2"}


def test_a_broker_without_tiers_has_none() -> None:
    assert parse_settings({**NEEDED, **DIRS}).tiers == TierSettings()


def test_each_log_directory_has_the_tier_in_its_place() -> None:
    tiers = parse_settings({**NEEDED, **DIRS, "log.dirs.tiers": "SSD, hdd,hdd"}).tiers
    assert tiers.tiers == (Tier.SSD, Tier.HDD, Tier.HDD)
    fixed = tiers.first_rate()
    assert fixed.least == fixed.rate == fixed.most == 100 * MIB


def test_a_rate_that_follows_the_produce_latency_begins_between_its_limits() -> None:
    given = {"log.dirs.tiers": "ssd,hdd,hdd", "camerlengo.tier.copy.produce.p99.ms": "20"}
    rate = parse_settings({**NEEDED, **DIRS, **given}).tiers.first_rate()
    assert rate.least < rate.rate < rate.most
    assert rate.produce_p99_limit_ms == 20


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"log.dirs.tiers": "ssd,hdd"}, "expected a tier for each of the 3 directories of log.dirs"),
        ({"log.dirs.tiers": "ssd,nvme,hdd"}, "expected ssd or hdd, got nvme"),
        ({"log.dirs.tiers": "ssd,ssd,ssd"}, "expected at least one hdd"),
        ({"log.dirs.tiers": "hdd,hdd,hdd"}, "expected at least one ssd"),
        (
            {"log.dirs.tiers": "ssd,hdd,hdd", "camerlengo.tier.ssd.evict.to.percent": "90"},
            "camerlengo.tier.ssd.evict.to.percent=90: expected at most evict.above.percent=80",
        ),
        (
            {
                "log.dirs.tiers": "ssd,hdd,hdd",
                "camerlengo.tier.copy.bytes.per.second": "5",
                "camerlengo.tier.copy.produce.p99.ms": "9",
            },
            "expected at most camerlengo.tier.copy.bytes.per.second=5",
        ),
        ({"camerlengo.follower.tier": "tape"}, "camerlengo.follower.tier=tape: expected ssd or hdd"),
    ],
)
def test_what_contradicts_is_refused_with_what_was_expected(given: dict[str, str], problem: str) -> None:
    with pytest.raises(BadSettings) as caught:
        parse_settings({**NEEDED, **DIRS, **given})
    assert any(problem in one for one in caught.value.problems), caught.value.problems
