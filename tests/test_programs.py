"""The README's test command needs Python and Java alone, and `.ci/run` runs each test once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ONE_SPARK
from tests.programs import FOREIGN, UNMARKED, hide

ROOT = Path(__file__).parents[1]


def test_programs_are_hidden_where_the_readmes_command_runs(pytestconfig: pytest.Config) -> None:
    found = [name for name in ("kcat", "chromium", "cc", "gcc", "docker") if shutil.which(name) is not None]
    assert found == [] or pytestconfig.option.markexpr != UNMARKED


def test_what_is_hidden_and_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kcat", "x86_64-linux-gnu-gcc-12", "java", "account"):
        (tmp_path / name).write_text("#!/bin/sh\necho found\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "links").mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), "/nowhere"]))
    path = hide(tmp_path / "links")
    seen = {name for name in ("kcat", "x86_64-linux-gnu-gcc-12", "java", "account") if shutil.which(name, path=path)}
    assert seen == {"java", "account"}
    assert subprocess.run([str(shutil.which("java", path=path))], capture_output=True, check=True).stdout == b"found\n"


@pytest.mark.parametrize(
    ("name", "hidden"),
    [("kcat", True), ("cc", True), ("g++", True), ("clang-14", True), ("docker-proxy", True), ("acc", False)]
    + [("bash", False), ("python3", False), ("gccgo-x", False)],
)
def test_names_of_programs(name: str, hidden: bool) -> None:
    assert (FOREIGN.fullmatch(name) is not None) == hidden


def test_the_readme_says_how_long_the_tests_take_and_what_the_others_need() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    install = " ".join(readme.partition("## Install and test")[2].partition("\n## ")[0].split())
    assert re.search(r"take \d+ to \d+ minutes", install)
    assert re.search(r"Further tests need kcat, chromium and a C compiler \(.* minutes\), or a Docker engine", install)
    assert "`.ci/run` installs what is missing" in install


def test_ci_runs_what_the_readmes_command_leaves_out() -> None:
    """By one mark, so that no test is in both and none in neither; containers' tests where their folder is named."""
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    commands = re.findall(r"(?m)\.venv/bin/pytest (.*)$", script)
    assert [words for words in commands if "-m programs" in words] == [
        "-n 2 --dist loadfile -m programs",
        "-m programs tests/docker/containers",
    ]
    assert "phase tests tests" in script
    assert "phase programs programs" in script
    assert "phase wheel wheel" in script
    assert "phase docker containers" in script
    readme = re.search(r"(?m)^ *\.venv/bin/pytest( .*)?$", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert readme is not None
    assert "-m" not in readme[0].split()
    for module in sorted((ROOT / "tests/docker/containers").glob("test_*.py")):
        assert "pytestmark = [needs_programs" in module.read_text(encoding="utf-8"), module


def test_the_files_that_use_spark_are_those_that_share_a_worker() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    using = {str(path.relative_to(ROOT)) for path in files if re.search(r"^def .*\bspark: Any", path.read_text(), re.M)}
    assert using == ONE_SPARK
