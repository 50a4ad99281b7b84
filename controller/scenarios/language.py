"""The scenario language: what a scenario file may say, as typed values.

A scenario is a TOML file with `name`, `description`, `parameters`, `cluster`, `steps`, `workload` and `expect`.
Steps are carried out in order; each names what it does in `do`. A parameter is used as `"${name}"`: as the whole of
a value it keeps its type, inside a longer string it is spelled out.

Faults that only a simulated world can have are in `faults.py`. Where a step takes a `node`, it may say a broker's id,
`"controller"`, `"not-controller"` (the running, registered broker with the lowest id that is not the controller),
`"leader:TOPIC:PARTITION"`, or a name given by an earlier step's `as`.
"""

from __future__ import annotations

import msgspec

from controller.scenarios.faults import HealAll, SimulatedFault
from controller.scenarios.step import NodeName, Step


class _OneNode(Step, frozen=True, kw_only=True):
    node: NodeName
    name: str = msgspec.field(default="", name="as")
    other_than: tuple[NodeName, ...] = ()


class Start(Step, frozen=True, kw_only=True, tag="start"):
    """Starts brokers that are not running: one, several, or all of the cluster's."""

    nodes: tuple[NodeName, ...] | None = None


class Kill(_OneNode, frozen=True, kw_only=True, tag="kill"):
    """SIGKILL."""


class Stop(_OneNode, frozen=True, kw_only=True, tag="stop"):
    """SIGTERM: a controlled shutdown."""


class Restart(_OneNode, frozen=True, kw_only=True, tag="restart"):
    """Stops the broker (`how` "clean": SIGTERM; "hard": SIGKILL) and starts it again at once."""

    how: str = "clean"


class Pause(_OneNode, frozen=True, kw_only=True, tag="pause"):
    """SIGSTOP."""


class Resume(_OneNode, frozen=True, kw_only=True, tag="resume"):
    """SIGCONT."""


class Expire(_OneNode, frozen=True, kw_only=True, tag="expire"):
    """Ends the broker's ZooKeeper session at the server."""


class Cut(Step, frozen=True, kw_only=True, tag="cut"):
    """Cuts the link that `source` opens to `target` (a node, or "zookeeper"): nothing passes, nothing is refused. `as`
    names the source."""

    source: NodeName
    target: NodeName
    name: str = msgspec.field(default="", name="as")


class Heal(Step, frozen=True, kw_only=True, tag="heal"):
    source: NodeName
    target: NodeName


class _OneServer(Step, frozen=True, kw_only=True):
    server: NodeName
    name: str = msgspec.field(default="", name="as")


class KillZooKeeper(_OneServer, frozen=True, kw_only=True, tag="kill-zookeeper"):
    """SIGKILL to one server of the ensemble: its number from 1, `"leader"`, `"follower"` (the lowest running one that
    does not lead) or a name."""


class StartZooKeeper(_OneServer, frozen=True, kw_only=True, tag="start-zookeeper"):
    """Starts a server that was killed, on its own data, and waits until it serves."""


class CreateTopics(Step, frozen=True, kw_only=True, tag="create-topics"):
    """Creates `count` topics named `prefix` and a number from 0."""

    count: int = 1
    prefix: str = "topic-"
    partitions: int = 1
    replication_factor: int = 1
    config: dict[str, str | int | bool] = msgspec.field(default_factory=dict)


class Wait(Step, frozen=True, kw_only=True, tag="wait"):
    """Waits until a condition holds (see `conditions.py` for what there is); the scenario has failed if it does
    not within `deadline_ms`. `after`: what must have happened before the condition counts (see `MILESTONES` there)."""

    until: str
    after: str | None = None
    deadline_ms: float = 30_000.0
    node: NodeName | None = None
    other_than: tuple[NodeName, ...] = ()


class Let(Step, frozen=True, kw_only=True, tag="let-run"):
    """Lets time pass."""

    ms: float


class Produce(Step, frozen=True, kw_only=True, tag="produce"):
    """From here on records are written to the topics that there are, and read, as `workload.records` says."""


class Quiesce(Step, frozen=True, kw_only=True, tag="quiesce"):
    """No more records are written; once every operation has ended all partitions are read from beginning to end, for
    at most `deadline_ms`. A scenario that produces and does not say this ends with it."""

    deadline_ms: float = 60_000.0


ZooKeeperStep = KillZooKeeper | StartZooKeeper
RecordStep = Produce | Quiesce
BrokerStep = Kill | Stop | Restart | Pause | Resume | Expire
SimulatedStep = SimulatedFault | HealAll
"""Only in simulation."""
AnyStep = Start | BrokerStep | Cut | Heal | ZooKeeperStep | CreateTopics | Wait | Let | RecordStep | SimulatedStep


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    brokers: int = 3
    zookeeper_servers: int = 1
    session_timeout_ms: int = 2000
    racks: tuple[str, ...] = ()
    settings: dict[str, str | int | bool] = {}


class RecordsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written and read from the step `produce` on. `topics`: a prefix of the topics written to (all if left
    out); `rate_per_s` of all producers together, 0 for none, and `simulated_rate_per_s` in its place in simulation,
    where every record costs real time; `consumers` that read everything; `acks` "all", 1 or 0."""

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


class WorkloadSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metadata_interval_ms: float = 20.0
    records: RecordsSection | None = None


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must hold. `failovers`: how many there must have been, by kind; `recovery_ms`: the bound on each, from
    the session's end to the client's complete metadata; `invariants`: the names checked (all of them if left out);
    `all_registered`: at the end every broker of the cluster is registered; `at_most`, `at_least`: bounds on what is
    counted from the first fault on (`event_counters.py` has the names), so that 0 says what must not happen at all;
    `lost`: whether acknowledged records are ("none", "some", "any"; if left out none with acks of all, else any);
    `unacknowledged`: how many records may at most end otherwise than acknowledged."""

    failovers: dict[str, int] = {}
    recovery_ms: float = 10_000.0
    invariants: tuple[str, ...] | None = None
    all_registered: bool = False
    at_most: dict[str, int] = {}
    at_least: dict[str, int] = {}
    lost: str | None = None
    unacknowledged: int | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    steps: tuple[AnyStep, ...]
    description: str = ""
    parameters: dict[str, str | int | float | bool] = {}
    cluster: Cluster = Cluster()
    workload: WorkloadSection = WorkloadSection()
    expect: Expect = Expect()
