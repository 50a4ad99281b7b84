"""The controller is to move nothing by choice, or may again: /admin/camerlengo_pause came, changed or went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class PauseChanged:
    coalesces: ClassVar[bool] = True
