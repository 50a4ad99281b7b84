"""`python -m tests.mutation --seed S --count N`: a random sample of mutants, and which of them no test notices.

The tests run once with probes, to learn which of them run which block (`--map FILE` keeps that for the next time, as
long as no source changes). Then each mutant of the sample meets the tests that run its block. Ends with exit status 1
if a mutant survived that `equivalent.txt` does not list.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.blocks import MAP, PATHS, ROOT, sources
from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.running import SURVIVED, TIMED_OUT, UNTESTED, Coverage, Runner, Verdict

CODE = ("controller/core", "statemachines")
TESTS = (
    "tests/core",
    "tests/statemachines",
    "tests/incidents",
    "tests/broker",
    "tests/simulator",
    "tests/scenarios",
    "tests/cli/test_explain.py",
    "tests/cli/test_whatif.py",
    "tests/cli/test_pause.py",
)
SLOW = (
    "tests/incidents/test_on_real_zookeeper.py",
    "tests/simulator/test_determinism.py",
    "tests/simulator/test_examples.py",
    "tests/simulator/test_command.py",
)
"""Not run: real processes, other interpreters, and what takes minutes."""
EQUIVALENT = Path(__file__).with_name("equivalent.txt")


def known_equivalents(file: Path = EQUIVALENT) -> dict[str, str]:
    """By mutant's key, why no test can notice it. A line each: the key, ` ; `, the reason."""
    known: dict[str, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line and not line.startswith("#"):
            key, separator, reason = line.rpartition(" ; ")
            if not separator or not reason:
                raise ValueError(f"{file.name}:{number}: expected a mutant's key, ` ; ` and a reason, got {line!r}")
            known[key] = reason
    return known


def unnoticed(results: Path) -> frozenset[str]:
    """The keys of the mutants whose latest outcome in a file of results is that no test noticed them."""
    latest = {one["key"]: one["outcome"] for one in map(json.loads, results.read_text(encoding="utf-8").splitlines())}
    return frozenset(key for key, outcome in latest.items() if outcome in (SURVIVED, UNTESTED))


def sampled(paths: Sequence[str], seed: int, count: int) -> tuple[list[Mutant], int]:
    """The sample, and of how many."""
    every = [mutant for path in sources(paths) for mutant in mutants_of(path, (ROOT / path).read_text("utf-8"))]
    return random.Random(seed).sample(every, min(count, len(every))), len(every)


def swarmed(seeds: int) -> str | None:
    """What the swarm's first seeds find."""
    from controller.simulator.plan_generator import draw_plan
    from controller.simulator.swarm import run_plan

    for seed in range(seeds):
        violation = run_plan(draw_plan(seed)).violation
        if violation is not None:
            return f"swarm seed {seed}: {violation}"
    return None


def coverage_of(paths: Sequence[str], tests: Sequence[str], kept: Path | None) -> tuple[Coverage, str]:
    """Runs the tests once, unless `kept` is of the present sources and tests."""
    stamp = _stamp(paths, tests)
    if kept is not None and kept.exists():
        found = json.loads(kept.read_text())
        if found.get("stamp") == stamp:
            return Coverage.of(found["tests"], found["at_import"]), f"{len(found['tests'])} tests, mapped before"
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder, "map.json")
        environment = {**os.environ, MAP: str(to), PATHS: ":".join(paths)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutation.blocks"]
        subprocess.run(
            [*command, *_ignored(), *tests], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False
        )
        found = json.loads(to.read_text())
    if kept is not None:
        kept.write_text(json.dumps({**found, "stamp": stamp}))
    left_out = f", left out as they fail or are skipped: {found['left_out']}" if found["left_out"] else ""
    return Coverage.of(
        found["tests"], found["at_import"]
    ), f"{len(found['tests'])} tests mapped in {time.monotonic() - began_s:.0f} s{left_out}"


def _stamp(paths: Sequence[str], tests: Sequence[str]) -> str:
    digest = hashlib.sha256(repr((tuple(paths), tuple(tests))).encode())
    for path in sources(["controller", "statemachines", "tests"]):
        digest.update((ROOT / path).read_bytes())
    return digest.hexdigest()


def _ignored() -> list[str]:
    return [f"--ignore={path}" for path in SLOW]


def report(verdicts: Sequence[Verdict], equivalents: Mapping[str, str]) -> tuple[str, list[Verdict]]:
    """In words, and the survivors that nobody has called equivalent."""
    open_ = [one for one in verdicts if one.outcome in (SURVIVED, UNTESTED) and one.mutant.key not in equivalents]
    counts = Counter(one.outcome for one in verdicts)
    equivalent = sum(one.mutant.key in equivalents for one in verdicts)
    noticed = len(verdicts) - len(open_) - equivalent
    others = len(verdicts) - equivalent
    share = 100.0 * noticed / others if others else 100.0
    cpu_s = sum(one.cpu_s for one in verdicts)
    lines = [
        f"{len(verdicts)} mutants: {counts['killed']} killed, {counts[TIMED_OUT]} timed out,"
        f" {len(open_)} survived, {equivalent} equivalent; {cpu_s:.0f} s of CPU",
        f"{share:.1f}% of those that are not equivalent were noticed",
    ]
    return "\n".join(lines), open_


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0, help="of the sample, this many that were run before")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--paths", nargs="+", default=list(CODE))
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--budget-s", type=float, default=60.0, help="CPU seconds of tests a mutant, at most")
    parser.add_argument("--least-limit-s", type=float, default=3.0, help="CPU seconds before a test times out")
    parser.add_argument("--swarm-seeds", type=int, default=6, help="run where no test fails")
    parser.add_argument("--map", type=Path, help="where the map of blocks to tests is kept")
    parser.add_argument("--results", type=Path, help="a line of JSON for each mutant")
    parser.add_argument("--only", help="mutants whose key contains this, not a sample")
    parser.add_argument("--again", type=Path, help="of the sample, what no test noticed by these earlier results")
    options = parser.parse_args(arguments)
    return run(options)


