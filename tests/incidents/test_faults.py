"""Each planted fault turns red the very check that the real code passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.incidents.faults import FAULTS, Fault

_sound: set[Callable[[], object]] = set()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))
def test_a_planted_fault_turns_its_check_red(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault.check not in _sound:
        fault.check()
        _sound.add(fault.check)
    fault.plant(monkeypatch)
    with pytest.raises(fault.red):
        fault.check()
