"""Blocks of producer ids and changed configs: what Kafka 2.8 leaves behind, races, lost replies."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from controller.clock import spawn
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import LAST_PRODUCER_ID, BrokerDataWrites, ProducerIdsExhausted
from controller.zookeeper.operations import ANY_VERSION, Create, DamagedZnode, Delete, NoNode, SessionGone, SetData
from tests.zookeeper.client_bench import Bench, Node

BLOCK = paths.PRODUCER_ID_BLOCK


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def node(bench: Bench) -> Node:
    return bench.node()


@pytest.fixture
def writes(bench: Bench, node: Node) -> BrokerDataWrites:
    writes = BrokerDataWrites(node.client)
    bench.run(writes.ensure_persistent_paths())
    return writes


def version(bench: Bench, path: str) -> int:
    row = bench.row(path)
    assert row is not None
    return row.stat.version


# -- blocks of producer ids


def test_blocks_follow_each_other_and_are_written_as_kafka_writes_them(bench: Bench, writes: BrokerDataWrites) -> None:
    first = bench.run(writes.next_producer_id_block(1))
    assert bench.data([BLOCK]) == [b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}']
    second = bench.run(BrokerDataWrites(bench.node().client).next_producer_id_block(2))
    assert bench.data([BLOCK]) == [b'{"version":1,"broker":2,"block_start":"1000","block_end":"1999"}']
    assert [(one.broker_id, one.block_start, one.block_end) for one in (first, second)] == [
        (1, 0, 999),
        (2, 1000, 1999),
    ]


def test_the_znode_is_made_if_it_is_missing(bench: Bench, writes: BrokerDataWrites) -> None:
    bench.change(Delete(BLOCK, ANY_VERSION))
    assert bench.run(writes.next_producer_id_block(1)).block_start == 0
    assert version(bench, BLOCK) == 1


@pytest.mark.parametrize(("applied", "start"), [(True, 2000), (False, 1000)])
def test_a_block_whose_reply_is_lost_is_skipped(
    bench: Bench, writes: BrokerDataWrites, applied: bool, start: int
) -> None:
    """It might be another's: a call of the same broker that asks for the same block writes the same bytes."""
    node = bench.node()
    mine = BrokerDataWrites(node.client)
    bench.run(mine.next_producer_id_block(3))
    node.connection.lose_reply(applied=applied)
    assert bench.run(mine.next_producer_id_block(3)).block_start == start


def test_many_brokers_at_once_are_given_different_blocks(bench: Bench, writes: BrokerDataWrites) -> None:
    nodes = [bench.node(latency=lambda: 5.0) for _ in range(5)]
    asked = [spawn(BrokerDataWrites(one.client).next_producer_id_block(at)) for at, one in enumerate(nodes)]
    starts = [bench.wait(pending).block_start for pending in asked]
    assert sorted(starts) == [0, 1000, 2000, 3000, 4000]


def test_the_last_ids_are_not_given_twice(bench: Bench, writes: BrokerDataWrites) -> None:
    end = LAST_PRODUCER_ID - 500
    bench.set(BLOCK, b'{"version":1,"broker":1,"block_start":"%d","block_end":"%d"}' % (end - 999, end))
    with pytest.raises(ProducerIdsExhausted):
        bench.run(writes.next_producer_id_block(1))


def test_a_damaged_block_is_not_overwritten(bench: Bench, writes: BrokerDataWrites) -> None:
    bench.set(BLOCK, b"?")
    with pytest.raises(DamagedZnode):
        bench.run(writes.next_producer_id_block(1))
    assert bench.data([BLOCK]) == [b"?"]


def test_a_session_that_ends_takes_no_block(bench: Bench, node: Node, writes: BrokerDataWrites) -> None:
    asked = spawn(writes.next_producer_id_block(1))
    bench.wait(node.client.close())
    with pytest.raises(SessionGone):
        bench.wait(asked)


# -- configs

TOPIC = paths.config_topic("t")


