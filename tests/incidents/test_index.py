"""Every incident of the list has a proof that exists, where the fault is, and the page says so."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.incidents.incident import Incident, Proof, Where
from tests.incidents.index import (
    INCIDENTS,
    NUMBERS,
    PAGE,
    PROVED,
    ROOT,
    WITHOUT_LOG,
    has_log,
    sections,
    with_proofs,
)
from tests.incidents.planted import PLANTED


def missing(root: Path, node: str) -> str | None:
    """Why a node id names no test; None if it does."""
    file, _, test = node.partition("::")
    name, _, parameter = test.partition("[")
    path = root / file
    if not path.is_file():
        return f"{file} is not there"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
    if not name.startswith("test_") or name not in names:
        return f"{file} has no test {name!r}"
    # A parameter's name stands as a text in the file, or in the table beside it that the file takes it from.
    texts = {one.value for near in (path, path.with_name("faults.py")) if near.is_file() for one in constants(near)}
    if parameter and parameter.removesuffix("]") not in texts:
        return f"{file} has no parameter {parameter!r}"
    return None


def constants(path: Path) -> list[ast.Constant]:
    return [one for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(one, ast.Constant)]


def faults(incident: Incident) -> list[str]:
    """What is wrong with an incident's proofs."""
    found = [why for proof in incident.proofs if (why := missing(ROOT, proof.node)) is not None]
    if not incident.proofs:
        found.append("nothing proves it")
    lacking = incident.must - {proof.where for proof in incident.proofs}
    return found + sorted(f"not proved on the {where.value}" for where in lacking)


def test_the_list_is_complete_and_in_order() -> None:
    assert tuple(incident.number for incident in INCIDENTS) == NUMBERS
    assert len(NUMBERS) == 54


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: str(incident.number))
def test_every_incident_is_proved_where_its_fault_is(incident: Incident) -> None:
    assert faults(incident) == []


def test_every_incident_that_one_thread_can_show_has_a_golden_log() -> None:
    assert {one.number for one in INCIDENTS if not has_log(one)} == WITHOUT_LOG.keys()


SOUND = next(incident for incident in INCIDENTS if incident.number == "S12")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(SOUND, proofs=()), "nothing proves it"),
        (replace(SOUND, proofs=(Proof(Where.CORE, "tests/nowhere.py::test_x"),)), "is not there"),
        (replace(SOUND, proofs=(Proof(Where.CORE, "tests/core/test_terms.py::test_x"),)), "has no test"),
        (replace(SOUND, proofs=(Proof(Where.CORE, "tests/core/test_terms.py::Answers"),)), "has no test"),
        (replace(SOUND, proofs=(Proof(Where.CORE, f"{PLANTED[0].nodes[0]}x]"),)), "has no parameter"),
        (replace(SOUND, must=frozenset({Where.PURE})), "not proved on the pure rules"),
    ],
)
def test_a_proof_that_is_none_is_caught(wrong: Incident, said: str) -> None:
    assert any(said in fault for fault in faults(wrong))


def test_the_page_tells_each_incident_and_where_it_is_proved() -> None:
    page = PAGE.read_text(encoding="utf-8")
    told = sections(page)
    assert {number: told[number][:2] for number in told} == {
        incident.number: (incident.issue, incident.title) for incident in INCIDENTS
    }
    for number, (_, _, text) in told.items():
        for part in ("*Wrong:*", "*Right here:*", f"\n{PROVED}\n"):
            assert part in text, f"{number} lacks {part.strip()}"
    assert with_proofs(page) == page, "write the lists of proofs anew: python -m tests.incidents.index"


def test_a_page_that_says_otherwise_is_caught() -> None:
    page = PAGE.read_text(encoding="utf-8")
    node = INCIDENTS[0].proofs[0].node
    assert with_proofs(page.replace(node, "tests/elsewhere.py::test_x")) == page


REQUIRED = (
    "owner check dropped at the election",
    "epoch taken from a watch",
    "event acting on stale children",
    "batch kept over a resignation",
    "request dequeued before its response",
    "LeaderAndIsr before UpdateMetadata",
    "bounced broker unnoticed",
    "last ISR member removed",
    "callback answered twice",
    "AlterIsr epoch bumped",
    "notification znode deleted too early",
    "fence check removed",
    "ISR filtered in the wrong order",
    "leader taken from the ISR's order",
    "watch not set again",
    "a callback dropped",
    "lease never ending",
)


def test_every_fault_that_has_to_be_planted_is() -> None:
    names = [fault.name for fault in PLANTED]
    assert len(names) == len(set(names))
    assert [name for name in REQUIRED if name not in names] == []
    assert all(fault.nodes for fault in PLANTED)


def test_every_planted_fault_names_a_test_that_exists() -> None:
    found = [why for fault in PLANTED for node in fault.nodes if (why := missing(ROOT, node)) is not None]
    assert found == []
