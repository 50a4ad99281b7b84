"""A plan: a cluster, and what happens to it and when. What the swarm draws from a seed, and what a plan file says.

Times are milliseconds from the start of the run. A happening that makes no sense when its time comes (a broker is
killed that is dead, a topic deleted that is not there) does nothing: so any part of a plan is a plan, and a plan can be
shrunk. `for_ms` says how long a fault lasts; 0: until the calm. At `calm_ms` every fault ends among the brokers of the
`core`; the others are from then on what `outside` says, and the core must come to rest without them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from controller.scenarios.records.workload import ACKS_ALL

FORMAT = 1
UNCLEAN = "unclean.leader.election.enable"
PROTOCOL = "inter.broker.protocol.version"


class Outside(StrEnum):
    """What becomes of the brokers outside the core."""

    DEAD = "dead"
    PAUSED = "paused"
    CUT_OFF = "cut-off"


class _Happening(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    at_ms: float


class _Node(_Happening, frozen=True, kw_only=True):
    node: int
    for_ms: float = 0.0


class _Way(_Happening, frozen=True, kw_only=True):
    source: int
    target: int
    for_ms: float = 0.0


# -- brokers and their machines


class Kill(_Node, frozen=True, kw_only=True, tag="kill"):
    """SIGKILL; it is started again after `for_ms`."""


class Stop(_Node, frozen=True, kw_only=True, tag="stop"):
    """SIGTERM, a controlled shutdown; it is started again `for_ms` after it has gone."""


class Pause(_Node, frozen=True, kw_only=True, tag="pause"):
    """Its process stands still."""


class Drift(_Node, frozen=True, kw_only=True, tag="drift"):
    """Its clock goes at `rate` times the world's pace."""

    rate: float


class LosePower(_Node, frozen=True, kw_only=True, tag="lose-power"):
    """As `kill`, and its machine forgets what was not synced to its disk; the end of a file may be torn."""


class BreakDisk(_Node, frozen=True, kw_only=True, tag="break-disk"):
    """Its disk refuses every change; when it is whole again, the broker is started anew."""


class BreakLogDirectory(_Node, frozen=True, kw_only=True, tag="break-log-directory"):
    """One of its log directories, as `log.dirs` names it, refuses every change; when it can be used again, the broker
    is started anew. With `for_ms` 0 it stays so for good, also in the calm."""

    directory: str


class SlowDisk(_Node, frozen=True, kw_only=True, tag="slow-disk"):
    """Whatever it changes on its disk takes `a_change_ms`, and the broker waits for it."""

    a_change_ms: float


class StepWall(_Happening, frozen=True, kw_only=True, tag="step-wall"):
    """Its wall clock is set `by_ms` forward, or back."""

    node: int
    by_ms: int


# -- its way to ZooKeeper


class CutZooKeeper(_Node, frozen=True, kw_only=True, tag="cut-zookeeper"):
    """Nothing passes, without a word: `way` "both", "to" (what it sends) or "from" (what it should hear)."""

    way: str = "both"


class SlowZooKeeper(_Node, frozen=True, kw_only=True, tag="slow-zookeeper"):
    slower: float


class ResetZooKeeper(_Happening, frozen=True, kw_only=True, tag="reset-zookeeper"):
    """Its connection breaks, with what was on its way."""

    node: int


class LoseReply(_Happening, frozen=True, kw_only=True, tag="lose-reply"):
    """Its next write breaks the connection instead of being answered: `applied`, or not."""

    node: int
    applied: bool


class Expire(_Happening, frozen=True, kw_only=True, tag="expire"):
    """Its session ends at the server."""

    node: int


class DeleteController(_Happening, frozen=True, kw_only=True, tag="delete-controller"):
    """Somebody deletes /controller, as operators do to have another one elected: its owner's session lives on, and only
    the fence keeps the former term from writing (S03)."""


class Depose(_Happening, frozen=True, kw_only=True, tag="depose"):
    """As `delete-controller`, and its owner stands still meanwhile: it goes on in the middle of what it did, deposed,
    and before it can hear of that (S01, S03)."""

    for_ms: float


ControllerEdit = Literal["another", "nobody", "garbage", "persistent"]
EpochEdit = Literal["deleted", "garbage", "negative", "lowered", "raised", "highest"]


