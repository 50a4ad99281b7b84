"""`camerlengo bench timer`: the timing wheel compared with heapq (lazy deletion and purging), asyncio and `sched`.

Each peer has its own loop, so that no adapter's call is timed, and times are virtual for all: asyncio's loop has a
selector that jumps to the next timer. Delays are milliseconds; asyncio's peer is handed seconds, made beforehand.

The work is that of delayed operations: half of the delays are 1 to 200 ms, half 1 to 60 s. Figures are CPU nanoseconds
a timer, the collector off, all peers in one process and in turns; of several rounds the best counts, since other
programs can only add. Last, the process's real clock runs for some seconds under each of three loads: what it was woken
for.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import os
import random
import sched
import selectors
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from controller.cli.gc_tuning import collector_off
from controller.cli.values import seed
from controller.clock import Timer
from controller.hosts.network import NetworkThread, RealClock
from controller.labs.virtual_timer import VirtualTimer
from controller.timer import COMPILED, TimerTask
from tests.benchmarks import common

Handles: TypeAlias = "list[Any]"


def nothing() -> None:
    """What every timer calls."""


class Peer(Protocol):
    """One empty timer at 0 ms. `due` below is delays as this peer wants them (`delays_for`)."""

    cancels_in_constant_time: bool

    def delays_for(self, delays_ms: Sequence[int]) -> Sequence[Any]: ...

    def add(self, due: Sequence[Any], into: Handles) -> None:
        """Starts one a delay; their handles go to the same places in `into`."""

    def cancel(self, handles: Sequence[Any]) -> None: ...

    def add_and_cancel(self, due: Sequence[Any]) -> None:
        """Each is cancelled before the next is started."""

    def replace(self, due: Sequence[Any], slots: Sequence[int], handles: Handles, a_tick: int) -> None:
        """Cancels the timer in a slot and starts another there, `a_tick` times a millisecond of the clock."""

    def expire(self, limit_ms: int) -> None:
        """Runs all that is due within `limit_ms`, the clock moving on."""


class WheelPeer:
    cancels_in_constant_time = True

    def __init__(self, wheel_size: int = 20) -> None:
        self.timer: Any = VirtualTimer(1, wheel_size)

    def delays_for(self, delays_ms: Sequence[int]) -> Sequence[int]:
        return delays_ms

    def add(self, due: Sequence[int], into: Handles) -> None:
        call_later = self.timer.call_later
        for index, delay_ms in enumerate(due):
            into[index] = call_later(delay_ms, nothing)

    def cancel(self, handles: Sequence[TimerTask]) -> None:
        cancel = self.timer.cancel
        for task in handles:
            cancel(task)

    def add_and_cancel(self, due: Sequence[int]) -> None:
        call_later, cancel = self.timer.call_later, self.timer.cancel
        for delay_ms in due:
            cancel(call_later(delay_ms, nothing))

    def replace(self, due: Sequence[int], slots: Sequence[int], handles: Handles, a_tick: int) -> None:
        timer = self.timer
        call_later, cancel = timer.call_later, timer.cancel
        for first in range(0, len(due), a_tick):
            for delay_ms, slot in zip(due[first : first + a_tick], slots[first : first + a_tick], strict=True):
                cancel(handles[slot])
                handles[slot] = call_later(delay_ms, nothing)
            timer.advance_to(timer.now_ms + 1)

    def expire(self, limit_ms: int) -> None:
        self.timer.advance_to(limit_ms)


class TaskPeer(WheelPeer):
    """A wheel with tasks that its caller constructs, as a subclass of TimerTask requires."""

    def add(self, due: Sequence[int], into: Handles) -> None:
        start = self.timer.start
        for index, delay_ms in enumerate(due):
            into[index] = task = TimerTask(nothing)
            start(task, delay_ms)

    def add_and_cancel(self, due: Sequence[int]) -> None:
        start, cancel = self.timer.start, self.timer.cancel
        for delay_ms in due:
            task = TimerTask(nothing)
            start(task, delay_ms)
            cancel(task)


class HeapTimer:
    """A timer on heapq as in the documentation of heapq: a cancelled entry stays until it comes to the top.

    With `purge`, cancelled entries are removed once they are more than half of all, as in asyncio.
    """

    __slots__ = ("cancelled", "heap", "now_ms", "numbers", "purge")

    def __init__(self, purge: bool) -> None:
        self.heap: list[list[Any]] = []
        self.numbers = itertools.count()
        self.now_ms = 0
        self.purge = purge
        self.cancelled = 0

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> list[Any]:
        entry = [self.now_ms + delay_ms, next(self.numbers), callback]
        heapq.heappush(self.heap, entry)
        return entry

    def cancel(self, entry: list[Any]) -> None:
        if self.purge and entry[2] is not None:
            self.cancelled += 1
            if self.cancelled > 100 and self.cancelled > len(self.heap) // 2:
                entry[2] = None
                self.heap = [one for one in self.heap if one[2] is not None]
                heapq.heapify(self.heap)
                self.cancelled = 0
        entry[2] = None

    def advance_to(self, now_ms: int) -> None:
        while self.heap and self.heap[0][0] <= now_ms:
            due_ms, _, callback = entry = heapq.heappop(self.heap)
            if callback is None:
                self.cancelled -= 1
                continue
            entry[2] = None
            self.now_ms = due_ms
            callback()
        self.now_ms = now_ms


class HeapPeer(WheelPeer):
    def __init__(self, purge: bool) -> None:
        self.timer = HeapTimer(purge)


class JumpingSelector(selectors.SelectSelector):
    """Never waits: time goes on by as much as it was to wait."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += max(timeout or 0.0, 0.0)
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


