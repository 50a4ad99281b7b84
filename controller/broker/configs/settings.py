"""A broker's settings, under Kafka's names: types, ranges, defaults, and what they mean together.

Pure: a mapping of texts in (`parse_settings`), or the text of a server.properties file (`parse_properties`), values
out. All errors are reported at once, each with the setting's name and what was expected. Names that begin with
`camerlengo.` are this project's own. A setting of Kafka's broker that does nothing here is accepted and reported as
having no effect, so that the server.properties file of a running cluster can be used, unless it promises security or a
limit (`without_effect.py`). Any other name is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controller.broker.configs import setting_types as types
from controller.broker.configs.data_settings import DATA_SETTINGS, DataSettings, data_problems, log_settings
from controller.broker.configs.setting_types import Address, Listener, Setting
from controller.broker.configs.without_effect import has_no_effect, refused
from controller.protocol.versions import control_versions
from controller.storage.settings import BROKER_NAMES

SUPPORTED_PROTOCOLS = ("PLAINTEXT",)
KNOWN_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
GENERATED = -1
"""A `broker.id` that is still to be generated."""


class BadSettings(ValueError):
    """One sentence for each thing that is wrong."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def _protocol_version(text: str) -> str:
    try:
        control_versions(text)
    except ValueError as error:
        raise types.Unfit(f"a version whose control requests are known ({error})") from None
    return text


def _only_false(text: str) -> bool:
    if types.boolean(text):
        raise types.Unfit("false: topics are created by request alone")
    return False


_SETTINGS: Mapping[str, Setting] = {
    # Kafka's name: (our field, Kafka's default unless a comment says otherwise, type)
    "broker.id": ("broker_id", "-1", types.integer(-1)),
    "broker.id.generation.enable": ("broker_id_generation", "true", types.boolean),
    "reserved.broker.max.id": ("reserved_broker_max_id", "1000", types.integer(0)),
    "broker.rack": ("rack", None, types.filled),
    "listeners": ("listeners", "PLAINTEXT://:9092", types.listeners),
    "advertised.listeners": ("advertised", None, types.listeners),
    "listener.security.protocol.map": (
        "protocols",
        ",".join(f"{name}:{name}" for name in KNOWN_PROTOCOLS),
        types.name_map,
    ),
    "inter.broker.listener.name": ("inter_broker_listener", None, types.filled),
    "zookeeper.connect": ("zookeeper_connect", None, types.connect_string),
    "zookeeper.session.timeout.ms": ("zookeeper_session_timeout_ms", "18000", types.integer(1)),
    "zookeeper.connection.timeout.ms": ("zookeeper_connection_timeout_ms", None, types.integer(1)),
    "zookeeper.set.acl": ("zookeeper_set_acl", "false", types.boolean),
    "inter.broker.protocol.version": ("inter_broker_protocol", "2.8", _protocol_version),
    "num.partitions": ("num_partitions", "1", types.integer(1)),
    "default.replication.factor": ("default_replication_factor", "1", types.integer(1, 32767)),
    "unclean.leader.election.enable": ("unclean_leader_election", "false", types.boolean),
    "auto.leader.rebalance.enable": ("auto_leader_rebalance", "true", types.boolean),
    "leader.imbalance.per.broker.percentage": ("leader_imbalance_per_broker_percentage", "10", types.integer(0)),
    "leader.imbalance.check.interval.seconds": ("leader_imbalance_check_interval_seconds", "300", types.integer(1)),
    "delete.topic.enable": ("delete_topic", "true", types.boolean),
    "controlled.shutdown.enable": ("controlled_shutdown", "true", types.boolean),
    "controlled.shutdown.max.retries": ("controlled_shutdown_attempts", "3", types.integer(1)),
    "controlled.shutdown.retry.backoff.ms": ("controlled_shutdown_backoff_ms", "5000", types.integer(0)),
    "controller.socket.timeout.ms": ("controller_socket_timeout_ms", "30000", types.integer(1)),
    "request.timeout.ms": ("request_timeout_ms", "30000", types.integer(1)),
    "socket.request.max.bytes": ("socket_request_max_bytes", "104857600", types.integer(1)),
    "min.insync.replicas": ("min_insync_replicas", "1", types.integer(1)),
    "auto.create.topics.enable": ("auto_create_topics", "false", _only_false),  # Kafka: true
    "log.dirs": ("log_dirs", None, types.names),
    "log.dir": ("log_dir", "", types.text),  # Kafka: /tmp/kafka-logs
    "camerlengo.address.map": ("address_map", "", types.address_map),
    "camerlengo.controlled.shutdown.check": ("shutdown_check", "true", types.boolean),
    "camerlengo.reassignments.in.cluster": ("reassignments_in_cluster", "0", types.integer(0)),
    "camerlengo.reassignments.on.broker": ("reassignments_on_broker", "0", types.integer(0)),
    "camerlengo.metrics.address": ("metrics_address", None, types.address),
    "camerlengo.trace.file": ("trace_file", None, types.filled),
    "camerlengo.zookeeper.digest": ("zookeeper_digest", None, types.credentials),
    **DATA_SETTINGS,
}
_NAMES = frozenset(_SETTINGS) | frozenset(BROKER_NAMES)
DEFAULT_TEXTS: Mapping[str, str | None] = {name: default for name, (_, default, _) in _SETTINGS.items()}
"""What each setting is if it is not given, as a text; None where it follows from others, or may be missing. Those of
logs that `LogSettings` alone knows are not among them."""

