"""Which incident is proved where: its number, Kafka's issue, and the tests that would fail if it happened here.

The page docs/incidents.md tells each in words and ends each section with the proofs as this table has them;
`python -m tests.incidents.index` writes those lines anew. `test_index.py` holds both to what is there.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from tests.incidents.incident import Incident, golden, story
from tests.incidents.of_clusters import DELETIONS, ISRS, REASSIGNMENTS, REQUESTS, TIMERS
from tests.incidents.of_controllers import ELECTION, THREADS, WATCHES
from tests.incidents.planted import PLANTED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "incidents.md"

GOLDEN = ROOT / "tests" / "simulator" / "golden"


def _with_its_logs(incident: Incident) -> Incident:
    """Every golden log that has its number in front is a proof of it."""
    named = f"{incident.number.lower()}-*"
    logs = [golden(path.stem) for path in sorted(GOLDEN.glob(f"{named}.toml"))]
    logs += [story(path.stem) for path in sorted((GOLDEN / "worlds").glob(f"{named}.log"))]
    found = [one for one in logs if one not in incident.proofs]
    return replace(incident, proofs=(*incident.proofs, *found))


_TOLD = (*ELECTION, *THREADS, *WATCHES, *REQUESTS, *ISRS, *REASSIGNMENTS, *DELETIONS, *TIMERS)
INCIDENTS = tuple(_with_its_logs(incident) for incident in _TOLD)


def has_log(incident: Incident) -> bool:
    return any("/test_golden" in proof.node for proof in incident.proofs)


WITHOUT_LOG = {
    "S13": "two threads",
    "S14": "two threads",
    "S15": "two threads",
    "S16": "two threads",
    "S57": "two threads",
    "S58": "two threads",
    "S60": "what stays in memory is no event",
}
"""The incidents that no log of one thread can show, and why."""

_PLAIN = (
    1,
    2,
    3,
    4,
    *range(6, 24),
    25,
    *range(27, 35),
    37,
    38,
    39,
    40,
    42,
    43,
    44,
    46,
    47,
    49,
    51,
    53,
    54,
    55,
)
NUMBERS = (*(f"S{number:02}" for number in _PLAIN), "S56a", "S56b", "S56c", "S56d", "S56e", "S57", "S58", "S60", "S61")
"""The incidents that have to be proved."""


# -- the page

PROVED = "Proved:"
_SECTION = re.compile(r"(?m)^### (S\d\d[a-e]?) \((.+?)\): (.+)$")
_NEXT_PART = re.compile(r"(?m)^## ")
_PLANTED = re.compile(r"(?s)(<!-- planted -->\n).*?(<!-- end -->)")


def sections(page: str) -> dict[str, tuple[str, str, str]]:
    """By number: the issue, the title, and all that the section says."""
    parts = _SECTION.split(page)[1:]
    found = {}
    for number, issue, title, text in zip(*(parts[at::4] for at in range(4)), strict=True):
        found[number] = (issue, title, _NEXT_PART.split(text)[0])
    return found


def with_proofs(page: str) -> str:
    """The page with every list of proofs, and the table of planted faults, as the tables here have them."""
    for incident in INCIDENTS:
        lines = "".join(f"- {proof.where.value}: `{proof.node}`\n" for proof in incident.proofs)
        pattern = re.compile(rf"(?s)(### {incident.number} .*?\n{PROVED}\n)(?:\n(?:- [^\n]*\n)+)?")
        page = pattern.sub(lambda found, lines=lines: f"{found[1]}\n{lines}", page, count=1)  # type: ignore[misc]
    table = "".join(f"| {fault.name} | {'<br>'.join(f'`{node}`' for node in fault.nodes)} |\n" for fault in PLANTED)
    return _PLANTED.sub(lambda found: f"{found[1]}| the fault | found by |\n| --- | --- |\n{table}{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_proofs(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
