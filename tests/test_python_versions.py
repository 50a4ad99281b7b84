"""The packages use nothing that a Python of the classifiers removed or deprecates; the oldest one is their target."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("controller", "statemachines", "docs", "docker")
REMOVED: Mapping[str, str] = {
    # Modules: PEP 632 and others in 3.12, PEP 594 and lib2to3 in 3.13.
    "3.12": "asynchat asyncore distutils imp smtpd",
    "3.13": "aifc audioop cgi cgitb chunk crypt imghdr lib2to3 mailcap msilib nis nntplib ossaudiodev pipes sndhdr spwd"
    " sunau telnetlib uu xdrlib",
}
ATTRIBUTES: Mapping[str, str] = {
    "3.12": "configparser.SafeConfigParser datetime.utcfromtimestamp datetime.utcnow ftplib.FTP_TLS.ssl_version"
    " importlib.find_loader locale.format pkgutil.ImpImporter pkgutil.ImpLoader sqlite3.enable_shared_cache"
    " ssl.match_hostname ssl.RAND_pseudo_bytes ssl.wrap_socket",
    "3.13": "importlib.resources.read_text importlib.resources.open_text locale.resetlocale logging.warn re.template"
    " tempfile.mktemp typing.io typing.re unittest.findTestCases unittest.makeSuite webbrowser.MacOSX",
    "3.14": "ast.Bytes ast.Ellipsis ast.NameConstant ast.Num ast.Str asyncio.AbstractChildWatcher"
    " asyncio.get_child_watcher asyncio.get_event_loop asyncio.iscoroutinefunction asyncio.set_child_watcher"
    " asyncio.set_event_loop_policy codecs.open collections.abc.ByteString importlib.abc.ResourceReader"
    " importlib.abc.Traversable pkgutil.find_loader pkgutil.get_loader pty.master_open sqlite3.version"
    " typing.ByteString typing.no_type_check_decorator urllib.parse.Quoter",
}
"""Removed or deprecated from that version on (the pages "What's New" of 3.12 to 3.14)."""


IMPORT = re.compile(r"(?m)^[ \t]*(?:import ([\w.]+)|from ([\w.]+) import (.*))")
DOTTED = re.compile(r"\b[a-z_]\w*(?:\.\w+)+")


def missing(source: str) -> set[str]:
    modules = {name for names in REMOVED.values() for name in names.split()}
    attributes = {name for names in ATTRIBUTES.values() for name in names.split()}
    used = set(DOTTED.findall(source))
    imported = set()
    for module, origin, names in IMPORT.findall(source):
        imported.add((module or origin).partition(".")[0])
        used |= {f"{origin}.{name}" for name in re.findall(r"\w+", names)}
    return used & attributes | imported & modules


def test_nothing_is_used_that_a_later_python_does_not_have() -> None:
    files = [ROOT / "camerlengo.py", *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))]
    found = {str(path.relative_to(ROOT)): missing(path.read_text(encoding="utf-8")) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line", ["import imp", "from distutils.util import x", "datetime.utcnow()", "asyncio.get_event_loop()"]
)
def test_a_removed_name_is_found(line: str) -> None:
    assert missing(f"def f():\n    {line}\n") != set()


def test_the_tree_is_written_for_the_oldest_python_of_the_classifiers() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = re.findall(r"Python :: 3\.(\d+)", "\n".join(settings["project"]["classifiers"]))
    oldest = min(map(int, named))
    assert settings["project"]["requires-python"] == f">=3.{oldest}"
    assert settings["tool"]["ruff"]["target-version"] == f"py3{oldest}"
    assert settings["tool"]["mypy"]["python_version"] == f"3.{oldest}"