class EditController(_Node, frozen=True, kw_only=True, tag="edit-controller"):
    """An administrator rewrites /controller: it names broker `node`, or broker -1, or holds no JSON; or a persistent
    znode that names `node` replaces it, which is deleted after `for_ms`."""

    how: ControllerEdit


class EditControllerEpoch(_Happening, frozen=True, kw_only=True, tag="edit-controller-epoch"):
    """An administrator deletes /controller_epoch, or rewrites it: with no number, a negative one, 1, 2^31-2 or 2^31-1.
    One that can't be read is deleted after `for_ms`."""

    how: EpochEdit
    for_ms: float = 0.0


class SpoilZnode(_Node, frozen=True, kw_only=True, tag="spoil-znode"):
    """Put a value that decodes and makes no sense into a znode, and restore the former value `for_ms` later.

    `what`: "state" (of the partition), "registration" (of the node) or "topic" (a nonexistent topic, on the node).
    """

    what: str
    topic: str = ""
    partition: int = 0


# -- clients


HostileKind = Literal["requests", "operations", "frames", "connections", "drops"]


class HostileClient(_Node, frozen=True, kw_only=True, tag="hostile-client"):
    """A client acts `rate` times a second against broker `node`, for `for_ms`: it sends well-formed requests that make
    no sense ("requests"), or operations of that sort to the controller ("operations"), or malformed frames ("frames");
    opens connections and sends nothing ("connections"); or sends many requests at once over a connection that it closes
    before they are answered ("drops")."""

    kind: HostileKind
    rate: float = 50.0


class ChangeRegistration(_Happening, frozen=True, kw_only=True, tag="change-registration"):
    """The broker's registration is written again with another rack, in the same session, as Kafka's brokers do when
    their listeners are configured anew. It holds until the broker registers again."""

    node: int
    rack: str


class AskIsr(_Happening, frozen=True, kw_only=True, tag="ask-isr"):
    """The controller is asked for an ISR as by the partition's leader, which does not ask now: in a leader epoch that
    no controller has written ("ahead"), or for an older version of the state ("behind"). `version`: of AlterIsr; in
    these two, topics go by their names."""

    topic: str
    partition: int
    how: Literal["ahead", "behind"]
    version: Literal[0, 1] = 0


# -- ZooKeeper's servers


class ElectZooKeeper(_Happening, frozen=True, kw_only=True, tag="elect-zookeeper"):
    """The ensemble loses its leader and elects another: no service meanwhile."""


class KillZooKeeper(_Happening, frozen=True, kw_only=True, tag="kill-zookeeper"):
    server: int
    for_ms: float = 0.0


# -- the network


class Cut(_Way, frozen=True, kw_only=True, tag="cut"):
    """What `source` opens to `target` hangs, both ways."""


class Shut(_Way, frozen=True, kw_only=True, tag="shut"):
    """What `source` sends to `target` does not arrive; the other direction does."""


class Slow(_Way, frozen=True, kw_only=True, tag="slow"):
    slower: float
    more_ms: float = 0.0


class Lossy(_Way, frozen=True, kw_only=True, tag="lossy"):
    loss: float


class Reset(_Happening, frozen=True, kw_only=True, tag="reset"):
    """What `source` has opened to `target` breaks; with `late_ms` above 0 for `source` alone, and what it had sent
    arrives that much later."""

    source: int
    target: int
    late_ms: float = 0.0


class Isolate(_Node, frozen=True, kw_only=True, tag="isolate"):
    """Nothing passes between it and the other brokers; its way to ZooKeeper is as it was."""


# -- what people ask of the cluster


class CreateTopic(_Happening, frozen=True, kw_only=True, tag="create-topic"):
    topic: str
    partitions: int
    replication_factor: int
    config: dict[str, str] = {}


class DeleteTopic(_Happening, frozen=True, kw_only=True, tag="delete-topic"):
    topic: str


class AddPartitions(_Happening, frozen=True, kw_only=True, tag="add-partitions"):
    topic: str
    partitions: int


class Reassign(_Happening, frozen=True, kw_only=True, tag="reassign"):
    """Reassign a partition to `replicas`, in that order; none: cancel its reassignment.

    `znode`: by /admin/reassign_partitions, which cannot cancel and returns no response.
    """

    topic: str
    partition: int
    replicas: list[int] = []
    znode: bool = False


