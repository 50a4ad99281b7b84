"""The language of scenarios and plans: what a file may say, as typed values.

A scenario is a TOML file with `name`, `description`, `parameters`, `cluster`, `steps`, `workload` and `expect`. Its
steps are carried out in order, each once the one before has ended and not before its `at_ms`; each names what it does
in `do`. A parameter is used as `"${name}"`: as the whole of a value it keeps its type, inside a longer string it is
spelled out.

A plan is a TOML file with `plan = 1`: a cluster, and what happens to it and when. The swarm draws one from a seed. Its
`happenings` are faults and operations in the same language; each begins at its `at_ms`, whatever the others do. A
happening that makes no sense when its time comes (a broker is killed that is dead, a topic deleted that is not there)
does nothing: so any part of a plan is a plan, and a plan can be shrunk. At `calm_ms` every fault ends among the brokers
of the `core`; the others are from then on what `outside` says, and the core must come to rest without them.

Faults, operations and what ends faults are in `faults.py`. Where a step takes a `node`, it may say a broker's id,
`"controller"`, `"not-controller"` (the running, registered broker with the lowest id that is not the controller),
`"leader:TOPIC:PARTITION"`, or a name given by an earlier step's `as`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Union

import msgspec

from controller.scenarios.faults import (
    CreateTopic,
    ElectLeaders,
    Fault,
    HostileClient,
    NodeName,
    Operation,
    SetConfig,
    Step,
    kinds,
)
from controller.scenarios.records.workload import ACKS_ALL, TransactionStage


class CreateTopics(Step, frozen=True, kw_only=True, tag="create-topics"):
    """Creates `count` topics named `prefix` and a number from 0. `assignment`: the brokers of each partition's
    replicas, in order, in place of `partitions` and `replication_factor`."""

    count: int = 1
    prefix: str = "topic-"
    partitions: int = 1
    replication_factor: int = 1
    assignment: tuple[tuple[int, ...], ...] = ()
    config: dict[str, str | int | bool] = msgspec.field(default_factory=dict)


class Wait(Step, frozen=True, kw_only=True, tag="wait"):
    """Waits until a condition holds (see `conditions.py` for what there is); the scenario has failed if it does
    not within `deadline_ms`. `after`: what must have happened before the condition counts (see `MILESTONES` there).
    `topic`, `partition`, `leader` and `isr` (in order) are what the condition `partition-state` compares."""

    until: str
    after: str | None = None
    deadline_ms: float = 30_000.0
    node: NodeName | None = None
    other_than: tuple[NodeName, ...] = ()
    topic: str | None = None
    partition: int = 0
    leader: int | None = None
    isr: tuple[int, ...] | None = None


class Let(Step, frozen=True, kw_only=True, tag="let-run"):
    """Lets time pass."""

    ms: float


class Produce(Step, frozen=True, kw_only=True, tag="produce"):
    """From here on records are written to the topics that there are, and read, as `workload.records` says."""


class Quiesce(Step, frozen=True, kw_only=True, tag="quiesce"):
    """No more records are written; once every operation has ended all partitions are read from beginning to end, for
    at most `deadline_ms`. A scenario that produces and does not say this ends with it."""

    deadline_ms: float = 60_000.0


class HoldTransaction(Step, frozen=True, kw_only=True, tag="hold-transaction"):
    """Wait until a transactional client (a writer, or with `transform` a member of the group, by number) has come to a
    stage of a transaction. It stops there until `release-transaction`, or its death; at "ending" it goes on."""

    client: int = 0
    at: TransactionStage
    deadline_ms: float = 30_000.0


class ReleaseTransaction(Step, frozen=True, kw_only=True, tag="release-transaction"):
    """A client that was held goes on."""

    client: int = 0


if TYPE_CHECKING:
    ScenarioStep = Step
    Happening = Fault | Operation
else:
    ScenarioStep = Union[kinds(Step)]  # noqa: UP007 - a declaration in faults.py needs no second place
    Happening = Union[kinds(Fault, Operation)]  # noqa: UP007


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Brokers 1 to `brokers`; `racks` are assigned to them in turn; `settings` as server.properties has them. `secure`:
    on real processes all listeners are SASL_SSL, with users and ACLs; simulated listeners have no security."""

    brokers: int = 3
    zookeeper_servers: int = 1
    session_timeout_ms: int = 2_000
    racks: tuple[str, ...] = ()
    secure: bool = False
    settings: Mapping[str, str | int | bool] = {}

    @property
    def nodes(self) -> range:
        return range(1, self.brokers + 1)

    @property
    def properties(self) -> dict[str, str]:
        """The settings as text."""
        return {key: property_text(value) for key, value in self.settings.items()}

    @property
    def log_directories(self) -> tuple[str, ...]:
        return tuple(one.strip() for one in self.properties.get("log.dirs", "").split(",") if one.strip())


