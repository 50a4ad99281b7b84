"""What our calls of `sync` are for: what a broker at a ZooKeeper server that lags does without them.

One prevents the violation of an invariant. Others save work: the broker's own server has applied a write that fails
when it answers it, so that the next read is not stale.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TypeVar

import pytest

from controller.clock import Future, VirtualClock, spawn
from controller.core.leadership import Won, elect
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import Create, SetData
from tests.core.test_leadership import NoEvents
from tests.simulator.lagging_followers import run, without_sync

SEED, LAG_MS = 10, 400.0
"""Found by `python -m tests.simulator.lagging_followers --without broker-looks`."""
LONG_MS = 60_000.0
T = TypeVar("T")


class AtAFollower:
    """A client at a server that lags, and the requests that it sends."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = InMemoryZooKeeper(self.clock)
        follower = self.server.add_follower(lambda: LAG_MS)
        self.connection = self.server.connect(latency=lambda: 1.0, follower=follower)
        self.client = ZooKeeperClient(self.connection, self.clock, NoEvents(), seed=1)
        self.wait(self.client.start())

    def wait(self, pending: Future[T]) -> T:
        assert self.clock.run_until(lambda: pending.done, self.clock.now_ms() + LONG_MS)
        return pending.result()


def test_a_broker_that_looks_without_sync_overwrites_the_state_of_a_recreated_topic() -> None:
    assert run(SEED, LAG_MS).violation is None
    found = run(SEED, LAG_MS, without="broker-looks").violation
    assert found is not None
    assert found.invariant == "one-writer-an-epoch"


@pytest.mark.parametrize("synced", [True, False])
def test_an_election_whose_reply_is_lost_raises_the_epoch_once(synced: bool) -> None:
    """Without sync the broker does not see that it has won, and raises the epoch a second time."""
    scene = AtAFollower()
    scene.wait(scene.connection.multi([Create("/controller_epoch", b"0")]))
    scene.connection.lose_reply(applied=True)
    with nullcontext() if synced else without_sync("election-looks"):
        outcome = scene.wait(spawn(elect(scene.client, 1, scene.clock)))
    assert isinstance(outcome, Won)
    assert (outcome.leadership.epoch, outcome.taken_over) == ((1, False) if synced else (2, True))


@pytest.mark.parametrize("synced", [True, False])
def test_a_write_whose_reply_is_lost_is_not_sent_twice(synced: bool) -> None:
    """Without sync it is sent again, is refused for its version, and counts as made: one transaction more."""
    scene = AtAFollower()
    scene.wait(scene.connection.multi([Create("/controller_epoch", b"0"), Create("/a", b"0")]))
    outcome = scene.wait(spawn(elect(scene.client, 1, scene.clock)))
    assert isinstance(outcome, Won)
    zxid = scene.server.zxid
    scene.connection.lose_reply(applied=True)
    with nullcontext() if synced else without_sync("unknown-outcomes"):
        written = scene.wait(spawn(scene.client.commit_rows(outcome.leadership, [SetData("/a", b"1", 0)])))
    assert list(written.versions) == [1]
    assert scene.server.zxid - zxid == (1 if synced else 2)
