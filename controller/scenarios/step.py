"""What every step of a scenario is, and how it names a node."""

from __future__ import annotations

import msgspec

NodeName = int | str


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """What all steps share. A step whose `when` is false is left out, so that a parameter can choose."""

    when: bool = True
