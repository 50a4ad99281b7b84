"""The documentation's pages as a reader's browser takes them: tables in one piece, links that lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.cli.bench import BENCHMARKS
from controller.cli.lab import LABS
from controller.cli.main import COMMANDS
from controller.scenarios.files import built_in

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docker").rglob("*.md"))]
RULE = re.compile(r"\|(\s*:?-+:?\s*\|)+")
NAMED_IN = re.compile(r"((?:`[^`]+`(?:, | and ))*`[^`]+`) in \[[^\]]*\]\(([^)#\s]+\.py)\)")
"""`Name.of_function` in [file](path.py)."""
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def prose(text: str) -> list[str]:
    """The lines, with those of code blocks emptied."""
    lines, in_code = [], False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        lines.append("" if in_code or fence else line)
        in_code ^= fence
    return lines


def cells(row: str) -> int:
    """How many cells a row has: a bar in code or behind a backslash begins none."""
    return re.sub(r"`[^`]*`|\\\|", "", row.strip()).strip("|").count("|") + 1


def broken_tables(text: str) -> Iterator[str]:
    lines = prose(text)
    for number, line in enumerate(lines):
        if not line.startswith("|"):
            continue
        head = number
        while head and lines[head - 1].startswith("|"):
            head -= 1
        if head == number and not (number + 1 < len(lines) and RULE.fullmatch(lines[number + 1].strip())):
            yield f"line {number + 1}: a table without a head, or the rest of one that an empty line cut: {line[:60]}"
        if cells(line) != cells(lines[head]):
            yield f"line {number + 1}: {cells(line)} cells under a head of {cells(lines[head])}: {line[:60]}"


def anchors(text: str) -> set[str]:
    """The names that a page's headings can be linked by, as GitHub makes them."""
    found: set[str] = set()
    for line in prose(text):
        heading = re.match(r"#+ +(.*)", line)
        if heading is not None:
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return found


def dead_links(page: Path, text: str) -> Iterator[str]:
    for match in LINK.finditer("\n".join(prose(text))):
        target, _, anchor = (match[1] or match[2]).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        place = (page.parent / target).resolve() if target else page
        if not place.exists():
            yield f"{match[0]}: no such file"
        elif anchor and place.suffix == ".md" and anchor not in anchors(place.read_text(encoding="utf-8")):
            yield f"{match[0]}: no such heading"


def stale_names(page: Path, text: str) -> Iterator[str]:
    """Yield names of code that the page says are in a file and that do not occur there."""
    for match in NAMED_IN.finditer(" ".join(text.split())):
        file = page.parent / match[2]
        words = set(re.findall(r"\w+", file.read_text(encoding="utf-8"))) if file.exists() else set()
        for name in re.findall(r"`([^`]+)`", match[1]):
            if not set(re.findall(r"\w+", name.rpartition(".")[2])) <= words:
                yield f"{name}: not in {match[2]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_in_one_piece_and_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [*broken_tables(text), *dead_links(page, text)] == []


def test_the_map_names_code_that_is_there() -> None:
    page = ROOT / "docs" / "architecture.md"
    text = page.read_text(encoding="utf-8")
    assert len(NAMED_IN.findall(" ".join(text.split()))) > 40
    assert [*stale_names(page, text)] == []


def test_a_name_that_is_not_in_its_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def kept() -> None: ...\n")
    text = "`kept` and `Class.moved` in [code.py](code.py), `gone` in [gone.py](gone.py)"
    assert [*stale_names(tmp_path / "page.md", text)] == ["Class.moved: not in code.py", "gone: not in gone.py"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("| a | b |\n| --- | --- |\n| 1 | 2 |\n", 0),
        ("| a | b |\n| --- | --- |\n\n| 1 | 2 |\n", 1),
        ("| a | b |\n| --- | --- |\n| 1 |\n", 1),
        ("| a | b |\n| --- | --- |\n| `x|y` | \\| |\n", 0),
        ("```\n| no table |\n```\n", 0),
    ],
)
def test_a_table_that_is_cut_is_found(text: str, found: int) -> None:
    assert len([*broken_tables(text)]) == found


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# The `wait` step: when?\n")
    text = "[a](there.md) [b](there.md#the-wait-step-when) [c](there.md#x) [d](gone.md) [e](https://x.invalid/)\n"
    dead = [line.partition(":")[0] for line in dead_links(tmp_path / "page.md", text)]
    assert dead == ["[c](there.md#x)", "[d](gone.md)"]


def test_the_modules_of_the_api_reference_can_be_imported() -> None:
    """In a process of its own: it changes what it imports."""
    program = "import runpy; runpy.run_path('docs/reference.py')['import_all']()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


LABELLED = re.compile(r"\[(?:[\w/]*/)?(\w+\.py)\]\([^)\s]*?(\w+\.py)\)")
"""[folder/file.py](path/to/file.py)."""


def misnamed_files(text: str, known: frozenset[str]) -> Iterator[str]:
    """Python files that are named in backticks and do not exist, and links to another file than they say."""
    yield from (name for name in re.findall(r"`(?:[\w/]*/)?([a-z_]\w*\.py)`", text) if name not in known)
    yield from (label for label, target in LABELLED.findall(text) if label != target)


def test_files_that_pages_and_docstrings_name_are_there() -> None:
    sources = [*(ROOT / "controller").rglob("*.py"), *(ROOT / "statemachines").rglob("*.py")]
    others = [path for folder in ("tests", "docs", "docker") for path in (ROOT / folder).rglob("*.py")]
    known = frozenset(path.name for path in [*sources, *others])
    assert [
        f"{path.name}: {name}" for path in [*PAGES, *sources] for name in misnamed_files(path.read_text(), known)
    ] == []


def test_a_file_that_was_merged_away_is_found() -> None:
    text = "`core/gone.py`, [gone.py](../controller/core/here.py), `here.py`, [here.py](here.py)"
    assert list(misnamed_files(text, frozenset({"here.py"}))) == ["gone.py", "gone.py"]


NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)?::(test_\w+)`|`(tests/[\w/]+\.py)`")
COMMAND = re.compile(r"`(?:\.venv/bin/)?camerlengo ([a-z]+)(?: ([a-z][a-z-]*))?")


def missing_evidence(text: str) -> Iterator[str]:
    """Tests and commands that a page names and that do not exist. `::test_x` is in the file that was named last."""
    file = ""
    for path, test, alone in NAMED_TEST.findall(text):
        file = path or alone or file
        source = ROOT / file
        if not file or not source.is_file():
            yield file or f"::{test}"
        elif test and f"def {test}(" not in source.read_text(encoding="utf-8"):
            yield f"{file}::{test}"
    kinds = {"bench": BENCHMARKS, "lab": LABS, "simulate": [*built_in(), "swarm"], "chaos": built_in()}
    for command, what in COMMAND.findall(text):
        if command not in COMMANDS or (what and command in kinds and what not in kinds[command]):
            yield f"camerlengo {command} {what}".rstrip()


def test_the_tests_and_commands_that_the_sources_name_exist() -> None:
    text = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    assert len(NAMED_TEST.findall(text)) > 60
    assert [*missing_evidence(text)] == []


def test_evidence_that_does_not_exist_is_found() -> None:
    text = "`tests/test_docs.py::test_gone`, `::test_evidence_that_does_not_exist_is_found`, `tests/gone.py`,"
    text += " `camerlengo fly`, `camerlengo bench gone`, `camerlengo bench timer --page X`"
    expected = ["tests/test_docs.py::test_gone", "tests/gone.py", "camerlengo fly", "camerlengo bench gone"]
    assert [*missing_evidence(text)] == expected
