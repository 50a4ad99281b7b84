"""What the clients of a run write and read, and what may be expected of the cluster for it: values, and no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

ACKS_ALL, ACKS_LEADER, ACKS_NONE = -1, 1, 0

MEMBERS_MAX = 8
"""The clients of a group are numbered below this; a step may start those that the workload does not begin with."""

TRANSACTIONAL_MAX = 64

PartitionName = tuple[str, int]
"""Topic and number."""


class TransactionStage(StrEnum):
    """The steps of a transaction, as its client sees them."""

    INITIALISED = "initialised"
    """It has begun, and nothing of it was sent."""
    PARTITIONS_ADDED = "partitions-added"
    """The coordinator knows its partitions, and no record was sent."""
    SENT = "sent"
    """Its records are acknowledged, and its end was not asked for."""
    ENDING = "ending"
    """EndTxn is sent, and not answered. The client does not stop here."""


@dataclass(frozen=True, slots=True)
class TransactionWorkload:
    """Transactional clients. `writers` share `rate_per_s` transactions of up to `partitions` partitions with `records`
    each; every `abort_every`-th of a writer's is aborted by it (0: none). `transform`: the members of the run's group
    consume, and write what they consumed, in transactions that commit their offsets. A transaction that is open for
    longer than `timeout_ms` is aborted by its coordinator."""

    topics: str
    """The prefix of the names of the topics that they write to."""
    writers: int = 2
    rate_per_s: float = 10.0
    partitions: int = 3
    records: int = 2
    abort_every: int = 5
    timeout_ms: int = 10_000
    transform: bool = False


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
    transactions: TransactionWorkload | None = None

    @property
    def writes(self) -> bool:
        """Whether anything is written."""
        return self.rate_per_s > 0 or self.transactions is not None

    def partitions_of(self, all_partitions: Sequence[PartitionName]) -> list[PartitionName]:
        """Those that its clients write to: first those of records outside of transactions."""
        wanted = self.transactions
        transactional = [one for one in all_partitions if wanted is not None and one[0].startswith(wanted.topics)]
        plain = [
            one
            for one in all_partitions
            if self.producers and one[0].startswith(self.topics) and one not in transactional
        ]
        return [*plain, *transactional]

    def transactional_places(self, partitions: Sequence[PartitionName]) -> list[int]:
        """The places of the partitions that transactional clients write to. They come after all others."""
        wanted = self.transactions
        return [place for place, (topic, _) in enumerate(partitions) if wanted and topic.startswith(wanted.topics)]

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
        *("members", "group_session_ms", "static_members", "transactions"),
    }
)
HONOURED: Mapping[str, frozenset[str]] = {"real": _OF_ALL, "simulated": _OF_ALL, "in-process": _OF_ALL}
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
