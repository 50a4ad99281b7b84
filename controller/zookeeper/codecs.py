"""Codecs of the znodes that a Kafka 2.8 cluster keeps. Values in, bytes out and back; no I/O.

Each kind of znode has a frozen value, `decode_X(path, data)`, which raises DamagedZnode and nothing else, and
`encode_X(value)`. `codecs_columns` reads and writes partition states and assignments in bulk.

A znode may hold fields that this version of the codec does not know. Dropping them on rewrite is how a topic lost its
id to an older controller (KAFKA-12835). So each value read carries what it was read from (`KeptFields`): a field that
has not changed is written with the very bytes it was read with, in its place, and so is a field that is not known.

The layout is Kafka 2.8's (KIP-584 registrations, version 5); versions 1 to 4 are read as Kafka reads them. Kafka has
no /admin/camerlengo_pause: its controller ignores it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from controller.zookeeper.operations import NOT_READABLE, NOT_WRITABLE, DamagedZnode

T = TypeVar("T")

INT32_MAX = 2**31 - 1
Id = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
"""Broker ids, partitions, epochs: what Kafka keeps in an Int and never writes negative."""
IdOrNone = Annotated[int, msgspec.Meta(ge=-1, le=INT32_MAX)]
"""An Id, or -1 for none."""
Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
REPLICAS_MAX = 126
"""The most replicas of one partition that are read: columns are as wide as the longest replica set of all, so that one
znode that names a million brokers would cost as many columns of the whole cluster."""
Ids = Annotated[tuple[Id, ...], msgspec.Meta(max_length=REPLICAS_MAX)]
"""The replicas or the ISR of one partition."""

ID = msgspec.json.Decoder(Id)
ID_OR_NONE = msgspec.json.Decoder(IdOrNone)
INT = msgspec.json.Decoder(int)
STRING = msgspec.json.Decoder(str)
OPTIONAL_STRING = msgspec.json.Decoder(str | None)
_DIGITS = msgspec.json.Decoder(str | Long)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of msgspec for bytes that are not the expected JSON (RecursionError: nested too deep)."""
_DIGITS_ALONE = re.compile(r"-?[0-9]{1,19}")

_UNKNOWN: Any = object()
OMITTED: Any = object()
"""As a field's value in `encode_object`: the field is not written."""


def id_in_digits(text: str | bytes) -> int | None:
    """A number that an Id can be, spelled in ASCII digits alone; None for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    number = int(text)
    return number if number <= INT32_MAX else None


class KeptField(NamedTuple):
    """One field as it was read: its bytes (None if the znode did not have it) and the value they stood for."""

    name: str
    raw: bytes | None
    value: Any


class KeptFields(msgspec.Struct, frozen=True):
    """The source of a value: every field of the znode, known or not, in its order."""

    fields: tuple[KeptField, ...] = ()

    def unknown(self) -> dict[str, bytes]:
        """The fields that the codec does not know, by name, as raw JSON."""
        return {one.name: one.raw or b"" for one in self.fields if one.value is _UNKNOWN}


NOTHING_KEPT = KeptFields()


class FieldReader:
    """The fields of one znode's JSON object, to be taken one by one. Whatever is wrong with it is a DamagedZnode."""

    def __init__(self, path: str, expected: str, data: bytes | None) -> None:
        self._path = path
        self._expected = expected
        self._data = data
        self._taken: dict[str, Any] = {}
        if not data:
            raise self.damaged("it is empty")
        if data in (NOT_READABLE, NOT_WRITABLE):
            what = "read" if data == NOT_READABLE else "write"
            raise DamagedZnode(path, f"an access list that lets this broker {what} it (NoAuth)", data)
        try:
            data.decode("utf-8")  # what is kept unread must be well-formed too
            self._raw = _OBJECT.decode(data)
        except UNREADABLE as error:
            raise self.damaged(str(error)) from error

    def damaged(self, why: str) -> DamagedZnode:
        """The error for a fault that the caller found."""
        return DamagedZnode(self._path, f"{self._expected} ({why})", self._data)

    def has(self, name: str) -> bool:
        return name in self._raw

    def take(self, name: str, decoder: msgspec.json.Decoder[T]) -> T:
        """A field that must be there."""
        if name not in self._raw:
            raise self.damaged(f"field {name!r} is missing")
        try:
            value = decoder.decode(self._raw[name])
        except UNREADABLE as error:
            raise self.damaged(f"field {name!r}: {error}") from error
        self._taken[name] = value
        return value

    def take_or(self, name: str, decoder: msgspec.json.Decoder[T], default: T) -> T:
        """A field that older or newer writers leave out."""
        if name in self._raw:
            return self.take(name, decoder)
        self._taken[name] = default
        return default

    def take_number_in_digits(self, name: str, default: int) -> int:
        """A number that Kafka writes as a string, and other writers as a number."""
        text = self.take_or(name, _DIGITS, str(default))
        if isinstance(text, str) and not _DIGITS_ALONE.fullmatch(text):
            raise self.damaged(f"field {name!r}: {text!r} is no number")
        number = int(text)
        self._taken[name] = str(number)
        return number

    def kept(self) -> KeptFields:
        """All fields, for the value's `kept`; what was not taken by now is unknown."""
        present = [KeptField(name, bytes(raw), self._taken.get(name, _UNKNOWN)) for name, raw in self._raw.items()]
        absent = [KeptField(name, None, value) for name, value in self._taken.items() if name not in self._raw]
        return KeptFields((*present, *absent))