class AsyncioPeer:
    cancels_in_constant_time = True

    def __init__(self) -> None:
        self.loop = JumpingLoop()

    def delays_for(self, delays_ms: Sequence[int]) -> Sequence[float]:
        return [delay_ms / 1_000 for delay_ms in delays_ms]

    def add(self, due: Sequence[float], into: Handles) -> None:
        call_later = self.loop.call_later
        for index, delay_s in enumerate(due):
            into[index] = call_later(delay_s, nothing)

    def cancel(self, handles: Sequence[asyncio.TimerHandle]) -> None:
        for handle in handles:
            handle.cancel()

    def add_and_cancel(self, due: Sequence[float]) -> None:
        call_later = self.loop.call_later
        for delay_s in due:
            call_later(delay_s, nothing).cancel()

    def replace(self, due: Sequence[float], slots: Sequence[int], handles: Handles, a_tick: int) -> None:
        loop = self.loop
        call_later = loop.call_later
        for first in range(0, len(due), a_tick):
            for delay_s, slot in zip(due[first : first + a_tick], slots[first : first + a_tick], strict=True):
                handles[slot].cancel()
                handles[slot] = call_later(delay_s, nothing)
            loop.call_later(0.001, loop.stop)
            loop.run_forever()

    def expire(self, limit_ms: int) -> None:
        self.loop.call_at(limit_ms / 1_000, self.loop.stop)
        self.loop.run_forever()


class SchedPeer:
    """A cancel searches the whole queue and heapifies it: quadratic where there are many."""

    cancels_in_constant_time = False

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.limit_ms = 0.0
        self.timer = sched.scheduler(lambda: self.now_ms, self._pass)

    def _pass(self, by_ms: float) -> None:
        self.now_ms += by_ms

    def delays_for(self, delays_ms: Sequence[int]) -> Sequence[int]:
        return delays_ms

    def add(self, due: Sequence[int], into: Handles) -> None:
        enter = self.timer.enter
        for index, delay_ms in enumerate(due):
            into[index] = enter(delay_ms, 0, nothing)

    def cancel(self, handles: Sequence[sched.Event]) -> None:
        cancel = self.timer.cancel
        for event in handles:
            cancel(event)

    def add_and_cancel(self, due: Sequence[int]) -> None:
        enter, cancel = self.timer.enter, self.timer.cancel
        for delay_ms in due:
            cancel(enter(delay_ms, 0, nothing))

    def replace(self, due: Sequence[int], slots: Sequence[int], handles: Handles, a_tick: int) -> None:
        raise TypeError("a cancel of sched's is linear: it is not asked to do this")

    def expire(self, limit_ms: int) -> None:
        self.timer.run()


PEERS: Mapping[str, Callable[[], Peer]] = {
    "wheel": WheelPeer,
    "wheel, task and start": TaskPeer,
    "wheel, size 256": lambda: WheelPeer(256),
    "heapq, lazy": lambda: HeapPeer(purge=False),
    "heapq, purging": lambda: HeapPeer(purge=True),
    "asyncio": AsyncioPeer,
    "sched": SchedPeer,
}


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
class TimerMemory:
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


