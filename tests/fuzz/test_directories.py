"""The fuzz target of corrupted log directories: some inputs, and planted faults that it must find."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from controller.storage.disk import Health
from tests.fuzz.campaign import Failure, watched
from tests.fuzz.directories import Directories, fed, fuzz, main, memory_folder

INPUTS = 400
SEED = 20


@pytest.fixture(scope="module")
def target() -> Iterator[Directories]:
    with TemporaryDirectory(prefix="camerlengo-fuzz-", dir=memory_folder()) as folder:
        yield Directories(Path(folder))


def test_a_start_with_corrupted_directories_holds_its_invariants(target: Directories) -> None:
    figures = fuzz(INPUTS, SEED, target)
    outcomes = {outcome for _, outcome in figures.outcomes}
    assert {"started", "started with warnings", "refused: BadSettings", "offline"} <= outcomes


def no_joins(*_arguments: object) -> None:
    """Segments are not compared."""


def none_in_two(*_arguments: object) -> tuple[dict[str, set[object]], dict[str, set[object]]]:
    """Partitions that are in two directories are not refused."""
    return {}, {}


def silent(_health: Health, _warning: str) -> None:
    """Nothing is said."""


@pytest.mark.parametrize(
    ("where", "planted", "known"),
    [
        ("controller.storage.recovery.check_joins", no_joins, "3b5aaeafe0cf63c9"),
        ("controller.storage.disk.Health.warn", silent, "4af339c4404c45e1"),
        ("controller.broker.log_manager._in_two", none_in_two, "31eebea2df5a6ed9"),
    ],
)
def test_a_planted_fault_is_found(
    target: Directories, monkeypatch: pytest.MonkeyPatch, where: str, planted: object, known: str
) -> None:
    """The known start comes first; others follow in case it is drawn otherwise by now."""
    monkeypatch.setattr(where, planted)
    rng = random.Random(SEED)
    starts = [bytes.fromhex(known), *(rng.randbytes(8) for _ in range(200))]
    with pytest.raises(Failure, match=r"start: [0-9a-f]{16}"), watched(60.0):
        all(fed(target, data, 60.0) for data in starts)


def test_a_start_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "878d972f9a451da1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 1