def encode_object(fields: Iterable[tuple[str, Any]], kept: KeptFields) -> bytes:
    """A JSON object of `fields` (in Kafka's order), laid out like the one that `kept` was read from.

    A field that was read and still has that value keeps its bytes; one that was absent stays so until it changes;
    the new ones come last.
    """
    values = {name: value for name, value in fields if value is not OMITTED}
    parts: list[bytes] = []
    for one in kept.fields:
        if one.value is _UNKNOWN:
            raw = one.raw
        elif one.name in values:
            value = values.pop(one.name)
            raw = one.raw if value == one.value else msgspec.json.encode(value)
        else:
            continue
        if raw is not None:
            parts.append(msgspec.json.encode(one.name) + b":" + raw)
    parts += [msgspec.json.encode(name) + b":" + msgspec.json.encode(value) for name, value in values.items()]
    return b"{" + b",".join(parts) + b"}"


_STRINGS = msgspec.json.Decoder(tuple[str, ...])
_STRING_MAP = msgspec.json.Decoder(dict[str, str])
_FEATURES: msgspec.json.Decoder[Mapping[str, Mapping[str, int]]] = msgspec.json.Decoder(dict[str, dict[str, int]])

_ENDPOINT = re.compile(r"(?P<listener>[^/]*)://\[?(?P<host>[0-9a-zA-Z\-%._:]*)\]?:(?P<port>-?[0-9]{1,5})")
PLAINTEXT = "PLAINTEXT"


class BrokerEndpoint(msgspec.Struct, frozen=True):
    """The address of one listener of a broker. `security_protocol` is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""

    listener: str
    security_protocol: str
    host: str
    port: int

    def connection_string(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """/brokers/ids/N. `features` maps a feature to its min_version and max_version; `jmx_port` is -1 for none."""

    broker_id: int
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    jmx_port: int = -1
    timestamp_ms: int = 0
    version: int = 5
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        """The endpoint of that listener name, if the broker has it."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


@dataclass(frozen=True, slots=True)
class ControllerZnode:
    """/controller."""

    broker_id: int
    timestamp_ms: int
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ClusterId:
    """/cluster/id. `version` is a string in Kafka's own bytes too."""

    id: str
    version: str = "1"
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FeatureZnode:
    """/feature: finalized features. `status` is 0 (disabled) or 1 (enabled)."""

    status: int = 1
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """/latest_producer_id_block: the last block handed out, both ends included."""

    broker_id: int
    block_start: int
    block_end: int
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


def _endpoints(fields: FieldReader) -> tuple[BrokerEndpoint, ...]:
    """Versions 2 and 3 name no protocols: a listener there is called after its protocol. Version 1 has host and
    port alone."""
    if not fields.has("endpoints"):
        endpoint = BrokerEndpoint(PLAINTEXT, PLAINTEXT, fields.take("host", STRING), fields.take("port", ID))
        return (endpoint,)
    protocols = fields.take_or("listener_security_protocol_map", _STRING_MAP, {})
    endpoints: list[BrokerEndpoint] = []
    for text in fields.take("endpoints", _STRINGS):
        match = _ENDPOINT.fullmatch(text)
        if match is None or not -1 <= int(match["port"]) <= 65535:
            raise fields.damaged(f"{text!r} is no endpoint")
        listener = match["listener"]
        endpoints.append(BrokerEndpoint(listener, protocols.get(listener, listener), match["host"], int(match["port"])))
    fields.take_or("host", OPTIONAL_STRING, None)
    fields.take_or("port", INT, -1)
    return tuple(endpoints)


