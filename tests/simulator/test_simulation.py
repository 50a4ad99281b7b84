"""`Simulation`, the simulator as a library: worlds are built, stepped, asked, struck and heard, and a seed is a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from controller.core import leadership
from controller.core.channels import PeerError
from controller.core.leadership import _Attempt, _attempt
from controller.protocol import ApiKey, MetadataRequest
from controller.simulator import (
    BrokenInvariant,
    Expire,
    NotInTime,
    Pause,
    Simulation,
    Slow,
    TraceRecord,
)
from controller.trace import ControllerElected, FaultInjected, Noted
from controller.zookeeper.operations import SetData


def world(brokers: int = 3, seed: int = 7, **options: object) -> Simulation:
    """At rest, with one topic of four partitions."""
    made = Simulation(brokers, seed=seed, **options)  # type: ignore[arg-type]
    made.run_until(lambda: len(made.registered) == brokers)
    assert made.answer(made.create_topic("t", 4, min(3, brokers))) == "done"
    made.run_until_rest()
    return made


def test_a_world_is_asked_what_is_so() -> None:
    made = world()
    assert made.controller in made.running == (1, 2, 3)
    assert sorted(made.registered) == [1, 2, 3]
    assert made.controller_epoch == 1
    assert made.unrest() is None
    for broker in made.running:
        assert made.metadata(broker) == made.partitions()
        node = made.node(broker)
        assert node is not None
        assert node.controller.active == (broker == made.controller)
    assert "leads     in controller epoch 1" in made.inside(made.controller or 0)
    assert "ELECTED, controller epoch 1" in made.log()


def test_the_same_calls_give_the_same_events_and_another_seed_gives_others() -> None:
    def run(seed: int) -> str:
        made = world(seed=seed)
        made.kill(1, for_ms=2_500)
        made.inject(Slow(at_ms=made.now_ms + 100, source=2, target=3, slower=20, for_ms=500))
        made.run_for(4_000)
        return made.trace_hash

    assert run(3) == run(3) != run(4)


def test_stepping_one_by_one_is_the_same_run() -> None:
    stepped, run = world(), world()
    until_ms = run.now_ms + 1_500
    run.run_until(until_ms)
    while (next_ms := stepped.next_ms) is not None and next_ms <= until_ms:
        assert stepped.step()
        assert stepped.now_ms == next_ms
    assert stepped.trace_hash == run.trace_hash


STRIKES: dict[str, Callable[[Simulation, int], None]] = {
    "kill": lambda made, node: made.kill(node),
    "stop": lambda made, node: made.stop(node),
    "pause": lambda made, node: made.pause(node),
    "expire": lambda made, node: made.expire(node),
    "cut from ZooKeeper": lambda made, node: made.cut_zookeeper(node),
}


@pytest.mark.parametrize("name", sorted(STRIKES))
def test_a_struck_controller_has_a_successor_and_the_world_comes_to_rest_again(name: str) -> None:
    made = world()
    broker = made.controller
    assert broker is not None
    STRIKES[name](made, broker)
    made.run_until(lambda: made.controller_epoch == 2 and made.controller is not None)
    made.heal_all()
    if broker not in made.running:
        made.start(broker)
    made.run_until_rest()
    assert made.running == (1, 2, 3)
    assert made.paused == ()


def test_who_is_killed_for_a_while_is_back_unless_somebody_started_it_before() -> None:
    made = world()
    made.kill(2, for_ms=3_000)
    made.run_for(1_000)
    assert made.running == (1, 3)
    made.start(2)
    with pytest.raises(ValueError, match="broker 2 runs already"):
        made.start(2)
    made.run_until_rest()
    made.run_for(3_000)
    made.kill(2)
    made.run_for(3_000)
    assert made.running == (1, 3), "the first kill's end has nothing to do with the second"


def test_links_are_cut_and_healed() -> None:
    made = world()
    for source, target in ((1, 2), (2, 1)):
        made.cut(source, target)
    asking = made.ask(1, ApiKey.METADATA, MetadataRequest((), False))
    assert made.answer(asking).controller_id == made.controller
    made.heal(1, 2)
    made.heal(2, 1)
    made.run_until_rest()


def test_what_makes_no_sense_says_so_and_a_fault_that_ends_does_too() -> None:
    made = world()
    assert made.answer(made.inject(Pause(at_ms=0, node=2, for_ms=100))) == "ended"
    made.kill(2)
    assert made.answer(made.inject(Expire(at_ms=0, node=2))) == "nothing"
    assert made.answer(made.create_topic("t", 1, 1)).startswith("error")
    with pytest.raises(ValueError, match="broker 9: expected 1 to 3"):
        made.kill(9)


def test_topics_are_changed_and_deleted() -> None:
    made = world()
    assert made.answer(made.add_partitions("t", 6)) == "done"
    made.run_until_rest()
    assert len(made.partitions()) == 6
    assert made.answer(made.delete_topic("t")) == "done"
    made.run_until_rest()
    assert made.partitions() == {}
    assert made.metadata(2) == {}


def test_subscribers_hear_every_event_as_it_happens_until_they_end_it() -> None:
    made = Simulation(seed=5)
    heard: list[TraceRecord] = []
    end = made.subscribe(heard.append)
    made.run_until(lambda: any(isinstance(each.event, ControllerElected) for each in heard))
    assert heard == list(made.records)
    assert [each.node for each in heard if isinstance(each.event, ControllerElected)] == [made.controller]
    end()
    end()
    made.run_for(500)
    assert len(heard) < len(made.records)


def test_a_subscriber_acts_by_a_timer() -> None:
    """Every controller that is elected is killed at once, until the third."""
    made = Simulation(seed=2)

    def strike(record: TraceRecord) -> None:
        if isinstance(record.event, ControllerElected) and record.event.controller_epoch < 3:
            made.clock.call_later(0.0, lambda: made.kill(record.node))

    made.subscribe(strike)
    made.run_until(lambda: made.controller_epoch == 3, within_ms=30_000)
    assert len(made.running) == 1


def test_what_does_not_come_about_is_said() -> None:
    made = Simulation()

    def hell_freezes() -> bool:
        return False

    with pytest.raises(NotInTime, match="hell_freezes"):
        made.run_until(hell_freezes, within_ms=50)
    assert made.now_ms == 50
    made.kill(1)
    made.kill(2)
    made.kill(3)
    with pytest.raises(NotInTime, match="no broker runs"):
        made.run_until_rest(within_ms=100)


def test_a_planted_fault_breaks_out_of_the_call_that_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two terms of one epoch: what an election writes is not raised."""

    def kept(*given: Any) -> _Attempt:
        attempt, epoch = _attempt(*given), given[4]
        same = SetData(epoch.path, epoch.data, epoch.stat.version)
        return msgspec.structs.replace(attempt, epoch=attempt.epoch - 1, operations=(attempt.operations[0], same))

    made = world()
    made.run_for(100)
    monkeypatch.setattr(leadership, "_attempt", kept)
    made.kill(made.controller or 0)
    with pytest.raises(BrokenInvariant, match=r"one-writer-an-epoch.*controller epoch 1 after 1") as broken:
        made.run_for(5_000)
    assert broken.value.violation.at_ms == pytest.approx(made.now_ms)