def with_retention(config: Mapping[str, str]) -> Mapping[str, str]:
    return {**config, "retention.ms": "5"}


def notices(bench: Bench) -> list[bytes | None]:
    rows = [row for row in bench.server.rows() if row.path.startswith(paths.CONFIG_CHANGES + "/")]
    return [row.data for row in sorted(rows, key=lambda row: row.path)]


def test_a_config_and_its_notice_are_kafkas(bench: Bench, writes: BrokerDataWrites) -> None:
    bench.change(Create(TOPIC, b'{"version":1,"config":{"max.message.bytes":"200000"}}'))
    config = bench.run(writes.change_config(TOPIC, "topics/t", with_retention))
    assert config == {"max.message.bytes": "200000", "retention.ms": "5"}
    assert bench.data([TOPIC]) == [b'{"version":1,"config":{"max.message.bytes":"200000","retention.ms":"5"}}']
    assert notices(bench) == [b'{"version":2,"entity_path":"topics/t"}']
    assert bench.row(f"{paths.CONFIG_CHANGES}/config_change_0000000000") is not None


def test_a_config_that_nobody_wrote_yet_is_made(bench: Bench, writes: BrokerDataWrites) -> None:
    bench.run(writes.change_config(paths.CONFIG_BROKER_DEFAULT, "brokers/<default>", with_retention))
    assert bench.data([paths.CONFIG_BROKER_DEFAULT]) == [b'{"version":1,"config":{"retention.ms":"5"}}']


@pytest.mark.parametrize("applied", [True, False])
def test_a_config_whose_reply_is_lost_is_changed_once(
    bench: Bench, node: Node, writes: BrokerDataWrites, applied: bool
) -> None:
    bench.change(Create(TOPIC, b""))
    node.connection.lose_reply(applied=applied)
    bench.run(writes.change_config(TOPIC, "topics/t", with_retention))
    assert version(bench, TOPIC) == 1
    assert len(notices(bench)) == 1


def test_a_change_that_came_between_is_kept(bench: Bench, writes: BrokerDataWrites) -> None:
    bench.change(Create(TOPIC, b""))
    seen: list[Mapping[str, str]] = []

    def change(config: Mapping[str, str]) -> Mapping[str, str]:
        if not seen:
            bench.other.multi([SetData(TOPIC, b'{"version":1,"config":{"flush.ms":"7"}}', ANY_VERSION)])
        seen.append(config)
        return with_retention(config)

    slow = bench.node(latency=lambda: 5.0)
    config = bench.run(BrokerDataWrites(slow.client).change_config(TOPIC, "topics/t", change))
    assert config == {"flush.ms": "7", "retention.ms": "5"}
    assert seen == [{}, {"flush.ms": "7"}]


def test_no_config_is_made_for_a_topic_that_is_gone(bench: Bench, writes: BrokerDataWrites) -> None:
    with pytest.raises(NoNode):
        bench.run(writes.change_config(TOPIC, "topics/t", with_retention, must_exist=paths.topic("t")))
    assert bench.row(TOPIC) is None
    assert notices(bench) == []


def test_what_refuses_a_change_comes_through(bench: Bench, writes: BrokerDataWrites) -> None:
    def refuse(_config: Mapping[str, str]) -> Mapping[str, str]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        bench.run(writes.change_config(TOPIC, "topics/t", refuse))
    assert bench.row(TOPIC) is None


def test_old_notices_are_deleted_and_one_that_is_gone_is_no_error(bench: Bench, writes: BrokerDataWrites) -> None:
    for name in ("config_change_0000000001", "config_change_0000000003"):
        bench.create(f"{paths.CONFIG_CHANGES}/{name}")
    bench.run(writes.remove_config_changes(["config_change_0000000001", "config_change_0000000002"]))
    assert bench.row(f"{paths.CONFIG_CHANGES}/config_change_0000000001") is None
    assert bench.row(f"{paths.CONFIG_CHANGES}/config_change_0000000003") is not None
