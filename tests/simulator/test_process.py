"""A simulated process: what reaches it, when it runs, stands still and is dead."""

from __future__ import annotations

from functools import partial

from controller.clock import VirtualClock
from controller.machine.process import MachineClock, Process, ProcessClock
from controller.simulator.randomness import Streams


def test_a_paused_process_finds_everything_when_it_goes_on_in_the_order_it_came() -> None:
    process, seen = Process("one"), list[str]()
    process.deliver(lambda: seen.append("before"))
    process.pause()
    for word in ("first", "second"):
        process.deliver(lambda word=word: seen.append(word))  # type: ignore[misc]
    assert seen == ["before"]
    process.resume()
    assert seen == ["before", "first", "second"]


def test_what_comes_while_it_catches_up_waits_its_turn() -> None:
    process, seen = Process("one"), list[str]()
    process.pause()

    def held() -> None:
        seen.append("held")
        process.deliver(lambda: seen.append("new"))

    process.deliver(held)
    process.deliver(lambda: seen.append("also held"))
    process.resume()
    assert seen == ["held", "also held", "new"]


def test_one_that_is_paused_again_while_it_catches_up_stops_there() -> None:
    process, seen = Process("one"), list[str]()
    process.pause()
    process.deliver(process.pause)
    process.deliver(lambda: seen.append("later"))
    process.resume()
    assert seen == []
    process.resume()
    assert seen == ["later"]


def test_a_dead_process_gets_nothing_and_is_buried_once() -> None:
    process, seen = Process("one"), list[str]()
    process.at_death(lambda: seen.append("buried"))
    process.pause()
    process.deliver(lambda: seen.append("never"))
    process.die()
    process.die()
    process.deliver(lambda: seen.append("never"))
    process.resume()
    assert seen == ["buried"]
    assert not process.alive


def test_timers_fire_in_a_running_process_late_in_a_paused_one_and_never_in_a_dead_one() -> None:
    world, process, seen = VirtualClock(), Process("one"), list[tuple[str, float]]()
    clock = ProcessClock(world, process)
    clock.call_later(10, lambda: seen.append(("running", clock.now_ms())))
    clock.call_later(20, lambda: seen.append(("paused", clock.now_ms())))
    cancelled_late = clock.call_later(20, lambda: seen.append(("cancelled", clock.now_ms())))
    clock.call_later(90, lambda: seen.append(("dead", clock.now_ms())))
    slept = clock.sleep(20)
    world.advance_to(15)
    process.pause()
    world.advance_to(50)
    assert [slept.done] == [False]
    cancelled_late.cancel()  # due, and not yet fired
    process.resume()
    assert slept.done
    process.die()
    world.advance_to(100)
    assert seen == [("running", 10.0), ("paused", 50.0)]


def test_streams_of_one_seed_are_apart_by_purpose_and_the_same_each_time() -> None:
    streams = Streams(7)
    first = [streams.stream("a").random() for _ in range(2)]
    assert first[0] == first[1]
    assert Streams(7).stream("a").random() == first[0]
    assert Streams(7).stream("b").random() != first[0] != Streams(8).stream("a").random()
    delays = streams.delays("d", 1.0, 3.0)
    drawn = [delays() for _ in range(5000)]
    assert min(drawn) >= 1.0
    assert 2.8 < sum(drawn) / len(drawn) < 3.2


def test_a_timer_is_never_early_by_a_clock_that_has_drifted() -> None:
    """One who waits for the rest of a delay would otherwise wait for nothing, for ever, in one moment of the world."""
    for rate in (0.9, 0.917, 1.003, 1.1):
        world = VirtualClock(now_ms=103.27)
        machine = MachineClock(world)
        world.advance_to(977.7)
        machine.set_rate(rate)
        for number in range(200):
            due_ms = float(int(machine.now_ms()) + 1 + number % 7)
            called: list[float] = []
            machine.call_later(due_ms - machine.now_ms(), partial(_read, machine, called))
            assert world.step()
            assert called[0] >= due_ms
        machine.set_rate(1.0)


def _read(machine: MachineClock, into: list[float]) -> None:
    into.append(machine.now_ms())


def test_a_clock_that_never_drifted_is_the_worlds_to_the_bit() -> None:
    world = VirtualClock(now_ms=103.27)
    machine = MachineClock(world)
    for number in range(1_000):
        world.advance_to(103.27 + number / 7)
        assert machine.now_ms() == world.now_ms()
