"""The election of a controller: one multi that makes /controller and raises /controller_epoch together.

`elect` stands once and returns the outcome; it sets no watch and starts nothing. The caller first sets the watch on
/controller, so that a loser is notified when it is deleted. The broker's own id in /controller proves nothing: an older
session of this broker may have left it (S07), so only the session that owns it decides.

`Obstacle` is an administrator's mistake on /controller, /controller_epoch or /cluster/id, with its remedy. The
functions that find obstacles are pure: from znodes to findings.

`Term` is one term as controller: its leadership, what it knows, and the ports that it acts through. Everything that
belongs to a term hangs on this one value, so that a resignation drops it whole and the next term starts from nothing
(KAFKA-12315: a batch that outlived its term). `ControllerSettings` are Kafka's settings that affect the controller's
decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from controller.clock import Clock, Timer
from controller.core.channels import Channels
from controller.core.context import ControllerContext
from controller.core.placement import Rng
from controller.protocol.codec import ControlVersions, control_versions
from controller.trace import Noted, RequestAnswered, RequestSent, Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import TopicWrites
from controller.zookeeper.client import KAFKA_PATHS, ElectionPaths, Leadership, ZooKeeperClient
from controller.zookeeper.codecs import (
    ControllerZnode,
    decode_cluster_id,
    decode_controller,
    decode_controller_epoch,
    encode_controller,
    encode_controller_epoch,
)
from controller.zookeeper.codecs_columns import decode_partition_states
from controller.zookeeper.operations import (
    ANY_VERSION,
    BATCH,
    LONGEST_READ,
    BadVersion,
    Create,
    DamagedZnode,
    Delete,
    LeaseExpired,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionGone,
    SetData,
    Stat,
    UnknownOutcome,
    Write,
    Znode,
    ZooKeeperError,
)
from controller.zookeeper.paths import BROKER_TOPICS, CLUSTER_ID, CONTROLLER_EPOCH

HIGHEST_EPOCH = 2**31 - 1 - 1_000_000
"""The highest controller epoch that an election uses. Epochs are int32 in Kafka's protocol, and every broker refuses
requests of an epoch below the highest one that it has seen: a term near the end of the range would be one of the last
until all brokers are restarted."""
SHELL = "zookeeper-shell.sh ZOOKEEPER"
SHOWN_BYTES = 120


class Reason(Enum):
    """The reason why no election is possible. The values are labels of a metric."""

    CONTROLLER_PERSISTENT = "controller-persistent"
    CONTROLLER_UNREADABLE = "controller-unreadable"
    NO_ACCESS = "no-access"
    EPOCH_UNREADABLE = "controller-epoch-unreadable"
    EPOCH_EXHAUSTED = "controller-epoch-exhausted"
    ZOOKEEPER_WIPED = "zookeeper-wiped"
    ANOTHER_CLUSTER = "another-cluster"


class Obstacle(msgspec.Struct, frozen=True):
    """`why`: the znode and its content; `change`: what an administrator can do, with the command to run."""

    reason: Reason
    path: str
    why: str
    change: str

    def __str__(self) -> str:
        return f"{self.why}. To repair it: {self.change}"

    @property
    def concerns_cluster(self) -> bool:
        """Return whether the broker's own registration is in doubt too."""
        return self.reason in (Reason.ZOOKEEPER_WIPED, Reason.ANOTHER_CLUSTER)


def shown(data: bytes | None) -> str:
    """Return a znode's content as a log line can hold it."""
    return repr(data if data is None or len(data) <= SHOWN_BYTES else data[:SHOWN_BYTES] + b"...")


def in_controller(row: Znode | None, session: int = 0) -> Obstacle | None:
    """Return what is wrong with a /controller that does not belong to `session`, or None.

    A session's own znode is never in its way: the election replaces its content.
    """
    if row is None or (session and row.stat.ephemeral_owner == session):
        return None
    if not row.stat.ephemeral_owner:
        delete = "deleteall" if row.stat.num_children else "delete"
        return Obstacle(
            Reason.CONTROLLER_PERSISTENT,
            row.path,
            f"{row.path} is a persistent znode with {shown(row.data)}: no controller made it, and it does not go by"
            " itself",
            f"delete it ({SHELL} {delete} {row.path})",
        )
    if named_in(row) is None:
        return Obstacle(
            Reason.CONTROLLER_UNREADABLE,
            row.path,
            f"{row.path} names no broker: expected the controller's broker id, found {shown(row.data)},"
            f" owned by session 0x{row.stat.ephemeral_owner:x}",
            f"delete it ({SHELL} delete {row.path}), or end that session",
        )
    return None


