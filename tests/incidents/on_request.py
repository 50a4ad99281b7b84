"""What a controller is about when it is interrupted, at an operator's word or a disk's: leaders moved on purpose, a
config that lets a partition be led, a log directory that fails, a feature that is taken out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.core.events import (
    ElectionKind,
    ElectLeadersRequested,
    UncleanLeaderElectionEnabled,
    UpdateFeaturesRequested,
)
from controller.core.leadership import ControllerSettings
from controller.protocol.admin import FeatureUpdate, UpdateFeaturesRequest
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import FeatureZnode, LogDirEvent, decode_feature, encode_feature, encode_log_dir_event
from controller.zookeeper.operations import Create
from tests.core.driving import Cluster, Host
from tests.core.test_log_directories import NOTICE, Disks
from tests.incidents.interruption import Operation
from tests.incidents.operations import nothing

QUIET = ControllerSettings(auto_leader_rebalance=False)


def two_controllers(cluster: Cluster) -> Host:
    """The second is what `standby` looks for."""
    host = cluster.host(1, QUIET)
    cluster.host(5, QUIET)
    return host


# -- elections


def off_its_preferred_leader() -> tuple[Cluster, Host]:
    cluster = Cluster()
    cluster.topic("t", {0: (2, 3, 4)})
    cluster.state("t", 0, 3, (2, 3, 4), 3)
    cluster.register(2, 3, 4)
    return cluster, two_controllers(cluster)


def without_its_isr() -> tuple[Cluster, Host]:
    """4 is dead, and was alone in it."""
    cluster = Cluster()
    cluster.topic("t", {0: (4, 3)})
    cluster.state("t", 0, 4, (4,), 3)
    cluster.register(2, 3)
    return cluster, two_controllers(cluster)


def put_election(host: Host, kind: ElectionKind) -> list[Any]:
    answers: list[Any] = []
    host.events.put(ElectLeadersRequested(kind, (("t", 0),), answers.append))
    return answers


def asks_for(kind: ElectionKind) -> Callable[[Cluster, Host], list[Any]]:
    return lambda _cluster, host: put_election(host, kind)


def asks_again_for(kind: ElectionKind) -> Callable[[Cluster], None]:
    def again(cluster: Cluster) -> None:
        answers = put_election(cluster.leader(), kind)
        cluster.settle()
        ((outcome,),) = [answer.values() for answer in answers]
        assert outcome.error in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED), outcome

    return again


def led_by(leader: int, *isr: int) -> Callable[[Cluster], None]:
    def check(cluster: Cluster) -> None:
        found, _, members, _ = cluster.states()["t-0"]
        assert (found, members) == (leader, isr)
        cluster.check()

    return check


PREFERRED = Operation(
    "preferred election",
    off_its_preferred_leader,
    asks_for(ElectionKind.PREFERRED),
    asks_again_for(ElectionKind.PREFERRED),
    led_by(2, 2, 3, 4),
)
UNCLEAN = Operation(
    "unclean election",
    without_its_isr,
    asks_for(ElectionKind.UNCLEAN),
    asks_again_for(ElectionKind.UNCLEAN),
    led_by(3, 3),
)


def allows_it(cluster: Cluster, host: Host) -> None:
    """Nobody waits: a controller that comes later reads the config itself."""
    cluster.topic_config("t", unclean_leader_election_enable="true")
    host.events.put(UncleanLeaderElectionEnabled("t"))


CONFIG = Operation("config change", without_its_isr, allows_it, nothing, led_by(3, 3))


# -- a log directory fails


def on_two_disks() -> tuple[Cluster, Host]:
    cluster = Cluster()
    cluster.register(2, 3)
    host = two_controllers(cluster)
    for one in cluster.hosts:
        Disks(one).failed = {(2, "t", 0)} if one.broker_id == 5 else set()
    cluster.topic("t", {0: (2, 3), 1: (2, 3)})
    cluster.settle()
    return cluster, host


def fails(cluster: Cluster, host: Host) -> None:
    Disks(host).failed = {(2, "t", 0)}
    cluster._admin.multi([Create(NOTICE, encode_log_dir_event(LogDirEvent(2)), sequential=True)])


def assert_lost_there_alone(cluster: Cluster) -> None:
    assert {name: (state[0], state[2]) for name, state in cluster.states().items()} == {
        "t-0": (3, (3,)),
        "t-1": (2, (2, 3)),
    }
    assert cluster.server.children(paths.LOG_DIR_EVENT_NOTIFICATION) == ()
    cluster.check()


DIRECTORY = Operation("log directory failure", on_two_disks, fails, nothing, assert_lost_there_alone)


# -- a feature


def finalized() -> tuple[Cluster, Host]:
    cluster = Cluster()
    levels = {"f": {"min_version_level": 1, "max_version_level": 3}}
    cluster.put(paths.FEATURE, encode_feature(FeatureZnode(features=levels)))
    return cluster, two_controllers(cluster)


def put_update(host: Host) -> list[Any]:
    answers: list[Any] = []
    request = UpdateFeaturesRequest((FeatureUpdate("f", 0, allow_downgrade=True),))
    host.events.put(UpdateFeaturesRequested(request, answers.append))
    return answers


def takes_it_out(cluster: Cluster, host: Host) -> list[Any]:
    return put_update(host)


def takes_it_out_again(cluster: Cluster) -> None:
    answers = put_update(cluster.leader())
    cluster.settle()
    (answer,) = answers
    assert answer.results[0].error_code in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST), answer


def assert_taken_out(cluster: Cluster) -> None:
    row = cluster.server.row(paths.FEATURE)
    assert row is not None
    assert decode_feature(row.path, row.data).features == {}
    cluster.check()


FEATURE = Operation("feature update", finalized, takes_it_out, takes_it_out_again, assert_taken_out)

ON_REQUEST = (PREFERRED, UNCLEAN, CONFIG, DIRECTORY, FEATURE)
