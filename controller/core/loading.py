"""Reading a whole cluster into a term's context: brokers, topics with their assignments, partition states.

Watches are set in bulk with the zxid of the listing that came before what they watch was read, so that what changes
meanwhile fires at once, and what was there already does not. Several batches of reads are in flight while earlier ones
are decoded. A znode that can't be read costs only itself: its broker, topic or partition is left out, named in the log.

Such a znode is in quarantine: it is reported once (log and metric), and again when its fault changes. It is never
written, and it is watched: when it is repaired, the watch's event reads it again and it is served, in the same term.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from controller.clock import Future
from controller.core.channels import Endpoint
from controller.core.context import NO_STATE, LiveBroker, Rows
from controller.core.events import BrokerModifications, PartitionModifications, ReassignmentIsrChange
from controller.core.leadership import Term
from controller.protocol.control import NO_TOPIC_ID, UpdateMetadataBroker, UpdateMetadataEndpoint
from controller.zookeeper import paths
from controller.zookeeper.codecs import BrokerRegistration, decode_topic_assignment, encode_topic_assignment
from controller.zookeeper.codecs_columns import (
    SECURITY_PROTOCOLS,
    TopicAssignmentColumns,
    decode_partition_states,
    decode_topic_assignments,
    sound_partition_state,
    sound_registration,
    sound_states,
    sound_topic_assignment,
    sound_topics,
    topic_name_fault,
    without_topics,
)
from controller.zookeeper.operations import BATCH, LONGEST_READ, NOT_READABLE, Columns, DamagedZnode, SetData, Znode
from controller.zookeeper.row_writes import ZNODE_BYTES_MAX
from statemachines.leader_election_columns import live_mask
from statemachines.partition import PartitionState

T = TypeVar("T")

BATCHES_IN_FLIGHT = 8
"""More gain nothing."""


class Loaded(msgspec.Struct, frozen=True):
    """The number of loaded topics and partitions; `mzxids` (int64) are those of the partitions' states, -1 for none."""

    brokers: int
    topics: int
    partitions: int
    mzxids: npt.NDArray[np.int64]


# -- brokers


async def read_brokers(term: Term) -> tuple[list[LiveBroker], int]:
    """All registrations that can be used, by id, and a zxid from before they were read."""
    listing = await term.zookeeper.children([paths.BROKER_IDS])
    names = listing.children[0] or ()
    forget_quarantined_brokers_but(term, names)
    asked = []
    for name in names:
        path = paths.child(paths.BROKER_IDS, name)
        if paths.broker_of(path) is None:
            quarantine(term, path, f"{path} is left out: expected a broker id, found {name[:50]!r}")
        else:
            asked.append(path)
    reading = await term.zookeeper.read(asked)
    found = (live_broker(term, row) for row in reading.rows)
    brokers = sorted((broker for broker in found if broker is not None), key=lambda broker: broker.id)
    return brokers, listing.zxid


def live_broker(term: Term, row: Znode | None) -> LiveBroker | None:
    """Return the registered broker, or None if the registration is deleted or has no usable address.

    A registration that became unusable while its broker is live changes nothing: the earlier one is kept.
    """
    if row is None:
        return None
    broker = paths.broker_of(row.path)
    assert broker is not None, row.path
    try:
        found = _live_broker(sound_registration(row.path, row.data), row, term.settings.inter_broker_listener)
    except DamagedZnode as damaged:
        known = term.context.broker(broker)
        if known is not None and (known.epoch == row.stat.czxid or row.data == NOT_READABLE):
            quarantine(term, row.path, f"broker {broker} stays as it was known: {describe_damage(damaged)}")
            return known
        quarantine_broker(term, broker, f"broker {broker} is left out: {describe_damage(damaged)}")
        return None
    release_from_quarantine(term, row.path)
    return found


