"""Our calls of `sync` matter: without them a simulated cluster whose ZooKeeper servers lag violates an invariant."""

from __future__ import annotations

from tests.simulator.lagging_followers import run

SEED, LAG_MS = 10, 400.0
"""Found by `python -m tests.simulator.lagging_followers --without broker-looks`."""


def test_a_broker_that_looks_without_sync_overwrites_the_state_of_a_recreated_topic() -> None:
    assert run(SEED, LAG_MS).violation is None
    found = run(SEED, LAG_MS, without="broker-looks").violation
    assert found is not None
    assert found.invariant == "one-writer-an-epoch"
