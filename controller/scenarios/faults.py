"""The fault language: every fault and every operation, declared once for all hosts and for all files.

A declaration is a struct. Its tag is the name (`do` in a file). Its fields have units in their names, and bounds in
their types. Its class attributes say which hosts implement it, which step ends it, and which errors it explains. Steps
of scenarios, happenings of plans and what the swarm draws are values of these classes. What a fault does is the
matter of a host: each has a table `Implementations`.

A lasting fault ends after `for_ms`, or with 0 by the step `ended_by`; in a plan, at the calm at the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from controller.scenarios.records.workload import MEMBERS_MAX, TRANSACTIONAL_MAX

REAL, SIMULATED, IN_PROCESS = "real", "simulated", "in-process"
BOTH = (REAL, SIMULATED)
ALL = (*BOTH, IN_PROCESS)
ZOOKEEPER = 0
"""The far end of a link to ZooKeeper; brokers count from 1."""

NodeName = int | str
"""A broker's id, or a name that is resolved when the step is carried out (`language.py`)."""
Milliseconds = Annotated[float, Meta(ge=0)]
Factor = Annotated[float, Meta(gt=0)]
Partition = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


Undo = Callable[[], None]
"""Ends a fault."""


class HostFailure(Exception):
    """The host could not carry out a step (a process that did not start, a topic that was refused): the run could
    not be made, which is another thing than an invariant that did not hold."""


@dataclass(frozen=True, slots=True)
class Link:
    """A directed link: what `source` (a broker) opens and sends to `target` (a broker, or ZOOKEEPER), with the
    replies on it."""

    source: int
    target: int

    def __str__(self) -> str:
        return f"{self.source}->{'zookeeper' if self.target == ZOOKEEPER else self.target}"


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """The base of all steps. `at_ms`: the step does not begin before that time from the start of the run. A step whose
    `when` is false is left out, so that a parameter can choose."""

    at_ms: Milliseconds = 0.0
    when: bool = True

    hosts: ClassVar[tuple[str, ...]] = ALL


class Fault(Step, frozen=True, kw_only=True):
    """The base of all faults.

    `expected_errors`: texts of the errors of brokers and controllers that the fault explains; they are no defects.
    """

    hosts: ClassVar[tuple[str, ...]] = (SIMULATED,)
    ended_by: ClassVar[str] = "heal-all"
    timed_hosts: ClassVar[tuple[str, ...]] = (SIMULATED,)
    """The hosts that end it themselves after `for_ms`."""
    expected_errors: ClassVar[tuple[str, ...]] = ()

    @property
    def lasts_ms(self) -> float:
        """How long the fault lasts; 0: until it is ended, or not at all."""
        return float(getattr(self, "for_ms", 0))


class _LastingFault(Fault, frozen=True, kw_only=True):
    for_ms: Milliseconds = 0.0


class OnNode(Step, frozen=True, kw_only=True):
    """What is done to one broker. `as` names the broker for later steps; `other_than` restricts `not-controller`."""

    node: NodeName
    name: str = msgspec.field(default="", name="as")
    other_than: tuple[NodeName, ...] = ()

    @property
    def broker(self) -> int:
        """The broker's id. The name must be resolved."""
        return broker_id(self.node)


class _OnNode(Fault, OnNode, frozen=True, kw_only=True):
    pass


class _LastingOnNode(_OnNode, frozen=True, kw_only=True):
    for_ms: Milliseconds = 0.0


class OnLink(Step, frozen=True, kw_only=True):
    """What is done to the link from `source` to `target` (a broker, or "zookeeper"). `as` names the source."""

    source: NodeName
    target: NodeName
    name: str = msgspec.field(default="", name="as")

    @property
    def link(self) -> Link:
        """The link. The names must be resolved."""
        return Link(broker_id(self.source), broker_id(self.target))


class _OnLink(Fault, OnLink, frozen=True, kw_only=True):
    for_ms: Milliseconds = 0.0


class OnServer(Step, frozen=True, kw_only=True):
    """What is done to one server of the ensemble: its number from 1, `"leader"`, `"follower"` (the lowest running one
    that does not lead) or a name given by an earlier step's `as`."""

    server: NodeName
    name: str = msgspec.field(default="", name="as")

    @property
    def number(self) -> int:
        """The server's number. The name must be resolved."""
        return broker_id(self.server)