def _live_broker(registration: BrokerRegistration, row: Znode, listener: str) -> LiveBroker:
    inter_broker = registration.endpoint(listener)
    if inter_broker is None or not inter_broker.host or not 0 < inter_broker.port <= 65_535:
        expected = f"an endpoint of the inter-broker listener {listener}, with a host and a port from 1 to 65535"
        raise DamagedZnode(row.path, expected, row.data)
    broker, epoch = registration.broker_id, row.stat.czxid
    advertised = tuple(
        UpdateMetadataEndpoint(one.port, one.host, one.listener, SECURITY_PROTOCOLS[one.security_protocol])
        for one in registration.endpoints
    )
    return LiveBroker(
        Endpoint(broker, epoch, inter_broker.host, inter_broker.port, registration.rack),
        UpdateMetadataBroker(broker, advertised, registration.rack),
    )


async def watch_brokers(term: Term, brokers: Sequence[LiveBroker], since_zxid: int) -> None:
    """Watch the brokers' registrations: endpoints may change while a broker is live."""
    if brokers:
        watched = [paths.broker(broker.id) for broker in brokers]
        await term.zookeeper.watch_many(watched, _broker_modified, since_zxid)


def _broker_modified(path: str) -> BrokerModifications:
    broker = paths.broker_of(path)
    assert broker is not None, path
    return BrokerModifications(broker)


def _topic_modified(path: str) -> PartitionModifications:
    topic = paths.topic_of(path)
    assert topic is not None, path
    return PartitionModifications(topic)


# -- topics


async def list_topics(term: Term) -> tuple[tuple[str, ...], int]:
    """Their names, and the zxid as of which these are all."""
    listing = await term.zookeeper.children([paths.BROKER_TOPICS])
    return listing.children[0] or (), listing.zxid


async def load_topics(term: Term, names: Sequence[str], since_zxid: int) -> Rows:
    """Load the assignments of topics that are new to the context, and return their rows, which have no state yet.

    The topics' znodes are watched, and topics without an id are given one.
    """
    names = _legal(term, names)
    topic_paths = [paths.topic(name) for name in names]
    watched = term.zookeeper.watch_many(topic_paths, _topic_modified, since_zxid) if names else None
    batches: list[Columns] = []
    await _in_flight(
        len(names), lambda start, end: term.zookeeper.read_columns(topic_paths[start:end]), batches.extend, BATCH
    )
    columns, faults = sound_topics(decode_topic_assignments(batches, names))
    if shared := await _shared_ids(term, columns):
        faults |= {n: shared_id_fault(columns.names[n], columns.topic_ids[n], holder) for n, holder in shared.items()}
        term.context.shares_id.update((columns.names[number], holder) for number, holder in shared.items())
        columns = without_topics(columns, list(shared))
    rows = _take_topics(term, columns, faults)
    if watched is not None:
        await watched
    term.zookeeper.unwatch([paths.topic(name) for name in names if not _is_watched(term, name)])
    if term.settings.versions.topic_ids:
        await _give_topic_ids(term, columns)
    return rows


async def _shared_ids(term: Term, columns: TopicAssignmentColumns) -> dict[int, str]:
    """By number, the topics that have another topic's id, and that topic's name: requests by id would reach the wrong
    topic. A topic that the context has keeps its id; of others the one whose znode was created first has it."""
    numbers: dict[bytes, list[int]] = {}
    for number in np.flatnonzero(columns.present).tolist():
        topic_id = decode_topic_id(columns.topic_ids[number])
        if topic_id:
            numbers.setdefault(topic_id, []).append(number)
    new = frozenset(columns.names)
    holders = {one.id: one.name for one in term.context.partitions.topics if one.id in numbers and one.name not in new}
    shared: dict[int, str] = {}
    for topic_id, those in numbers.items():
        holder = holders.get(topic_id)
        if holder is None and len(those) > 1:
            reading = await term.zookeeper.read([paths.topic(columns.names[number]) for number in those])
            created = {number: row.stat.czxid for number, row in zip(those, reading.rows, strict=True) if row}
            first = min(those, key=lambda number: (created.get(number, 0), columns.names[number]))
            holder, those = columns.names[first], [number for number in those if number != first]
        if holder is not None:
            shared.update(dict.fromkeys(those, holder))
    return shared