def measure_costs(timers: int, rounds: int, seed: int) -> dict[str, Costs]:
    """Every peer in every round, so that a busy minute meets them all."""
    delays_ms = random_delays(timers, seed)
    order = list(range(timers))
    random.Random(seed).shuffle(order)
    best: dict[str, Costs] = {}
    for number in range(1, rounds + 1):
        for name, make in PEERS.items():
            common.progress(f"round {number} of {rounds}: {name}")
            with collector_off():
                found = _costs(make, delays_ms, order)
            best[name] = _least(best[name], found) if name in best else found
    return best


def _least(one: Costs, other: Costs) -> Costs:
    cancel = None if one.cancel is None or other.cancel is None else min(one.cancel, other.cancel)
    return Costs(
        min(one.add, other.add), cancel, min(one.add_and_cancel, other.add_and_cancel), min(one.expire, other.expire)
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


def measure_moving(outstanding: Sequence[int], rounds: int, seed: int) -> dict[str, dict[int, float]]:
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
                common.progress(f"moving clock, {count} outstanding, round {number} of {rounds}: {name}")
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


def measure_memory(timers: int, seed: int) -> dict[str, TimerMemory]:
    """Measure with tracemalloc what each peer allocates, whichever object owns it."""
    delays_ms = random_delays(timers, seed)
    found = {}
    for name in MEMORY_PEERS:
        common.progress(f"memory: {name}")
        peer, handles = PEERS[name](), _slots(timers)
        due = peer.delays_for(delays_ms)
        with collector_off(), traced() as allocated:
            peer.add(due, handles)
            outstanding = allocated()
            peer.cancel(handles)
            handles[:] = _slots(timers)
            found[name] = TimerMemory(outstanding / timers, allocated() / timers)
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


def measure_operations(operations: int, seed: int) -> Mapping[int, int]:
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
            common.progress(f"operations: {number} of 10 parts of {part}")
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


REQUEST_TIMEOUT_MS, ANSWERED_MS, STEP_MS = 200, 20, 10
CLOCK_LOADS: Mapping[str, tuple[int, int | None]] = {
    "nothing outstanding": (0, None),
    "10 a second, all expire": (10, None),
    "1,000 a second, all expire": (1_000, None),
    "1,000 a second, each cancelled after 20 ms": (1_000, ANSWERED_MS),
}
"""Timers of REQUEST_TIMEOUT_MS started a second, and after how long they are cancelled."""


@dataclass(frozen=True, slots=True)
class ClockUse:
    """What a process's real clock did in `seconds` under a load, each number of the whole time."""

    load: str
    seconds: float
    wakes: int
    polls: int
    empty_polls: int
    advances: int
    ticks: int


def measure_clock(seconds: int) -> list[ClockUse]:
    """Run each load for so long on a network thread of its own."""
    found = []
    for name, (a_second, cancel_after_ms) in CLOCK_LOADS.items():
        common.progress(f"real clock: {name}")
        network = NetworkThread("bench")
        network.start()
        try:
            work = _load_clock(name, network.clock, seconds, a_second, cancel_after_ms)
            found.append(network.run(work, seconds + 30.0))
        finally:
            network.stop()
    return found


async def _load_clock(
    name: str, clock: RealClock, seconds: int, a_second: int, cancel_after_ms: int | None
) -> ClockUse:
    """The load sleeps on asyncio's own timer, so that the wheel is woken for nothing but what it is measured with."""
    began_ms, started = clock.now_ms(), 0
    before = clock.wheel_counts
    waiting: deque[tuple[float, Timer]] = deque()
    while (now_ms := clock.now_ms()) < began_ms + seconds * 1_000:
        while started < a_second * (now_ms - began_ms) / 1_000:
            waiting.append((now_ms, clock.call_later(REQUEST_TIMEOUT_MS, nothing)))
            started += 1
        if cancel_after_ms is not None:
            while waiting and waiting[0][0] <= now_ms - cancel_after_ms:
                waiting.popleft()[1].cancel()
        await asyncio.sleep(STEP_MS / 1_000)
    passed_s, after = (clock.now_ms() - began_ms) / 1_000, clock.wheel_counts
    return ClockUse(
        name,
        passed_s,
        clock.wakes,
        after.polls - before.polls,
        after.empty_polls - before.empty_polls,
        after.advances - before.advances,
        after.ticks - before.ticks,
    )


PLOT = "timer-moving-clock.png"
TABLES = ("timer costs", "timer ratios", "moving clock", "timer memory", "real clock")
LOW, HIGH = 10_000, 1_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts, cancels and expires as many timers with each, the collector off, and prints the CPU nanoseconds that"
        " one took, ratios with the bounds that are set for them, and bytes. Half of the delays are 1 to 200 ms, half 1"
        " to 60 s."
    )
    common.add_count(parser, "--timers", HIGH, "number of outstanding timers", least=1_000)
    common.add_count(parser, "--rounds", 3, "number of rounds; the best one counts")
    common.add_count(parser, "--operations", 0, "record memory use over N operations; 0: none", least=0)
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help="seed of the delays (1)")
    common.add_count(parser, "--clock-seconds", 5, "run the real clock for so many seconds under each load")
    common.add_output(parser, PLOT, "docs/timer-figures.md", TABLES)


