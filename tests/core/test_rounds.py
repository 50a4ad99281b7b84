"""How often a write is tried again whose znode somebody else has just written, and what is said after the last time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from controller.core.events import PreferredElectionAsked
from controller.core.leadership import ControllerSettings
from controller.protocol.admin import FeatureUpdate
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    FeatureZnode,
    PreferredElection,
    encode_feature,
    encode_preferred_election,
)
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SetData, Write
from statemachines.reassignment import Assignment
from tests.core.driving import Cluster, Host
from tests.core.reassigning import ask, ask_by_znode, asked, assignment, in_sync, put_request, two_of_three
from tests.core.test_cluster_requests import featured, finalized, update

STATE = paths.partition_state("t", 0)


def disturb(cluster: Cluster, host: Host, path: str, times: int) -> list[str]:
    """Somebody writes the znode just before each of the host's first so many writes of it. What is left is returned."""
    multi, left = host.connection.multi, [path] * times

    def disturbed(operations: Sequence[Write]) -> Any:
        if left and any(one.path == path and isinstance(one, SetData | Delete) for one in operations):
            row = cluster.server.row(left.pop())
            assert row is not None
            cluster._admin.multi([SetData(path, row.data, ANY_VERSION)])
        return multi(operations)

    host.connection.multi = disturbed  # type: ignore[method-assign]
    return left


@dataclass(frozen=True, slots=True)
class Case:
    """`begin` makes the controller write `path`; `said` is in the log if `most` attempts were not enough."""

    path: str
    begin: Callable[[Cluster, Host], object]
    most: int
    said: str


def features(cluster: Cluster, host: Host) -> None:
    """Below inter-broker protocol 2.7 they are disabled by the failover."""
    host.controller.resign("a test")
    host.events.put(PreferredElectionAsked())
    cluster.put(paths.FEATURE, encode_feature(FeatureZnode(status=1)))
    cluster.write(Delete(paths.CONTROLLER, ANY_VERSION))


def elects(cluster: Cluster, host: Host) -> None:
    data = encode_preferred_election(PreferredElection((("t", 0),)))
    cluster.write(Create(paths.PREFERRED_ELECTION, data))


CASES = {
    "features": Case(paths.FEATURE, features, 10, "/feature changed under 10 looks and is left as it is"),
    "a preferred election": Case(
        paths.PREFERRED_ELECTION,
        elects,
        10,
        "/admin/preferred_replica_election changed under 10 looks and is left as it is",
    ),
    "a request in vain is taken out": Case(
        paths.REASSIGN_PARTITIONS,
        lambda cluster, _: ask_by_znode(cluster, {9: (2,)}),
        10,
        "/admin/reassign_partitions changed under 10 looks and is left as it is",
    ),
    "an assignment": Case(
        paths.topic("t"),
        lambda cluster, host: ask(cluster, host, {0: (2, 1, 4)}),
        10,
        "assignments changed under 10 looks: 1 partitions are not reassigned",
    ),
    "a leader epoch": Case(
        STATE,
        lambda cluster, host: put_request(host, {0: (2, 3, 1, 4)}),
        5,
        "the state moved 5 times under its leader epoch",
    ),
    "an ISR": Case(STATE, lambda cluster, _: cluster.unregister(3), 5, "the ISR moved 5 times under its change"),
    "an election": Case(STATE, lambda cluster, _: cluster.unregister(2), 5, "no leader elected (offline): t-0"),
}


@pytest.mark.parametrize("enough", [True, False])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_so_many_attempts_and_then_it_is_said(case: Case, enough: bool) -> None:
    cluster = Cluster()
    cluster.register(2, 3, 4)
    cluster.topic("t", {0: (2, 3, 1)})
    settings = ControllerSettings(inter_broker_protocol="2.6") if case.path == paths.FEATURE else None
    host = cluster.host(1, settings)
    left = disturb(cluster, host, case.path, case.most - enough)
    case.begin(cluster, host)
    cluster.settle()
    cluster.pass_ms(2_000)
    assert left == []
    said = [note for note in (*host.notes("error"), *host.notes("warning")) if case.said in note]
    assert len(said) == (not enough), said
    assert host.failures() == []
    assert host.controller.active


@pytest.mark.parametrize("enough", [True, False])
def test_features_that_could_not_be_written_say_so_and_those_that_were_refused_say_why(enough: bool) -> None:
    cluster, host = featured(1, 2)
    before = finalized(cluster)
    left = disturb(cluster, host, paths.FEATURE, 10 - enough)
    answer = update(cluster, host, FeatureUpdate("f", 5), FeatureUpdate("g", 5))
    assert left == []
    assert answer.error_code == ErrorCode.NONE
    first, second = answer.results
    assert (second.feature, second.error_code) == ("g", ErrorCode.INVALID_REQUEST)
    assert second.error_message == "feature g is not supported by any broker"
    if enough:
        assert (first.feature, first.error_code, first.error_message) == ("f", ErrorCode.NONE, None)
        assert finalized(cluster) != before
    else:
        assert (first.feature, first.error_code) == ("f", ErrorCode.FEATURE_UPDATE_FAILED)
        assert first.error_message == "/feature changed under 10 looks and is left as it is"
        assert finalized(cluster) == before
    assert len([note for note in host.notes("error") if "features not updated: " in note]) == (not enough)


def test_a_request_that_takes_over_is_withdrawn_again_where_its_znode_moved() -> None:
    cluster, host = two_of_three()
    ask_by_znode(cluster, {0: (3, 4)})
    left = disturb(cluster, host, paths.REASSIGN_PARTITIONS, 2)
    assert ask(cluster, host, {0: (3, 1)}) == {0: 0}
    assert left == []
    assert asked(cluster) is None
    cluster.check()


def test_replicas_that_are_only_added_are_a_reassignment_too() -> None:
    cluster, host = two_of_three()
    ask(cluster, host, {0: (2, 3, 4)})
    assert assignment(cluster, 0) == Assignment((2, 3, 4), (4,))
    in_sync(cluster, host, 0, 2, 3, 4)
    assert assignment(cluster, 0) == Assignment((2, 3, 4))
    cluster.check()