def test_errors_that_are_noted_break_out_at_once() -> None:
    made = world()
    node = made.add_node("mine")
    made.clock.call_later(10.0, lambda: node.note("went wrong", "error"))
    with pytest.raises(BrokenInvariant, match="no-defects"):
        made.run_for(100)


# -- user-defined nodes


def test_custom_nodes_send_messages_in_order_and_ask_brokers() -> None:
    made = world()
    here, there = made.add_node("here"), made.add_node("there")
    assert (here.id, there.id) == (4, 5)
    heard: list[tuple[int, bytes]] = []
    there.on_message = lambda sender, message: heard.append((sender, message))
    for number in range(20):
        here.send(there.id, b"%d" % number)
    made.run_for(100)
    assert heard == [(here.id, b"%d" % number) for number in range(20)]
    metadata = made.answer(here.ask(2, ApiKey.METADATA, MetadataRequest((), False)))
    assert {broker.node_id for broker in metadata.brokers} == {1, 2, 3}
    made.kill(3)
    with pytest.raises(PeerError):
        made.answer(here.ask(3, ApiKey.METADATA, MetadataRequest((), False)))


def test_a_custom_node_is_subject_to_the_worlds_faults() -> None:
    made = Simulation(0, seed=3)
    here, there = made.add_node("here"), made.add_node("there")
    heard: list[bytes] = []
    there.on_message = lambda sender, message: heard.append(message)
    fired: list[str] = []
    there.clock.call_later(50.0, lambda: fired.append("timer"))
    there.pause()
    here.send(there.id, b"one")
    made.run_for(100)
    assert (heard, fired) == ([], [])
    there.resume()
    assert (heard, fired) == ([b"one"], ["timer"]) or (fired, heard) == (["timer"], [b"one"])
    made.cut(here.id, there.id)
    here.send(there.id, b"two")
    made.run_for(100)
    assert heard == [b"one"]
    made.heal(here.id, there.id)
    made.run_for(100)
    assert heard == [b"one", b"two"]
    there.kill()
    here.send(there.id, b"lost")
    made.run_for(100)
    with pytest.raises(ValueError, match="node 1"):
        made.add_node("taken", here.id)
    again = made.add_node("there", there.id)
    again.on_message = lambda sender, message: heard.append(message)
    here.send(again.id, b"three")
    made.run_for(100)
    assert heard == [b"one", b"two", b"three"]


def test_a_custom_nodes_session_outlives_it_by_its_timeout() -> None:
    made = Simulation(0, seed=3)
    node = made.add_node("mine")
    connection = node.connection(session_timeout_ms=1_000)

    class Nothing:
        def session_state(self, state: object) -> None: ...

        def watch_fired(self, event: object) -> None: ...

    connection.listen(Nothing())
    session = made.answer(connection.start())
    node.kill()
    made.run_for(500)
    assert session in made.zookeeper.sessions()
    made.run_for(2_000)
    assert session not in made.zookeeper.sessions()


def test_a_closed_world_tells_nothing_more() -> None:
    made = world()
    node = made.add_node("mine")
    made.close()
    told = len(made.records)
    node.note("nobody hears this")
    made.run_for(1_000)
    assert made.running == ()
    assert [record for record in made.records[told:] if isinstance(record.event, Noted | FaultInjected)] == []


_IMPORTS = "import sys, json; import controller.simulator; print(json.dumps(sorted(sys.modules)))"


def test_importing_it_loads_no_client_and_no_extra() -> None:
    finished = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(finished.stdout)}
    assert not loaded & {"kazoo", "pyspark", "pyarrow", "pandas", "confluent_kafka", "simpy", "matplotlib"}
