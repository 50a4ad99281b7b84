"""Unclean election: only where it is allowed, decided at the moment of the election, and said."""

from __future__ import annotations

import pytest

from controller.core.events import TopicConfigChange, UncleanLeaderElectionEnabled
from controller.core.leadership import ControllerSettings
from controller.trace import PartitionStateWritten
from controller.zookeeper import paths
from controller.zookeeper.codecs import ConfigZnode, encode_config
from controller.zookeeper.operations import Create
from tests.core.driving import Cluster, Host

UNCLEAN = "unclean.leader.election.enable"
NAME = UNCLEAN.replace(".", "_")


def scene(setting: bool, **configs: str | None) -> tuple[Cluster, Host]:
    """t-0 has nobody live in its ISR, and 3 and 1 live outside it. `configs`: topic, broker and cluster say so."""
    cluster = Cluster()
    cluster.topic("t", {0: (2, 3, 1)})
    cluster.state("t", 0, 2, (2,), 5)
    said = {"topic": paths.config_topic("t"), "broker": paths.config_broker(1), "cluster": paths.CONFIG_BROKER_DEFAULT}
    for level, value in configs.items():
        if value is not None:
            cluster.put(said[level], encode_config(ConfigZnode({UNCLEAN: value})))
    cluster.register(3)
    return cluster, cluster.host(1, ControllerSettings(unclean_leader_election=setting))


@pytest.mark.parametrize(
    ("setting", "topic", "broker", "cluster_wide", "allowed"),
    [
        (False, None, None, None, False),
        (True, None, None, None, True),
        (False, "true", None, None, True),
        (True, "false", None, None, False),
        (False, None, "true", None, True),
        (False, None, None, "true", True),
        (True, None, "false", "true", False),
        (False, "true", "false", "false", True),
        (True, None, None, "false", False),
    ],
)
def test_the_topic_decides_then_the_broker_then_the_cluster_then_the_setting(
    setting: bool, topic: str | None, broker: str | None, cluster_wide: str | None, allowed: bool
) -> None:
    cluster, host = scene(setting, topic=topic, broker=broker, cluster=cluster_wide)
    assert cluster.states()["t-0"] == ((3, 7, (3,), 2) if allowed else (-1, 6, (2,), 1))
    last = host.trace.of(PartitionStateWritten)[-1]
    assert (last.why, last.unclean) == (("offline", True) if allowed else ("replica offline", False))
    cluster.check()


def test_a_config_that_cant_be_read_loses_no_records() -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (2, 1)})
    cluster.state("t", 0, 2, (2,))
    cluster.put(paths.config_topic("t"), b"{")
    host = cluster.host(1, ControllerSettings(unclean_leader_election=True))
    assert cluster.states()["t-0"][0] == -1
    assert any(paths.config_topic("t") in note for note in host.notes("error"))


def test_a_clean_election_is_never_unclean() -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (2, 3, 1)})
    cluster.state("t", 0, 2, (2, 1))
    cluster.register(3)
    host = cluster.host(1, ControllerSettings(unclean_leader_election=True))
    assert cluster.states()["t-0"] == (1, 2, (1,), 2)
    assert not any(event.unclean for event in host.trace.of(PartitionStateWritten))


@pytest.mark.parametrize("how", ["notification", "topic event", "cluster event"])
def test_what_waits_is_tried_when_a_config_changes(how: str) -> None:
    cluster, host = scene(False)
    assert cluster.states()["t-0"][0] == -1
    cluster.topic_config("t", **{NAME: "true"})
    cluster.settle()
    assert cluster.states()["t-0"][0] == -1
    if how == "notification":
        data = b'{"version":2,"entity_path":"topics/t"}'
        cluster.write(Create(f"{paths.CONFIG_CHANGES}/config_change_", data, sequential=True))
    elif how == "topic event":
        host.events.put(UncleanLeaderElectionEnabled("t"))
    else:
        host.events.put(TopicConfigChange(None))
    cluster.settle()
    assert cluster.states()["t-0"] == (3, 7, (3,), 2)
    cluster.check()


def test_another_topics_event_tries_nothing_of_this_one() -> None:
    cluster, host = scene(False)
    cluster.topic_config("t", **{NAME: "true"})
    host.events.put(UncleanLeaderElectionEnabled("other"))
    cluster.settle()
    assert cluster.states()["t-0"][0] == -1
