"""The measurements of `camerlengo bench timer`: CPU time, the collector off, all peers in one process and in turns.

The work is that of delayed operations: half of the delays are 1 to 200 ms, half 1 to 60 s. Nanoseconds are a timer's,
of the process's CPU time; of several rounds the best counts, since other programs can only add.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from controller.cli.gc_tuning import collector_off
from tests.benchmarks.timer_peers import PEERS, Handles, Peer, WheelPeer

LONGEST_MS = 60_000
LIFETIME_MS = 20
"""With a moving clock each timer is replaced after this long on the average, so the rate is the number outstanding
over this (Little's law)."""
MOVING_PEERS = ("wheel", "heapq, purging", "asyncio")
AT_RANDOM = "wheel, at random"
"""The wheel once more, the next timer to be replaced being any: what a processor's caches can't foresee."""
MEMORY_PEERS = ("wheel", "heapq, purging", "asyncio")
LEAST_MOVES, LEAST_ROUNDS = 200_000, 20
CONSTANT_CANCEL_LIMIT = 2_000
"""So many timers of a peer whose cancel is linear are added and cancelled, and no more."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU nanoseconds a timer. None: not measured, because it would take hours.

    `add`: the first to the last of all. `cancel`: all of them, in random order. `add_and_cancel`: each before the
    next. `expire`: all of them run as the clock goes on.
    """

    add: float
    cancel: float | None
    add_and_cancel: float
    expire: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that were allocated a timer outstanding, and what of them was left when all were cancelled."""

    outstanding: float
    cancelled: float


def random_delays(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randint(1, 200) if rng.random() < 0.5 else rng.randint(1_000, LONGEST_MS) for _ in range(count)]


def _ns(count: int, work: Callable[[], None]) -> float:
    started_ns = time.process_time_ns()
    work()
    return (time.process_time_ns() - started_ns) / count


def measure_costs(timers: int, rounds: int, seed: int, progress: Progress) -> dict[str, Costs]:
    """Every peer in every round, so that a busy minute meets them all."""
    delays_ms = random_delays(timers, seed)
    order = list(range(timers))
    random.Random(seed).shuffle(order)
    best: dict[str, Costs] = {}
    for number in range(1, rounds + 1):
        for name, make in PEERS.items():
            progress(f"round {number} of {rounds}: {name}")
            with collector_off():
                found = _costs(make, delays_ms, order)
            best[name] = _least(best[name], found) if name in best else found
    return best


def _least(one: Costs, other: Costs) -> Costs:
    cancel = None if one.cancel is None or other.cancel is None else min(one.cancel, other.cancel)
    return Costs(
        min(one.add, other.add),
        cancel,
        min(one.add_and_cancel, other.add_and_cancel),
        min(one.expire, other.expire),
    )


def _costs(make: Callable[[], Peer], delays_ms: Sequence[int], order: Sequence[int]) -> Costs:
    timers = len(delays_ms)
    due = make().delays_for(delays_ms)
    # Emptied by expiry, so that no cancelled entry of one measurement is in the next.
    peer, handles = make(), _slots(timers)
    add = _ns(timers, lambda: peer.add(due, handles))
    handles = _slots(0)
    expire = _ns(timers, lambda: peer.expire(LONGEST_MS + 1))
    pairs = make()
    if not pairs.cancels_in_constant_time:
        few = due[:CONSTANT_CANCEL_LIMIT]
        return Costs(add, None, _ns(len(few), lambda: pairs.add_and_cancel(few)), expire)
    both = _ns(timers, lambda: pairs.add_and_cancel(due))
    full, handles = make(), _slots(timers)
    full.add(due, handles)
    shuffled = [handles[index] for index in order]
    handles = _slots(0)
    return Costs(add, _ns(timers, lambda: full.cancel(shuffled)), both, expire)


def _slots(count: int) -> Handles:
    return [None] * count


def measure_moving(
    outstanding: Sequence[int], rounds: int, seed: int, progress: Progress
) -> dict[str, dict[int, float]]:
    """CPU nanoseconds to cancel one timer and start another, the clock moving on and timers expiring meanwhile, by
    how many are outstanding. The oldest is replaced first, as requests end about in the order in which they came."""
    found: dict[str, dict[int, float]] = {name: {} for name in (*MOVING_PEERS, AT_RANDOM)}
    for count in outstanding:
        moves = max(count, min(LEAST_MOVES, LEAST_ROUNDS * count))
        delays_ms = random_delays(count + moves, seed)
        rng = random.Random(seed)
        oldest = [number % count for number in range(moves)]
        anyone = [rng.randrange(count) for _ in range(moves)]
        for number in range(1, rounds + 1):
            for name, by_count in found.items():
                progress(f"moving clock, {count} outstanding, round {number} of {rounds}: {name}")
                peer, places = (WheelPeer(), anyone) if name == AT_RANDOM else (PEERS[name](), oldest)
                with collector_off():
                    cost = _moving(peer, delays_ms, places, count)
                by_count[count] = min(cost, by_count.get(count, cost))
    return found


def _moving(peer: Peer, delays_ms: Sequence[int], places: Sequence[int], count: int) -> float:
    due, handles = peer.delays_for(delays_ms), _slots(count)
    peer.add(due[:count], handles)
    peer.expire(1)
    rest = due[count:]
    return _ns(len(places), lambda: peer.replace(rest, places, handles, max(count // LIFETIME_MS, 1)))


def measure_memory(timers: int, seed: int, progress: Progress) -> dict[str, Memory]:
    """Measure with tracemalloc what each peer allocates, whichever object owns it."""
    delays_ms = random_delays(timers, seed)
    found = {}
    for name in MEMORY_PEERS:
        progress(f"memory: {name}")
        peer, handles = PEERS[name](), _slots(timers)
        due = peer.delays_for(delays_ms)
        with collector_off(), traced() as allocated:
            peer.add(due, handles)
            outstanding = allocated()
            peer.cancel(handles)
            handles[:] = _slots(timers)
            found[name] = Memory(outstanding / timers, allocated() / timers)
    return found


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Bytes allocated since the block began."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def measure_operations(operations: int, seed: int, progress: Progress) -> Mapping[int, int]:
    """Bytes allocated after each tenth of so many starts, cancels, restarts and expiries on 10,000 slots of one wheel,
    the collector off: no garbage may need it."""
    peer, outstanding = WheelPeer(), 10_000
    rng = random.Random(seed)
    handles = _slots(outstanding)
    part = max(operations // 10, 1)
    a_time = min(part, 100_000)
    found = {}
    with collector_off(), traced() as allocated:
        peer.add(random_delays(outstanding, seed), handles)
        for number in range(1, 11):
            progress(f"operations: {number} of 10 parts of {part}")
            done = 0
            while done < part:
                delays_ms = random_delays(a_time, rng.getrandbits(32))
                places = [rng.randrange(outstanding) for _ in range(a_time)]
                peer.replace(delays_ms[::2], places[::2], handles, 500)
                for place, delay_ms in zip(places[1::2], delays_ms[1::2], strict=True):
                    peer.timer.restart(handles[place], delay_ms)
                done += a_time + len(places[::2])  # each replacement is a cancel and a start
                del delays_ms, places
            found[number * part] = allocated()
    return found
