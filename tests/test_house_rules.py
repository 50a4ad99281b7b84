"""How the code is kept: small files and functions, nothing left unfinished, no path of somebody's machine.

Style is mostly for readers to judge; this holds what a machine can. Each rule is shown to catch what it is for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.syntax import statements

ROOT = Path(__file__).parents[1]
FOLDERS = ("controller", "statemachines", "tests", "docs", ".ci", "docker")
TEXT = frozenset({".py", ".md", ".toml", ".sh", ".yml", ".yaml", ""})

FILE_LINES = 800
FUNCTION_LINES = 80
CACHE_ENTRIES = 1_024


def files_of(root: Path) -> Iterator[Path]:
    yield from (root / name for name in ("README.md", "pyproject.toml") if (root / name).is_file())
    for folder in FOLDERS:
        yield from sorted(
            path
            for path in (root / folder).rglob("*")
            if path.is_file() and path.suffix in TEXT and not {"data", "__pycache__"} & set(path.parts)
        )


def long_files(path: Path, text: str) -> Iterator[str]:
    lines = text.count("\n")
    if path.suffix == ".py" and lines > FILE_LINES:
        yield f"{lines} lines, a file has {FILE_LINES} at most"


def long_functions(path: Path, text: str) -> Iterator[str]:
    if path.suffix != ".py":
        return
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{node.name} has {lines} lines, a function has {FUNCTION_LINES} at most"


def unfinished(path: Path, text: str) -> Iterator[str]:
    # Spelled in halves, so that this file does not find itself.
    for word in ("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error"):
        if re.search(rf"\b{word}\b", text):
            yield f"says {word}"


def unexplained_ignores(path: Path, text: str) -> Iterator[str]:
    if path.suffix == ".py" and re.search(r"# (type: ignore(?!\[)|noqa(?!: [A-Z]))", text):
        yield "an ignore without a code"


def machine_paths(path: Path, text: str) -> Iterator[str]:
    for found in re.findall(r"(?<![\w.])/(?:work|home|Users)/[\w.-]+|\.\./" + r"shared\b", text):
        yield f"names {found}, a path of one machine"


def large_caches(path: Path, text: str) -> Iterator[str]:
    """Clients choose the arguments of many a cached function."""
    if path.suffix != ".py" or "lru_cache(" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "lru_cache":
            sizes = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "maxsize")]
            size = sizes[0].value if sizes and isinstance(sizes[0], ast.Constant) else None
            if not isinstance(size, int) or size > CACHE_ENTRIES:
                yield f"line {node.lineno}: an lru_cache has a maxsize of {CACHE_ENTRIES} at most, written as a number"


RULES = (long_files, long_functions, unfinished, unexplained_ignores, machine_paths, large_caches)
Rule = Callable[[Path, str], Iterator[str]]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_every_file_keeps_the_house_rules(rule: Rule) -> None:
    files = [*files_of(ROOT)]
    assert len(files) > 50
    broken = [
        f"{path.relative_to(ROOT)}: {what}" for path in files for what in rule(path, path.read_text(encoding="utf-8"))
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (long_files, "x.py", "\n" * (FILE_LINES + 1)),
        (long_functions, "x.py", "def f():\n" + "    pass\n" * FUNCTION_LINES),
        (unfinished, "x.py", "raise NotImplemented" + "Error"),
        (unfinished, "x.md", "TO" + "DO: write"),
        (unexplained_ignores, "x.py", "x = 1  # type: " + "ignore"),
        (unexplained_ignores, "x.py", "x = 1  # no" + "qa"),
        (large_caches, "x.py", "@lru_cache(maxsize=1 << 18)\ndef f(x): ..."),
        (large_caches, "x.py", "f = functools.lru_cache(None)(g)"),
        (large_caches, "x.py", "f = lru_cache(maxsize=1_025)(g)"),
        (machine_paths, "x.md", "see /ho" + "me/someone/notes"),
        (machine_paths, "x.py", "open('../sha" + "red/data')"),
    ],
)
def test_a_rule_catches_what_it_is_for(rule: Rule, name: str, text: str) -> None:
    assert [*rule(Path(name), text)] != []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_a_rule_leaves_sound_text_alone(rule: Rule) -> None:
    assert [*rule(Path("x.py"), "def f() -> int:\n    return g()  # type: ignore[no-any-return]\n")] == []


def test_the_readme_has_the_line_that_runs_the_tests() -> None:
    assert re.search(r"(?m)^ *\.venv/bin/pytest( .*)?$", (ROOT / "README.md").read_text(encoding="utf-8"))
