"""Runs tests against mutants: one pytest session collects once, and forks a process for each mutant.

In that process the mutant's function gets the mutated code (`__code__`, so that every reference to it is the mutant),
the tests that run its block are run, fastest first, and the first failure ends it. Code that runs once, at import,
can't be put in later: for such a mutant the process becomes a new pytest, which imports the mutant.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.blocks import MUTANT, PATHS, ROOT, block_of
from tests.mutation.operators import MODULE, Mutant, mutated

KILLED, SURVIVED, TIMED_OUT, UNTESTED = "killed", "survived", "timed out", "untested"
STATUSES = {0: SURVIVED, 1: KILLED, 3: TIMED_OUT}
TIMES_BASELINE = 10.0
"""A test times out after so many times the CPU time that it takes without a mutant, and not before `least_limit_s`."""
AT_IMPORT = 0.4
"""The share of the budget for a mutant of code that runs at import, which needs a pytest of its own."""
MEMORY = 6 << 30
BLOCKED_S = 120.0
"""A process that uses less than `LEAST_CPU_S` in so long waits for what never comes."""
LEAST_CPU_S = 0.05
LAST_RESORT = "the swarm"


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    outcome: str
    by: str
    cpu_s: float
    tests: int

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"{self.outcome}{by} ({self.tests} tests, {self.cpu_s:.1f} s): {self.mutant.key}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the tests run without a mutant: CPU seconds by test, and the tests by path and block."""

    cpu_s: Mapping[str, float]
    by_block: Mapping[tuple[str, int], Sequence[str]]
    by_path: Mapping[str, Sequence[str]]
    at_import: frozenset[tuple[str, int]]
    blocks: Mapping[str, int]
    idle: Sequence[str]
    """Tests that run no block of the mutated files: they may still read what is made at import."""

    @classmethod
    def of(cls, tests: Mapping[str, Any], at_import: Mapping[str, Sequence[int]]) -> Coverage:
        cpu_s = {name: found["cpu_s"] for name, found in tests.items()}
        by_block: dict[tuple[str, int], list[str]] = {}
        by_path: dict[str, list[str]] = {}
        for name in sorted(tests, key=lambda name: (cpu_s[name], name)):
            for path, lines in tests[name]["blocks"].items():
                by_path.setdefault(path, []).append(name)
                for line in lines:
                    by_block.setdefault((path, line), []).append(name)
        imported = frozenset((path, line) for path, lines in at_import.items() for line in lines)
        blocks = {name: sum(map(len, found["blocks"].values())) for name, found in tests.items()}
        idle = sorted((name for name in tests if not blocks[name]), key=lambda name: (cpu_s[name], name))
        return cls(cpu_s, by_block, by_path, imported, blocks, idle)

    def runs_at_import(self, mutant: Mutant, tree: ast.AST) -> bool:
        """Whether its code runs before any test does, so that it must be there then."""
        block = None if mutant.function == MODULE else block_of(tree, mutant.line)
        return block is None or (mutant.path, block) in self.at_import

    def tests_of(self, mutant: Mutant, tree: ast.AST, budget_s: float) -> list[str]:
        """The tests that run its block: of `budget_s` of CPU time one half for the fastest, the other for those that
        run the fewest blocks besides. For code that runs at import a share of it, and tests that run no block at all
        too. Fastest first."""
        chosen: list[str] = []
        if self.runs_at_import(mutant, tree):
            of_block = self.by_path.get(mutant.path) or self._of_folder(mutant.path)
            budget_s *= AT_IMPORT
            chosen += self._within(self.idle, budget_s / 4)
        else:
            of_block = self.by_block.get((mutant.path, block_of(tree, mutant.line) or 0), ())
        chosen += self._within(of_block, budget_s / 2)
        others = sorted((name for name in of_block if name not in chosen), key=lambda name: (self.blocks[name], name))
        chosen += self._within(others, budget_s / 2)
        return sorted(chosen, key=lambda name: (self.cpu_s[name], name))

    def _within(self, names: Sequence[str], budget_s: float) -> list[str]:
        """The first of them, as many as take so long together; one at least."""
        chosen: list[str] = []
        total_s = 0.0
        for name in names:
            total_s += self.cpu_s[name]
            if chosen and total_s > budget_s:
                break
            chosen.append(name)
        return chosen

    def _of_folder(self, path: str) -> Sequence[str]:
        """For a file without functions, of which the map knows nothing."""
        folder = str(Path(path).parent)
        names = {name for other, of in self.by_path.items() if str(Path(other).parent) == folder for name in of}
        return sorted(names, key=lambda name: (self.cpu_s[name], name))


