"""Containers killed, paused, stopped and cut off: leaders are elected, another controller takes over, what was cut off
stops by itself, and what comes back is an ordinary member."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest

from controller.zookeeper.embedded import four_letter_word
from tests.docker.checks import (
    State,
    acts_as_controller,
    controller_of,
    election,
    live_brokers,
    partitions_of,
    resignation,
    written_by_another_epoch,
)
from tests.docker.containers.cluster import BROKERS, SESSION_MS, ZOOKEEPERS, Cluster, CommandFailed, until_right
from tests.programs import needs_programs

pytestmark = [needs_programs, pytest.mark.timeout(300)]

CLUSTER, ZOOKEEPER = "cluster", "zookeeper"


def others(broker: int) -> list[int]:
    return [other for other in BROKERS if other != broker]


def a_follower_of_the_controller(state: State) -> int:
    """A broker that is not the controller."""
    return others(controller_of(state))[0]


def led_by(state: State, topic: str, broker: int) -> set[tuple[str, int]]:
    return {key for key, view in partitions_of(state, topic).items() if view.leader == broker}


def in_another_life(cluster: Cluster, broker: int, epoch_before: int) -> State:
    """Waits until the broker is registered with another epoch than before; what ZooKeeper shows then."""
    return cluster.await_state(
        f"broker {broker} registered with an epoch other than {epoch_before}",
        lambda state: live_brokers(state).get(broker, epoch_before) != epoch_before,
    )


def assert_moved(before: State, after: State, topic: str, broker: int) -> None:
    """Each partition that the broker led has another leader, chosen in a later leader epoch."""
    lost = led_by(before, topic, broker)
    assert lost, "the broker led nothing, so its loss shows nothing"
    was, now = partitions_of(before, topic), partitions_of(after, topic)
    for key in lost:
        assert now[key].leader not in (broker, -1)
        assert now[key].leader_epoch > was[key].leader_epoch


@pytest.mark.parametrize("controller", [False, True], ids=["a broker", "the controller"])
def test_what_a_killed_broker_led_is_led_by_others(cluster: Cluster, topic: str, controller: bool) -> None:
    before = cluster.state()
    broker = controller_of(before) if controller else a_follower_of_the_controller(before)
    cluster.kill(f"broker-{broker}")
    after = cluster.await_settled(topic, others(broker))
    assert_moved(before, after, topic, broker)
    assert after["controller_epoch"] == before["controller_epoch"] + controller
    cluster.start(f"broker-{broker}")
    in_another_life(cluster, broker, live_brokers(before)[broker])
    cluster.await_settled(topic)


def test_a_stopped_broker_hands_its_leaderships_over_before_it_ends(cluster: Cluster, topic: str) -> None:
    before = cluster.state()
    broker = a_follower_of_the_controller(before)
    assert cluster.stop(f"broker-{broker}") == 0
    after = cluster.state()  # at once: nothing is left to wait for
    assert_moved(before, after, topic, broker)
    assert after["controller_epoch"] == before["controller_epoch"]
    cluster.await_settled(topic, others(broker))


def test_a_controller_paused_beyond_its_session_wakes_as_a_plain_broker(cluster: Cluster, topic: str) -> None:
    before = cluster.state()
    zombie, epoch = controller_of(before), before["controller_epoch"]
    cluster.pause(f"broker-{zombie}")
    successor = cluster.await_settled(topic, others(zombie))
    assert successor["controller_epoch"] == epoch + 1
    assert_moved(before, successor, topic, zombie)

    woken_at_ms = time.monotonic() * 1_000
    cluster.unpause(f"broker-{zombie}")
    in_another_life(cluster, zombie, live_brokers(before)[zombie])
    after = cluster.await_settled(topic)
    assert (controller_of(after), after["controller_epoch"]) == (controller_of(successor), epoch + 1)
    assert written_by_another_epoch(successor, after, topic, epoch + 1) == []

    # It serves as any broker does: a new topic's replicas are placed on it, and it leads some.
    later = cluster.create(f"{topic}-later")
    assert led_by(later, f"{topic}-later", zombie)
    records = cluster.trace(zombie)
    assert acts_as_controller(records, woken_at_ms) == []
    resigned = resignation(records, epoch)
    assert resigned is not None
    assert resigned.at_ms > woken_at_ms


@pytest.mark.parametrize("networks", [(ZOOKEEPER,), (ZOOKEEPER, CLUSTER)], ids=["from ZooKeeper", "from everything"])
@pytest.mark.parametrize("controller", [False, True], ids=["a broker", "the controller"])
def test_a_broker_that_is_cut_off_is_replaced_and_rejoins(
    cluster: Cluster, topic: str, controller: bool, networks: Sequence[str]
) -> None:
    before = cluster.state()
    broker = controller_of(before) if controller else a_follower_of_the_controller(before)
    epoch = before["controller_epoch"]
    cut_at_ms = time.monotonic() * 1_000
    for network in networks:
        cluster.cut(f"broker-{broker}", network)
    after = cluster.await_settled(topic, others(broker))
    assert_moved(before, after, topic, broker)
    assert after["controller_epoch"] == epoch + controller
    if controller:
        assert_stepped_down_by_itself(cluster, broker, controller_of(after), epoch, cut_at_ms)

    for network in networks:
        cluster.join(f"broker-{broker}", network)
    in_another_life(cluster, broker, live_brokers(before)[broker])
    back = cluster.await_settled(topic)
    assert back["controller_epoch"] == epoch + controller


def assert_stepped_down_by_itself(cluster: Cluster, old: int, new: int, epoch: int, cut_at_ms: float) -> None:
    """Still cut off, it has resigned and done nothing since, and that before another could be elected."""
    records = cluster.trace(old)
    resigned, elected = resignation(records, epoch), election(cluster.trace(new), epoch + 1)
    assert resigned is not None
    assert elected is not None
    assert cut_at_ms < resigned.at_ms < min(elected.at_ms, cut_at_ms + SESSION_MS)
    assert acts_as_controller(records, resigned.at_ms) == []


def test_the_cluster_goes_on_without_the_zookeeper_server_that_led(cluster: Cluster, topic: str) -> None:
    leader = zookeeper_leader(cluster)
    cluster.kill(f"zookeeper-{leader}")
    cluster.create(f"{topic}-meanwhile")
    cluster.await_settled(topic)
    assert zookeeper_leader(cluster) != leader

    cluster.start(f"zookeeper-{leader}")
    until_right(lambda: [f"modes: {modes}"] if (modes := zookeeper_modes(cluster)).get(leader) != "follower" else [])


def zookeeper_modes(cluster: Cluster) -> dict[int, str]:
    """What each server that is part of a quorum says that it is."""
    found: dict[int, str] = {}
    for server in ZOOKEEPERS:
        try:
            answer = four_letter_word(cluster.port(f"zookeeper-{server}", 2181), "srvr", 5.0)
        except CommandFailed:
            continue  # it does not run, so it is none
        mode = re.search(r"^Mode: (\w+)", answer, re.MULTILINE)
        if mode is not None:
            found[server] = mode[1]
    return found


def zookeeper_leader(cluster: Cluster) -> int:
    """Waits until a server says that it leads."""
    found: list[int] = []

    def look() -> list[str]:
        modes = zookeeper_modes(cluster)
        found[:] = [server for server, mode in modes.items() if mode == "leader"]
        return [] if found else [f"no leader: {modes}"]

    until_right(look)
    return found[0]
