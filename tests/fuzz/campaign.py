"""Feeds malformed inputs to all targets in turn and says what came of them: `python -m tests.fuzz.campaign`.

Fails on a crash (with the input), on a hang (an input that takes more than `CPU_LIMIT_S` of the processor's time), and
on growth (memory or live objects that the last nine tenths of the inputs have added to the first).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.fuzz.mutations import malformed
from tests.fuzz.targets import Target, targets

CPU_LIMIT_S = 5.0
GROWTH_LIMIT_KIB = 32 << 10
GROWTH_LIMIT_OBJECTS = 5_000
CALM_DOWN = 10
"""A tenth of the inputs comes before the first look at memory: caches fill, interpreters warm up."""


class Failure(Exception):
    """What the campaign is there to find. The message has the target and the input."""


class Hang(BaseException):
    """Raised by the timer into what takes too long; no `except Exception` on the way keeps it."""


@dataclass
class Figures:
    inputs: int = 0
    seconds: float = 0.0
    slowest_ms: float = 0.0
    slowest: str = ""
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    before: Memory | None = None
    after: Memory | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """`objects`: what the collector knows of. KiB as the system counts this process's pages. `resident_kib` is without
    what the C library keeps of freed memory: up to 64 MiB above the heap's last block, once a block of megabytes was
    freed (mallopt(3), M_TRIM_THRESHOLD)."""

    resident_kib: int
    peak_kib: int
    objects: int

    @classmethod
    def now(cls) -> Memory:
        gc.collect()
        _give_back_freed_memory()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return cls(pages * resource.getpagesize() >> 10, peak_kib, len(gc.get_objects()))


def _give_back_freed_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


@contextmanager
def watched(limit_s: float) -> Iterator[None]:
    """Within it a SIGVTALRM, which `signal.setitimer` arms for each input, is a Hang."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"more than {limit_s:g} s of processor time")

    former = signal.signal(signal.SIGVTALRM, ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, former)


def feed(target: Target, data: bytes, limit_s: float = CPU_LIMIT_S) -> str:
    """The outcome, inside `watched`. Failure for a crash or a hang."""
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        return target.feed(data)
    except (Exception, Hang) as error:
        raise Failure(f"{target.name}: {type(error).__name__}: {error}\ninput: {data.hex()}") from error


def campaign(
    inputs: int, seed: int, fed: Sequence[Target], *, limit_s: float = CPU_LIMIT_S, growth_kib: int = GROWTH_LIMIT_KIB
) -> Figures:
    """The same inputs for the same seed. Failure."""
    rng = random.Random(seed)
    figures = Figures()
    started = time.perf_counter()
    with watched(limit_s):
        for number in range(inputs):
            target = fed[number % len(fed)]
            data = malformed(rng, target.sound)
            began = time.perf_counter()
            outcome = feed(target, data, limit_s)
            took_ms = (time.perf_counter() - began) * 1_000.0
            if took_ms > figures.slowest_ms:
                figures.slowest_ms, figures.slowest = took_ms, f"{target.name}, {len(data)} bytes"
            figures.outcomes[target.name, outcome] += 1
            if number == inputs // CALM_DOWN:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
                figures.before = Memory.now()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    figures.inputs, figures.seconds = inputs, time.perf_counter() - started
    figures.after = Memory.now()
    refuse_growth(figures, growth_kib)
    return figures


def refuse_growth(figures: Figures, limit_kib: int) -> None:
    refuse_memory_growth(figures.before, figures.after, figures.inputs, limit_kib)


def refuse_memory_growth(before: Memory | None, after: Memory | None, inputs: int, limit_kib: int) -> None:
    if before is None or after is None:
        return
    grown = after.objects - before.objects
    if grown > GROWTH_LIMIT_OBJECTS:
        raise Failure(f"{grown} objects more after {inputs} inputs than at the first look")
    for kind, more_kib in (
        ("resident", after.resident_kib - before.resident_kib),
        ("peak", after.peak_kib - before.peak_kib),
    ):
        if more_kib > limit_kib:
            raise Failure(f"{more_kib} KiB more ({kind}) after {inputs} inputs than at the first look")


def lines(figures: Figures) -> Iterator[str]:
    rate = figures.inputs / max(figures.seconds, 1e-9)
    yield f"{figures.inputs:,} malformed inputs in {figures.seconds:.1f} s: {rate:,.0f} inputs/s"
    by_target: dict[str, Counter[str]] = {}
    for (target, outcome), count in figures.outcomes.items():
        by_target.setdefault(target, Counter())[outcome] += count
    for target, outcomes in by_target.items():
        yield f"  {target}: " + ", ".join(f"{outcome} {count:,}" for outcome, count in outcomes.most_common())
    yield f"slowest: {figures.slowest_ms:.1f} ms ({figures.slowest})"
    yield from memory_lines(figures.before, figures.after)
    yield "no crash, no hang, no growth"


def memory_lines(before: Memory | None, after: Memory | None) -> Iterator[str]:
    for when, memory in (("at the first look", before), ("at the end", after)):
        if memory is not None:
            yield (
                f"memory {when}: {memory.resident_kib / 1024:.1f} MiB, peak {memory.peak_kib / 1024:.1f} MiB,"
                f" {memory.objects:,} objects"
            )


def fuzz_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a fuzz command, with the options that all have."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.fuzz.{name}", description=description)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def exit_status(seed: int, run: Callable[[], Sequence[str]]) -> int:
    """Run a campaign, print its lines or its failure, and return the exit status."""
    try:
        found = run()
    except Failure as failure:
        print(f"seed {seed}: {failure}", file=sys.stderr)
        return 1
    print("\n".join(found))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = fuzz_parser("campaign", __doc__)
    parser.add_argument("--target", default="", metavar="TEXT", help="only targets whose names contain this")
    given = parser.parse_args(arguments)
    fed = [target for target in targets() if given.target in target.name]
    if not fed:
        parser.error(
            f"--target {given.target!r}: expected a part of one of: {', '.join(one.name for one in targets())}"
        )
    return exit_status(given.seed, lambda: [*lines(campaign(given.inputs, given.seed, fed))])


if __name__ == "__main__":
    sys.exit(main())
