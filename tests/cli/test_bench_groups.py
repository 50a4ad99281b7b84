"""`camerlengo bench groups`, small: members that rebalance, heartbeat and commit, and what the table says of them."""

from __future__ import annotations

import asyncio

from controller.broker.settings import address
from controller.testing import Kafka
from tests.benchmarks.common import markdown
from tests.benchmarks.group_members import TOPIC, Members
from tests.benchmarks.groups import ROWS, cells, notes, rebalance_figures


def test_members_rebalance_heartbeat_and_commit() -> None:
    async def measure(server: str) -> None:
        members = Members(address(server), members=6, groups=2)
        await members.connect()
        joined = await members.join()
        assert len(joined["group_ms"]) == 2
        assert max(joined["group_ms"]) == joined["all_ms"]
        rebalanced = await members.rebalance(5)
        assert len(rebalanced["group_ms"]) == 2
        assert (await members.heartbeats(0.05, 200))["count"] >= 6
        commits = await members.commits(0.05)
        assert commits["count"] == len(commits["latency_ms"]) >= 6
        members.close()

    with Kafka(brokers=1) as kafka:
        kafka.create_topic(TOPIC)
        asyncio.run(measure(kafka.bootstrap_servers))


def test_the_table_has_a_column_for_each_side() -> None:
    rebalance = rebalance_figures([{"group_ms": [1.0, 3.0], "all_ms": 3.0, "cpu_s": 0.1}], members=10)
    assert rebalance == {"all_ms": 3, "group_ms": {"p50": 1.0, "p99": 3.0}, "cpu_us_a_member": 10_000}
    latency = {"p50": 1.0, "p99": 2.0}
    side = {
        "join": rebalance,
        "rebalance": rebalance,
        "heartbeat": {"cpu_us": 80.0, "latency_ms": latency},
        "commit": {"per_s": 2_000, "cpu_us": 200.0, "latency_ms": latency},
    }
    spread = {"median": 20.0, "min": 10.0, "max": 30.0}
    found = {
        "sides": {"camerlengo": side, "Kafka": side},
        "members": 10,
        "groups": 2,
        "trios": {"stable_ms": spread, "killed_ms": spread, "left_ms": spread},
        "circumstances": "-",
    }
    head, rows = cells(found)
    assert len(markdown(head, rows)) == len(ROWS) + 2
    assert head == ["", "camerlengo", "Kafka"]
    assert "stable 20.0 (10.0 to 30.0)" in notes(found)[1]