def shared_id_fault(name: str, topic_id: str | None, holder: str) -> str:
    return f"{paths.topic(name)}: expected a topic id of its own, found {topic_id}, which is the id of topic {holder}"


def _legal(term: Term, names: Sequence[str]) -> list[str]:
    """The names that a topic may have. The others are left out: no request could carry some of them."""
    legal = []
    for name in names:
        if (fault := topic_name_fault(name)) is None:
            legal.append(name)
        else:
            term.context.left_out.add(name)
            quarantine(term, paths.topic(name), f"topic {name[:300]!r} is left out: {fault[:300]}")
    return legal


def _is_watched(term: Term, name: str) -> bool:
    """Return whether the term has the topic; one that was deleted before it was read returns as a new child."""
    return name in term.context.partitions or name in term.context.left_out


def _take_topics(term: Term, columns: TopicAssignmentColumns, faults: Mapping[int, str]) -> Rows:
    damaged = {
        index: damage_of(sound_topic_assignment, paths.topic(columns.names[index]), data)
        for index, data in columns.damaged
    }
    for index, wrong in sorted({**damaged, **faults}.items()):
        name = columns.names[index]
        quarantine(term, paths.topic(name), f"topic {name} is left out: {wrong}")
        term.context.left_out.add(name)
    present = np.flatnonzero(columns.present)
    topics = []
    for index in present.tolist():
        name, text = columns.names[index], columns.topic_ids[index]
        if name in term.context.left_out:
            term.context.left_out.discard(name)
            term.context.shares_id.pop(name, None)
            release_from_quarantine(term, paths.topic(name))
        topics.append((name, _topic_id(term, name, text)))
    place_of = np.cumsum(columns.present, dtype=np.int32) - 1
    # Topics that are not there have no rows, so that only their numbers close up.
    return term.context.partitions.add(
        topics,
        place_of[columns.topic_index].astype(np.int32) if len(columns.topic_index) else columns.topic_index,
        columns.partition,
        columns.assignment,
        columns.adding,
        columns.removing,
    )


def _topic_id(term: Term, name: str, text: str | None) -> bytes:
    if text is None:
        return NO_TOPIC_ID
    topic_id = decode_topic_id(text)
    if topic_id is None:
        term.note("error", f"topic {name}: {text!r} is no topic id")
    return topic_id or NO_TOPIC_ID


def decode_topic_id(text: str | None) -> bytes | None:
    """The 16 bytes that a topic's znode spells as `text`; None for anything else."""
    if text is None:
        return None
    try:
        topic_id = binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + "==")
    except (binascii.Error, ValueError):
        return None
    return topic_id if len(topic_id) == len(NO_TOPIC_ID) else None


async def _give_topic_ids(term: Term, columns: TopicAssignmentColumns) -> None:
    """Topics from before 2.8 get an id; all else that their znodes hold is kept (KAFKA-12835)."""
    bare = [index for index in np.flatnonzero(columns.present).tolist() if columns.topic_ids[index] is None]
    if not bare:
        return
    reading = await term.zookeeper.read([paths.topic(columns.names[index]) for index in bare])
    writes, ids = [], []
    for index, row in zip(bare, reading.rows, strict=True):
        if row is None or row.stat.version != columns.versions[index]:
            continue  # it changed since: its watch has fired
        topic_id = new_topic_id(term)
        assignment = replace(decode_topic_assignment(row.path, row.data), topic_id=topic_id_text(topic_id))
        data = encode_topic_assignment(assignment)
        if len(data) > ZNODE_BYTES_MAX:
            term.note("warning", f"topic {columns.names[index]} gets no id: its znode would have {len(data)} bytes")
            continue
        writes.append(SetData(row.path, data, row.stat.version))
        ids.append((columns.names[index], topic_id))
    written = await term.zookeeper.commit_rows(term.leadership, writes)
    for (name, topic_id), version in zip(ids, written.versions.tolist(), strict=True):
        if version != NO_STATE:
            term.context.partitions.set_topic_id(name, topic_id)


