"""What can be wrong between two nodes: one direction shut, slow, lossy; connections reset, or broken off at one end
with what they carried still under way."""

from __future__ import annotations

import random

import pytest

from controller.machine.process import MachineClock, Process, ProcessClock
from controller.simulator.network import ATTEMPTS, GOOD, LinkCondition, Network, Socket, retransmissions_ms
from tests.simulator.test_network import World, closings, frames


def test_a_way_that_is_shut_lets_the_other_direction_through_and_loses_nothing() -> None:
    world = World()
    near, far = world.connected()
    to_far, to_near = frames(far), frames(near)
    world.network.set_way(1, 2, LinkCondition(shut=True))
    near.send(b"asked")
    far.send(b"told")
    world.pass_ms(10_000)
    assert (to_far, to_near) == ([], [b"told"])
    world.network.set_way(1, 2, GOOD)
    world.pass_ms(20)
    assert to_far == [b"asked"]


def test_a_way_that_is_shut_is_so_for_connections_that_either_end_opens() -> None:
    world = World()
    world.network.set_way(2, 1, LinkCondition(shut=True))
    _, answers = world.dial()
    world.pass_ms(10_000)
    assert answers == []
    assert len(world.accepted) == 1, "what was opened did arrive; its acceptance does not"
    world.network.heal_all()
    world.pass_ms(20)
    assert answers == [True]


def test_mending_heals_cuts_and_ways_alike() -> None:
    world = World()
    near, far = world.connected()
    to_far = frames(far)
    world.network.cut(1, 2)
    world.network.set_way(1, 2, LinkCondition(shut=True))
    near.send(b"kept")
    world.pass_ms(1_000)
    world.network.heal(1, 2)
    world.pass_ms(1_000)
    assert to_far == [], "healed, and shut still"
    world.network.heal_all()
    world.pass_ms(20)
    assert to_far == [b"kept"]


def arrivals_ms(world: World, near: Socket, far: Socket, count: int = 40) -> list[float]:
    at: list[float] = []
    far.on_frame = lambda frame: at.append(world.clock.now_ms())
    since_ms = world.clock.now_ms()
    for _ in range(count):
        near.send(b"x")
    world.pass_ms(200_000)
    return [each - since_ms for each in at]


def test_a_slow_way_takes_so_many_times_as_long() -> None:
    world = World()
    near, far = world.connected()
    world.network.set_way(1, 2, LinkCondition(slower=100.0, more_ms=1_000.0))
    (late,) = arrivals_ms(world, near, far, 1)
    assert 1_010.0 <= late <= 1_500.0


def test_a_lossy_way_stalls_what_comes_behind_and_keeps_the_order() -> None:
    world = World()
    near, far = world.connected()
    to_far = frames(far)
    world.network.set_way(1, 2, LinkCondition(loss=0.4))
    sent = [bytes([number]) for number in range(30)]
    for frame in sent:
        near.send(frame)
    world.pass_ms(3.0)
    assert len(to_far) < len(sent), "something stalls"
    world.pass_ms(100_000)
    assert to_far == sent[: len(to_far)], "in their order, up to where the connection broke if it did"


@pytest.mark.parametrize("seed", range(3))
def test_a_way_that_loses_nearly_all_breaks_the_connection_at_both_ends(seed: int) -> None:
    world = World()
    world.network = Network(
        world.clock, lambda source, target: 1.0, lambda address: 2 if address[0] == "server" else 3, random.Random(seed)
    )
    world.network.listen(world.far, ("server", 9092), world.accepted.append)
    near, far = world.connected()
    heard = closings(near), closings(far)
    world.network.set_way(1, 2, LinkCondition(loss=0.999))
    near.send(b"lost for good")
    world.pass_ms(100_000)
    assert heard == ([True], [True])


def test_how_late_a_lost_packet_is_doubles_and_has_an_end() -> None:
    class Loses:
        def __init__(self, times: int) -> None:
            self.left = times

        def random(self) -> float:
            self.left -= 1
            return 0.0 if self.left >= 0 else 1.0

    late = [retransmissions_ms(Loses(times), 0.5) for times in range(ATTEMPTS + 1)]  # type: ignore[arg-type]
    assert late == [0.0, 200.0, 600.0, 1_400.0, 3_000.0, 6_200.0, None]


@pytest.mark.parametrize("wrong", [{"slower": 0.0}, {"more_ms": -1.0}, {"loss": 1.0}])
def test_a_condition_that_cant_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected slower above 0"):
        LinkCondition(**wrong)  # type: ignore[arg-type]


def test_a_reset_is_heard_at_both_ends_and_loses_what_was_on_its_way() -> None:
    world = World()
    near, far = world.connected()
    to_far, to_near = frames(far), frames(near)
    heard = closings(near), closings(far)
    near.send(b"lost")
    far.send(b"lost")
    world.network.reset(1, 2)
    world.pass_ms(1_000)
    assert (to_far, to_near, heard) == ([], [], ([True], [True]))


def test_a_connection_that_is_reset_while_it_opens_is_refused() -> None:
    world = World()
    _, answers = world.dial()
    world.network.reset(1, 2)
    world.pass_ms(1_000)
    assert (answers, world.accepted) == ([False], [])


def test_what_a_broken_off_connection_carried_arrives_after_what_the_next_one_carries() -> None:
    """So a request comes twice, the repetition before the first: reordering across connections."""
    world = World()
    near, far = world.connected()
    first, heard_near, heard_far = frames(far), closings(near), closings(far)
    near.send(b"request")
    world.network.reset(1, 2, late_ms=3_000.0)
    world.pass_ms(1)
    assert heard_near == [True]
    again, far_again = world.connected()
    second = frames(far_again)
    again.send(b"request")
    world.pass_ms(1_000)
    assert (first, second, heard_far) == ([], [b"request"], [])
    world.pass_ms(2_100)
    assert (first, heard_far) == ([b"request"], [True])


def test_a_closed_socket_is_forgotten_by_its_process() -> None:
    world = World()
    for _ in range(5):
        near, _ = world.connected()
        near.close()
        world.pass_ms(20)
    assert world.near._at_death == {}
    assert world.far._at_death == {}


def test_a_machines_clock_may_go_at_a_rate_of_its_own_and_its_timers_with_it() -> None:
    world, process, fired = World(), Process("one"), list[float]()
    machine = MachineClock(world.clock, rate=2.0)
    clock = ProcessClock(machine, process)
    clock.call_later(100.0, lambda: fired.append(world.clock.now_ms()))
    world.pass_ms(200)
    assert fired == pytest.approx([50.0], abs=1e-5)
    assert fired[0] >= 50.0, "by its own clock never early"
    assert clock.now_ms() == 400.0
    machine.set_rate(0.5)
    world.pass_ms(200)
    assert clock.now_ms() == 500.0, "its time never goes back"
    with pytest.raises(ValueError, match="expected more than 0"):
        machine.set_rate(0.0)


def test_s61_a_wall_clock_that_is_set_moves_nothing_but_what_is_written_down() -> None:
    world, process, fired = World(), Process("one"), list[float]()
    machine = MachineClock(world.clock)
    clock = ProcessClock(machine, process)
    before = clock.wall_ms()
    clock.call_later(100.0, lambda: fired.append(world.clock.now_ms()))
    machine.step_wall(-3_600_000)
    world.pass_ms(200)
    assert fired == [100.0]
    assert clock.wall_ms() == before - 3_600_000 + 200