def decode_broker_registration(path: str, data: bytes | None) -> BrokerRegistration:
    """Raises DamagedZnode; the broker id is the path's last name."""
    fields = FieldReader(path, "a broker registration", data)
    name = path.rpartition("/")[2]
    broker_id = id_in_digits(name)
    if broker_id is None or str(broker_id) != name:
        raise fields.damaged("the path names no broker id")
    return BrokerRegistration(
        broker_id=broker_id,
        endpoints=_endpoints(fields),
        rack=fields.take_or("rack", OPTIONAL_STRING, None),
        jmx_port=fields.take_or("jmx_port", INT, -1),
        timestamp_ms=fields.take_number_in_digits("timestamp", 0),
        version=fields.take_or("version", ID, 5),
        features=fields.take_or("features", _FEATURES, {}),
        kept=fields.kept(),
    )


def encode_broker_registration(registration: BrokerRegistration) -> bytes:
    """`host` and `port` are the first plaintext endpoint's, for clients that know no other (null and -1: none)."""
    endpoints, version = registration.endpoints, registration.version
    plain = next((endpoint for endpoint in endpoints if endpoint.security_protocol == PLAINTEXT), None)
    protocols = {endpoint.listener: endpoint.security_protocol for endpoint in endpoints}
    strings = tuple(endpoint.connection_string() for endpoint in endpoints)
    return encode_object(
        (
            ("features", registration.features if version >= 5 else OMITTED),
            ("listener_security_protocol_map", protocols if version >= 4 else OMITTED),
            ("endpoints", strings if version >= 2 else OMITTED),
            ("rack", registration.rack if version >= 3 and registration.rack is not None else OMITTED),
            ("jmx_port", registration.jmx_port),
            ("port", plain.port if plain else -1),
            ("host", plain.host if plain else None),
            ("version", version),
            ("timestamp", str(registration.timestamp_ms)),
        ),
        registration.kept,
    )


def decode_controller(path: str, data: bytes | None) -> ControllerZnode:
    """Raises DamagedZnode. The first releases of Kafka wrote the bare broker id."""
    bare_id = id_in_digits(data or b"")
    if bare_id is not None:
        return ControllerZnode(bare_id, 0, version=0)
    fields = FieldReader(path, "the controller's broker id", data)
    return ControllerZnode(
        broker_id=fields.take("brokerid", ID),
        timestamp_ms=fields.take_number_in_digits("timestamp", 0),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )


def encode_controller(controller: ControllerZnode) -> bytes:
    return encode_object(
        (
            ("version", controller.version),
            ("brokerid", controller.broker_id),
            ("timestamp", str(controller.timestamp_ms)),
        ),
        controller.kept,
    )


def decode_controller_epoch(path: str, data: bytes | None) -> int:
    """/controller_epoch holds plain digits. Raises DamagedZnode."""
    epoch = id_in_digits(data or b"")
    if epoch is None:
        raise DamagedZnode(path, "a controller epoch in digits", data)
    return epoch


def encode_controller_epoch(epoch: int) -> bytes:
    return b"%d" % epoch


def decode_cluster_id(path: str, data: bytes | None) -> ClusterId:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "a cluster id", data)
    version = fields.take_number_in_digits("version", 1)
    return ClusterId(id=fields.take("id", STRING), version=str(version), kept=fields.kept())


def encode_cluster_id(cluster: ClusterId) -> bytes:
    return encode_object((("version", cluster.version), ("id", cluster.id)), cluster.kept)


def decode_feature(path: str, data: bytes | None) -> FeatureZnode:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "finalized features", data)
    status = fields.take("status", ID)
    if status not in (0, 1):
        raise fields.damaged(f"status {status} is neither 0 nor 1")
    return FeatureZnode(
        status=status,
        features=fields.take_or("features", _FEATURES, {}),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )


def encode_feature(feature: FeatureZnode) -> bytes:
    fields = (("features", feature.features), ("version", feature.version), ("status", feature.status))
    return encode_object(fields, feature.kept)


