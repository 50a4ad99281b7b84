"""Several brokers take blocks and change one config at once while connections break, replies are lost and sessions end:
no block is given twice, no change is made twice or lost. What is planted into the writes is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from controller.clock import Future, spawn
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import PRODUCER_IDS_A_BLOCK, BrokerDataWrites
from controller.zookeeper.codecs import decode_config
from controller.zookeeper.operations import SessionGone, SetData
from tests.zookeeper.client_bench import Bench, Node

SEEDS = 40
BROKERS, ROUNDS = 3, 8
PATH = paths.config_topic("t")
MODULE = "controller.zookeeper.broker_writes"


def setting(name: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    return lambda config: {**config, name: "set"}


def strike(rng: random.Random, bench: Bench, node: Node) -> None:
    fault = rng.randrange(8)
    if fault == 0:
        node.connection.reset()
    elif fault == 1:
        node.connection.lose_reply(applied=True)
    elif fault == 2:
        node.connection.lose_reply(applied=False)
    elif fault == 3:
        with suppress(KeyError):  # it has ended, and its client has not heard of it yet
            bench.server.expire(node.client.session())


def play(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench()
    nodes = [bench.node(latency=lambda: rng.uniform(0.5, 5.0)) for _ in range(BROKERS)]
    writes = [BrokerDataWrites(node.client) for node in nodes]
    bench.run(writes[0].ensure_persistent_paths())
    blocks: list[Future[Any]] = []
    changes: dict[str, Future[Any]] = {}
    for turn in range(ROUNDS):
        for number in rng.sample(range(BROKERS), BROKERS):
            bench.until(lambda number=number: nodes[number].client.session() != 0)
            blocks.append(spawn(writes[number].next_producer_id_block(number)))
            name = f"{turn}.{number}"
            changes[name] = spawn(writes[number].change_config(PATH, "topics/t", setting(name)))
            bench.settle(rng.choice((rng.uniform(0.0, 10.0), 3_000.0)))
            strike(rng, bench, nodes[number])
    for pending in (*blocks, *changes.values()):
        bench.until(lambda pending=pending: pending.done)
    check(bench, blocks, changes)


def check(bench: Bench, blocks: list[Future[Any]], changes: Mapping[str, Future[Any]]) -> None:
    for pending in (*blocks, *changes.values()):
        assert pending.error is None or isinstance(pending.error, SessionGone), repr(pending.error)
    starts = [pending.result().block_start for pending in blocks if pending.error is None]
    assert len(set(starts)) == len(starts), f"given twice: {sorted(starts)}"
    assert all(start % PRODUCER_IDS_A_BLOCK == 0 for start in starts)
    row = bench.row(PATH)
    assert row is not None, "not one change was made: the faults are too many"
    there = set(decode_config(PATH, row.data).config)
    made = {name for name, pending in changes.items() if pending.error is None}
    assert made <= there, f"lost: {made - there}"
    notices = sum(one.path.startswith(f"{paths.CONFIG_CHANGES}/") for one in bench.server.rows())
    assert notices == row.stat.version + 1 == len(there), "each change was made once, with its notice"


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_blocks_are_given_once_and_changes_made_once(first: int) -> None:
    for seed in range(first, first + 10):
        play(seed)


def versionless(path: str, data: bytes | None, version: int) -> SetData:
    return SetData(path, data, -1)


def test_a_write_at_any_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.SetData", versionless)
    assert found_by_a_seed()


def test_a_lost_reply_that_is_not_looked_after_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what is there is never taken for one's own, so that a change whose reply was lost is made again."""
    monkeypatch.setattr(f"{MODULE}.UnknownOutcome", KeyError)
    assert found_by_a_seed()


def found_by_a_seed() -> bool:
    for seed in range(SEEDS):
        try:
            play(seed)
        except AssertionError:
            return True
    return False
