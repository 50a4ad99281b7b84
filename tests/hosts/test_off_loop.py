"""Work beside the network's loop: it is done, in turns, and its end is told on the loop."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

import pytest

from controller.hosts.network import TAKE_TURNS, TURN_US, NetworkThread, OffLoop

LIMIT_S = 60.0


@pytest.fixture
def network() -> Iterator[NetworkThread]:
    thread = NetworkThread()
    thread.start()
    yield thread
    assert thread.stop()


class Jobs:
    """`steps` has the number of each job for each turn that it had."""

    def __init__(self, network: NetworkThread) -> None:
        self.network = network
        self.off_loop = OffLoop(network)
        self.steps: list[int] = []
        self.ends: list[tuple[int, Exception | None, bool]] = []
        self.over = threading.Semaphore(0)
        self.go = threading.Event()

    def put(self, number: int, turns: int, fault: bool = False) -> None:
        self.network.call(lambda: self.off_loop.run(self.work(number, turns, fault), lambda e: self.ended(number, e)))

    def work(self, number: int, turns: int, fault: bool) -> Generator[int, None, None]:
        assert self.go.wait(LIMIT_S)
        assert not self.network.on_loop()
        for _ in range(turns):
            self.steps.append(number)
            yield TURN_US
        if fault:
            raise KeyError("planted")

    def ended(self, number: int, error: Exception | None) -> None:
        self.ends.append((number, error, self.network.on_loop()))
        self.over.release()


def test_jobs_take_turns_and_their_ends_are_told_on_the_loop(network: NetworkThread) -> None:
    jobs = Jobs(network)
    for number in range(TAKE_TURNS):
        jobs.put(number, turns=(100, 2, 1)[number])
    jobs.put(3, turns=1)
    network.call(jobs.go.set)
    for _ in range(4):
        assert jobs.over.acquire(timeout=LIMIT_S)
    assert [number for number, _, _ in jobs.ends][-1] == 0
    assert all(error is None and on_loop for _, error, on_loop in jobs.ends)
    assert sorted(jobs.steps) == [0] * 100 + [1] * 2 + [2, 3]


def test_a_fault_is_told_and_the_next_job_is_done(network: NetworkThread) -> None:
    jobs = Jobs(network)
    jobs.go.set()
    jobs.put(0, turns=1, fault=True)
    jobs.put(1, turns=1)
    for _ in range(2):
        assert jobs.over.acquire(timeout=LIMIT_S)
    assert [(number, type(error)) for number, error, _ in jobs.ends] in (
        [(0, KeyError), (1, type(None))],
        [(1, type(None)), (0, KeyError)],
    )