def property_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class RecordsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written and read from the step `produce` on. `topics`: a prefix of the topics written to (all if left
    out); `rate_per_s` of all producers together, 0 for none, and `simulated_rate_per_s` in its place in simulation,
    where every record costs real time; `consumers` that read everything; `acks` "all", 1 or 0. `members` of a consumer
    group that shares the partitions, with sessions of `group_session_ms`, which the brokers'
    `group.min.session.timeout.ms` must allow; `static_members` have a group.instance.id."""

    topics: str = ""
    rate_per_s: float = 1000.0
    simulated_rate_per_s: float | None = None
    producers: int = 2
    consumers: int = 1
    keys: int = 64
    record_bytes: int = 100
    acks: str | int = "all"
    idempotent: bool = True
    in_flight: int = 5
    members: int = 0
    group_session_ms: int = 6_000
    static_members: bool = False


class TransactionsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Transactional clients, from the step `produce` on. `topics`: a prefix of the topics that they write to, and the
    clients of `[workload.records]` do not; the other keys are the fields of TransactionWorkload."""

    topics: str
    writers: int = 2
    rate_per_s: float = 10.0
    simulated_rate_per_s: float | None = None
    partitions: int = 3
    records: int = 2
    abort_every: int = 5
    timeout_ms: int = 10_000
    transform: bool = False


class WorkloadSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metadata_interval_ms: float = 20.0
    records: RecordsSection | None = None
    transactions: TransactionsSection | None = None


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must hold. `failovers`: how many there must have been, by kind; `recovery_ms`: the bound on each, from
    the session's end to the client's complete metadata; `invariants`: the names checked (all of them if left out);
    `all_registered`: at the end every broker of the cluster is registered; `at_most`, `at_least`: bounds on what is
    counted from the first fault on (`event_counters.py` has the names), so that 0 says what must not happen at all;
    `lost`: whether acknowledged records are ("none", "some", "any"; if left out none with acks of all, else any);
    `unacknowledged`: how many records may at most end otherwise than acknowledged; `overdue_ms`: no transaction is
    committed whose commit was asked for so long after its `timeout_ms` was up."""

    failovers: dict[str, int] = {}
    recovery_ms: float = 10_000.0
    invariants: tuple[str, ...] | None = None
    all_registered: bool = False
    at_most: dict[str, int] = {}
    at_least: dict[str, int] = {}
    lost: str | None = None
    unacknowledged: int | None = None
    overdue_ms: float | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    steps: tuple[ScenarioStep, ...]
    description: str = ""
    parameters: dict[str, str | int | float | bool] = {}
    cluster: ClusterSpec = ClusterSpec()
    workload: WorkloadSection = WorkloadSection()
    expect: Expect = Expect()


# -- plans

FORMAT = 1
UNCLEAN = "unclean.leader.election.enable"
PROTOCOL = "inter.broker.protocol.version"


class Outside(StrEnum):
    """What becomes of the brokers outside the core."""

    DEAD = "dead"
    PAUSED = "paused"
    CUT_OFF = "cut-off"


class PlanRecords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients that write to `topic` and read it, from when the plan first creates it on; brokers need `log.dirs`.
    `acks`: -1 (all), 1 or 0. `in_flight`: requests a connection that are unanswered. `members`: of a consumer group
    that shares the partitions, with sessions of `group_session_ms`; `static_members` have a group.instance.id.
    `writers` write transactions to the topic `ledger`, and so do the members with `transform` ("": there are none), of
    `transaction_timeout_ms`."""

    topic: str
    rate_per_s: float = 20.0
    acks: int = ACKS_ALL
    idempotent: bool = False
    in_flight: int = 1
    members: int = 0
    group_session_ms: int = 6_000
    static_members: bool = False
    ledger: str = ""
    writers: int = 0
    transform: bool = False
    transaction_timeout_ms: int = 10_000


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`seed` is of everything that the plan does not say. `bound_ms`: how long after the calm the core may take to
    come to rest, in virtual time."""

    plan: int = FORMAT
    name: str
    seed: int
    cluster: ClusterSpec
    core: tuple[int, ...]
    outside: Outside = Outside.DEAD
    calm_ms: float
    bound_ms: float = 60_000.0
    metadata_interval_ms: float = 250.0
    records: PlanRecords | None = None
    happenings: tuple[Happening, ...] = ()

    @property
    def unclean_topics(self) -> frozenset[str]:
        """Those of which a leader may come from outside the ISR at some time, whatever the brokers' settings say."""
        asked = [each for each in self.happenings if isinstance(each, SetConfig | CreateTopic | ElectLeaders)]
        return frozenset(each.topic for each in asked if _may_be_unclean(each))

    @property
    def has_hostile_clients(self) -> bool:
        return any(isinstance(each, HostileClient) for each in self.happenings)

    @property
    def terms_last(self) -> bool:
        """Whether nothing happens before the calm that may end a controller's term: what clients ask for may not."""
        return all(isinstance(each, Operation | HostileClient) for each in self.happenings)

    @property
    def faults(self) -> tuple[Fault, ...]:
        return tuple(each for each in self.happenings if not isinstance(each, Operation))


def _may_be_unclean(operation: SetConfig | CreateTopic | ElectLeaders) -> bool:
    if isinstance(operation, ElectLeaders):
        return operation.unclean
    return operation.config.get(UNCLEAN) == "true"