def named_in(row: Znode) -> int | None:
    """Return the broker id in /controller, or None if it holds none."""
    try:
        return decode_controller(row.path, row.data).broker_id
    except DamagedZnode:
        return None


def in_epoch(row: Znode | None) -> Obstacle | None:
    """Return what is wrong with an unreadable /controller_epoch, or None. One that is missing is created anew."""
    if row is None or epoch_in(row) is not None:
        return None
    return Obstacle(
        Reason.EPOCH_UNREADABLE,
        row.path,
        f"{row.path} holds no epoch: expected a controller epoch in digits, found {shown(row.data)}",
        f"delete it ({SHELL} delete {row.path}): the next election creates it above every epoch in use",
    )


def epoch_in(row: Znode) -> int | None:
    """Return the epoch in /controller_epoch, or None if it holds none."""
    try:
        return decode_controller_epoch(row.path, row.data)
    except DamagedZnode:
        return None


def no_access(path: str) -> Obstacle:
    """Return the obstacle that the ACL of `path` excludes the broker."""
    return Obstacle(
        Reason.NO_ACCESS,
        path,
        f"{path}: its ACL does not allow this broker to read and write it",
        f"give the brokers all permissions on it ({SHELL} setAcl {path} ...), or start the brokers with the credentials"
        " that it names",
    )


def exhausted(epoch: int) -> Obstacle:
    """Return the obstacle that `epoch`, which brokers or partition states know, is above `HIGHEST_EPOCH`."""
    return Obstacle(
        Reason.EPOCH_EXHAUSTED,
        CONTROLLER_EPOCH,
        f"controller epoch {epoch} is in use, and an election raises epochs to {HIGHEST_EPOCH} at most",
        f"stop every broker, lower controller_epoch in the partition states that have it, delete {CONTROLLER_EPOCH}"
        f" ({SHELL} delete {CONTROLLER_EPOCH}), and start the brokers",
    )


def in_cluster_id(expected: str | None, row: Znode | None, *, others_there: bool) -> Obstacle | None:
    """Return the obstacle that ZooKeeper no longer holds the cluster `expected`, or None.

    Args:
        expected: the cluster's id as the broker read it at its start; None if it knows none.
        row: /cluster/id.
        others_there: whether ZooKeeper holds anything else of the cluster; then a missing id alone is no obstacle.
    """
    if expected is None or (row is None and others_there):
        return None
    if row is not None:
        try:
            found = decode_cluster_id(row.path, row.data).id
        except DamagedZnode:
            return None
        return None if found == expected else another_cluster(expected, found)
    return wiped(expected)


def wiped(expected: str) -> Obstacle:
    return Obstacle(
        Reason.ZOOKEEPER_WIPED,
        CLUSTER_ID,
        f"ZooKeeper has lost the data of cluster {expected}: {CLUSTER_ID}, {CONTROLLER_EPOCH} and /brokers are gone"
        " while this broker runs",
        "restore ZooKeeper from a snapshot; if the cluster was deleted on purpose, stop this broker",
    )


def another_cluster(expected: str, found: str) -> Obstacle:
    return Obstacle(
        Reason.ANOTHER_CLUSTER,
        CLUSTER_ID,
        f"ZooKeeper holds cluster {found}, and this broker belongs to cluster {expected}",
        "restore ZooKeeper's data of that cluster, or stop this broker and start it with the zookeeper.connect of its"
        " own cluster",
    )


INITIAL_CONTROLLER_EPOCH = 0
"""What /controller_epoch is created with: the first term is epoch 1, at version 1."""

EPOCH_STEP = 1_000
"""How far above the highest known epoch a term begins when /controller_epoch was deleted or changed by hand: terms that
this broker has not heard of must stay below it."""

MOST_BY_DELETIONS, MOST_RECREATIONS = 500_000, 100
"""Deletions that count for the epoch of a /controller_epoch that is created anew; each is worth `EPOCH_STEP`. And how
many of them one election adds, see `_recreations`."""

