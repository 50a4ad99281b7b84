"""A broker that asks to go keeps what it would leave under min.insync.replicas, unless it is forced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from controller.core import shutdown_safety
from controller.core.events import ControlledShutdownRequested
from controller.core.leadership import ControllerSettings
from controller.core.shutdown_safety import falls_short
from controller.protocol.control import AlterIsrPartition, ControlledShutdownResponse
from controller.zookeeper import paths
from controller.zookeeper.codecs import ConfigZnode, encode_config
from controller.zookeeper.operations import ANY_VERSION, Delete
from tests.core.driving import Cluster, Host
from tests.core.test_controlled_shutdown import ask
from tests.core.test_isr_changes import ask as alter_isr
from tests.core.test_isr_changes import broker_epoch

GOING = 2
NEEDS_TWO = {"min.insync.replicas": "2"}


@dataclass(frozen=True, slots=True)
class Case:
    """t-0 with these replicas and this ISR, led by the ISR's first; `remains`: what keeps broker 2, in words."""

    assignment: tuple[int, ...]
    isr: tuple[int, ...]
    topic: Mapping[str, str] | None = None
    broker: Mapping[str, str] | None = None
    cluster: Mapping[str, str] | None = None
    setting: int = 1
    remains: str = ""


SHORT = "1 partition would be left under min.insync.replicas: t-0 ({})"
CASES = {
    "three of which two have to be in sync": Case((2, 1, 3), (2, 1, 3), NEEDS_TWO),
    "one of the three is behind": Case((2, 1, 3), (2, 1), NEEDS_TWO, remains=SHORT.format("1 of 2")),
    "it follows": Case((1, 2, 3), (1, 2), NEEDS_TWO, remains=SHORT.format("1 of 2")),
    "it is not in sync itself": Case((1, 2, 3), (1, 3), NEEDS_TWO),
    "two replicas that both have to be in sync": Case((2, 1), (2, 1), NEEDS_TWO, remains=SHORT.format("1 of 2")),
    "nobody else is in sync": Case((2, 1), (2,), remains=SHORT.format("0 of 1")),
    "its only replica goes with it": Case((2,), (2,)),
    "more than there are replicas is out of reach": Case((2, 1), (2, 1), {"min.insync.replicas": "3"}),
    "a dead member is not counted on": Case((2, 1, 9), (2, 1, 9), NEEDS_TWO, remains=SHORT.format("1 of 2")),
    "the broker's setting": Case((2, 1), (2, 1), setting=2, remains=SHORT.format("1 of 2")),
    "the cluster's config before the setting": Case((2, 1), (2, 1), cluster=NEEDS_TWO, remains=SHORT.format("1 of 2")),
    "the broker's config before the cluster's": Case(
        (2, 1), (2, 1), broker={"min.insync.replicas": "1"}, cluster=NEEDS_TWO
    ),
    "the topic's before all": Case(
        (2, 1), (2, 1), {"min.insync.replicas": "1"}, broker=NEEDS_TWO, cluster=NEEDS_TWO, setting=2
    ),
    "a value that is none is passed over": Case(
        (2, 1), (2, 1), {"min.insync.replicas": "two"}, setting=2, remains=SHORT.format("1 of 2")
    ),
}


def scene(case: Case, settings: ControllerSettings | None = None) -> tuple[Cluster, Host]:
    cluster = Cluster()
    cluster.topic("t", {0: case.assignment})
    cluster.state("t", 0, case.isr[0], case.isr)
    for path, config in (
        (paths.config_topic("t"), case.topic),
        (paths.config_broker(1), case.broker),
        (paths.CONFIG_BROKER_DEFAULT, case.cluster),
    ):
        if config is not None:
            cluster.put(path, encode_config(ConfigZnode(config)))
    cluster.register(2, 3)
    return cluster, cluster.host(1, settings or ControllerSettings(min_insync_replicas=case.setting))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_would_be_left_under_min_insync_replicas_stays(case: Case) -> None:
    cluster, host = scene(case)
    before, mark = cluster.states(), len(host.sent)
    answer = ask(cluster, host, GOING, broker_epoch(cluster, GOING))
    assert answer.reason == case.remains
    assert [f"{one.topic_name}-{one.partition_index}" for one in answer.remaining_partitions] == (
        ["t-0"] if case.remains else []
    )
    if case.remains:
        assert cluster.states() == before
        assert host.sent[mark:] == [], "nobody is told to stop, or to lead"
        assert host.notes("warning")[-1].endswith(f"broker 2 may not go yet: {case.remains}")
    cluster.check()


def test_each_partition_is_judged_by_its_own_replicas() -> None:
    """t could have three in sync, u never."""
    cluster = Cluster()
    for topic, assignment, isr in (("t", (2, 1, 3), (2, 1)), ("u", (2, 1), (2, 1))):
        cluster.topic(topic, {0: assignment})
        cluster.state(topic, 0, 2, isr)
    cluster.register(2, 3)
    host = cluster.host(1, ControllerSettings(min_insync_replicas=3))
    answer = ask(cluster, host, GOING, broker_epoch(cluster, GOING))
    assert [one.topic_name for one in answer.remaining_partitions] == ["t"]
    assert cluster.states()["u-0"][0] == 1
    cluster.check()


