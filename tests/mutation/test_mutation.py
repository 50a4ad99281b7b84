"""The mutation tool: which mutants there are, that a planted survivor is reported and a noticed one is not."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import known_equivalents, main, report, sampled, unnoticed
from tests.mutation.blocks import ROOT, block_of, probed
from tests.mutation.operators import Mutant, mutants_of, mutated
from tests.mutation.running import KILLED, SURVIVED, TIMED_OUT, UNTESTED, Verdict

EXAMPLE = "tests/mutation/example/rule.py"
EXPECTED = {
    "module: 3 -> 4": SURVIVED,
    "within: return number < LIMIT -> return None": KILLED,
    "within: number < LIMIT -> number <= LIMIT": SURVIVED,
    "within: number < LIMIT -> number >= LIMIT": KILLED,
    "countdown: number -= 1 -> pass": TIMED_OUT,
    "countdown: steps += 1 -> pass": KILLED,
    "countdown: return steps -> return None": KILLED,
    "unused: number + 1 -> number - 1": UNTESTED,
}


def test_what_is_planted_survives_and_what_a_test_sees_is_killed(tmp_path: Path) -> None:
    results = tmp_path / "results"
    options = ["--count", "1000", "--swarm-seeds", "0", "--least-limit-s", "0.5", "--results", str(results)]
    command = [
        sys.executable,
        "-m",
        "tests.mutation",
        *options,
        "--paths",
        EXAMPLE,
        "--tests",
        "tests/mutation/example",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=150)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found = [json.loads(line) for line in results.read_text().splitlines()]
    outcomes = {one["key"].removeprefix(f"{EXAMPLE}::"): one["outcome"] for one in found}
    assert {key: outcomes.get(key) for key in EXPECTED} == EXPECTED, ended.stdout
    assert f"survived: {EXAMPLE}:10: {EXAMPLE}::within: number < LIMIT -> number <= LIMIT" in ended.stdout
    killed = next(one for one in found if one["key"].endswith("number >= LIMIT"))
    assert (killed["by"], killed["tests"]) == ("tests/mutation/example/test_rule.py::test_within", 1)


def test_a_sample_is_its_seed() -> None:
    paths = ["statemachines"]
    first, of = sampled(paths, 7, 20)
    assert (first, of) == sampled(paths, 7, 20)
    assert first == sampled(paths, 7, 40)[0][:20] or len({one.key for one in first}) == 20
    assert sampled(paths, 8, 20)[0] != first


SOURCE = '''
LIMIT: int = 3

class Thing:
    """Docstring."""

    def do(self, term, value: "int | None" = None) -> "str | None":
        """Docstring."""
        assert value != 4, "message"
        if value is None or value > 2:
            term.note("info", f"{value + 1}")
            raise ValueError(f"{value}: expected another {value - 1}")
        return self.make(value, why="x", strict=True, dtype=int, width=LIMIT)
'''


def test_texts_annotations_and_asserts_have_no_mutants() -> None:
    assert [f"{one.function}: {one.before} -> {one.after}" for one in mutants_of("x.py", SOURCE)] == [
        "module: 3 -> 4".replace("module", ""),
        "Thing.do: if value is None or value > 2 -> if not (value is None or value > 2)",
        "Thing.do: if value is None or value > 2 -> if False",
        "Thing.do: if value is None or value > 2 -> if True",
        "Thing.do: value is None or value > 2 -> value is None and value > 2",
        "Thing.do: value is None or value > 2 -> value > 2",
        "Thing.do: value is None or value > 2 -> value is None",
        "Thing.do: value is None -> value is not None",
        "Thing.do: value > 2 -> value >= 2",
        "Thing.do: value > 2 -> value <= 2",
        "Thing.do: 2 -> 3",
        "Thing.do: raise ValueError(f'{value}: expected another {value - 1}') -> pass",
        "Thing.do: return self.make(value, why='x', strict=True, dtype=int, width=LIMIT) -> return None",
        "Thing.do: self.make(value, why='x', strict=True, dtype=int, width=LIMIT)"
        " -> self.make(None, why='x', strict=True, dtype=int, width=LIMIT)",
        "Thing.do: self.make(value, why='x', strict=True, dtype=int, width=LIMIT)"
        " -> self.make(value, why='x', strict=True, dtype=int)",
    ]


def test_each_mutant_of_a_file_compiles_and_differs() -> None:
    path = "statemachines/reassignment.py"
    source = (ROOT / path).read_text(encoding="utf-8")
    found = mutants_of(path, source)
    assert len({one.key for one in found}) == len(found) > 50
    plain = ast.unparse(ast.parse(source))
    for one in found:
        tree = mutated(source, one.number)
        compile(tree, path, "exec")
        assert ast.unparse(tree) != plain, one
    with pytest.raises(ValueError, match="no mutant"):
        mutated(source, len(found))


def test_a_line_is_of_the_smallest_block_around_it() -> None:
    tree, (_, lines) = ast.parse(SOURCE), probed(SOURCE)
    assert [block_of(tree, line) for line in (2, 10, 12, 13)] == [None, 8, 11, 8]
    assert lines == [8, 11]


def test_every_equivalent_mutant_has_its_reason() -> None:
    assert all(known_equivalents().values())


def test_a_line_without_a_reason_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "equivalent.txt"
    file.write_text("# why\n\na.py::f: 1 -> 2 ; says why\nno reason\n")
    with pytest.raises(ValueError, match=r"equivalent.txt:4: .* got 'no reason'"):
        known_equivalents(file)


def test_what_is_equivalent_does_not_count_as_a_survivor() -> None:
    mutants = [Mutant("a.py", number, "f", 1, "1", str(number)) for number in range(4)]
    outcomes = (KILLED, SURVIVED, SURVIVED, TIMED_OUT)
    verdicts = [Verdict(one, outcome, "", 0.5, 1) for one, outcome in zip(mutants, outcomes, strict=True)]
    words, survivors = report(verdicts, {"a.py::f: 1 -> 1": "why"})
    assert [one.mutant.number for one in survivors] == [2]
    assert "4 mutants: 1 killed, 1 timed out, 1 survived, 1 equivalent; 2 s of CPU" in words
    assert "66.7%" in words


def test_what_was_not_noticed_before_is_run_again(tmp_path: Path) -> None:
    lines = [("a", SURVIVED), ("b", UNTESTED), ("c", KILLED), ("d", SURVIVED), ("d", KILLED), ("e", TIMED_OUT)]
    file = tmp_path / "results"
    file.write_text("".join(json.dumps({"key": key, "outcome": outcome}) + "\n" for key, outcome in lines))
    assert unnoticed(file) == {"a", "b"}


def test_a_path_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="nowhere: no such file or folder"):
        main(["--paths", "nowhere"])
