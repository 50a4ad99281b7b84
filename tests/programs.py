"""Programs that the README's set-up does not install, and the tests that need them.

Those tests have the mark `programs` and are not in the README's command, which must pass on a machine that has Python
and Java alone; `.ci/run` installs the programs and runs them by themselves (`pytest -m programs`). To the other tests
the programs are hidden, on every machine: a test that needs one and does not say so fails everywhere.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

MARK = "programs"
UNMARKED = f"not {MARK}"
"""pyproject.toml's -m: what runs where nobody says otherwise."""
FOREIGN = re.compile(
    r"kcat|kafkacat|chromium.*|google-chrome.*|docker.*|containerd.*|podman.*|(.*-)?(cc|gcc|g\+\+|c\+\+|clang|clang\+\+)(-[0-9.]+)?"
)

needs_programs = pytest.mark.programs


def program(*names: str) -> str:
    """Return the path of the first of these that is installed. AssertionError if none is."""
    found = [path for name in names if (path := shutil.which(name)) is not None]
    assert found, f"this test needs {names[0]} (apt-get install {names[0]})"
    return found[0]


def hide(folder: Path) -> str:
    """Return a PATH on which everything is found that is found now, but for FOREIGN programs: links are made below
    `folder` for directories that have one."""
    places = []
    for number, place in enumerate(dict.fromkeys(os.environ.get("PATH", os.defpath).split(os.pathsep))):
        if not os.path.isdir(place or "."):
            continue
        names = os.listdir(place or ".")
        if not any(FOREIGN.fullmatch(name) for name in names):
            places.append(place)
            continue
        links = folder / str(number)
        links.mkdir()
        for name in names:
            if FOREIGN.fullmatch(name) is None:
                (links / name).symlink_to(Path(place, name).absolute())
        places.append(str(links))
    return os.pathsep.join(places)
