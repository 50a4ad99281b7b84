"""What the whole suite shares: the flag that rewrites golden logs, and which examples property tests see.

A run of the suite tells of the tree, not of the day: every run draws the same examples, and a failure seen anywhere is
seen again by the same command. `--hypothesis-profile=explore` draws new ones each time. No example has a time limit: a
machine that does other things too is not a fault of the tree.

A shell that runs a command in the background lets it ignore Ctrl-C, and all that it starts. The suite takes that back.

Programs that the README's set-up does not install are hidden from the tests that do not say that they need them.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.programs import UNMARKED, hide

INTEROP = Path(__file__).parent / "interop"

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile("same")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="writes the expected logs of tests/simulator/golden anew"
    )
    parser.addoption(
        "--every-moment",
        action="store_true",
        help="tests/cli/test_interrupts.py: more moments of each command",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """tests/interop needs a real Kafka: it is collected where it, or a file of it, is named, and not with the rest."""
    if collection_path != INTEROP:
        return None
    named = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    return None if any(one == INTEROP or INTEROP in one.parents for one in named) else True


ONE_SPARK = frozenset({"tests/pipeline/test_analysis.py", "tests/pipeline/test_on_spark.py"})
"""The files that use the fixture `spark`."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, send the files that share a Spark session to one worker: each worker makes its own."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    file_of = scheduler._split_scope
    scheduler._split_scope = lambda test: "spark" if file_of(test) in ONE_SPARK else file_of(test)
    return scheduler


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Ten thousand tests and what they import are kept until the end: the garbage collector need not look at them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


_HIDING = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == UNMARKED:
        config.stash[_HIDING] = folder = Path(tempfile.mkdtemp(prefix="camerlengo-path-"))
        os.environ["PATH"] = hide(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _HIDING in config.stash:
        shutil.rmtree(config.stash[_HIDING], ignore_errors=True)