_REQUIRED = ("zookeeper.connect",)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(DataSettings):
    """Values in the units of their names. `broker_id` is `GENERATED` until one was generated. `cluster_id`: the cluster
    that the log directories belong to; None where they keep none. `log_dirs`: where the
    logs are; a broker without any holds no records. `without_effect`: the names that were given and that this broker
    has no part for."""

    broker_id: int
    broker_id_generation: bool
    reserved_broker_max_id: int
    rack: str | None
    listeners: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    protocols: tuple[tuple[str, str], ...]
    inter_broker_listener: str
    zookeeper_connect: str
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int
    zookeeper_set_acl: bool
    zookeeper_digest: str | None
    inter_broker_protocol: str
    num_partitions: int
    default_replication_factor: int
    unclean_leader_election: bool
    auto_leader_rebalance: bool
    leader_imbalance_per_broker_percentage: int
    leader_imbalance_check_interval_seconds: int
    reassignments_in_cluster: int
    reassignments_on_broker: int
    delete_topic: bool
    controlled_shutdown: bool
    controlled_shutdown_attempts: int
    controlled_shutdown_backoff_ms: int
    shutdown_check: bool
    controller_socket_timeout_ms: int
    request_timeout_ms: int
    socket_request_max_bytes: int
    min_insync_replicas: int
    auto_create_topics: bool
    log_dirs: tuple[str, ...]
    address_map: tuple[tuple[Address, Address], ...]
    metrics_address: Address | None
    trace_file: str | None
    cluster_id: str | None = None
    without_effect: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """The names and texts that all of this was read from, to be shown."""

    def protocol(self, listener: str) -> str:
        """The security protocol of a listener of this broker's."""
        return dict(self.protocols)[listener]

    def with_bound_ports(self, ports: Mapping[str, int], hostname: str) -> BrokerSettings:
        """The settings once the listeners are bound: an advertised port of 0 becomes the port bound for that
        listener's name, an empty advertised host becomes `hostname`."""
        advertised = tuple(
            replace(listener, host=listener.host or hostname, port=listener.port or ports[listener.name])
            for listener in self.advertised
        )
        return replace(self, advertised=advertised)

    def with_broker_id(self, broker_id: int) -> BrokerSettings:
        return replace(self, broker_id=broker_id)

    def dial(self, host: str, port: int) -> Address:
        """Where to connect to for an address (`camerlengo.address.map`)."""
        return dict(self.address_map).get((host, port), (host, port))


def parse_properties(source: str) -> dict[str, str]:
    """The names and values in the text of a server.properties file, as Java reads them. BadSettings if it can't be
    read so."""
    # Imported for a file only: it takes a noticeable part of a broker's start.
    import javaproperties

    try:
        return javaproperties.loads(source)
    except javaproperties.InvalidUEscapeError as error:
        raise BadSettings((f"the properties file: {error}",)) from None


