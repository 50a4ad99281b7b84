"""Codecs of what brokers and the controller keep of themselves: registrations, /controller, its epoch, /cluster/id,
/feature and the block of producer ids. Values in, bytes out and back; no I/O.

The layout is Kafka 2.8's (KIP-584 registrations, version 5); versions 1 to 4 are read as Kafka reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from controller.zookeeper.errors import DamagedZnode
from controller.zookeeper.znode_json import (
    ID,
    INT,
    NOTHING_KEPT,
    OMITTED,
    OPTIONAL_STRING,
    STRING,
    FieldReader,
    KeptFields,
    encode_object,
    id_in_digits,
)

_STRINGS = msgspec.json.Decoder(tuple[str, ...])
_STRING_MAP = msgspec.json.Decoder(dict[str, str])
_FEATURES: msgspec.json.Decoder[Mapping[str, Mapping[str, int]]] = msgspec.json.Decoder(dict[str, dict[str, int]])

_ENDPOINT = re.compile(r"(?P<listener>[^/]*)://\[?(?P<host>[0-9a-zA-Z\-%._:]*)\]?:(?P<port>-?[0-9]{1,5})")
PLAINTEXT = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
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
