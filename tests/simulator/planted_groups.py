"""Faults planted in the coordinator of consumer groups; for `tests.simulator.planted`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.scenarios.test_planted_group_faults import FAULTS

GROUP_FAULTS: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    f"group-{name.replace(' ', '-')}": plant for name, (plant, _) in FAULTS.items()
}