def broker_id(name: NodeName) -> int:
    """Return the id that a name was resolved to."""
    if isinstance(name, str):
        raise HostFailure(f"{name!r}: expected a number, or a name that is resolved")
    return name


# -- brokers and their machines


class Kill(_LastingOnNode, frozen=True, kw_only=True, tag="kill"):
    """SIGKILL. The broker starts again after `for_ms`, or by `start`."""

    hosts = ALL
    ended_by = "start"


class Stop(_LastingOnNode, frozen=True, kw_only=True, tag="stop"):
    """SIGTERM: a controlled shutdown. The broker starts again `for_ms` after the beginning, or by `start`."""

    hosts = ALL
    ended_by = "start"


class Pause(_LastingOnNode, frozen=True, kw_only=True, tag="pause"):
    """SIGSTOP."""

    hosts = ALL
    ended_by = "resume"


class Drift(_LastingOnNode, frozen=True, kw_only=True, tag="drift"):
    """Its clock goes at `rate` times the world's pace."""

    rate: Factor


class StepWall(_OnNode, frozen=True, kw_only=True, tag="step-wall"):
    """Its wall clock is set `by_ms` forward, or back."""

    by_ms: int


# -- disks, of brokers that hold logs

_ERRORS_OF_DISKS = ("offline", "failed log directories")


class LosePower(_LastingOnNode, frozen=True, kw_only=True, tag="lose-power"):
    """Like `kill`, and the machine loses data that was not synced; the end of a file may be torn."""

    ended_by = "start"


class BreakDisk(_LastingOnNode, frozen=True, kw_only=True, tag="break-disk"):
    """Every change to the broker's disk fails; when the disk works again, the broker is restarted."""

    expected_errors = _ERRORS_OF_DISKS


class BreakLogDirectory(_LastingOnNode, frozen=True, kw_only=True, tag="break-log-directory"):
    """Every change to one of the broker's log directories, as `log.dirs` names it, fails.

    When the directory works again, the broker is restarted. With `for_ms` 0 the fault is permanent: neither
    `heal-all` nor the calm ends it. `unreadable`: the device is lost, and nothing can be read from it, either.
    """

    expected_errors = _ERRORS_OF_DISKS
    directory: str
    unreadable: bool = False


class SlowDisk(_LastingOnNode, frozen=True, kw_only=True, tag="slow-disk"):
    """Every change of the broker's files takes `a_change_ms`, and the broker waits for it."""

    a_change_ms: Milliseconds


class SlowDevice(_LastingOnNode, frozen=True, kw_only=True, tag="slow-device"):
    """One of the broker's log directories, as `log.dirs` names it, lies on a device that takes `a_seek_ms` for each
    operation, one after the other, and reads and writes at `bytes_per_s`.

    Rolls, flushes, deletions and cold reads take that time, and the broker does other things meanwhile; one that takes
    longer than `camerlengo.device.timeout.ms` is answered without it.
    """

    expected_errors = ("no answer from the device",)
    directory: str
    a_seek_ms: Milliseconds
    bytes_per_s: Factor = 100_000_000.0


# -- the way to ZooKeeper


class CutZooKeeper(_LastingOnNode, frozen=True, kw_only=True, tag="cut-zookeeper"):
    """Like `cut`, or in one direction: `way` is "both", "to" (requests) or "from" (responses and notifications)."""

    way: Literal["both", "to", "from"] = "both"


class SlowZooKeeper(_LastingOnNode, frozen=True, kw_only=True, tag="slow-zookeeper"):
    """Messages between the broker and ZooKeeper take `slower` times as long."""

    slower: Factor


class ResetZooKeeper(_OnNode, frozen=True, kw_only=True, tag="reset-zookeeper"):
    """Its connection breaks, with what was on its way."""


class LoseReply(_OnNode, frozen=True, kw_only=True, tag="lose-reply"):
    """Its next write breaks the connection instead of being answered: `applied`, or not."""

    applied: bool


class Expire(_OnNode, frozen=True, kw_only=True, tag="expire"):
    """Its ZooKeeper session ends at the server."""

    hosts = ALL


class ReplaceCertificate(_OnNode, frozen=True, kw_only=True, tag="replace-certificate"):
    """The broker of a secured cluster gets a new key and certificate, which it takes while it runs. Simulated listeners
    have none: nothing changes there."""

    hosts = ALL