def new_topic_id(term: Term) -> bytes:
    """A version 4 UUID whose text does not begin with a dash, which command lines take for an option."""
    while True:
        bits = term.rng.randrange(1 << 128)
        bits = (bits & ~(0xF << 76)) | (4 << 76)
        bits = (bits & ~(0x3 << 62)) | (2 << 62)
        topic_id = bits.to_bytes(16, "big")
        if not topic_id_text(topic_id).startswith("-"):
            return topic_id


def topic_id_text(topic_id: bytes) -> str:
    """As znodes hold it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


# -- states


async def load_states(term: Term, rows: Rows) -> npt.NDArray[np.int64]:
    """Reads the states of these partitions into the context, and gives their mzxids. A partition is then Online if its
    leader is live, Offline if it has another state, New if it has none; one whose state is damaged is Offline and has
    none."""
    table = term.context.partitions
    damaged = np.zeros(len(rows), dtype=np.bool_)
    mzxids = np.empty(len(rows), dtype=np.int64)
    start = 0

    def take(batches: Sequence[Columns]) -> None:
        nonlocal start
        part, senseless = sound_states(decode_partition_states(batches, table.width))
        here = rows[start : start + len(part.leader)]
        mzxids[start : start + len(here)] = np.concatenate([batch.mzxids for batch in batches])
        version = np.where(part.present, part.versions, NO_STATE).astype(np.int32)
        term.context.put_states(here, part.leader, part.leader_epoch, part.controller_epoch, part.isr, version)
        state_paths = table.state_paths(here)
        undecoded = {place: damage_of(sound_partition_state, state_paths[place], data) for place, data in part.damaged}
        faults = {
            place: f"{state_paths[place]}: expected a partition's state ({fault})" for place, fault in senseless.items()
        }
        for place, fault in sorted({**faults, **undecoded}.items()):
            damaged[start + place] = True
            row = int(here[place])
            message = f"partition {table.name_of(row)} is left out: {fault}"
            quarantine_state(term, *table.topic_and_partition(row), message)
        table.extra.update({int(here[place]): data for place, data in part.extra.items()})
        start += len(here)

    # Paths are made batch by batch, while the server works on those before.
    def read(start: int, end: int) -> Future[list[Columns]]:
        return term.zookeeper.read_columns(term.context.partitions.state_paths(rows[start:end]), LONGEST_READ)

    await _in_flight(len(rows), read, take, LONGEST_READ)
    led = live_mask(table.leader[rows], term.context.eligible_ids)
    known = (table.zk_version[rows] != NO_STATE) | damaged
    term.context.move_all_partitions(rows, PartitionState.New)
    term.context.move_all_partitions(rows[known & led], PartitionState.Online)
    term.context.move_all_partitions(rows[known & ~led], PartitionState.Offline)
    return mzxids


async def _in_flight(
    count: int, request: Callable[[int, int], Future[T]], take: Callable[[T], None], a_batch: int
) -> None:
    """Requests [start, end) of so many in batches, some ahead; what one answered is taken in while the next are on
    their way."""
    waiting: deque[Future[T]] = deque()
    for start in range(0, count, a_batch):
        end = min(start + a_batch, count)
        if len(waiting) < BATCHES_IN_FLIGHT:
            waiting.append(request(start, end))
            continue
        answer = await waiting.popleft()
        waiting.append(request(start, end))
        take(answer)
    while waiting:
        take(await waiting.popleft())


# -- everything


async def load(term: Term) -> Loaded:
    """The whole cluster into an empty context. The watches on the parents stand already. Channels connect meanwhile."""
    brokers, brokers_zxid = await read_brokers(term)
    term.context.put_brokers(brokers)
    term.channels.announce([broker.endpoint for broker in brokers])
    await watch_brokers(term, brokers, brokers_zxid)
    topics, topics_zxid = await list_topics(term)
    rows = await load_topics(term, topics, topics_zxid)
    mzxids = await load_states(term, rows)
    return Loaded(len(brokers), len(topics), len(rows), mzxids)


def describe_damage(damaged: DamagedZnode) -> str:
    """Describe the error without the znode's bytes, as bulk reads do."""
    return f"{damaged.path}: expected {damaged.expected}"