needs = common.plots_needed


@dataclass(frozen=True, slots=True)
class Ratio:
    """A cost over another's. `bound`: at most that much is wanted."""

    what: str
    ratio: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.ratio <= self.bound


@dataclass(frozen=True, slots=True)
class TimerFigures:
    """All of a run's. `moving` and `operations` by how many timers, and operations, there were."""

    compiled: bool
    timers: int
    rounds: int
    costs: Mapping[str, Costs]
    moving: Mapping[str, Mapping[int, float]]
    memory: Mapping[str, TimerMemory]
    operations: Mapping[int, int]
    clock: Sequence[ClockUse]

    def ratios(self) -> list[Ratio]:
        wheel, heap, loop = (self.costs[name] for name in ("wheel", "heapq, lazy", "asyncio"))
        moving = self.moving["wheel"]
        low, high = min(moving), max(moving)
        return [
            Ratio("add+cancel, over heapq's with lazy deletion", wheel.add_and_cancel / heap.add_and_cancel, 0.8),
            Ratio("add+cancel, over asyncio's call_later and cancel", wheel.add_and_cancel / loop.add_and_cancel, 0.2),
            Ratio("expire, over heapq's", wheel.expire / heap.expire, 0.35),
            Ratio("expire, over asyncio's", wheel.expire / loop.expire, 0.35),
            Ratio(f"moving clock, {high} outstanding over {low}", moving[high] / moving[low], 1.5),
            Ratio("bytes a timer, over 100", self.memory["wheel"].outstanding / 100, 1.0),
            Ratio("bytes left a timer when all are cancelled, over 1", self.memory["wheel"].cancelled, 1.0),
        ]


def run(arguments: argparse.Namespace) -> int:
    load_before = os.getloadavg()[0]
    found = measure(arguments.timers, arguments.rounds, arguments.operations, arguments.seed, arguments.clock_seconds)
    common.progress("")
    common.show(arguments, as_object(found), "\n".join(table(found)))
    if arguments.plots is not None:
        draw(found, arguments.plots)
    if arguments.page is not None:
        state = f"{found.timers:,} timers, best of {found.rounds}. {common.circumstances(load_before)}"
        for name, lines in zip(TABLES, page_tables(found, state), strict=True):
            common.put_table(arguments.page, name, lines)
    return 0


def measure(timers: int, rounds: int, operations: int, seed: int, clock_seconds: int) -> TimerFigures:
    return TimerFigures(
        COMPILED,
        timers,
        rounds,
        measure_costs(timers, rounds, seed),
        measure_moving(_outstanding(timers), rounds, seed),
        measure_memory(timers, seed),
        measure_operations(operations, seed) if operations else {},
        measure_clock(clock_seconds),
    )