def decode_producer_id_block(path: str, data: bytes | None) -> ProducerIdBlock:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "a block of producer ids", data)
    block = ProducerIdBlock(
        broker_id=fields.take("broker", ID),
        block_start=fields.take_number_in_digits("block_start", -1),
        block_end=fields.take_number_in_digits("block_end", -1),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )
    if not 0 <= block.block_start <= block.block_end:
        raise fields.damaged(f"{block.block_start} to {block.block_end} is no block")
    return block


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    return encode_object(
        (
            ("version", block.version),
            ("broker", block.broker_id),
            ("block_start", str(block.block_start)),
            ("block_end", str(block.block_end)),
        ),
        block.kept,
    )


_IDS = msgspec.json.Decoder(Ids)
_ASSIGNMENT: msgspec.json.Decoder[Mapping[int, tuple[int, ...]]] = msgspec.json.Decoder(dict[Id, Ids])

TopicPartition = tuple[str, int]


class _TopicPartition(msgspec.Struct, frozen=True):
    """Any number is read: an item of a request that makes no sense costs itself, not the items beside it."""

    topic: str
    partition: Long


class _Reassignment(msgspec.Struct, frozen=True):
    topic: str
    partition: Long
    replicas: tuple[Long, ...]


_TOPIC_PARTITIONS = msgspec.json.Decoder(tuple[_TopicPartition, ...])
_REASSIGNMENTS = msgspec.json.Decoder(tuple[_Reassignment, ...])


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """/brokers/topics/T. `topic_id` is a UUID as 22 characters of URL-safe base64, None from writers before 2.8.
    `adding` and `removing` name only the partitions that are being reassigned."""

    topic_id: str | None
    partitions: Mapping[int, tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    version: int = 3
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PartitionStateZnode:
    """/brokers/topics/T/partitions/P/state. `leader` is -1 for none."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ConfigZnode:
    """/config/TYPE/NAME: what was set, by Kafka's own names."""

    config: Mapping[str, str]
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """/config/changes/config_change_N. `entity_path` is `topics/T`, `brokers/1`, ..."""

    entity_path: str
    version: int = 2
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class IsrChangeZnode:
    """/isr_change_notification/isr_change_N."""

    partitions: tuple[TopicPartition, ...]
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PreferredElection:
    """/admin/preferred_replica_election."""

    partitions: tuple[TopicPartition, ...]
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LogDirEvent:
    """/log_dir_event_notification/log_dir_event_N: a log directory of `broker_id` failed (event 1)."""

    broker_id: int
    event: int = 1
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reassignments:
    """/admin/reassign_partitions: the replicas asked for, by partition."""

    replicas: Mapping[TopicPartition, tuple[int, ...]]
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


def decode_topic_assignment(path: str, data: bytes | None) -> TopicAssignment:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "a topic's assignment", data)
    return TopicAssignment(
        topic_id=fields.take_or("topic_id", OPTIONAL_STRING, None),
        partitions=fields.take("partitions", _ASSIGNMENT),
        adding=fields.take_or("adding_replicas", _ASSIGNMENT, {}),
        removing=fields.take_or("removing_replicas", _ASSIGNMENT, {}),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )


def encode_topic_assignment(topic: TopicAssignment) -> bytes:
    return encode_object(
        (
            ("partitions", topic.partitions),
            ("topic_id", OMITTED if topic.topic_id is None else topic.topic_id),
            ("adding_replicas", topic.adding),
            ("removing_replicas", topic.removing),
            ("version", topic.version),
        ),
        topic.kept,
    )


def decode_partition_state(path: str, data: bytes | None) -> PartitionStateZnode:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "a partition's state", data)
    return PartitionStateZnode(
        leader=fields.take("leader", ID_OR_NONE),
        leader_epoch=fields.take("leader_epoch", ID),
        isr=fields.take("isr", _IDS),
        controller_epoch=fields.take("controller_epoch", ID),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )


def encode_partition_state(state: PartitionStateZnode) -> bytes:
    return encode_object(
        (
            ("controller_epoch", state.controller_epoch),
            ("leader", state.leader),
            ("version", state.version),
            ("leader_epoch", state.leader_epoch),
            ("isr", state.isr),
        ),
        state.kept,
    )


