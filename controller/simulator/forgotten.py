"""Who has lost power, and so may have forgotten what was acknowledged: where Kafka's promise about records ends.

A member of an ISR need not have written to its disk what it acknowledges: that some member remembers is the promise. It
holds as long as a broker that forgot leaves the ISR before it leads again, so that it comes back as a follower, of one
that knows. One that leads without having left (it was the last of the ISR, or was back before anybody had noticed that
it was gone) has its own, shorter log for the truth, in Kafka as here (KIP-966). What was acknowledged in that partition
may then be gone, and only then.
"""

from __future__ import annotations

from collections.abc import Sequence


class Forgotten:
    """Partitions are named by the paths of their states. `broken`: those whose records may be lost; `members`: of each,
    who may have forgotten, empty as long as nobody has."""

    def __init__(self) -> None:
        self.broken: set[str] = set()  # asked whether it holds a partition, or how many there are; never walked
        self._isrs: dict[str, tuple[int, ...]] = {}
        self.members: dict[str, tuple[int, ...]] = {}

    def state_written(self, path: str, isr: Sequence[int]) -> None:
        self._isrs[path] = tuple(isr)
        forgetful = self.members.get(path, ())
        if forgetful:
            self.members[path] = tuple(node for node in forgetful if node in isr)

    def lost_power(self, node: int) -> None:
        """A replica outside the ISR counts too: a leader may have asked already for it to be let in."""
        for path in self._isrs:
            known = self.members.get(path, ())
            if node not in known:
                self.members[path] = (*known, node)

    def may_have_forgotten(self, node: int, path: str) -> bool:
        return node in self.members.get(path, ())

    def leads(self, node: int, path: str) -> None:
        if node in self.members.get(path, ()):
            self.broken.add(path)
