"""A cluster as its znodes show it: who is live, who leads what, and what is wrong.

`Tree` is a tree held as a value, znodes by path, read from a file or written to one. Two file formats are read,
distinguished by their beginning:

- what `save` writes: a line of JSON that names the format, then a line of JSON a znode;
- a listing of paths, each followed by two indented lines, `data=` with a Python bytes literal or None, and the stat
  as `name=value` words (the form in which the real clusters' trees of the tests are kept).

`cluster_state` makes the state of a tree. Partitions are columns (a row a partition, see `codecs_columns.py`), so that
a cluster of hundreds of thousands is judged in vector operations. A damaged znode is listed with its path, and only
what it held is missing.

`read_cluster_tree` reads a tree from a cluster that has work to do: one batch at a time, with a pause after each, and
without a watch or a write. What is read is not of one moment. Secrets (/config/users) and what is not Kafka's are left
out. A coroutine over ports: knows no thread and no clock but the one it is given.
"""

from __future__ import annotations

import ast
import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from controller.clock import Clock
from controller.zookeeper import codecs, paths
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs_columns import (
    PartitionStateColumns,
    TopicAssignmentColumns,
    decode_partition_states,
    decode_topic_assignments,
    sound_partition_state,
    sound_registration,
    sound_states,
    sound_topic_assignment,
    sound_topics,
    topic_name_fault,
)
from controller.zookeeper.operations import BATCH, Columns, DamagedZnode, Stat, Znode

FORMAT = 1

_STAT_WORD = re.compile(r"(\w+)=(0x[0-9a-f]+|-?\d+)")
_STAT_NAMES = {
    "czxid": "czxid",
    "mzxid": "mzxid",
    "ctime": "ctime_ms",
    "mtime": "mtime_ms",
    "version": "version",
    "cversion": "cversion",
    "aversion": "aversion",
    "ephemeralOwner": "ephemeral_owner",
    "dataLength": "data_length",
    "numChildren": "num_children",
    "pzxid": "pzxid",
}


class TreeFileError(Exception):
    """A file that holds no tree in either form; names the file, the line and what was expected there."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Znodes by path, in path order."""

    nodes: Mapping[str, Znode]

    @classmethod
    def of(cls, rows: Iterable[Znode]) -> Tree:
        return cls({row.path: row for row in sorted(rows, key=lambda row: row.path)})

    def get(self, path: str) -> Znode | None:
        return self.nodes.get(path)

    def children(self, path: str) -> list[str]:
        """The names of the children of `path`, sorted. Linear in the tree."""
        prefix = path if path.endswith("/") else path + "/"
        start = len(prefix)
        return [
            node[start:] for node in self.nodes if node.startswith(prefix) and "/" not in node[start:] and node != path
        ]


class _Header(msgspec.Struct, frozen=True):
    camerlengo_tree: int


class _Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """`data` is text where the bytes are UTF-8, else `data_base64` is given; neither: the znode's data is null."""

    path: str
    stat: Stat
    data: str | None = None
    data_base64: str | None = None


_HEADER = msgspec.json.Decoder(_Header)
_NODE = msgspec.json.Decoder(_Node)


def _as_node(row: Znode) -> _Node:
    if row.data is None:
        return _Node(row.path, row.stat)
    try:
        return _Node(row.path, row.stat, data=row.data.decode("utf-8"))
    except UnicodeDecodeError:
        return _Node(row.path, row.stat, data_base64=base64.b64encode(row.data).decode("ascii"))


def _as_row(node: _Node) -> Znode:
    if node.data is not None:
        return Znode(node.path, node.data.encode("utf-8"), node.stat)
    data = None if node.data_base64 is None else base64.b64decode(node.data_base64, validate=True)
    return Znode(node.path, data, node.stat)


def dump(tree: Tree) -> Iterator[bytes]:
    """The lines of the file that `save` writes."""
    yield msgspec.json.encode(_Header(FORMAT)) + b"\n"
    for row in tree.nodes.values():
        yield msgspec.json.encode(_as_node(row)) + b"\n"


def save(tree: Tree, path: Path) -> None:
    """Writes the whole file or none of it. Raises OSError."""
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            file.writelines(dump(tree))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: Path) -> Tree:
    """Reads a tree from a file of either form. Raises OSError or TreeFileError."""
    try:
        return parse(path.read_bytes())
    except TreeFileError as error:
        raise TreeFileError(f"{path}: {error}") from error


def parse(content: bytes) -> Tree:
    """As `load`, from the file's bytes. Raises TreeFileError."""
    tree = Tree.of(_saved_rows(content) if content.lstrip().startswith(b"{") else _listed_rows(content))
    if not tree.nodes:
        raise TreeFileError("it is empty: expected the znodes of a tree")
    return tree


