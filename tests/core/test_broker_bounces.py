"""A broker that went and came back while no controller looked is treated as one whose bounce was seen."""

from __future__ import annotations

import numpy as np
import pytest

from controller.core.broker_bounces import registered_since
from controller.protocol.codec import ApiKey
from controller.zookeeper import paths
from tests.core.driving import Cluster, Host


@pytest.mark.parametrize(
    ("isr", "mzxid", "epochs", "expected"),
    [
        ((1, 2, -1), 10, {1: 9, 2: 11}, [False, True, False]),
        ((1, 2, -1), 10, {1: 9, 2: 10}, [False, False, False]),
        ((3, 2, 1), 10, {1: 11, 2: 12}, [False, True, True]),
        ((3, -1, -1), 10, {1: 11, 2: 12}, [False, False, False]),
        ((1, -1, -1), 10, {}, [False, False, False]),
    ],
    ids=["one came back", "registered by then", "one is dead", "others came back", "nobody lives"],
)
def test_who_registered_since(isr: tuple[int, ...], mzxid: int, epochs: dict[int, int], expected: list[bool]) -> None:
    brokers = np.array([isr, (1, 2, 3)], dtype=np.int32)
    since = registered_since(brokers, np.array([mzxid, 1 << 40], dtype=np.int64), epochs)
    assert since.tolist() == [expected, [False] * 3]


def bounced(cluster: Cluster, *brokers: int) -> Host:
    """A new controller, on broker 1; these brokers were gone between the last one and it."""
    old = cluster.host(9)
    cluster.settle()
    for name in cluster.states():
        topic, _, partition = name.rpartition("-")
        cluster.server.set_mzxid(paths.partition_state(topic, int(partition)), cluster.server.zxid)
    session = old.client.session()
    old.kill()
    cluster.unregister(*brokers)
    cluster.register(*brokers)
    cluster.server.expire(session)
    host = cluster.host(1)
    cluster.check()
    return host


def test_a_leader_that_came_back_hands_over_to_who_stayed() -> None:
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.topic("t", {0: (2, 3)})
    cluster.state("t", 0, 2, (2, 3), epoch=4)
    host = bounced(cluster, 2)
    leader, epoch, isr, _ = cluster.states()["t-0"]
    assert (leader, isr) == (3, (3,))
    assert epoch > 4
    assert "bounced before this term" in "".join(host.notes("warning"))
    assert host.controller.term is not None
    assert not host.controller.term.context.failed


def test_a_follower_that_came_back_has_to_catch_up() -> None:
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.topic("t", {0: (3, 2)})
    cluster.state("t", 0, 3, (3, 2), epoch=4)
    bounced(cluster, 2)
    assert cluster.states()["t-0"][:3] == (3, 5, (3,))


def test_where_all_came_back_the_isr_stays_and_the_epoch_is_new() -> None:
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.topic("t", {0: (2, 3)})
    cluster.state("t", 0, 2, (2, 3), epoch=4)
    bounced(cluster, 2, 3)
    assert cluster.states()["t-0"][:3] == (2, 5, (2, 3))


def test_who_stayed_and_is_no_replica_counts_for_nobody() -> None:
    """Else the ISR would be a broker that can't be elected, and has deleted what it had."""
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.topic("t", {0: (2,)})
    cluster.state("t", 0, 2, (2, 3), epoch=4)
    bounced(cluster, 2)
    assert cluster.states()["t-0"][:3] == (2, 5, (2,))


def test_who_stayed_is_left_alone() -> None:
    cluster = Cluster()
    cluster.register(2, 3, 4)
    cluster.topic("t", {0: (2, 3)})
    cluster.state("t", 0, 2, (2, 3), epoch=4)
    bounced(cluster, 4)
    assert cluster.states()["t-0"][:3] == (2, 4, (2, 3))


def test_where_the_others_died_who_came_back_leads_in_a_new_epoch() -> None:
    """As where that bounce was seen after the others' deaths."""
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.topic("t", {0: (3, 2)})
    cluster.state("t", 0, 3, (3, 2), epoch=4)
    old = cluster.host(9)
    cluster.server.set_mzxid(paths.partition_state("t", 0), cluster.server.zxid)
    session = old.client.session()
    old.kill()
    cluster.unregister(2, 3)
    cluster.register(2)
    cluster.server.expire(session)
    cluster.host(1)
    leader, epoch, isr, _ = cluster.states()["t-0"]
    assert (leader, isr) == (2, (2,))
    assert epoch > 4
    cluster.check()


@pytest.mark.parametrize("others", [(), (3,)], ids=["alone", "beside a follower that is gone"])
def test_no_broker_is_sent_a_leader_that_came_back_in_the_leader_epoch_from_before(others: tuple[int, ...]) -> None:
    """It leads on as soon as it hears of that, and what it appends then is not what its followers have there."""
    cluster = Cluster()
    cluster.register(2, 4)
    cluster.topic("t", {0: (2, *others)})
    cluster.state("t", 0, 2, (2,), epoch=4)
    host = bounced(cluster, 2)
    sent = [
        state.leader_epoch
        for one in host.sent_after(0, ApiKey.LEADER_AND_ISR)
        for topic in one.value.topic_states
        for state in topic.partition_states
    ]
    assert cluster.states()["t-0"][:3] == (2, 5, (2,))
    assert sent == [5]
