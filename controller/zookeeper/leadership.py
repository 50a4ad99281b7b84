"""Leadership as a value: what every write made as controller must show. No I/O; nothing but the value lives here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leadership:
    """One term as controller.

    It is void once `session` is not the connection's session any more, or the lease has run out, or
    /controller_epoch has left `epoch_zk_version`, whichever is first. A session that lives on after a resignation may
    win again: that is another term, with another epoch and version.
    """

    session: int
    """The ZooKeeper session that owns /controller."""
    epoch: int
    """What the election wrote into /controller_epoch."""
    epoch_zk_version: int
    """The version of /controller_epoch that this write made: the fence of every later write."""
