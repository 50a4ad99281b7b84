"""Real time: timers fire once, in order of their due time, on the loop, and not after they were cancelled."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

from controller.timer.purgatory import COMPLETED, EXPIRED, Purgatory
from tests.hosts.harness import running_network
from tests.processes import eventually
from tests.timer.operations import Switched


def test_timers_fire_on_the_loop_in_order_of_due_time() -> None:
    fired: list[tuple[int, str]] = []

    def note(number: int) -> Callable[[], None]:
        return lambda: fired.append((number, threading.current_thread().name))

    with running_network() as network:
        clock = network.clock
        clock.call_later(600.0, note(3))
        clock.call_later(300.0, note(2))
        clock.call_later(0.0, note(1))
        eventually(lambda: len(fired) == 3, "three timers fired")
    assert fired == [(1, "network"), (2, "network"), (3, "network")]


def test_a_cancelled_timer_does_not_fire_from_whichever_thread_it_was_cancelled() -> None:
    fired: list[str] = []
    with running_network() as network:
        clock = network.clock
        here = clock.call_later(500.0, lambda: fired.append("cancelled here"))
        here.cancel()
        here.cancel()
        there = clock.call_later(600.0, lambda: fired.append("cancelled on the loop"))
        network.call(there.cancel)
        clock.call_later(700.0, lambda: fired.append("kept"))
        eventually(lambda: bool(fired), "the timer after them fired")
    assert fired == ["kept"]


def test_a_sleep_takes_its_time() -> None:
    with running_network() as network:
        clock = network.clock
        began_ms = clock.now_ms()
        ended_ms: list[float] = []
        clock.sleep(50.0).on_done(lambda: ended_ms.append(clock.now_ms()))
        eventually(lambda: bool(ended_ms), "the sleep ended")
        assert ended_ms[0] - began_ms >= 49.0


def test_a_timer_that_fired_or_was_cancelled_is_freed_without_the_collector() -> None:
    with running_network() as network:
        clock = network.clock
        fired = threading.Event()
        gc.disable()
        try:
            timers = [clock.call_later(1.0, fired.set), clock.call_later(60_000.0, fired.set)]
            left = [weakref.ref(timer) for timer in timers]
            eventually(fired.is_set, "the first timer fired")
            timers[1].cancel()
            timers.clear()
            eventually(lambda: not any(one() for one in left), "both timers are freed")
        finally:
            gc.enable()


def test_a_purgatory_lives_on_the_network_thread() -> None:
    with running_network() as network:
        purgatory: Purgatory[str, Switched] = Purgatory(network.clock)
        completes, expires = Switched(timeout_ms=3_600_000), Switched(timeout_ms=5)

        def watch() -> None:
            for operation in (completes, expires):
                purgatory.try_complete_else_watch(operation, ["a"])
            completes.on = True
            assert purgatory.check_and_complete("a") == 1

        network.call(watch)
        eventually(expires.has_ended, "the second expired")
        assert (purgatory.delayed, len(network.clock._wheel)) == (0, 0)
    assert (completes.state, expires.state, completes.answers, expires.answers) == (COMPLETED, EXPIRED, 1, 1)