def damage_of(decode: Callable[[str, bytes | None], object], path: str, data: bytes | None) -> str:
    """Return the error of a znode that a bulk read found damaged."""
    try:
        decode(path, data)
    except DamagedZnode as damaged:
        return describe_damage(damaged)
    return f"{path}: it is damaged"


def quarantine(term: Term, path: str, message: str, level: str = "error") -> None:
    """Enters the znode, and logs it unless it was entered with the same message before."""
    if term.context.quarantine.get(path) != message:
        term.context.quarantine[path] = message
        term.note(level, message)


def quarantine_state(term: Term, topic: str, partition: int, message: str, level: str = "error") -> None:
    """As `quarantine`, for a partition's state, which is watched from now on."""
    path = paths.partition_state(topic, partition)
    _quarantine_watched(term, path, ReassignmentIsrChange(topic, partition), message, level)


def quarantine_unwritable_state(term: Term, topic: str, partition: int, message: str) -> None:
    """As `quarantine_state`, for a state that can be read and not written. It is not read again before it changes: that
    would end the quarantine, and the next write would begin it again."""
    path = paths.partition_state(topic, partition)
    _quarantine_watched(term, path, ReassignmentIsrChange(topic, partition), message, "error", again=False)


def quarantine_broker(term: Term, broker: int, message: str) -> None:
    """As `quarantine`, for a registration, which is watched from now on."""
    _quarantine_watched(term, paths.broker(broker), BrokerModifications(broker), message, "error")


def _quarantine_watched(term: Term, path: str, event: Any, message: str, level: str, *, again: bool = True) -> None:
    is_new = path not in term.context.quarantine
    quarantine(term, path, message, level)
    if is_new:
        term.zookeeper.watch_node(path, event)
    if is_new and again:
        term.put(event)  # read once more behind the watch: nothing that was written meanwhile is missed


def release_from_quarantine(term: Term, path: str) -> bool:
    """Takes out an entry whose znode has been repaired, or is gone; False if there was none."""
    if term.context.quarantine.pop(path, None) is None:
        return False
    if (partition := paths.partition_of(path)) is not None:
        unwatch_states(term, [partition])
    term.note("info", f"{path} is not in quarantine any more")
    return True


def unwatch_states(term: Term, partitions: Collection[tuple[str, int]]) -> None:
    """Stop watching the states that are neither in quarantine nor of reassignments whose leaders write the ISR."""
    context = term.context

    def is_watched(topic: str, partition: int) -> bool:
        if paths.partition_state(topic, partition) in context.quarantine:
            return True
        row = context.partitions.row_of(topic, partition)
        leaders_write = term.settings.versions.alter_isr is None
        return leaders_write and row is not None and context.partitions.reassignment_of(row).is_moving

    term.zookeeper.unwatch([paths.partition_state(*key) for key in partitions if not is_watched(*key)])


def forget_quarantined_topics(term: Term, topics: Collection[str]) -> None:
    """Takes out the entries of topics that are gone, and of their partitions."""
    gone = frozenset(topics)
    _forget_quarantined(term, lambda path: paths.topic_of(path) in gone)
    for name, holder in list(term.context.shares_id.items()):
        if name in gone:
            del term.context.shares_id[name]
        elif holder in gone:
            term.put(PartitionModifications(name))  # its id is its own by now


def forget_quarantined_brokers_but(term: Term, names: Collection[str]) -> None:
    """Takes out the entries of registrations that are gone; `names` are those that are there."""
    there = frozenset(paths.child(paths.BROKER_IDS, name) for name in names)
    _forget_quarantined(term, lambda path: path.startswith(f"{paths.BROKER_IDS}/") and path not in there)


def _forget_quarantined(term: Term, is_gone: Callable[[str], bool]) -> None:
    found = [path for path in term.context.quarantine if is_gone(path)]
    for path in found:
        del term.context.quarantine[path]
    if found:
        term.zookeeper.unwatch(found)