def _saved_rows(content: bytes) -> Iterator[Znode]:
    lines = content.splitlines()
    try:
        header = _HEADER.decode(lines[0])
    except msgspec.DecodeError as error:
        raise TreeFileError(f'line 1: expected {{"camerlengo_tree":{FORMAT}}}: {error}') from error
    if header.camerlengo_tree != FORMAT:
        raise TreeFileError(f"line 1: a tree of format {header.camerlengo_tree}; this reads format {FORMAT}")
    for number, line in enumerate(lines[1:], start=2):
        try:
            yield _as_row(_NODE.decode(line))
        except (msgspec.DecodeError, UnicodeError, binascii.Error) as error:
            raise TreeFileError(f"line {number}: expected a znode as JSON: {error}") from error


def _listed_rows(content: bytes) -> Iterator[Znode]:
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise TreeFileError(f"not a tree: {error}") from error
    lines = [line for line in lines if line.strip()]
    for number in range(0, len(lines), 3):
        path, *rest = lines[number : number + 3]
        if not path.startswith("/"):
            raise TreeFileError(f"not a tree: expected a znode's path, found {path[:60]!r}")
        if len(rest) != 2 or not rest[0].startswith("    data="):
            raise TreeFileError(f"{path}: expected a line of data= and a line of its stat after it")
        yield Znode(path, _literal(path, rest[0].removeprefix("    data=")), _stat(path, rest[1]))


def _literal(path: str, text: str) -> bytes | None:
    try:
        data = ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise TreeFileError(f"{path}: data={text[:60]!r} is no bytes literal") from error
    if data is not None and not isinstance(data, bytes):
        raise TreeFileError(f"{path}: data={text[:60]!r} is no bytes literal")
    return data


def _stat(path: str, line: str) -> Stat:
    """Words that the listing leaves out are 0."""
    words = {name: int(value, 0) for name, value in _STAT_WORD.findall(line)}
    if "version" not in words:
        raise TreeFileError(f"{path}: expected its stat, found {line.strip()[:60]!r}")
    return Stat(**{field: words.get(name, 0) for name, field in _STAT_NAMES.items()})


T = TypeVar("T")
Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]


class NoKafkaCluster(Exception):
    """The tree has none of what every Kafka cluster keeps."""


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A registered broker. `broker_epoch` is its registration's czxid, `session` its owner; `registration` is None
    where the znode is damaged (its being there still says that the broker lives)."""

    broker_id: int
    broker_epoch: int
    session: int
    registration: codecs.BrokerRegistration | None


@dataclass(frozen=True, slots=True)
class ClusterPartition:
    """One partition, as plain values. `leader` is -1 for none; without a state the epochs are -1 and the ISR empty."""

    topic: str
    partition: int
    assignment: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    zk_version: int
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterPartitions:
    """All partitions, a row each, by topic and number; the masks [n] say what is to be said of a row.

    `offline`: no state, no leader, or one that is not live. `under_replicated`: fewer live ISR members than replicas
    (those being added not counted). `off_preferred`: led, but not by the assignment's first; `could_move`: and that
    one is live and in the ISR. `leader_outside_isr` and `isr_outside_assignment` should never be. `unreadable`: the
    state is damaged, so that nothing else is said.
    """

    assignments: TopicAssignmentColumns
    states: PartitionStateColumns
    offline: Bools
    under_replicated: Bools
    off_preferred: Bools
    could_move: Bools
    leader_outside_isr: Bools
    isr_outside_assignment: Bools
    unreadable: Bools

    def __len__(self) -> int:
        return len(self.states.leader)

    def partition(self, row: int) -> ClusterPartition:
        held, state = self.assignments, self.states
        there = bool(state.present[row])
        return ClusterPartition(
            topic=held.names[held.topic_index[row]],
            partition=int(held.partition[row]),
            assignment=_members(held.assignment[row]),
            leader=int(state.leader[row]),
            leader_epoch=int(state.leader_epoch[row]) if there else -1,
            isr=_members(state.isr[row]),
            controller_epoch=int(state.controller_epoch[row]) if there else -1,
            zk_version=int(state.versions[row]),
            adding=held.adding.get(row, ()),
            removing=held.removing.get(row, ()),
        )

    def where(self, mask: Bools) -> Iterator[ClusterPartition]:
        return map(self.partition, np.flatnonzero(mask).tolist())

    def reassigning(self) -> list[int]:
        """Rows with replicas being added or removed."""
        return sorted({*self.assignments.adding, *self.assignments.removing})


@dataclass(frozen=True, slots=True)
class ZnodeDamage:
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster's state as ZooKeeper has it.

    `controller` is None while there is no controller, `controller_epoch` is None before the first one.
    `absent_brokers` are named by an assignment and not registered. `reassignments` are those requested in /admin:
    replicas by (topic, partition).
    """

    cluster_id: str | None
    controller: codecs.ControllerZnode | None
    controller_epoch: int | None
    brokers: tuple[RegisteredBroker, ...]
    absent_brokers: tuple[int, ...]
    partitions: ClusterPartitions
    deletions: tuple[str, ...]
    reassignments: Mapping[codecs.TopicPartition, tuple[int, ...]]
    preferred_elections: tuple[codecs.TopicPartition, ...]
    isr_changes: int
    damaged: tuple[ZnodeDamage, ...]