class DeleteController(Fault, frozen=True, kw_only=True, tag="delete-controller"):
    """Somebody deletes /controller, as operators do to have another one elected. Its owner's session lives on, and only
    the fence keeps the former term from writing (S03)."""


class Depose(_LastingFault, frozen=True, kw_only=True, tag="depose"):
    """Like `delete-controller`, and the owner is paused meanwhile: it goes on in the middle of what it did, deposed,
    and before it can learn of that (S01, S03)."""


# -- what an administrator or another tool writes into ZooKeeper

ControllerEdit = Literal["another", "no-broker", "garbage", "persistent"]
EpochEdit = Literal["deleted", "garbage", "negative", "lowered", "raised", "highest"]
_ERRORS_OF_HAND_EDITS = (
    "no controller can be elected",
    "was rewritten by hand",
    "/controller_epoch held",
    "/controller_epoch was missing",
)
_ERRORS_OF_SPOILED_ZNODES = ("is left out: ", "stays as it was known: ")


class EditController(_LastingOnNode, frozen=True, kw_only=True, tag="edit-controller"):
    """An administrator rewrites /controller: it names broker `node`, or broker -1, or holds no JSON; or a persistent
    znode that names `node` replaces it, which is deleted after `for_ms`."""

    expected_errors = _ERRORS_OF_HAND_EDITS
    how: ControllerEdit


class EditControllerEpoch(Fault, frozen=True, kw_only=True, tag="edit-controller-epoch"):
    """An administrator deletes /controller_epoch, or rewrites it: with no number, a negative one, 1, 2^31-2 or 2^31-1.
    One that can't be read is deleted after `for_ms`."""

    expected_errors = _ERRORS_OF_HAND_EDITS
    how: EpochEdit
    for_ms: Milliseconds = 0.0


SpoiledZnode = Literal["state", "registration", "topic"]


class SpoilZnode(_LastingOnNode, frozen=True, kw_only=True, tag="spoil-znode"):
    """A znode gets a value that decodes but is invalid. When the fault ends, it gets its former value again.

    `what`: "state" (of the partition), "registration" (of the node) or "topic" (a topic that was never created, on the
    node).
    """

    expected_errors = _ERRORS_OF_SPOILED_ZNODES
    what: SpoiledZnode
    topic: str = ""
    partition: Partition = 0

    def __post_init__(self) -> None:
        if self.what != "registration" and not self.topic:
            raise ValueError("topic: expected a name")


class ChangeRegistration(_OnNode, frozen=True, kw_only=True, tag="change-registration"):
    """The broker's registration is written again with another rack, in the same session, as Kafka's brokers do when
    their listeners are configured anew. It holds until the broker registers again."""

    rack: str


class PauseController(Fault, frozen=True, kw_only=True, tag="pause-controller"):
    """No controller may make optional moves for `for_ms`. With 0 the pause is permanent: it is an operator's order, and
    neither `heal-all` nor the calm revokes it.

    The pause of a plan lasts for good if the calm comes first. With `after_calm_ms` above 0 the pause ends that long
    after the calm instead, and the core must become quiescent after that.
    """

    for_ms: Milliseconds = 0.0
    after_calm_ms: Milliseconds = 0.0


# -- clients

HostileKind = Literal["requests", "operations", "frames", "connections", "drops"]


class HostileClient(_LastingOnNode, frozen=True, kw_only=True, tag="hostile-client"):
    """A client acts against the broker `rate` times a second.

    `kind`: "requests" (well-formed and senseless), "operations" (of that sort, to the controller), "frames"
    (malformed), "connections" (opened, and nothing sent) or "drops" (many requests, and the connection closed before
    the answers).
    """

    kind: HostileKind
    rate: Annotated[float, Meta(gt=0, le=1_000)] = 50.0


class AskIsr(Fault, frozen=True, kw_only=True, tag="ask-isr"):
    """The controller is asked for an ISR as by the partition's leader, which does not ask now: in a leader epoch that
    no controller has written ("ahead"), or for an older version of the state ("behind"). `version`: of AlterIsr; in
    these two, topics go by their names. A controller that carries it out violates `stray-isrs-refused`."""

    topic: str
    partition: Partition
    how: Literal["ahead", "behind"]
    version: Literal[0, 1] = 0


# -- members of the workload's consumer group


