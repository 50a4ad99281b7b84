"""Brokers that come, go and bounce: what is written, who is told, and in which order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.core import state_changes
from controller.core.context import Int32s, Rows
from controller.core.events import BrokerChange
from controller.core.leadership import ControllerSettings, Term
from controller.core.state_changes import NewStates, set_states
from controller.protocol.codec import ApiKey
from controller.trace import BrokersChanged, PartitionStateWritten
from controller.zookeeper import paths
from controller.zookeeper.codecs import PartitionStateZnode, encode_partition_state
from controller.zookeeper.operations import ANY_VERSION, SetData
from tests.core.driving import Cluster, Host, registration


def cluster_of(*brokers: int) -> tuple[Cluster, Host]:
    """The first is the controller."""
    cluster = Cluster()
    cluster.register(*brokers[1:])
    return cluster, cluster.host(brokers[0])


def test_s29_a_bounce_is_a_failure_and_a_start_up() -> None:
    """KAFKA-7235: the broker is back with another czxid before the controller looks."""
    cluster, host = cluster_of(1, 2, 3)
    cluster.topic("t", {0: (2, 3), 1: (3, 2), 2: (2,)})
    cluster.settle()
    first_life = cluster.server.row(paths.broker(2))
    mark = len(host.sent)
    busy = keep_busy(host)
    cluster.unregister(2)
    cluster.register(2)
    busy()
    cluster.settle()
    second_life = cluster.server.row(paths.broker(2))
    assert first_life is not None
    assert second_life is not None
    assert second_life.stat.czxid > first_life.stat.czxid
    change = host.trace.of(BrokersChanged)[-1]
    assert (change.added, change.dead, change.bounced) == ((), (), (2,))
    assert cluster.states() == {"t-0": (3, 1, (3,), 1), "t-1": (3, 1, (3,), 1), "t-2": (2, 2, (2,), 2)}
    told = [sent for sent in host.sent[mark:] if sent.broker == 2]
    assert {sent.value.broker_epoch for sent in told} == {second_life.stat.czxid}
    assert told[0].api is ApiKey.UPDATE_METADATA
    assert set(told[0].states()) == {"t-0", "t-1", "t-2"}
    assert told[1].api is ApiKey.LEADER_AND_ISR
    endpoints = host.channels[-1].announced
    assert [endpoint.broker_epoch for endpoint in endpoints if endpoint.broker == 2] == [second_life.stat.czxid]
    cluster.check()


def keep_busy(host: Host) -> Callable[[], None]:
    """Events wait until the function that comes back is called."""
    host.cluster.hosts.remove(host)
    host._scheduled = True

    def go_on() -> None:
        host._scheduled = False
        host._wake()
        host.cluster.hosts.append(host)

    return go_on


def test_s22_many_brokers_at_once_are_one_look() -> None:
    """KAFKA-5502: the event says nothing, equal ones are one."""
    cluster, host = cluster_of(1)
    handled = len(host.handled)
    busy = keep_busy(host)
    cluster.register(*range(2, 12))
    busy()
    cluster.settle()
    assert host.handled[handled:] == [BrokerChange()]
    assert host.trace.of(BrokersChanged)[-1].live == tuple(range(1, 12))
    before = len(host.handled)
    for _ in range(50):
        host.events.put(BrokerChange())
    cluster.settle()
    assert host.handled[before:] == [BrokerChange()]
    cluster.check()


def test_a_new_broker_hears_of_everything_before_what_is_its_own() -> None:
    cluster, host = cluster_of(1, 2)
    cluster.topic("t", {0: (1, 2), 1: (3, 1), 2: (3,)})
    cluster.settle()
    mark = len(host.sent)
    cluster.register(3)
    cluster.settle()
    told = [(sent.api, set(sent.states())) for sent in host.sent[mark:] if sent.broker == 3]
    assert told[:2] == [(ApiKey.UPDATE_METADATA, {"t-0", "t-1"}), (ApiKey.LEADER_AND_ISR, {"t-1"})]
    others = [(sent.api, set(sent.states())) for sent in host.sent[mark:] if sent.broker == 2]
    assert others[0] == (ApiKey.UPDATE_METADATA, set())
    # The partition that had no live replica begins; it is new to its broker.
    assert cluster.states()["t-2"] == (3, 0, (3,), 0)
    last = [sent for sent in host.sent[mark:] if sent.broker == 3 and sent.api is ApiKey.LEADER_AND_ISR][-1]
    assert last.states()["t-2"].is_new
    cluster.check()


def test_s31_the_change_of_an_isr_is_told_to_all_live_replicas() -> None:
    """KAFKA-1188."""
    cluster, host = cluster_of(1, 2, 3, 4)
    cluster.topic("t", {0: (1, 2, 3, 4)})
    cluster.settle()
    mark = len(host.sent)
    cluster.unregister(4)
    cluster.settle()
    told = {sent.broker: sent.states()["t-0"] for sent in host.sent[mark:] if sent.api is ApiKey.LEADER_AND_ISR}
    assert set(told) == {1, 2, 3}
    assert {state.isr for state in told.values()} == {(1, 2, 3)}


def test_leader_changes_are_written_before_isrs_shrink() -> None:
    cluster, host = cluster_of(1, 2, 3)
    cluster.topic("t", {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 2, 1), 3: (2, 1, 3)})
    cluster.settle()
    written = len(host.trace.of(PartitionStateWritten))
    cluster.unregister(2)
    cluster.settle()
    whys = [event.why for event in host.trace.of(PartitionStateWritten)[written:]]
    assert whys == ["offline", "offline", "replica offline", "replica offline"]
    # One write a partition: the epoch grows once.
    assert {name: state[:3] for name, state in cluster.states().items()} == {
        "t-0": (1, 1, (1, 3)),
        "t-1": (3, 1, (3, 1)),
        "t-2": (3, 1, (3, 1)),
        "t-3": (1, 1, (1, 3)),
    }


def test_a_broker_without_replicas_that_goes_is_told_of_all_the_same() -> None:
    cluster, host = cluster_of(1, 2)
    mark = len(host.sent)
    cluster.unregister(2)
    cluster.settle()
    (sent,) = host.sent[mark:]
    assert (sent.broker, sent.api, [live.id for live in sent.value.live_brokers]) == (1, ApiKey.UPDATE_METADATA, [1])


def test_brokers_that_go_and_come_in_one_look_are_never_elected_dead() -> None:
    cluster, host = cluster_of(1, 2, 3)
    cluster.topic("t", {0: (2, 3, 1)})
    cluster.settle()
    busy = keep_busy(host)
    cluster.unregister(2, 3)
    cluster.register(4)
    busy()
    cluster.settle()
    change = host.trace.of(BrokersChanged)[-1]
    assert (change.added, change.dead) == ((4,), (2, 3))
    assert cluster.states() == {"t-0": (1, 1, (1,), 1)}
    cluster.check()


def test_new_endpoints_of_a_living_broker_are_told_to_all() -> None:
    cluster, host = cluster_of(1, 2)
    mark = len(host.sent)
    cluster.write(SetData(paths.broker(2), registration(2, port=7777), ANY_VERSION))
    cluster.settle()
    assert [(sent.broker, sent.api) for sent in host.sent[mark:]] == [
        (1, ApiKey.UPDATE_METADATA),
        (2, ApiKey.UPDATE_METADATA),
    ]
    live = {broker.id: broker.endpoints[0].port for broker in host.sent[-1].value.live_brokers}
    assert live == {1: 9001, 2: 7777}
    assert [endpoint.port for endpoint in host.channels[-1].announced] == [9001, 7777]
    # The same again changes nothing.
    mark = len(host.sent)
    cluster.write(SetData(paths.broker(2), registration(2, port=7777), ANY_VERSION))
    cluster.settle()
    assert host.sent[mark:] == []
    cluster.check()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"version":5,"endpoints":["OTHER://h:1"],"listener_security_protocol_map":{"OTHER":"PLAINTEXT"}}',
        b'{"version":5,"endpoints":["PLAINTEXT://h:1"],"listener_security_protocol_map":{"PLAINTEXT":"MAGIC"}}',
    ],
)
def test_a_registration_that_cant_be_used_is_left_out_and_named(data: bytes) -> None:
    cluster, host = cluster_of(1, 2)
    cluster.put(paths.broker(9), data)
    cluster.settle()
    (said,) = host.notes("error")
    assert paths.broker(9) in said
    assert host.trace.of(BrokersChanged)[-1].live == (1, 2)
    cluster.topic("t", {0: (1, 2)})
    cluster.settle()
    assert cluster.states() == {"t-0": (1, 0, (1, 2), 0)}


def test_a_thousand_partitions_of_a_dead_broker_are_written_in_few_requests() -> None:
    """Batches, not one round trip a partition: in virtual time each trip takes 2 ms."""
    cluster, host = cluster_of(1, 2, 3)
    cluster.topic("t", {partition: ((2, 3), (3, 2))[partition % 2] for partition in range(2_000)})
    cluster.settle()
    awaits = host.awaits
    cluster.unregister(2)
    cluster.settle()
    assert host.awaits - awaits < 20
    assert {state[0] for state in cluster.states().values()} == {3}
    cluster.check()


def test_states_that_had_moved_are_decided_anew_from_what_is_there() -> None:
    """Leaders of an older protocol write ISRs past the controller: what it knows is old when it elects and shrinks."""
    cluster, _host = cluster_of(1, 2, 3)
    cluster.topic("t", {0: (2, 3, 1), 1: (1, 2, 3), 2: (2, 1), 3: (3, 2)})
    cluster.settle()
    cluster.state("t", 0, 2, (2, 1), 0)
    cluster.state("t", 1, 1, (1, 2), 0)
    cluster.unregister(2)
    cluster.settle()
    assert cluster.states() == {
        "t-0": (1, 1, (1,), 2),
        "t-1": (1, 1, (1,), 2),
        "t-2": (1, 1, (1,), 1),
        "t-3": (3, 1, (3,), 1),
    }
    cluster.check()


@pytest.mark.parametrize("why", ["offline", "replica offline"])
def test_a_state_that_moves_each_time_is_left_and_named(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are bounded: the term goes on with everything else."""
    cluster, host = cluster_of(1, 2)
    cluster.topic("t", {0: (2, 1), 1: (1, 2)})
    cluster.settle()
    tries: list[int] = []

    async def always_moved(term: Term, states: NewStates) -> Rows:
        if states.why != why:
            return await set_states(term, states)
        tries.append(len(states.rows))
        return states.rows

    monkeypatch.setattr(state_changes, "set_states", always_moved)
    cluster.unregister(2)
    cluster.settle()
    assert len(tries) == 5
    assert any("t-" in note for note in (*host.notes("warning"), *host.notes("error")))
    assert host.controller.active
    assert host.failures() == []


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_reply_under_the_writes_of_a_broker_death_changes_nothing(applied: bool) -> None:
    cluster, host = cluster_of(1, 2, 3)
    cluster.topic("t", {partition: ((2, 3, 1), (3, 2, 1), (1, 2, 3))[partition % 3] for partition in range(30)})
    cluster.settle()
    host.connection.lose_reply(applied=applied)
    cluster.unregister(2)
    cluster.settle()
    cluster.pass_ms(2_000)
    expected = {0: (3, 1, (3, 1), 1), 1: (3, 1, (3, 1), 1), 2: (1, 1, (1, 3), 1)}
    assert cluster.states() == {f"t-{partition}": expected[partition % 3] for partition in range(30)}
    assert host.controller.controller_epoch == 1
    cluster.check()