def parse_settings(given: Mapping[str, str]) -> BrokerSettings:
    """BadSettings names everything that is wrong, with what was expected."""
    problems = [f"{name} is no setting{_suggestion(name)}" for name in given if not _known(name)]
    problems += refused(given)
    problems += [f"{name} is required" for name in _REQUIRED if name not in given]
    fields: dict[str, Any] = {}
    for name, (meaning, default, parse) in _SETTINGS.items():
        text = given.get(name, default)
        try:
            fields[meaning] = None if text is None else parse(text.strip())
        except types.Unfit as unfit:
            problems.append(f"{name}={text}: expected {unfit}")
    if problems:
        raise BadSettings(tuple(problems))
    problems = _complete(fields, given)
    if problems:
        raise BadSettings(tuple(problems))
    without_effect = tuple(sorted(name for name in given if name not in _NAMES))
    settings = BrokerSettings(**fields, without_effect=without_effect, given=dict(given))
    problems = data_problems(settings, settings.socket_request_max_bytes)
    if problems:
        raise BadSettings(tuple(problems))
    return settings


def _known(name: str) -> bool:
    return name in _NAMES or has_no_effect(name)


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, _NAMES, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _complete(fields: dict[str, Any], given: Mapping[str, str]) -> list[str]:
    """Fills in what follows from other settings; what contradicts another setting."""
    problems = _broker_id_problems(fields)
    fields["log"], wrong = log_settings(given)
    problems += wrong
    log_dir = fields.pop("log_dir")
    if fields["log_dirs"] is None:
        fields["log_dirs"] = (log_dir,) if log_dir else ()
    if len(set(fields["log_dirs"])) < len(fields["log_dirs"]):
        problems.append(f"log.dirs={','.join(fields['log_dirs'])}: expected each directory once")
    if fields["zookeeper_connection_timeout_ms"] is None:
        fields["zookeeper_connection_timeout_ms"] = fields["zookeeper_session_timeout_ms"]
    if fields["zookeeper_set_acl"] and fields["zookeeper_digest"] is None:
        problems.append(
            "zookeeper.set.acl=true: expected camerlengo.zookeeper.digest, because without it no client could write"
        )
    if not fields["listeners"]:
        return [*problems, "listeners=: expected at least one"]
    if fields["advertised"] is None:
        fields["advertised"] = fields["listeners"]
    fields["inter_broker_listener"] = (fields["inter_broker_listener"] or "PLAINTEXT").upper()
    return problems + _listener_problems(fields)


def _broker_id_problems(fields: Mapping[str, Any]) -> list[str]:
    broker_id, reserved = fields["broker_id"], fields["reserved_broker_max_id"]
    if not fields["broker_id_generation"]:
        return [] if broker_id >= 0 else [f"broker.id={broker_id}: expected 0 or more, as none is generated"]
    if broker_id > reserved:
        return [
            f"broker.id={broker_id}: expected at most reserved.broker.max.id={reserved}; generated ids are above it"
        ]
    return []


def _listener_problems(fields: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    bound = {listener.name for listener in fields["listeners"]}
    protocols = dict(fields["protocols"])
    for name in sorted(bound):
        protocol = protocols.get(name)
        if protocol is None:
            problems.append(f"listeners: {name} is not in listener.security.protocol.map")
        elif protocol not in SUPPORTED_PROTOCOLS:
            known = "is not supported yet" if protocol in KNOWN_PROTOCOLS else "is unknown"
            problems.append(f"listeners: {name} has security protocol {protocol}, which {known}; expected PLAINTEXT")
    for listener in fields["advertised"]:
        if listener.name not in bound:
            problems.append(f"advertised.listeners: {listener.name} is not in listeners")
        if listener.host == "0.0.0.0":
            problems.append("advertised.listeners: 0.0.0.0 can't be reached; expected an address of this machine")
    if fields["inter_broker_listener"] not in {listener.name for listener in fields["advertised"]}:
        problems.append(
            f"inter.broker.listener.name={fields['inter_broker_listener']}: expected an advertised listener"
        )
    return problems