MemberChange = Literal["join", "leave", "die", "pause", "resume", "replace"]


class ChangeMember(_LastingFault, frozen=True, kw_only=True, tag="change-member"):
    """A client of the workload's group (`members` of the records, by number) starts, leaves, dies without leaving, or
    stands still, or stands still while another takes its place. It goes on, or starts again, after `for_ms`; a client
    that has joined leaves then."""

    hosts = ALL
    timed_hosts = ALL

    member: Annotated[int, Meta(ge=0, lt=MEMBERS_MAX)]
    how: MemberChange


# -- transactional producers of the workload


ProducerChange = Literal["die", "start", "pause", "resume", "replace"]


class ChangeProducer(_LastingFault, frozen=True, kw_only=True, tag="change-producer"):
    """A writer of the workload's transactions, by number, dies, starts again, stands still, goes on, or stands still
    while another takes its place, with its transactional id. It goes on, or starts again, after `for_ms`."""

    hosts = ALL
    timed_hosts = ALL

    producer: Annotated[int, Meta(ge=0, lt=TRANSACTIONAL_MAX)]
    how: ProducerChange


# -- ZooKeeper's servers


class ElectZooKeeper(Fault, frozen=True, kw_only=True, tag="elect-zookeeper"):
    """The ensemble loses its leader and elects: no service meanwhile."""


class KillZooKeeper(Fault, OnServer, frozen=True, kw_only=True, tag="kill-zookeeper"):
    """SIGKILL to one server of the ensemble."""

    hosts = BOTH
    ended_by = "start-zookeeper"
    for_ms: Milliseconds = 0.0


# -- the network


class Cut(_OnLink, frozen=True, kw_only=True, tag="cut"):
    """Nothing passes on what `source` opens to `target`, in both directions, and nothing is refused."""

    hosts = ALL
    ended_by = "heal"


class Shut(_OnLink, frozen=True, kw_only=True, tag="shut"):
    """Messages from `source` to `target` are lost, whichever of them opened the connection; the other direction
    works."""


class Slow(_OnLink, frozen=True, kw_only=True, tag="slow"):
    """Messages from `source` to `target` take `slower` times as long, and `more_ms`."""

    slower: Factor
    more_ms: Milliseconds = 0.0


class Lossy(_OnLink, frozen=True, kw_only=True, tag="lossy"):
    """Each packet from `source` to `target` is lost with this probability, and sent again."""

    loss: Annotated[float, Meta(ge=0, lt=1)]


class Reset(Fault, OnLink, frozen=True, kw_only=True, tag="reset"):
    """The connections that `source` opened to `target` break. With `late_ms` they break for `source` alone, and bytes
    that it had sent arrive that much later."""

    late_ms: Milliseconds = 0.0


class Isolate(_LastingOnNode, frozen=True, kw_only=True, tag="isolate"):
    """The links between the broker and all other brokers are cut; its link to ZooKeeper is unaffected. Outside of
    simulation `for_ms` is required."""

    hosts = ALL
    timed_hosts = ALL


# -- operations: what administrators ask of the cluster


class Operation(Step, frozen=True, kw_only=True):
    """The base of all operations."""

    topic: Annotated[str, Meta(min_length=1)]

    hosts: ClassVar[tuple[str, ...]] = (SIMULATED,)


class CreateTopic(Operation, frozen=True, kw_only=True, tag="create-topic"):
    partitions: Count
    replication_factor: Count
    config: dict[str, str] = {}


class DeleteTopic(Operation, frozen=True, kw_only=True, tag="delete-topic"):
    pass


class AddPartitions(Operation, frozen=True, kw_only=True, tag="add-partitions"):
    """`partitions`: how many there are to be."""

    partitions: Count


class Reassign(Operation, frozen=True, kw_only=True, tag="reassign"):
    """Reassign a partition to `replicas`, in that order; none: cancel its reassignment.

    `znode`: by /admin/reassign_partitions, which cannot cancel and returns no response.
    """

    partition: Partition
    replicas: list[int] = []
    znode: bool = False

    def __post_init__(self) -> None:
        if self.znode and not self.replicas:
            raise ValueError("replicas: expected some, as the znode cannot cancel a reassignment")