HELD = CASES["one of the three is behind"]


def force(cluster: Cluster, host: Host) -> ControlledShutdownResponse:
    answers: list[ControlledShutdownResponse] = []
    host.events.put(ControlledShutdownRequested(GOING, broker_epoch(cluster, GOING), answers.append, forced=True))
    cluster.settle()
    (answer,) = answers
    return answer


def test_by_force_it_goes_as_kafkas_would() -> None:
    cluster, host = scene(HELD)
    assert ask(cluster, host, GOING, broker_epoch(cluster, GOING)).remaining_partitions
    assert force(cluster, host) == ControlledShutdownResponse(0)
    assert cluster.states() == {"t-0": (1, 1, (1,), 1)}


def test_a_controller_that_is_told_not_to_check_asks_nothing_of_anybody() -> None:
    cluster, host = scene(HELD, ControllerSettings(shutdown_check=False))
    assert ask(cluster, host, GOING, broker_epoch(cluster, GOING)) == ControlledShutdownResponse(0)
    assert cluster.states() == {"t-0": (1, 1, (1,), 1)}


def test_it_may_go_once_another_replica_is_in_sync() -> None:
    cluster, host = scene(HELD)
    assert ask(cluster, host, GOING, broker_epoch(cluster, GOING)).remaining_partitions
    caught_up = alter_isr(cluster, host, GOING, "t", AlterIsrPartition(0, 0, (2, 1, 3), 0))
    assert caught_up.topics[0].partitions[0].error_code == 0
    assert ask(cluster, host, GOING, broker_epoch(cluster, GOING)) == ControlledShutdownResponse(0)
    assert cluster.states() == {"t-0": (1, 1, (1, 3), 2)}


def test_an_isr_that_its_leader_changed_in_zookeeper_counts_before_any_notification() -> None:
    """Leaders of Kafka below inter-broker protocol 2.7 notify the controller up to 5 s later."""
    cluster, host = scene(HELD)
    cluster.state("t", 0, GOING, (2, 1, 3))
    assert ask(cluster, host, GOING, broker_epoch(cluster, GOING)) == ControlledShutdownResponse(0)
    assert cluster.states() == {"t-0": (1, 1, (1, 3), 2)}
    cluster.check()


def test_a_state_that_is_gone_when_it_is_read_again_holds_nobody_back() -> None:
    cluster, host = scene(HELD)
    cluster.write(Delete(paths.partition_state("t", 0), ANY_VERSION))
    assert ask(cluster, host, GOING, broker_epoch(cluster, GOING)) == ControlledShutdownResponse(0)
    assert not host.failures()


def test_of_two_that_want_to_go_the_second_is_held_back() -> None:
    cluster, host = scene(CASES["three of which two have to be in sync"])
    assert ask(cluster, host, GOING, broker_epoch(cluster, GOING)).remaining_partitions == ()
    assert ask(cluster, host, 3, broker_epoch(cluster, 3)).reason == SHORT.format("1 of 2")
    cluster.check()


def test_what_can_be_spared_is_moved_beside_what_is_held_and_a_reason_names_a_few() -> None:
    cluster = Cluster()
    cluster.topic("a", dict.fromkeys(range(9), (2, 1)))
    cluster.topic("b", {0: (2, 1)})
    cluster.topic_config("a", min_insync_replicas="2")
    cluster.register(2)
    host = cluster.host(1)
    answer = ask(cluster, host, GOING, broker_epoch(cluster, GOING))
    assert len(answer.remaining_partitions) == 9
    assert answer.reason.startswith("9 partitions would be left under min.insync.replicas: a-0 (1 of 2), ")
    assert answer.reason.endswith("a-4 (1 of 2) and 4 more")
    states = cluster.states()
    assert {name: state[0] for name, state in states.items()} == {f"a-{n}": 2 for n in range(9)} | {"b-0": 1}


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("falls_short", lambda left, least, _replicas: left < 0 * least),
        ("falls_short", lambda left, least, _replicas: left < least),
        ("falls_short", lambda left, least, replicas: (left + 1 < least) & (replicas > 1)),
    ],
    ids=["never", "whatever there is", "as if it were still there"],
)
def test_a_rule_that_is_wrong_is_seen_by_the_table(name: str, planted: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown_safety, name, planted)
    seen = 0
    for case in CASES.values():
        cluster, host = scene(case)
        seen += ask(cluster, host, GOING, broker_epoch(cluster, GOING)).reason != case.remains
    assert seen


def test_the_rule_by_column() -> None:
    left, least, replicas = np.array([[2, 2, 3], [1, 2, 3], [0, 1, 1], [1, 3, 2]], dtype=np.int32).T
    assert falls_short(left, least, replicas).tolist() == [False, True, False, False]