VERSIONS, MOST_VERSIONS = 100, 8_000
"""Versions of a /controller_epoch that is created anew; so many writes are below ZooKeeper's default jute.maxbuffer."""

LOOKS = 50
"""How often one election may look again. Each look after the first follows another's progress or a connection that
broke under the write, so that only a cluster in which nothing lasts comes this far."""


class ElectionUndecided(ZooKeeperError):
    """`LOOKS` looks ended without a winner that lasted until the next one. Stand again later."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(f"broker {broker_id}: no election was decided in {LOOKS} attempts")
        self.broker_id = broker_id


class ElectionBlocked(DamagedZnode):
    """No election is possible as long as `obstacle` is there."""

    def __init__(self, obstacle: Obstacle) -> None:
        ZooKeeperError.__init__(self, str(obstacle))
        self.path = obstacle.path
        self.obstacle = obstacle


class EpochRefused(ZooKeeperError):
    """A broker refused a request of controller epoch `epoch`, because it has seen a higher one."""

    def __init__(self, epoch: int, broker_id: int) -> None:
        super().__init__(f"broker {broker_id} refused controller epoch {epoch}: it has seen a higher one")
        self.epoch = epoch


class EpochTooLow(ZooKeeperError):
    """A term's epoch is below `highest`, which a partition's state has: /controller_epoch was lowered by hand."""

    def __init__(self, epoch: int, highest: int) -> None:
        super().__init__(f"controller epoch {epoch} is below epoch {highest}, which a partition's state has")
        self.highest = highest


class BrokerKnowledge(msgspec.Struct, frozen=True):
    """The broker's own knowledge, in addition to ZooKeeper's.

    Attributes:
        cluster_id: the cluster's id, None if it is not checked.
        epoch: the highest controller epoch that the broker has seen; 0 before the first.
        refused: the last epoch of this broker's own that another broker refused; -1 if none.
        step: how far above `refused` the next term's epoch is to be.
    """

    cluster_id: str | None = None
    epoch: int = 0
    refused: int = -1
    step: int = EPOCH_STEP


class Won(msgspec.Struct, frozen=True):
    """`taken_over`: /controller was this session's already, from a term that ended inside it. `corrected`: what was
    wrong with /controller_epoch, empty if nothing was."""

    leadership: Leadership
    taken_over: bool = False
    corrected: str = ""


class Lost(msgspec.Struct, frozen=True):
    """`controller_id` is what /controller says. It may be this broker's own id, written by an older session of its:
    that is no victory, and the znode goes when that session does. `corrected`: as in `Won`."""

    controller_id: int
    owner_session: int
    corrected: str = ""


ElectionOutcome = Won | Lost


class _Attempt(msgspec.Struct, frozen=True):
    """One multi: the epoch that it would make, and the version that /controller_epoch would then have."""

    session: int
    epoch: int
    epoch_zk_version: int
    operations: tuple[Write, ...]
    takes_over: bool
    at: ElectionPaths

    def leadership(self) -> Leadership:
        return Leadership(self.session, self.epoch, self.epoch_zk_version, self.at.epoch)


def void_reason(leadership: Leadership, zookeeper: ZooKeeperClient, now_ms: float) -> str | None:
    """Return why the term must end, as far as this node can know by itself; None while it may continue.

    The fence of each write detects what only ZooKeeper knows.
    """
    if zookeeper.session() != leadership.session:
        return f"session 0x{leadership.session:x} has ended"
    late_ms = now_ms - zookeeper.lease_until_ms()
    return f"the lease ran out {late_ms:.0f} ms ago" if late_ms >= 0 else None


async def elect(
    zookeeper: ZooKeeperClient,
    broker_id: int,
    clock: Clock,
    known: BrokerKnowledge | None = None,
    at: ElectionPaths = KAFKA_PATHS,
) -> ElectionOutcome:
    """Stands for election in the present session, until it is decided who leads. `at` names what is called /controller
    and /controller_epoch here.

    Raises SessionGone when the session has ended (its successor stands anew), ElectionBlocked when a znode is in the
    way of every election, ElectionUndecided. A lost reply is settled by looking again (S08): the election is won
    only if the id is ours, the epoch is the one attempted, and /controller belongs to this session.
    """
    session = zookeeper.session()
    if not session:
        raise SessionGone(session)
    known = known or BrokerKnowledge()
    unsettled: _Attempt | None = None
    created = corrected = ""
    for _ in range(LOOKS):
        sight = await _look(zookeeper, session, at)
        controller, epoch = sight.controller, sight.epoch
        if unsettled is not None and _is_won(unsettled, broker_id, controller, epoch):
            return Won(unsettled.leadership(), unsettled.takes_over, corrected)
        unsettled = None
        obstacle = sight.obstacle(session, known)
        if obstacle is not None:
            await _give_up_own(zookeeper, controller, session)
            raise ElectionBlocked(obstacle)
        if controller is not None and not _is_owned_by(controller.stat, session):
            return Lost(_controller_id(controller), controller.stat.ephemeral_owner, created)
        if epoch is None:
            highest = await _highest_known(zookeeper, sight, known)
            anew = _epoch_anew(highest, sight.deletions())
            if await _create_epoch(zookeeper, anew, sight.deletions(), at) and anew:
                created = f"{at.epoch} was missing and is created anew with {anew}; the highest known was {highest}"
            continue
        last, wrong = await _last_epoch(zookeeper, sight, epoch, known)
        corrected = wrong or created
        attempt = _attempt(session, broker_id, clock.wall_ms(), sight, epoch, last + 1, at)
        try:
            results = await zookeeper.commit_election(attempt.operations)
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExists | BadVersion | NoNode | NotEmpty):
                raise failed.error from failed
            continue  # another client was faster: read its write
        except UnknownOutcome:
            unsettled = attempt
            continue
        _refuse_another_session(zookeeper, session)
        claimed, raised = results[0], results[-1]
        if isinstance(claimed, Stat) and not _is_owned_by(claimed, session):
            continue  # of the same version, and put in the place of this session's own by hand: it is in the way
        assert isinstance(raised, Stat)
        assert raised.version == attempt.epoch_zk_version, (raised, attempt)
        return Won(attempt.leadership(), attempt.takes_over, corrected)
    raise ElectionUndecided(broker_id)


class _Sight(msgspec.Struct, frozen=True):
    """The znodes that an election reads, as of one moment."""

    controller: Znode | None
    epoch: Znode | None
    topics: Znode | None
    cluster_id: Znode | None
    root: Znode | None
    """The parent of the election's znodes; for Kafka's the root of the cluster's tree."""

    def deletions(self) -> int:
        """Return the number of znodes deleted besides those of the election.

        These are /controller with each session that owned it, and all that administrators deleted. ZooKeeper's cversion
        counts creations and deletions of children; the root of the whole tree has a child, /zookeeper, that was never
        counted.
        """
        if self.root is None:
            return 0
        stat = self.root.stat
        return max(0, (stat.cversion - stat.num_children) // 2 + (stat.czxid == 0))

    def obstacle(self, session: int, known: BrokerKnowledge) -> Obstacle | None:
        others_there = self.epoch is not None or self.topics is not None
        return (
            in_cluster_id(known.cluster_id, self.cluster_id, others_there=others_there)
            or in_controller(self.controller, session)
            or in_epoch(self.epoch)
        )


async def _look(zookeeper: ZooKeeperClient, session: int, at: ElectionPaths) -> _Sight:
    """The znodes, with everything in them that was decided before now. In `session`, or not at all: a client asks on
    in its next session, and a write made there would belong to that one."""
    await zookeeper.sync(at.epoch)
    reading = await zookeeper.read([at.controller, at.epoch, BROKER_TOPICS, CLUSTER_ID, at.parent])
    _refuse_another_session(zookeeper, session)
    return _Sight(*reading.rows)


def _refuse_another_session(zookeeper: ZooKeeperClient, session: int) -> None:
    if zookeeper.session() != session:
        raise SessionGone(session)


async def _give_up_own(zookeeper: ZooKeeperClient, controller: Znode | None, session: int) -> None:
    """Deletes /controller where it is this session's own: its broker does not lead, and must not be taken for the
    controller. Another answer than success leaves it to the next look."""
    if controller is None or not _is_owned_by(controller.stat, session):
        return
    try:
        await zookeeper.commit_election([Delete(controller.path, controller.stat.version)])
    except (MultiFailed, UnknownOutcome):
        return


# -- the epoch


async def _last_epoch(zookeeper: ZooKeeperClient, sight: _Sight, row: Znode, known: BrokerKnowledge) -> tuple[int, str]:
    """The epoch that the next term is to be one above, and what was wrong with /controller_epoch if anything was.

    The fence goes by the znode's version, so that a wrong epoch endangers no write; but brokers refuse requests of an
    epoch below the highest one that they have seen.
    """
    epoch = epoch_in(row)
    assert epoch is not None, row
    if epoch >= HIGHEST_EPOCH:
        highest = await _highest_known(zookeeper, sight, known)
        last = max(_epoch_anew(highest, sight.deletions()), EPOCH_STEP)
        wrong = f"{row.path} held {epoch}, which is not below {HIGHEST_EPOCH}; the highest known was {highest}"
    elif epoch < known.epoch:
        last = _epoch_anew(known.epoch, sight.deletions())
        wrong = f"{row.path} held {epoch}, below epoch {known.epoch} of an earlier controller"
    elif epoch == known.refused:
        last = epoch + known.step
        wrong = f"{row.path} held {epoch}, below an epoch that another broker has seen"
    else:
        last, wrong = epoch, ""
    if last >= HIGHEST_EPOCH:
        raise ElectionBlocked(exhausted(max(known.epoch, known.refused)))
    return last, wrong


async def _highest_known(zookeeper: ZooKeeperClient, sight: _Sight, known: BrokerKnowledge) -> int:
    """The highest controller epoch below `HIGHEST_EPOCH` that this broker or any partition's state has; 0 if none."""
    highest = known.epoch if known.epoch < HIGHEST_EPOCH else 0
    if sight.topics is None or not sight.topics.stat.num_children:
        return highest
    names = (await zookeeper.children([BROKER_TOPICS])).children[0] or ()
    for start in range(0, len(names), BATCH):
        some = names[start : start + BATCH]
        listing = await zookeeper.children([paths.partitions(name) for name in some])
        states = [
            paths.partition_state(name, int(number))
            for name, numbers in zip(some, listing.children, strict=True)
            for number in numbers or ()
            if number.isascii() and number.isdigit()
        ]
        columns = decode_partition_states(await zookeeper.read_columns(states, LONGEST_READ), 1)
        found = columns.controller_epoch[columns.present & (columns.controller_epoch < HIGHEST_EPOCH)]
        highest = max(highest, int(found.max(initial=0)))
    return highest


def _epoch_anew(highest: int, deletions: int) -> int:
    """Return the value of /controller_epoch for the next term if the present value can't be used.

    It is above the epochs of all earlier terms, including those that neither this broker nor a partition's state knows.
    It is 0 in a new cluster, in whose tree no znode was ever deleted.
    """
    above = max(highest, EPOCH_STEP * min(deletions, MOST_BY_DELETIONS))
    return above + EPOCH_STEP if above else INITIAL_CONTROLLER_EPOCH


def _recreations(term: int, deletions: int) -> int:
    """Return how often the election of `term` deletes /controller and creates it again: `_epoch_anew` counts deletions.

    A session may win many terms with one znode, each `EPOCH_STEP` above the last where an administrator changes the
    epoch. If no broker and no state knew them, the next such epoch would be below them. With these deletions it is
    above `term`, and above `EPOCH_STEP // 2` more that the session may win without any.
    """
    return min(max(-(-(term + EPOCH_STEP // 2) // EPOCH_STEP) - 1 - deletions, 0), MOST_RECREATIONS)


async def _create_epoch(zookeeper: ZooKeeperClient, epoch: int, deletions: int, at: ElectionPaths) -> bool:
    """Create /controller_epoch; after earlier terms, at a version that none of their fences checks.

    A znode that is created again begins at version 0, as the first did: without more versions the writes of a deposed
    controller could pass the fence. How many more depends on the number of deletions so far, so that the version
    differs from that of the znode before it too.

    Returns: whether it may have been created here. The caller reads the outcome.
    """
    data = encode_controller_epoch(epoch)
    versions = VERSIONS + VERSIONS * deletions % MOST_VERSIONS if epoch else 0
    creation: list[Write] = [Create(at.epoch, data)]
    creation += [SetData(at.epoch, data, ANY_VERSION)] * versions
    try:
        await zookeeper.commit_election(creation)
    except UnknownOutcome:
        return True
    except MultiFailed as failed:
        if not isinstance(failed.error, NodeExists):
            raise failed.error from failed
        return False
    return True


# -- the attempt


def _attempt(
    session: int, broker_id: int, wall_ms: int, sight: _Sight, epoch: Znode, term: int, at: ElectionPaths
) -> _Attempt:
    """Return the writes of an election.

    If /controller belongs to this session, the same multi must fence its former term: it rewrites the znode at the
    version that was read and raises the epoch, which fences that term's writes.
    """
    data, controller = encode_controller(ControllerZnode(broker_id, wall_ms)), sight.controller
    create = Create(at.controller, data, ephemeral=True)
    claim: Write = create if controller is None else SetData(at.controller, data, controller.stat.version)
    raised = SetData(at.epoch, encode_controller_epoch(term), epoch.stat.version)
    again = (Delete(at.controller, ANY_VERSION), create) * _recreations(term, sight.deletions())
    return _Attempt(session, term, epoch.stat.version + 1, (claim, *again, raised), controller is not None, at)


def _is_won(attempt: _Attempt, broker_id: int, controller: Znode | None, epoch: Znode | None) -> bool:
    """Return whether the znodes now show that an attempt with unknown outcome succeeded."""
    return (
        controller is not None
        and epoch is not None
        and _is_owned_by(controller.stat, attempt.session)
        and named_in(controller) == broker_id
        and epoch.stat.version == attempt.epoch_zk_version
        and epoch_in(epoch) == attempt.epoch
    )


def _is_owned_by(controller: Stat, session: int) -> bool:
    return controller.ephemeral_owner == session


def _controller_id(controller: Znode) -> int:
    broker_id = named_in(controller)
    assert broker_id is not None, controller
    return broker_id


PLAINTEXT = "PLAINTEXT"
_AT_LEAST_ONE = (
    "num_partitions",
    "default_replication_factor",
    "leader_imbalance_check_interval_seconds",
    "min_insync_replicas",
)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Kafka's names with underscores, and Kafka 2.8's defaults. ValueError for an unknown protocol version."""

    inter_broker_protocol: str = "2.8"
    """inter.broker.protocol.version: which versions of the control requests are sent, and what the znodes hold."""
    inter_broker_listener: str = PLAINTEXT
    """control.plane.listener.name, or inter.broker.listener.name: the endpoint of each broker that the controller's
    channel goes to."""
    unclean_leader_election: bool = False
    """unclean.leader.election.enable, for topics whose config, and a cluster whose dynamic config, say nothing else."""
    delete_topic: bool = True
    """delete.topic.enable: if not, requests to delete topics are taken out of ZooKeeper unanswered."""
    auto_leader_rebalance: bool = True
    """auto.leader.rebalance.enable: whether leaders that drifted are given back to the preferred ones by themselves."""
    leader_imbalance_per_broker_percentage: int = 10
    """Above so many percent of what a broker should lead and does not."""
    leader_imbalance_check_interval_seconds: int = 300
    reassignments_in_cluster: int = 0
    """camerlengo.reassignments.in.cluster: how many partitions may be gaining replicas at once; 0: all that are
    asked for, as in Kafka. The others wait in /admin/reassign_partitions."""
    reassignments_on_broker: int = 0
    """camerlengo.reassignments.on.broker: the same for each broker that gains them."""
    min_insync_replicas: int = 1
    """min.insync.replicas, for topics whose config, and a cluster whose dynamic config, say nothing else."""
    shutdown_check: bool = True
    """camerlengo.controlled.shutdown.check: whether a broker in controlled shutdown keeps partitions that would
    otherwise fall below min.insync.replicas. If false: no request is checked for that, as in Kafka."""
    num_partitions: int = 1
    """For a topic that is created with -1 partitions."""
    default_replication_factor: int = 1
    """For a topic that is created with replication factor -1."""

    def __post_init__(self) -> None:
        control_versions(self.inter_broker_protocol)
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")

    @property
    def versions(self) -> ControlVersions:
        return control_versions(self.inter_broker_protocol)


class TermTimers(msgspec.Struct):
    """Set and cancelled by the controller's handlers alone; what is called back must only put an event."""

    _set: dict[str, Timer] = msgspec.field(default_factory=dict)

    def set(self, name: str, clock: Clock, delay_ms: float, callback: Callable[[], None]) -> None:
        """In place of one of that name that has not come yet."""
        earlier = self._set.pop(name, None)
        if earlier is not None:
            earlier.cancel()
        self._set[name] = clock.call_later(delay_ms, callback)

    def cancel_all(self) -> None:
        """The term is over."""
        for timer in self._set.values():
            timer.cancel()
        self._set.clear()


class RequestLog(msgspec.Struct):
    """Numbers the requests to each broker, from 0, and finds the number of each answer: a broker answers in order."""

    sent: dict[int, int] = msgspec.field(default_factory=dict)
    waiting: dict[tuple[int, int], deque[int]] = msgspec.field(default_factory=dict)

    @property
    def unanswered(self) -> int:
        return sum(map(len, list(self.waiting.values())))

    def by_broker(self) -> dict[int, int]:
        """Return the number of waiting requests by broker. May be called on any thread."""
        counts: dict[int, int] = {}
        for (broker, _), waiting in list(self.waiting.items()):
            counts[broker] = counts.get(broker, 0) + len(waiting)
        return counts

    def number(self, broker: int, broker_epoch: int) -> int:
        sequence = self.sent.get(broker, 0)
        self.sent[broker] = sequence + 1
        self.waiting.setdefault((broker, broker_epoch), deque()).append(sequence)
        return sequence

    def answered(self, broker: int, broker_epoch: int) -> int | None:
        """None for an answer to nothing that was asked."""
        waiting = self.waiting.get((broker, broker_epoch))
        return waiting.popleft() if waiting else None

    def last(self, broker: int) -> int:
        """The number of the latest request to a broker; -1 before the first."""
        return self.sent.get(broker, 0) - 1

    def is_answered(self, broker: int, broker_epoch: int, sequence: int) -> bool:
        """Return whether that incarnation of the broker has answered this request, or never will."""
        waiting = self.waiting.get((broker, broker_epoch))
        return not waiting or waiting[0] > sequence

    def forget(self, broker: int) -> None:
        """Forget the requests to all earlier incarnations of a broker: their channels are closed."""
        for key in [key for key in self.waiting if key[0] == broker]:
            del self.waiting[key]


class Term(msgspec.Struct, frozen=True):
    broker_id: int
    leadership: Leadership
    settings: ControllerSettings
    zookeeper: ZooKeeperClient
    channels: Channels
    clock: Clock
    trace: Trace
    rng: Rng
    context: ControllerContext = msgspec.field(default_factory=ControllerContext)
    requests: RequestLog = msgspec.field(default_factory=RequestLog)
    timers: TermTimers = msgspec.field(default_factory=TermTimers)
    put: Callable[[Any], None] = lambda _event: None
    """Queues an event of the controller's own, from any thread."""

    @property
    def writes(self) -> TopicWrites:
        return TopicWrites(self.zookeeper, self.leadership)

    @property
    def epoch(self) -> int:
        return self.leadership.epoch

    def void_reason(self) -> str | None:
        """Return why the term must end, or None while it may continue."""
        return void_reason(self.leadership, self.zookeeper, self.clock.now_ms())

    def require(self) -> None:
        """Before anything leaves this node in the term's name. Raises SessionGone, LeaseExpired."""
        reason = self.void_reason()
        if reason is None:
            return
        if self.zookeeper.session() != self.leadership.session:
            raise SessionGone(self.leadership.session)
        raise LeaseExpired(f"controller epoch {self.epoch}: {reason}")

    def note(self, level: str, message: str) -> None:
        self.trace.emit(Noted(level, f"[controller {self.broker_id}, epoch {self.epoch}] {message}"))

    def trace_sent(self, broker: int, broker_epoch: int, api: str, partitions: int) -> None:
        sequence = self.requests.number(broker, broker_epoch)
        self.trace.emit(RequestSent(self.epoch, broker, broker_epoch, api, sequence, partitions))

    def trace_answered(self, broker: int, broker_epoch: int, api: str, error_code: int) -> None:
        sequence = self.requests.answered(broker, broker_epoch)
        if sequence is not None:
            self.trace.emit(RequestAnswered(self.epoch, broker, api, sequence, error_code))