def older_cluster() -> tuple[Cluster, Host]:
    """Below inter-broker protocol 2.7, where leaders write ISRs themselves: 2 leads, with no other in the ISR."""
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.topic("t", {0: (2, 3), 1: (2,)})
    cluster.state("t", 0, 2, (2,), 0)
    cluster.state("t", 1, 2, (2,), 0)
    return cluster, cluster.host(1, ControllerSettings(inter_broker_protocol="2.6"))


def test_an_isr_that_a_leader_wrote_before_it_died_is_read_before_the_election() -> None:
    """The controller was not notified of broker 3, and no write of its own would show it the new state."""
    cluster, host = older_cluster()
    cluster.state("t", 0, 2, (2, 3), 0)
    cluster.unregister(2)
    cluster.settle()
    assert cluster.states() == {"t-0": (3, 1, (3,), 2), "t-1": (-1, 1, (2,), 1)}
    assert [note.partition("] ")[2] for note in host.notes("warning")] == ["no leader elected (offline): t-1"]
    cluster.check()


def test_an_isr_that_a_leader_wrote_after_the_election_gets_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader whose session has expired can write until it learns of it: here between the election and the shrink."""
    cluster, _host = older_cluster()
    shrink = state_changes.shrink

    async def written_meanwhile(term: Term, rows: Rows, leaving: Int32s) -> Rows:
        data = encode_partition_state(PartitionStateZnode(2, 0, (2, 3), 0))
        cluster.server.restore([SetData(paths.partition_state("t", 0), data, ANY_VERSION)])
        return await shrink(term, rows, leaving)

    monkeypatch.setattr(state_changes, "shrink", written_meanwhile)
    cluster.unregister(2)
    cluster.settle()
    assert cluster.states() == {"t-0": (3, 2, (3,), 3), "t-1": (-1, 1, (2,), 1)}
    cluster.check()
