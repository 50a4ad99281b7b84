"""kazoo's own test suite against the ZooKeeper server in Python and against a real one, compared test by test.

    pip download --no-binary :all: --no-deps kazoo==2.11.0
    python -m tests.clients.kazoo_tcp_suite kazoo-2.11.0.tar.gz

prints how many tests passed on each, and each test that passed on the real server and not on the one in Python. The
exit status is 1 if fewer than 95% of the tests that pass on the real server pass on the one in Python. Tests that need
TLS, SASL, a reconfiguration or several servers fail or are skipped on both, for the suite has one server.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOAL = 0.95
_TEST_SECONDS = 60


def outcomes(source: Path, server: str, report: Path, select: str | None) -> dict[str, str]:
    """Run the suite against "python" or "real"; return "passed", "failed" or "skipped" of each test."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.clients.kazoo_plugin", "-p", "no:cacheprovider"),
        *("--timeout", str(_TEST_SECONDS), "--junitxml", str(report), "-o", "addopts=", "--rootdir", str(source)),
        *(["-k", select] if select else []),
        *("--continue-on-collection-errors", "kazoo/tests"),
    ]
    path = os.pathsep.join([str(source), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"KAZOO_SUITE_SERVER": server, "PYTHONPATH": path, "ZOOKEEPER_VERSION": "3.9.5"}
    with report.with_suffix(".log").open("wb") as log:
        subprocess.run(command, cwd=source, env=environment, stdout=log, stderr=log, check=False)
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('kazoo.tests.')}.{case.get('name')}"
        kinds = {child.tag for child in case}
        found[name] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=Path, help="kazoo's source distribution (.tar.gz)")
    parser.add_argument("-k", dest="select", metavar="EXPRESSION", help="only these tests, as pytest's -k")
    parser.add_argument("--reports", type=Path, metavar="DIR", help="keep pytest's reports in DIR")
    arguments = parser.parse_args()
    if not arguments.sdist.is_file():
        parser.error(f"{arguments.sdist}: not a file; expected kazoo's source distribution")
    with tempfile.TemporaryDirectory(prefix="kazoo-suite-") as folder:
        with tarfile.open(arguments.sdist) as archive:
            archive.extractall(folder, filter="data")
        source = next(path for path in Path(folder).iterdir() if path.is_dir())
        reports = arguments.reports or Path(folder)
        reports.mkdir(parents=True, exist_ok=True)
        ours = outcomes(source, "python", reports / "python.xml", arguments.select)
        theirs = outcomes(source, "real", reports / "real.xml", arguments.select)
    return _compare(ours, theirs)


def _compare(ours: dict[str, str], theirs: dict[str, str]) -> int:
    for name, found in (("server in Python", ours), ("real server", theirs)):
        counts = {kind: list(found.values()).count(kind) for kind in ("passed", "failed", "skipped")}
        print(f"{name}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    expected = [name for name, outcome in theirs.items() if outcome == "passed"]
    lost = [name for name in expected if ours.get(name) != "passed"]
    print(f"of {len(expected)} that pass on the real server, {len(expected) - len(lost)} pass on the one in Python")
    for name in lost:
        print(f"  {ours.get(name, 'not run')} in Python alone: {name}")
    for name, outcome in theirs.items():
        if outcome == "failed":
            print(f"  failed on the real server, {ours.get(name, 'not run')} in Python: {name}")
    return int(not expected or len(lost) > (1 - GOAL) * len(expected))


if __name__ == "__main__":
    raise SystemExit(main())