def run(options: argparse.Namespace) -> int:
    mutants, of = sampled(options.paths, options.seed, 1 << 30 if options.only else options.count)
    mutants = [one for one in mutants if not options.only or options.only in one.key][options.skip :]
    if options.again is not None:
        open_before = unnoticed(options.again)
        mutants = [one for one in mutants if one.key in open_before]
    coverage, told = coverage_of(options.paths, options.tests, options.map)
    print(f"seed {options.seed}: {len(mutants)} of {of} mutants of {' '.join(options.paths)}; {told}", flush=True)
    runner = Runner(
        mutants,
        coverage,
        jobs=options.jobs,
        budget_s=options.budget_s,
        least_limit_s=options.least_limit_s,
        last_resort=lambda: swarmed(options.swarm_seeds),
        told=lambda verdict: _tell(verdict, options.results),
    )
    plain: list[Any] = ["-q", "-s", "--no-header", "-p", "no:cacheprovider"]
    pytest.main([*plain, *_ignored(), *options.tests], plugins=[runner])
    words, survivors = report(runner.verdicts, known_equivalents())
    for one in survivors:
        print(f"{one.outcome}: {one.mutant.path}:{one.mutant.line}: {one.mutant.key}")
    print(words)
    return 1 if survivors or len(runner.verdicts) < len(mutants) else 0


def _tell(verdict: Verdict, results: Path | None) -> None:
    print(verdict, flush=True)
    if results is not None:
        mutant = verdict.mutant
        line = {"key": mutant.key, "line": mutant.line, "outcome": verdict.outcome, "by": verdict.by}
        with results.open("a") as file:
            print(json.dumps({**line, "cpu_s": round(verdict.cpu_s, 2), "tests": verdict.tests}), file=file)


if __name__ == "__main__":
    sys.exit(main())