def _outstanding(timers: int) -> list[int]:
    """Powers of ten from LOW (or a tenth of `timers`, if that is less) to `timers`."""
    count = min(LOW, timers // 10)
    found = []
    while count < timers:
        found.append(count)
        count *= 10
    return [*found, timers]


def as_object(found: TimerFigures) -> dict[str, Any]:
    whole = asdict(found)
    whole["ratios"] = [asdict(ratio) | {"holds": ratio.holds} for ratio in found.ratios()]
    return {"benchmark": "timer"} | whole


def table(found: TimerFigures) -> Iterator[str]:
    build = "compiled" if found.compiled else "pure Python"
    yield f"{found.timers} timers, {build} wheel, best of {found.rounds}; CPU ns a timer"
    yield f"{'':<24}{'add':>10}{'cancel':>10}{'add+cancel':>12}{'expire':>10}"
    for name, cost in found.costs.items():
        cancel = "-" if cost.cancel is None else f"{cost.cancel:.0f}"
        yield f"{name:<24}{cost.add:>10.0f}{cancel:>10}{cost.add_and_cancel:>12.0f}{cost.expire:>10.0f}"
    yield f"\nCPU ns to replace one, a moving clock, each for {LIFETIME_MS} ms on the average"
    counts = list(found.moving["wheel"])
    yield f"{'outstanding':<24}" + "".join(f"{count:>12}" for count in counts)
    for name, by_count in found.moving.items():
        yield f"{name:<24}" + "".join(f"{by_count[count]:>12.0f}" for count in counts)
    yield f"\n{'bytes a timer':<24}{'outstanding':>12}{'cancelled':>12}"
    for name, memory in found.memory.items():
        yield f"{name:<24}{memory.outstanding:>12.1f}{memory.cancelled:>12.1f}"
    if found.operations:
        yield f"\n{'operations':<24}{'bytes':>12}"
        for count, allocated in found.operations.items():
            yield f"{count:<24}{allocated:>12}"
    yield "\n" + common.aligned([CLOCK_HEAD, *clock_rows(found)])
    yield f"\n{'ratio':<54}{'is':>8}{'at most':>10}"
    for ratio in found.ratios():
        yield f"{ratio.what:<54}{ratio.ratio:>8.2f}{ratio.bound:>10.2f}" + ("" if ratio.holds else "  not held")


CLOCK_HEAD = ("real clock", "wake-ups/s", "buckets polled/s", "of them empty", "advances/s", "advances saved/s")


def clock_rows(found: TimerFigures) -> list[list[str]]:
    """For each load, rates a second and the share of polled buckets that were empty."""
    rows = []
    for one in found.clock:
        empty = f"{one.empty_polls / one.polls:.0%}" if one.polls else "-"
        saved = one.ticks - one.advances
        rates = [f"{count / one.seconds:.1f}" for count in (one.wakes, one.polls, one.advances, saved)]
        rows.append([one.load, rates[0], rates[1], empty, rates[2], rates[3]])
    return rows


def page_tables(found: TimerFigures, state: str) -> list[list[str]]:
    """The tables of a page, in the order of TABLES; `state` is written below the first."""
    costs = [
        [
            name,
            *(
                "-" if each is None else f"{each:,.0f}"
                for each in (one.add, one.cancel, one.add_and_cancel, one.expire)
            ),
        ]
        for name, one in found.costs.items()
    ]
    ratios = [
        [one.what, f"{one.ratio:.2f}", f"{one.bound:.2f}{'' if one.holds else ', not held'}"] for one in found.ratios()
    ]
    counts = list(found.moving["wheel"])
    moving = [[name, *(f"{costs[count]:,.0f}" for count in counts)] for name, costs in found.moving.items()]
    memory = [[name, f"{one.outstanding:,.0f}", f"{one.cancelled:,.2f}"] for name, one in found.memory.items()]
    return [
        [*common.markdown(["", "add", "cancel, at random", "add+cancel", "expire"], costs), "", state],
        common.markdown(["ratio", "is", "at most"], ratios),
        common.markdown(["outstanding", *(f"{count:,}" for count in counts)], moving),
        common.markdown(["bytes a timer", "outstanding", "when all are cancelled"], memory),
        common.markdown(CLOCK_HEAD, clock_rows(found)),
    ]


def draw(found: TimerFigures, folder: Path) -> None:
    by_count = [
        common.Line(name, list(costs), list(costs.values()), colour)
        for colour, (name, costs) in enumerate(found.moving.items())
    ]
    by_rate = [
        common.Line(name, *_cores_at_rates(costs), colour) for colour, (name, costs) in enumerate(found.moving.items())
    ]
    panels = [
        common.Panel("Replacing a timer", "timers outstanding", "CPU ns", by_count, log_x=True),
        common.Panel("CPU at a rate", "timers replaced a second", "cores", by_rate, log_x=True, log_y=True),
    ]
    build = "compiled" if found.compiled else "pure Python"
    common.save(folder / PLOT, f"A moving clock, each timer replaced after {LIFETIME_MS} ms; {build} wheel", panels)


def _cores_at_rates(costs: Mapping[int, float]) -> tuple[Sequence[float], Sequence[float]]:
    """So many outstanding, each for LIFETIME_MS, are a rate (Little's law); what one costs times it is the load."""
    rates = [count * 1_000 / LIFETIME_MS for count in costs]
    return rates, [rate * cost / 1e9 for rate, cost in zip(rates, costs.values(), strict=True)]
