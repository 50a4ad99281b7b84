"""A paused controller elects for failures and moves nothing by choice; what waited is taken up when it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from controller.core.events import AlterReassignmentsRequested, ElectionKind
from controller.core.leadership import ControllerSettings
from controller.protocol.admin import AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import PauseZnode, Reassignments, decode_pause, encode_pause, encode_reassignments
from controller.zookeeper.operations import ANY_VERSION, Create, DamagedZnode, Delete
from tests.core.driving import Cluster, Host
from tests.core.test_elections import ask, put_znode

WHY = "a rack moves"
SOON = ControllerSettings(leader_imbalance_check_interval_seconds=7)


def pause(cluster: Cluster, data: bytes | None = None) -> None:
    cluster.put(paths.CONTROLLER_PAUSE, encode_pause(PauseZnode(WHY, 7)) if data is None else data)
    cluster.settle()


def resume(cluster: Cluster) -> None:
    cluster.write(Delete(paths.CONTROLLER_PAUSE, ANY_VERSION))
    cluster.settle()


def scene(paused: bool = True) -> tuple[Cluster, Host]:
    """t-0 may go back to 2, t-1 is led as it should be; all of 1, 2 and 3 live and answer."""
    cluster = Cluster()
    cluster.topic("t", {0: (2, 1), 1: (1, 2)})
    cluster.state("t", 0, 1, (1, 2), 3)
    cluster.state("t", 1, 1, (1, 2), 3)
    cluster.register(2, 3)
    if paused:
        cluster.put(paths.CONTROLLER_PAUSE, encode_pause(PauseZnode(WHY, 7)))
    host = cluster.new_host(1, SOON)
    host.answering = True
    host.start()
    cluster.settle()
    return cluster, host


def assignment(cluster: Cluster) -> str:
    row = cluster.server.row(paths.topic("t"))
    assert row is not None
    assert row.data is not None
    return row.data.decode()


def test_nothing_goes_back_by_itself() -> None:
    cluster, host = scene()
    cluster.pass_ms(30_000)
    cluster.settle()
    assert cluster.states()["t-0"][0] == 1
    before = host.controller.measures.figures.paused
    resume(cluster)
    assert (before, host.controller.measures.figures.paused) == (True, False)
    cluster.pass_ms(8_000)
    cluster.settle()
    assert cluster.states()["t-0"][0] == 2
    cluster.check()


def test_a_preferred_election_by_request_is_refused_with_the_reason_and_an_unclean_one_is_not() -> None:
    cluster, host = scene()
    assert ask(cluster, host, ElectionKind.PREFERRED, ("t", 0)) == {("t", 0): (ErrorCode.POLICY_VIOLATION, -1)}
    assert ask(cluster, host, ElectionKind.UNCLEAN, ("t", 0)) == {("t", 0): (ErrorCode.ELECTION_NOT_NEEDED, -1)}
    assert cluster.states()["t-0"][0] == 1


@pytest.mark.parametrize("when", ["before the term", "in the term"])
def test_what_the_znodes_ask_for_waits_and_is_taken_up_when_it_goes_on(when: str) -> None:
    cluster, _ = scene(paused=when == "before the term")
    if when == "in the term":
        pause(cluster)
    put_znode(cluster, ("t", 0))
    asked = encode_reassignments(Reassignments({("t", 1): (3, 1)}))
    cluster.write(Create(paths.REASSIGN_PARTITIONS, asked))
    cluster.settle()
    before = assignment(cluster)
    assert cluster.states()["t-0"][0] == 1
    assert cluster.server.row(paths.PREFERRED_ELECTION) is not None
    assert cluster.server.row(paths.REASSIGN_PARTITIONS) is not None
    resume(cluster)
    assert cluster.states()["t-0"][0] == 2
    assert cluster.server.row(paths.PREFERRED_ELECTION) is None
    assert assignment(cluster) != before
    assert '"adding_replicas":{"1":[3]}' in assignment(cluster)


def test_a_reassignment_that_a_client_asks_for_waits_in_zookeeper() -> None:
    cluster, host = scene()
    before = assignment(cluster)
    answers: list[Any] = []
    request = AlterPartitionReassignmentsRequest(
        topics=(ReassignableTopic("t", (ReassignablePartition(1, (3, 1)),)),), timeout_ms=1_000
    )
    host.events.put(AlterReassignmentsRequested(request, answers.append))
    cluster.settle()
    assert [one.error_code for topic in answers[0].responses for one in topic.partitions] == [ErrorCode.NONE]
    assert assignment(cluster) == before
    assert cluster.server.row(paths.REASSIGN_PARTITIONS) is not None
    resume(cluster)
    assert '"adding_replicas":{"1":[3]}' in assignment(cluster)


def test_failures_are_elected_for() -> None:
    cluster, host = scene()
    put_znode(cluster, ("t", 0))
    cluster.settle()
    host.kill()
    successor = cluster.new_host(3, SOON)
    cluster.unregister(3)
    successor.start()
    cluster.pass_ms(5_000)
    cluster.settle()
    assert cluster.states()["t-0"][0] == 2
    assert cluster.states()["t-1"][0] == 2
    assert cluster.server.row(paths.PREFERRED_ELECTION) is not None, "the pause outlives the controller that knew of it"
    cluster.check()


def test_the_reason_is_told_and_one_that_can_not_be_read_pauses_too() -> None:
    cluster, host = scene(paused=False)
    pause(cluster)
    assert any(note.endswith(f"paused: {WHY}") for note in host.notes("warning"))
    resume(cluster)
    assert any(note.endswith("goes on") for note in host.notes("warning"))
    pause(cluster, b"{")
    term = host.controller.term
    assert term is not None
    assert term.context.paused is not None
    assert any(paths.CONTROLLER_PAUSE in note for note in host.notes("error"))
    cluster.check(errors=True)


def test_the_znode_keeps_what_it_does_not_know() -> None:
    pause = decode_pause("/p", b'{"version":1,"reason":"x","timestamp":"5","who":"me"}')
    assert (pause.reason, pause.since_ms) == ("x", 5)
    assert encode_pause(pause) == b'{"version":1,"reason":"x","timestamp":"5","who":"me"}'
    for damaged in (None, b"", b"{", b'{"version":1}', b'{"reason":7}'):
        with pytest.raises(DamagedZnode):
            decode_pause("/p", damaged)