class ElectLeaders(_Happening, frozen=True, kw_only=True, tag="elect-leaders"):
    """Elect the preferred leader of a partition, or with `unclean` any live replica.

    `znode`: by /admin/preferred_replica_election, which returns no response and supports preferred elections only.
    """

    topic: str
    partition: int
    unclean: bool = False
    znode: bool = False


class SetConfig(_Happening, frozen=True, kw_only=True, tag="set-config"):
    """Of a topic; the rest of its configs stays as it is."""

    topic: str
    config: dict[str, str]


class PauseController(_Happening, frozen=True, kw_only=True, tag="pause-controller"):
    """Pause voluntary moves of every controller for `for_ms`; 0: for good, also after the calm.

    The pause lasts for good if the calm comes first. With `after_calm_ms` above 0 the pause ends that long after the
    calm instead, and the core must become quiescent after that.
    """

    for_ms: float = 0.0
    after_calm_ms: float = 0.0


BrokerFault = Kill | Stop | Pause | Drift | StepWall
DiskFault = LosePower | BreakDisk | BreakLogDirectory | SlowDisk
SessionFault = CutZooKeeper | SlowZooKeeper | ResetZooKeeper | LoseReply | Expire | DeleteController | Depose
ZnodeFault = SpoilZnode | ChangeRegistration
RequestFault = AskIsr
HandEdit = EditController | EditControllerEpoch
EnsembleFault = ElectZooKeeper | KillZooKeeper
NetworkFault = Cut | Shut | Slow | Lossy | Reset | Isolate
Operation = CreateTopic | DeleteTopic | AddPartitions | Reassign | ElectLeaders | SetConfig
Fault = (
    BrokerFault
    | DiskFault
    | SessionFault
    | HandEdit
    | EnsembleFault
    | NetworkFault
    | PauseController
    | ZnodeFault
    | RequestFault
    | HostileClient
)
Happening = (
    Kill | Stop | Pause | Drift | StepWall
    | LosePower | BreakDisk | BreakLogDirectory | SlowDisk
    | CutZooKeeper | SlowZooKeeper | ResetZooKeeper | LoseReply | Expire | DeleteController | Depose
    | EditController | EditControllerEpoch
    | SpoilZnode | ChangeRegistration
    | AskIsr
    | HostileClient
    | ElectZooKeeper | KillZooKeeper
    | Cut | Shut | Slow | Lossy | Reset | Isolate
    | CreateTopic | DeleteTopic | AddPartitions | Reassign | ElectLeaders | SetConfig | PauseController
)  # fmt: skip


class PlanCluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    brokers: int
    zookeeper_servers: int = 1
    session_timeout_ms: int = 2_000
    settings: dict[str, str] = {}

    @property
    def nodes(self) -> range:
        return range(1, self.brokers + 1)

    @property
    def log_directories(self) -> tuple[str, ...]:
        return tuple(one.strip() for one in self.settings.get("log.dirs", "").split(",") if one.strip())


class PlanRecords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients that write to `topic` and read it, from when the plan first creates it on; brokers need `log.dirs`.
    `acks`: -1 (all), 1 or 0. `in_flight`: requests a connection that are unanswered."""

    topic: str
    rate_per_s: float = 20.0
    acks: int = ACKS_ALL
    idempotent: bool = False
    in_flight: int = 1


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`seed` is of everything that the plan does not say. `bound_ms`: how long after the calm the core may take to
    come to rest, in virtual time."""

    plan: int = FORMAT
    name: str
    seed: int
    cluster: PlanCluster
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


def kind_of(happening: Happening) -> str:
    """Its `do`."""
    tag = happening.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def describe(happening: Happening) -> str:
    """Return the happening as one line of text for a person."""
    fields = {name: getattr(happening, name) for name in happening.__struct_fields__ if name != "at_ms"}
    words = [f"{name}={_format_value(value)}" for name, value in fields.items() if value not in (0, {})]
    return " ".join([kind_of(happening), *words])


def _format_value(value: object) -> str:
    """Format a value; a number is formatted alike whether it was generated or read from a file."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float | int) else str(value)
