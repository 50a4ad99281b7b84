"""kazoo's own test suite against the ZooKeepers of this project and a real one, compared test by test.

    python -m pip install objgraph                                  # which kazoo's test_cache.py imports
    python -m tests.clients.kazoo_suite                             # fake, python and java
    python -m tests.clients.kazoo_suite --against fake test_lock.py  # one of them, one file

`fake` is `FakeZooKeeper` in the process of the tests, `python` a `ZooKeeperServer`, `java` ZooKeeper's own server.
kazoo's wheel carries its tests (kazoo/tests); they are run where they are installed, file by file, each in a process
of its own with a deadline and a fresh server. Only the harness's idea of a cluster is replaced (`kazoo_plugin`).

Printed are the numbers of tests by outcome, each test that failed, and, beside `java`, each that passes there and not
here. The exit status is 1 if fewer than 95% of the tests that pass on `java` pass on another; without `java`, if any
test failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import kazoo

from tests.clients.kazoo_plugin import AGAINST, KINDS

ROOT = Path(__file__).parents[2]
SUITE = Path(kazoo.__file__).parent / "tests"
REAL = "java"
GOAL = 0.95
ONE_TEST_S = 60
"""A test that takes longer has failed. kazoo's own longest wait is 30 s."""
ONE_FILE_S = 600
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

Outcomes = Mapping[str, tuple[str, str]]
"""What became of each test, and why."""


def run_file(path: Path, kind: str) -> Outcomes:
    """Run the tests of one file against one kind of server."""
    with tempfile.TemporaryDirectory(prefix="kazoo-suite-") as folder:
        report = Path(folder, "report.xml")
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.clients.kazoo_plugin", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(path.parent), f"--timeout={ONE_TEST_S}"),
            *(f"--junitxml={report}", str(path)),
        ]
        environment = {
            **os.environ,
            AGAINST: kind,
            "ZOOKEEPER_VERSION": "3.9.5",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
        }
        try:
            ran = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, timeout=ONE_FILE_S, check=False
            )
        except subprocess.TimeoutExpired:
            return {path.name: (FAILED, f"not finished within {ONE_FILE_S} s")}
        if not report.exists():
            return {path.name: (FAILED, f"no report\n{ran.stdout}{ran.stderr}")}
        return _outcomes(path.name, report)


def _outcomes(name: str, report: Path) -> Outcomes:
    found: dict[str, tuple[str, str]] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        test = f"{name}::{case.get('classname', '').split('.')[-1]}::{case.get('name')}"
        notes = [child for child in case if child.tag in ("failure", "error", "skipped")]
        reason = next((note.get("message") or "" for note in notes), "").strip().partition("\n")[0]
        kinds = {note.tag for note in notes}
        found[test] = (FAILED if kinds & {"failure", "error"} else SKIPPED if kinds else PASSED, reason)
    return found


def run(kind: str, files: Sequence[Path]) -> Outcomes:
    found: dict[str, tuple[str, str]] = {}
    for path in files:
        found |= run_file(path, kind)
    counts = Counter(outcome for outcome, _ in found.values())
    print(f"{kind}: {counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped", flush=True)
    for test, (outcome, reason) in found.items():
        if outcome == FAILED:
            print(f"  failed: {test}: {reason}")
    for reason, count in Counter(reason for outcome, reason in found.values() if outcome == SKIPPED).items():
        print(f"  skipped: {count}: {reason}", flush=True)
    return found


def compare(kind: str, ours: Outcomes, real: Outcomes) -> bool:
    """Print what passes on the real server and not on this one; return whether that is few enough."""
    expected = [test for test, (outcome, _) in real.items() if outcome == PASSED]
    lost = [test for test in expected if ours.get(test, (FAILED, ""))[0] != PASSED]
    print(f"of {len(expected)} that pass on {REAL}, {len(expected) - len(lost)} pass on {kind}")
    for test in lost:
        print(f"  {ours.get(test, ('not run', ''))[0]} on {kind} alone: {test}")
    return len(lost) <= (1 - GOAL) * len(expected)


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    if unknown := set(kinds) - set(KINDS):
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))}: expected {', '.join(KINDS)}, or several of them"
        )
    return kinds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=_kinds, default=list(KINDS), metavar=f"{'|'.join(KINDS)}[,...]")
    parser.add_argument("files", nargs="*", metavar="FILE", help="file names in kazoo/tests (default: all)")
    options = parser.parse_args(arguments)
    files = [SUITE / name for name in options.files] or sorted(SUITE.glob("test_*.py"))
    for path in files:
        if not path.exists():
            parser.error(f"no such file in {SUITE}: {path.name}")
    found = {kind: run(kind, files) for kind in options.against}
    real = found.pop(REAL, None)
    if real is not None and found:
        good = [compare(kind, ours, real) for kind, ours in found.items()]
        return int(not all(good))
    outcomes = [*found.values(), *([real] if real is not None else [])]
    return int(any(outcome == FAILED for each in outcomes for outcome, _ in each.values()))


if __name__ == "__main__":
    raise SystemExit(main())
