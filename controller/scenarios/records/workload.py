"""What the clients of a run write and read, and what may be expected of the cluster for it: values, and no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

ACKS_ALL, ACKS_LEADER, ACKS_NONE = -1, 1, 0

MEMBERS_MAX = 8
"""The clients of a group are numbered below this; a step may start those that the workload does not begin with."""

PartitionName = tuple[str, int]
"""Topic and number."""


@dataclass(frozen=True, slots=True)
class RecordWorkload:
    """`producers` share `rate_per_s` and the `keys`; each of `consumers` reads everything. `record_bytes` is a value's
    size. All records of one key go to one partition (`home`). `in_flight`: requests a connection that are unanswered.
    """

    topics: str = ""
    """The prefix of the names of the topics that are written to."""
    rate_per_s: float = 1000.0
    producers: int = 2
    consumers: int = 1
    keys: int = 64
    record_bytes: int = 100
    acks: int = ACKS_ALL
    idempotent: bool = True
    in_flight: int = 5
    members: int = 0
    """Of one consumer group that reads everything; none without a group."""
    group_session_ms: int = 6_000
    static_members: bool = False
    """Whether each client has a group.instance.id: it may come back under another member id without a rebalance."""

    @property
    def keeps_order(self) -> bool:
        """Whether the records of one producer that were acknowledged must lie in a partition in their order. Several
        requests in flight overtake each other when one is sent again, but for an idempotent producer's; and what is
        acknowledged by the leader alone may be lost and sent again."""
        return self.acks == ACKS_ALL and (self.idempotent or self.in_flight == 1)

    @property
    def keeps_records(self) -> bool:
        """Whether an acknowledged record must survive (given min.insync.replicas and no unclean election)."""
        return self.acks == ACKS_ALL


_OF_ALL = frozenset(
    {
        *("topics", "rate_per_s", "producers", "consumers", "keys", "record_bytes", "acks", "idempotent", "in_flight"),
        *("members", "group_session_ms", "static_members"),
    }
)
HONOURED: Mapping[str, frozenset[str]] = {"real": _OF_ALL, "simulated": _OF_ALL}
"""By host, the fields of a workload that its clients obey. A scenario that sets another one is refused there: a field
that is added counts on no host until it is listed."""


def not_honoured(workload: object, host: str) -> list[str]:
    """The fields of a workload that are not at their defaults and that the host's clients ignore."""
    honoured = HONOURED[host]
    return [
        each.name
        for each in fields(workload)  # type: ignore[arg-type]
        if each.name not in honoured and getattr(workload, each.name) != each.default
    ]


def home(key: int, partitions: int) -> int:
    """The place among all partitions written to of the one that a key's records go to. The producers choose it
    themselves, so that a record whose fate is unknown is at least known to belong there."""
    return key % partitions
