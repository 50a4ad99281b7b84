"""Which latencies `camerlengo bench cold-reads` counts."""

from __future__ import annotations

from tests.benchmarks.cold_reads import HotRequest, at_usual_speed


def request(ms: float, *, loop_us: float = 10.0, waited: bool = False) -> HotRequest:
    return HotRequest(ms, round(loop_us * 1_000), waited)


def test_all_requests_of_an_even_machine_count_but_for_the_first() -> None:
    requests = [request(float(ms), loop_us=10.0 + ms, waited=ms % 2 == 0) for ms in range(9)]
    assert at_usual_speed(requests) == [float(ms) for ms in range(1, 9)]


def test_requests_beside_a_slow_loop_are_left_out_with_those_that_waited_for_them() -> None:
    usual = [request(1.0)] * 10
    slow = [request(30.0, loop_us=150.0), request(25.0, waited=True), request(20.0, waited=True)]
    assert at_usual_speed([*usual, *slow, *usual]) == [1.0] * 19


def test_requests_that_waited_for_a_slow_answer_count() -> None:
    requests = [request(1.0), request(1.0), request(30.0), request(25.0, waited=True), request(1.0)]
    assert at_usual_speed(requests) == [1.0, 30.0, 25.0, 1.0]