class _Decoding:
    """Decodes znodes of a tree, and notes the damaged ones."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.damaged: list[ZnodeDamage] = []

    def one(self, path: str, decode: Callable[[str, bytes | None], T]) -> T | None:
        """None if the node is absent or damaged."""
        row = self.tree.get(path)
        return None if row is None else self.data(path, row.data, decode)

    def data(self, path: str, data: bytes | None, decode: Callable[[str, bytes | None], T]) -> T | None:
        try:
            return decode(path, data)
        except DamagedZnode as damaged:
            self.damaged.append(ZnodeDamage(path, f"expected {damaged.expected}"))
            return None

    def columns(self, wanted: Sequence[str]) -> Columns:
        return Columns.of_rows([self.tree.get(path) for path in wanted], 0)


def cluster_state(tree: Tree) -> ClusterState:
    """Return the cluster's state in `tree`. Raises NoKafkaCluster; a damaged znode raises nothing."""
    if not any(path.startswith(paths.BROKERS) for path in tree.nodes):
        raise NoKafkaCluster(f"no Kafka cluster: there is no {paths.BROKERS}")
    decoding = _Decoding(tree)
    brokers = _brokers(decoding)
    table = _partitions(decoding, [broker.broker_id for broker in brokers])
    named = {int(broker) for broker in np.unique(table.assignments.assignment)} - {-1}
    cluster_id = decoding.one(paths.CLUSTER_ID, codecs.decode_cluster_id)
    reassignments = decoding.one(paths.REASSIGN_PARTITIONS, codecs.decode_reassignments)
    elections = decoding.one(paths.PREFERRED_ELECTION, codecs.decode_preferred_election)
    return ClusterState(
        cluster_id=cluster_id.id if cluster_id else None,
        controller=decoding.one(paths.CONTROLLER, codecs.decode_controller),
        controller_epoch=decoding.one(paths.CONTROLLER_EPOCH, codecs.decode_controller_epoch),
        brokers=brokers,
        absent_brokers=tuple(sorted(named - {broker.broker_id for broker in brokers})),
        partitions=table,
        deletions=tuple(tree.children(paths.DELETE_TOPICS)),
        reassignments=reassignments.replicas if reassignments else {},
        preferred_elections=elections.partitions if elections else (),
        isr_changes=len(tree.children(paths.ISR_CHANGE_NOTIFICATION)),
        damaged=tuple(decoding.damaged),
    )


def _brokers(decoding: _Decoding) -> tuple[RegisteredBroker, ...]:
    live: list[RegisteredBroker] = []
    for name in decoding.tree.children(paths.BROKER_IDS):
        path = paths.child(paths.BROKER_IDS, name)
        row = decoding.tree.nodes[path]
        registration = decoding.data(path, row.data, sound_registration)
        broker_id = paths.broker_of(path)
        if broker_id is not None:
            live.append(RegisteredBroker(broker_id, row.stat.czxid, row.stat.ephemeral_owner, registration))
    return tuple(sorted(live, key=lambda broker: broker.broker_id))


def _partitions(decoding: _Decoding, live: Sequence[int]) -> ClusterPartitions:
    names = decoding.tree.children(paths.BROKER_TOPICS)
    topic_paths = [paths.topic(name) for name in names]
    held, senseless = sound_topics(decode_topic_assignments(decoding.columns(topic_paths), names))
    for topic in sorted({*senseless, *(topic for topic, _ in held.damaged)}):
        decoding.one(topic_paths[topic], sound_topic_assignment)
    for path, name in zip(topic_paths, names, strict=True):
        if (fault := topic_name_fault(name)) is not None:
            decoding.damaged.append(ZnodeDamage(path, fault))
    state_paths = state_paths_of(held)
    states, odd = sound_states(decode_partition_states(decoding.columns(state_paths), held.assignment.shape[1]))
    for row in odd:
        decoding.one(state_paths[row], sound_partition_state)
    for row, data in states.damaged:
        decoding.data(state_paths[row], data, sound_partition_state)
    unusable = [*odd, *(row for row, _ in states.damaged)]
    return _judged(held, states, live, unusable)