def decode_config(path: str, data: bytes | None) -> ConfigZnode:
    """A config znode that holds nothing sets nothing. Raises DamagedZnode."""
    if not data:
        return ConfigZnode({})
    fields = FieldReader(path, "a config", data)
    config = fields.take_or("config", _STRING_MAP, {})
    return ConfigZnode(config, fields.take_or("version", ID, 1), fields.kept())


def encode_config(config: ConfigZnode) -> bytes:
    return encode_object((("version", config.version), ("config", config.config)), config.kept)


def decode_config_change(path: str, data: bytes | None) -> ConfigChange:
    """Raises DamagedZnode. Version 1 named the entity in two fields."""
    fields = FieldReader(path, "a config change", data)
    if fields.has("entity_path"):
        entity_path = fields.take("entity_path", STRING)
    else:
        entity_path = f"{fields.take('entity_type', STRING)}/{fields.take('entity_name', STRING)}"
    return ConfigChange(entity_path, fields.take_or("version", ID, 2), fields.kept())


def encode_config_change(change: ConfigChange) -> bytes:
    return encode_object((("version", change.version), ("entity_path", change.entity_path)), change.kept)


def _decode_partitions(fields: FieldReader) -> tuple[TopicPartition, ...]:
    return tuple((item.topic, item.partition) for item in fields.take("partitions", _TOPIC_PARTITIONS))


def _encode_partitions(partitions: tuple[TopicPartition, ...], version: int, kept: KeptFields) -> bytes:
    items = tuple(_TopicPartition(topic, partition) for topic, partition in partitions)
    return encode_object((("version", version), ("partitions", items)), kept)


def decode_isr_change_notification(path: str, data: bytes | None) -> IsrChangeZnode:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "an ISR change notification", data)
    return IsrChangeZnode(_decode_partitions(fields), fields.take_or("version", ID, 1), fields.kept())


def encode_isr_change_notification(notification: IsrChangeZnode) -> bytes:
    return _encode_partitions(notification.partitions, notification.version, notification.kept)


def decode_preferred_election(path: str, data: bytes | None) -> PreferredElection:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "partitions to elect the preferred leaders of", data)
    return PreferredElection(_decode_partitions(fields), fields.take_or("version", ID, 1), fields.kept())


def encode_preferred_election(election: PreferredElection) -> bytes:
    return _encode_partitions(election.partitions, election.version, election.kept)


def decode_log_dir_event(path: str, data: bytes | None) -> LogDirEvent:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "a log directory event", data)
    return LogDirEvent(
        broker_id=fields.take("broker", ID),
        event=fields.take_or("event", ID, 1),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )


def encode_log_dir_event(event: LogDirEvent) -> bytes:
    fields = (("version", event.version), ("broker", event.broker_id), ("event", event.event))
    return encode_object(fields, event.kept)


def decode_reassignments(path: str, data: bytes | None) -> Reassignments:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "partitions to reassign", data)
    items = fields.take("partitions", _REASSIGNMENTS)
    replicas = {(item.topic, item.partition): item.replicas for item in items}
    return Reassignments(replicas, fields.take_or("version", ID, 1), fields.kept())


def encode_reassignments(reassignments: Reassignments) -> bytes:
    items = tuple(_Reassignment(*partition, replicas) for partition, replicas in reassignments.replicas.items())
    return encode_object((("version", reassignments.version), ("partitions", items)), reassignments.kept)


@dataclass(frozen=True, slots=True)
class PauseZnode:
    """A pause of the controller; `since_ms`: milliseconds since 1970 by the requester's clock."""

    reason: str
    since_ms: int
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


def decode_pause(path: str, data: bytes | None) -> PauseZnode:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "why the controller is paused", data)
    return PauseZnode(
        reason=fields.take("reason", STRING),
        since_ms=fields.take_number_in_digits("timestamp", 0),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )


def encode_pause(pause: PauseZnode) -> bytes:
    return encode_object(
        [("version", pause.version), ("reason", pause.reason), ("timestamp", str(pause.since_ms))], pause.kept
    )


"""Codecs of the znodes that a Kafka 2.8 cluster keeps: the names to import, wherever they are written.

Each kind of znode has a frozen value, `decode_X(path, data)`, which raises DamagedZnode and nothing else, and
`encode_X(value)`. A decoded value carries the fields that the codec does not know, and writes them back. Partition
states and assignments also come in bulk, as columns.
"""