class Runner:
    """A pytest plugin: takes the place of the session's test loop. `verdicts` is filled as mutants are decided.
    `last_resort` is run where no test fails: it says what it found, or None."""

    def __init__(
        self,
        mutants: Iterable[Mutant],
        coverage: Coverage,
        *,
        jobs: int = 1,
        budget_s: float = 60.0,
        least_limit_s: float = 3.0,
        root: Path = ROOT,
        last_resort: Callable[[], str | None] = lambda: None,
        told: Callable[[Verdict], None] = lambda _verdict: None,
    ) -> None:
        self._mutants = list(mutants)
        self._coverage = coverage
        self._jobs = jobs
        self._budget_s = budget_s
        self._least_limit_s = least_limit_s
        self._root = root
        self._last_resort = last_resort
        self._told = told
        self._running: dict[int, tuple[Mutant, int, int]] = {}
        self._looked: dict[int, tuple[float, float]] = {}
        self._trees: dict[str, tuple[str, ast.Module]] = {}
        self.verdicts: list[Verdict] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = _functions(self._root)
        gc.collect()
        gc.freeze()  # a collection in a forked process would copy every page
        for mutant in self._mutants:
            names = self._coverage.tests_of(mutant, self._tree(mutant)[1], self._budget_s)
            missing = [name for name in names if name not in items]
            if missing:
                raise ValueError(f"{missing[0]}: the map names a test that is not collected; make it anew")
            while len(self._running) >= self._jobs:
                self._reap()
            self._start(mutant, [items[name] for name in names], functions)
        while self._running:
            self._reap()
        return True

    def _tree(self, mutant: Mutant) -> tuple[str, ast.Module]:
        if mutant.path not in self._trees:
            source = (self._root / mutant.path).read_text(encoding="utf-8")
            self._trees[mutant.path] = source, ast.parse(source)
        return self._trees[mutant.path]

    # -- processes

    def _start(self, mutant: Mutant, items: list[pytest.Item], functions: Mapping[Any, list[FunctionType]]) -> None:
        if not items:
            self._decided(Verdict(mutant, UNTESTED, "", 0.0, 0))
            return
        sys.stdout.flush()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            self._running[pid] = (mutant, reading, len(items))
            self._looked[pid] = (time.monotonic(), 0.0)
            return
        status = 1
        try:
            os.close(reading)
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            status = self._child(mutant, items, functions, writing)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the mutant is noticed
            os.write(writing, repr(error).encode()[:200])
        finally:
            os._exit(status)

    def _child(
        self, mutant: Mutant, items: list[pytest.Item], functions: Mapping[Any, list[FunctionType]], out: int
    ) -> int:
        source = self._tree(mutant)[0]
        imported = self._coverage.runs_at_import(mutant, self._tree(mutant)[1])
        put_in = not imported and _put_in(mutant, source, self._root, functions)
        if not put_in:
            self._become_pytest(mutant, items)
        for item in items:
            self._limit(item.nodeid, out)
            reports = runtestprotocol(item, log=False, nextitem=None)
            if any(report.failed for report in reports):
                os.write(out, item.nodeid.encode())
                return 1
        self._limit(LAST_RESORT, out)
        found = self._last_resort()
        if found is not None:
            os.write(out, found.encode()[:200])
            return 1
        return 0

    def _limit(self, name: str, out: int) -> None:
        limit_s = max(self._least_limit_s, TIMES_BASELINE * self._coverage.cpu_s.get(name, 3.0))

        def over(_signal: int, _frame: FrameType | None) -> None:
            os.write(out, name.encode())
            os._exit(3)

        signal.signal(signal.SIGPROF, over)
        signal.setitimer(signal.ITIMER_PROF, limit_s)

    def _become_pytest(self, mutant: Mutant, items: list[pytest.Item]) -> None:
        total_s = sum(self._coverage.cpu_s[item.nodeid] for item in items)
        limit = int(20 + TIMES_BASELINE * total_s)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        os.environ.update({MUTANT: f"{mutant.path}#{mutant.number}", PATHS: mutant.path})
        names = [item.nodeid for item in items]
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutation.blocks", "--rootdir", str(self._root)]
        os.chdir(self._root)
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *options, *names])

    def _reap(self) -> None:
        while True:
            for pid, (mutant, reading, count) in list(self._running.items()):
                late = self._is_blocked(pid)
                if late:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                ended, status, used = os.wait4(pid, 0 if late else os.WNOHANG)
                if ended:
                    del self._running[pid], self._looked[pid]
                    by = os.read(reading, 4096).decode(errors="replace")
                    os.close(reading)
                    code = os.waitstatus_to_exitcode(status)
                    timed_out = late or code in (-signal.SIGXCPU, -signal.SIGKILL, 3)
                    outcome = TIMED_OUT if timed_out else STATUSES.get(code, KILLED)
                    self._decided(Verdict(mutant, outcome, by, used.ru_utime + used.ru_stime, count))
                    return
            time.sleep(0.005)

    def _is_blocked(self, pid: int) -> bool:
        """Whatever else the machine does: it is asked how much CPU time the process has used since the last look."""
        looked_s, cpu_s = self._looked[pid]
        if time.monotonic() < looked_s + BLOCKED_S:
            return False
        now_cpu_s = _cpu_s(pid)
        self._looked[pid] = (time.monotonic(), now_cpu_s)
        return now_cpu_s < cpu_s + LEAST_CPU_S

    def _decided(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self._told(verdict)


def _cpu_s(pid: int) -> float:
    """Of a process, as Linux tells it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- code


def _functions(root: Path) -> Mapping[Any, list[FunctionType]]:
    """Every function that there is of files below the root, by file, qualified name and first line."""
    found: dict[Any, list[FunctionType]] = {}
    gc.unfreeze()  # what tests/conftest.py froze is not among the objects
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(str(root)):
            code = one.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(one)
    return found


def _put_in(mutant: Mutant, source: str, root: Path, functions: Mapping[Any, list[FunctionType]]) -> bool:
    """False if it can't be: no function has the code, or the new code has other free variables."""
    file = str(root / mutant.path)
    code = compile(mutated(source, mutant.number), file, "exec")
    inner = f"{mutant.function}.<locals>."  # what it made at import has its own code: checks in a table, say
    pairs = [
        (one, new)
        for new in _codes(code)
        if new.co_qualname == mutant.function or new.co_qualname.startswith(inner)
        for one in functions.get((file, new.co_qualname, new.co_firstlineno), ())
    ]
    if all(new.co_qualname != mutant.function for _, new in pairs):
        return False
    if any(one.__code__.co_freevars != new.co_freevars for one, new in pairs):
        return False
    for one, new in pairs:
        one.__code__ = new
    return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)