def state_paths_of(held: TopicAssignmentColumns) -> list[str]:
    """The path of each row's state."""
    found: list[str] = []
    for topic, name in enumerate(held.names):
        numbers = held.partition[held.starts[topic] : held.starts[topic + 1]].tolist()
        found += paths.partition_states(name, numbers)
    return found


def _judged(
    held: TopicAssignmentColumns, states: PartitionStateColumns, live: Sequence[int], unusable: Sequence[int]
) -> ClusterPartitions:
    count = len(states.leader)
    assignment, isr, leader = held.assignment, states.isr, states.leader
    unreadable = np.zeros(count, dtype=np.bool_)
    unreadable[list(unusable)] = True
    in_isr = isr >= 0
    alive = np.array(live, dtype=np.int32)
    led = np.isin(leader, alive)
    replicas = (assignment >= 0).sum(axis=1)
    for row, adding in held.adding.items():
        replicas[row] -= len(set(adding) & set(assignment[row].tolist()))
    in_sync = (np.isin(isr, alive) & in_isr).sum(axis=1)
    preferred = assignment[:, 0] if assignment.shape[1] else np.full(count, -1, dtype=np.int32)
    off_preferred = led & (preferred >= 0) & (leader != preferred)
    preferred_in_isr = (isr == preferred[:, None]).any(axis=1)
    assigned = (isr[:, :, None] == assignment[:, None, :]).any(axis=2)
    return ClusterPartitions(
        assignments=held,
        states=states,
        offline=~led & ~unreadable,
        under_replicated=states.present & (in_sync < replicas),
        off_preferred=off_preferred,
        could_move=off_preferred & np.isin(preferred, alive) & preferred_in_isr,
        leader_outside_isr=states.present & (leader >= 0) & ~(isr == leader[:, None]).any(axis=1),
        isr_outside_assignment=(in_isr & ~assigned).any(axis=1),
        unreadable=unreadable,
    )


def _members(padded: Int32s) -> tuple[int, ...]:
    return tuple(member for member in padded.tolist() if member >= 0)


PAUSE_MS = 10.0
_ALONE = (
    paths.CLUSTER_ID,
    paths.CONTROLLER,
    paths.CONTROLLER_EPOCH,
    paths.FEATURE,
    paths.REASSIGN_PARTITIONS,
    paths.PREFERRED_ELECTION,
    paths.CONTROLLER_PAUSE,
    paths.CONFIG_BROKER_DEFAULT,
)
_PARENTS = (
    paths.BROKER_IDS,
    paths.BROKER_TOPICS,
    paths.DELETE_TOPICS,
    paths.ISR_CHANGE_NOTIFICATION,
    paths.LOG_DIR_EVENT_NOTIFICATION,
    paths.CONFIG_TOPICS,
)


async def read_cluster_tree(
    client: ZooKeeperClient,
    clock: Clock,
    pause_ms: float = PAUSE_MS,
    progress: Callable[[int], None] = lambda _count: None,
) -> Tree:
    """Read the znodes that `cluster_state` uses, and the topics' settings, of the cluster at the connection's chroot.

    Returns an empty tree where there are none. A znode that is created or deleted meanwhile may or may not be read.
    `progress` is called with the number of znodes of each answered batch. Raises SessionGone, or ZooKeeper's error
    (NoAuth).
    """
    reader = _PacedReader(client, clock, pause_ms, progress)
    await reader.read([*_ALONE, *_PARENTS])
    for parent in _PARENTS:
        names = (await client.children([parent])).children[0] or ()
        await reader.read([paths.child(parent, name) for name in names])
    topics = [row for path, row in reader.rows.items() if paths.topic_of(path)]
    await reader.read(_state_paths(topics))
    return Tree.of(reader.rows.values())


def _state_paths(topics: Sequence[Znode]) -> list[str]:
    """Return the paths of the topics' states; none for a damaged topic, whose partitions are not known."""
    names = [row.path.rpartition("/")[2] for row in topics]
    return state_paths_of(decode_topic_assignments(Columns.of_rows(topics, 0), names))


class _PacedReader:
    def __init__(self, client: ZooKeeperClient, clock: Clock, pause_ms: float, progress: Callable[[int], None]) -> None:
        self.rows: dict[str, Znode] = {}
        self._client = client
        self._clock = clock
        self._pause_ms = pause_ms
        self._progress = progress

    async def read(self, wanted: Sequence[str]) -> None:
        for start in range(0, len(wanted), BATCH):
            reading = await self._client.read(wanted[start : start + BATCH])
            self.rows.update((row.path, row) for row in reading.rows if row is not None)
            self._progress(len(reading.rows))
            await self._clock.sleep(self._pause_ms)