class ElectLeaders(Operation, frozen=True, kw_only=True, tag="elect-leaders"):
    """Elect the preferred leader of a partition, or with `unclean` any live replica.

    `znode`: by /admin/preferred_replica_election, which returns no response and supports preferred elections only.
    """

    partition: Partition
    unclean: bool = False
    znode: bool = False

    def __post_init__(self) -> None:
        if self.unclean and self.znode:
            raise ValueError("expected unclean, or by the znode, not both")


class SetConfig(Operation, frozen=True, kw_only=True, tag="set-config"):
    """Of a topic; the rest of its configs stays as it is."""

    config: dict[str, str]


# -- what ends faults


class Start(Step, frozen=True, kw_only=True, tag="start"):
    """Starts brokers that are not running: one, several, or all of the cluster's."""

    nodes: tuple[NodeName, ...] | None = None


class Restart(OnNode, frozen=True, kw_only=True, tag="restart"):
    """Stops the broker (`how` "clean": SIGTERM; "hard": SIGKILL) and starts it again at once."""

    how: Literal["clean", "hard"] = "clean"


class Resume(OnNode, frozen=True, kw_only=True, tag="resume"):
    """SIGCONT."""


class Heal(OnLink, frozen=True, kw_only=True, tag="heal"):
    """Ends a `cut`. What was sent meanwhile arrives."""


class StartZooKeeper(OnServer, frozen=True, kw_only=True, tag="start-zookeeper"):
    """Starts a server that was killed, on its own data, and waits until it serves."""

    hosts = BOTH


class HealAll(Step, frozen=True, kw_only=True, tag="heal-all"):
    """Ends every lasting fault, including those of `cut` and `pause`. Dead brokers stay dead."""

    hosts = (SIMULATED,)


# -- what all of them have


def kinds(*bases: type[Step]) -> tuple[type[Step], ...]:
    """Return every kind of step, of these bases, that a file may say."""
    found: dict[type[Step], None] = {}
    for base in bases:
        for kind in base.__subclasses__():
            found |= dict.fromkeys(kinds(kind) if kind.__subclasses__() else [kind])
    return tuple(found)


def kind_of(step: Step | type[Step]) -> str:
    """Return the step's `do`."""
    tag = step.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def expected_errors(fault: str) -> tuple[str, ...]:
    """Return texts of the errors that a fault of that name explains."""
    return _EXPECTED_ERRORS.get(fault, ())


_EXPECTED_ERRORS = {kind_of(kind): kind.expected_errors for kind in kinds(Fault) if issubclass(kind, Fault)}

NODE_FIELDS = ("node", "source", "target")
"""The fields in which steps name brokers."""
_OF_ALL = ("at_ms", "when", "name", "other_than")


def describe(step: Step) -> str:
    """Return a fault or an operation as one line of text for a person, without fields that are 0."""
    fields = {name: getattr(step, name) for name in step.__struct_fields__ if name not in _OF_ALL}
    words = [f"{name}={_format_value(value)}" for name, value in fields.items() if value not in (0, {})]
    return " ".join([kind_of(step), *words])


def _format_value(value: object) -> str:
    """Format a value; a number is formatted alike whether it was generated or read from a file."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float | int) else str(value)


def unsupported(step: Step, host: str) -> str | None:
    """Return why a host cannot carry out a step; None if it can."""
    if host not in step.hosts:
        where = "in simulation" if step.hosts == (SIMULATED,) else f"on the hosts {' and '.join(step.hosts)}"
        return f"{kind_of(step)} is supported only {where}"
    if isinstance(step, Fault) and step.lasts_ms and host not in step.timed_hosts:
        return f"{kind_of(step)}: for_ms is supported only in simulation; end it with the step {step.ended_by}"
    return None


Implementation = TypeVar("Implementation", bound=Callable[..., Any])


class Implementations(Generic[Implementation]):
    """How one host carries out each fault: a function for each class, registered by the decorator `of`."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._functions: dict[type[Step], Implementation] = {}

    def of(self, kind: type[Step]) -> Callable[[Implementation], Implementation]:
        def register(function: Implementation) -> Implementation:
            self._functions[kind] = function
            return function

        return register

    def __getitem__(self, step: Step) -> Implementation:
        """The function for a step. HostFailure: the host has none."""
        function = self._functions.get(type(step))
        if function is None:
            raise HostFailure(unsupported(step, self._host) or f"{kind_of(step)}: this host does not implement it")
        return function

    def __iter__(self) -> Iterator[type[Step]]:
        return iter(self._functions)
