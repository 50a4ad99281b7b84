"""A model of data loss: which brokers lost power and so may have lost acknowledged records, and what that breaks.

An ISR member may acknowledge records before it writes them to its disk; Kafka promises that some member still has them.
The promise holds as long as a broker that lost records leaves the ISR before it leads again, so that it returns as a
follower of a member that has them. A broker that leads without having left the ISR (it was the last member, or it
returned before its absence was noticed) treats its own shorter log as authoritative, in Kafka as here (KIP-966). Only
in such a partition may acknowledged records be lost.
"""

from __future__ import annotations

from collections.abc import Sequence


class DataLossModel:
    """The state of the model; partitions are named by the paths of their state znodes.

    `broken`: partitions whose records may be lost. `members`: for each partition, the brokers that may have lost
    records; empty as long as there are none.
    """

    def __init__(self) -> None:
        self.broken: set[str] = set()  # asked whether it holds a partition, or how many there are; never walked
        self._isrs: dict[str, tuple[int, ...]] = {}
        self.members: dict[str, tuple[int, ...]] = {}

    def state_written(self, path: str, isr: Sequence[int]) -> None:
        self._isrs[path] = tuple(isr)
        suspects = self.members.get(path, ())
        if suspects:
            self.members[path] = tuple(node for node in suspects if node in isr)

    def lost_power(self, node: int) -> None:
        """Record a loss of power. Replicas outside the ISR count too: their leader may have proposed to add them."""
        for path in self._isrs:
            known = self.members.get(path, ())
            if node not in known:
                self.members[path] = (*known, node)

    def may_have_lost_records(self, node: int, path: str) -> bool:
        return node in self.members.get(path, ())

    def became_leader(self, node: int, path: str) -> None:
        if node in self.members.get(path, ()):
            self.broken.add(path)
