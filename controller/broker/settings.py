"""A broker's settings, under Kafka's names: types, ranges, defaults, and the consistency of values with one another.

Pure: a mapping of texts in (`parse_settings`), or the text of a server.properties file (`parse_properties`), values
out. All errors are reported at once, each with the setting's name and what was expected. Names that begin with
`camerlengo.` are this project's own. Each type has a small parser, from text to value, that raises `Unfit` with the
expectation in words.

A setting of Kafka's broker that is not implemented here is accepted and reported as having no effect, so that the
server.properties file of a running cluster can be used. One that promises security or a limit is refused unless its
value asks for nothing (Kafka's default, or empty): a broker that ignored it would run without what its administrator
relies on. Any name that Kafka does not know is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace as replace_struct

from controller.broker.quotas.quota_settings import QuotaSettings, of_listener, quota_table, take_quotas
from controller.broker.security.principal import Principal, parse_principal
from controller.broker.security.sasl_settings import READ_SASL_SETTINGS, sasl_settings
from controller.broker.security.tls_settings import (
    READ_TLS_SETTINGS,
    READ_ZOOKEEPER_TLS_SETTINGS,
    tls_settings,
    zookeeper_tls,
)
from controller.broker.tier_settings import TierSettings, take_tiers, tier_table
from controller.broker.unread_settings import has_no_effect, refused_settings
from controller.core.topic_settings import ALONE_IN_USE, faults_alone
from controller.protocol.codec import control_versions
from controller.storage.settings import BROKER_NAMES, LogSettings

T = TypeVar("T")

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Setting: TypeAlias = tuple[str, str | None, Callable[[str], Any]]
"""A setting's field, the text that is its default (None: it may be missing), and its type."""

Address: TypeAlias = tuple[str, int]
"""A host (a name, or an IPv6 address without its brackets) and a port."""


class Unfit(ValueError):
    """The text is no value of the type; says what was expected."""


class Listener(msgspec.Struct, frozen=True):
    """Where one listener binds, or is reached. `host` "" is every interface when binding, and this machine's own name
    when advertised; `port` 0 is one that the system picks."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{_host_text(self.host)}:{self.port}"


def _host_text(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def address_text(address: Address) -> str:
    return f"{_host_text(address[0])}:{address[1]}"


def integer(least: int = -INT_MAX - 1, most: int = INT_MAX) -> Callable[[str], int]:
    if most in (INT_MAX, LONG_MAX):
        expected = "a whole number" if least < -INT_MAX else f"a whole number, {least} or more"
    else:
        expected = f"a whole number from {least} to {most}"

    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]+", text) is None or not least <= int(text) <= most:
            raise Unfit(expected)
        return int(text)

    return parse


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise Unfit("true or false")
    return text.lower() == "true"


def text(value: str) -> str:
    return value


def filled(value: str) -> str:
    if not value:
        raise Unfit("something")
    return value


def names(value: str) -> tuple[str, ...]:
    """A comma-separated list; empty parts are left out, as Kafka does."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def principals(value: str) -> tuple[Principal, ...]:
    """A list with semicolons, as a certificate's name has commas."""
    try:
        return tuple(parse_principal(part.strip()) for part in value.split(";") if part.strip())
    except ValueError:
        raise Unfit("TYPE:NAME, separated by semicolons, such as User:admin;User:broker") from None


_LISTENER = re.compile(r"(?P<name>[^:/]+)://\[?(?P<host>[0-9a-zA-Z\-%._:]*)\]?:(?P<port>[0-9]+)")


def listeners(value: str) -> tuple[Listener, ...]:
    found: list[Listener] = []
    for part in names(value):
        match = _LISTENER.fullmatch(part)
        if match is None or int(match["port"]) > 65535:
            raise Unfit(
                f"NAME://HOST:PORT with a port up to 65535 (HOST may be empty), separated by commas; not {part!r}"
            )
        found.append(Listener(match["name"].upper(), match["host"], int(match["port"])))
    if len({listener.name for listener in found}) < len(found):
        raise Unfit("each listener's name once")
    ports = [listener.port for listener in found if listener.port]
    if len(set(ports)) < len(ports):
        raise Unfit("each port once")
    return tuple(found)


def name_map(value: str) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for part in names(value):
        key, colon, mapped = part.rpartition(":")
        if not colon or not key.strip() or not mapped.strip():
            raise Unfit(f"NAME:PROTOCOL, separated by commas; not {part!r}")
        pairs.append((key.strip().upper(), mapped.strip().upper()))
    return tuple(pairs)


_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]+)")


def address(value: str) -> Address:
    match = _ADDRESS.fullmatch(value.strip())
    if match is None or int(match["port"]) > 65535:
        raise Unfit(f"HOST:PORT with a port up to 65535; not {value.strip()!r}")
    return match["six"] or match["host"], int(match["port"])


def address_map(value: str) -> tuple[tuple[Address, Address], ...]:
    pairs: list[tuple[Address, Address]] = []
    for part in names(value):
        meant, equals, dialled = part.partition("=")
        if not equals:
            raise Unfit(f"HOST:PORT=HOST:PORT, separated by commas; not {part!r}")
        pairs.append((address(meant), address(dialled)))
    if len({meant for meant, _ in pairs}) < len(pairs):
        raise Unfit("each address to dial otherwise once")
    return tuple(pairs)


_CHROOT = re.compile(r"(/[^/]+)+")


def connect_string(value: str) -> str:
    """HOST[:PORT],HOST[:PORT]...[/chroot]; one chroot, at the end, for all."""
    hosts, slash, chroot = value.partition("/")
    if not names(hosts) or (slash and _CHROOT.fullmatch(slash + chroot) is None):
        raise Unfit("HOST:PORT,HOST:PORT... and perhaps a /chroot at the end")
    for host in names(hosts):
        bare = re.fullmatch(r"\[[0-9a-fA-F:.%]+\]|[^:\[\]]+", host) is not None
        address(host if not bare else f"{host}:2181")
    return value


def credentials(value: str) -> str:
    user, colon, password = value.partition(":")
    if not (user and colon and password):
        raise Unfit("USER:PASSWORD")
    return value


ACL_AUTHORIZERS = ("kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer")
"""Kafka's names of the authorizer that keeps ACLs in ZooKeeper."""
SUPPORTED_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
KNOWN_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
GENERATED = -1
"""A `broker.id` that is still to be generated."""
QUEUED_REQUESTS = 4


class BadSettings(ValueError):
    """One sentence for each thing that is wrong."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def _protocol_version(text: str) -> str:
    try:
        control_versions(text)
    except ValueError as error:
        raise Unfit(f"a version whose control requests are known ({error})") from None
    return text


_SETTINGS: Mapping[str, Setting] = {
    # Kafka's name: (our field, Kafka's default unless a comment says otherwise, type)
    "broker.id": ("broker_id", "-1", integer(-1)),
    "broker.id.generation.enable": ("broker_id_generation", "true", boolean),
    "reserved.broker.max.id": ("reserved_broker_max_id", "1000", integer(0)),
    "broker.rack": ("rack", None, filled),
    "listeners": ("listeners", "PLAINTEXT://:9092", listeners),
    "advertised.listeners": ("advertised", None, listeners),
    "listener.security.protocol.map": ("protocols", ",".join(f"{name}:{name}" for name in KNOWN_PROTOCOLS), name_map),
    "inter.broker.listener.name": ("inter_broker_listener", None, filled),
    "security.inter.broker.protocol": ("inter_broker_security", "", text),
    "control.plane.listener.name": ("control_plane_listener", "", text),
    "authorizer.class.name": ("authorizer_class", "", text),
    "super.users": ("super_users", "", principals),
    "allow.everyone.if.no.acl.found": ("allow_everyone_if_no_acl_found", "false", boolean),
    "zookeeper.connect": ("zookeeper_connect", None, connect_string),
    "zookeeper.session.timeout.ms": ("zookeeper_session_timeout_ms", "18000", integer(1)),
    "zookeeper.connection.timeout.ms": ("zookeeper_connection_timeout_ms", None, integer(1)),
    "zookeeper.set.acl": ("zookeeper_set_acl", "false", boolean),
    "inter.broker.protocol.version": ("inter_broker_protocol", "2.8", _protocol_version),
    "num.partitions": ("num_partitions", "1", integer(1)),
    "default.replication.factor": ("default_replication_factor", "1", integer(1, 32767)),
    "unclean.leader.election.enable": ("unclean_leader_election", "false", boolean),
    "auto.leader.rebalance.enable": ("auto_leader_rebalance", "true", boolean),
    "leader.imbalance.per.broker.percentage": ("leader_imbalance_per_broker_percentage", "10", integer(0)),
    "leader.imbalance.check.interval.seconds": ("leader_imbalance_check_interval_seconds", "300", integer(1)),
    "delete.topic.enable": ("delete_topic", "true", boolean),
    "controlled.shutdown.enable": ("controlled_shutdown", "true", boolean),
    "controlled.shutdown.max.retries": ("controlled_shutdown_attempts", "3", integer(1)),
    "controlled.shutdown.retry.backoff.ms": ("controlled_shutdown_backoff_ms", "5000", integer(0)),
    "controller.socket.timeout.ms": ("controller_socket_timeout_ms", "30000", integer(1)),
    "request.timeout.ms": ("request_timeout_ms", "30000", integer(1)),
    "socket.request.max.bytes": ("socket_request_max_bytes", "104857600", integer(1)),
    "min.insync.replicas": ("min_insync_replicas", "1", integer(1)),
    "auto.create.topics.enable": ("auto_create_topics", "false", boolean),  # Kafka: true
    "group.min.session.timeout.ms": ("group_min_session_timeout_ms", "6000", integer(1)),
    "group.max.session.timeout.ms": ("group_max_session_timeout_ms", "1800000", integer(1)),
    "group.initial.rebalance.delay.ms": ("group_initial_rebalance_delay_ms", "3000", integer(0)),
    "group.max.size": ("group_max_size", str(INT_MAX), integer(1)),
    "offset.metadata.max.bytes": ("offset_metadata_max_bytes", "4096", integer(0)),
    "offsets.commit.timeout.ms": ("offsets_commit_timeout_ms", "5000", integer(1)),
    "offsets.load.buffer.size": ("offsets_load_buffer_size", "5242880", integer(1)),
    "offsets.retention.minutes": ("offsets_retention_minutes", "10080", integer(1)),
    "offsets.retention.check.interval.ms": ("offsets_retention_check_interval_ms", "600000", integer(1)),
    "offsets.topic.num.partitions": ("offsets_topic_num_partitions", "50", integer(1)),
    "offsets.topic.replication.factor": ("offsets_topic_replication_factor", "3", integer(1, 32767)),
    "offsets.topic.segment.bytes": ("offsets_topic_segment_bytes", "104857600", integer(1)),
    "transaction.max.timeout.ms": ("transaction_max_timeout_ms", "900000", integer(1)),
    "transaction.state.log.num.partitions": ("transaction_log_num_partitions", "50", integer(1)),
    "transaction.state.log.replication.factor": ("transaction_log_replication_factor", "3", integer(1, 32767)),
    "transaction.state.log.segment.bytes": ("transaction_log_segment_bytes", "104857600", integer(1)),
    "transaction.state.log.min.isr": ("transaction_log_min_isr", "2", integer(1)),
    "transaction.state.log.load.buffer.size": ("transaction_log_load_buffer_size", "5242880", integer(1)),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "transaction_abort_timed_out_interval_ms",
        "10000",
        integer(1),
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": (
        "transaction_remove_expired_interval_ms",
        "3600000",
        integer(1),
    ),
    "log.dirs": ("log_dirs", None, names),
    "log.dir": ("log_dir", "", text),  # Kafka: /tmp/kafka-logs
    **tier_table(integer, names),
    **quota_table(integer),
    "camerlengo.address.map": ("address_map", "", address_map),
    "camerlengo.controlled.shutdown.check": ("shutdown_check", "true", boolean),
    "camerlengo.reassignments.in.cluster": ("reassignments_in_cluster", "0", integer(0)),
    "camerlengo.reassignments.on.broker": ("reassignments_on_broker", "0", integer(0)),
    "camerlengo.metrics.address": ("metrics_address", None, address),
    "camerlengo.trace.file": ("trace_file", None, filled),
    "camerlengo.zookeeper.digest": ("zookeeper_digest", None, credentials),
    "camerlengo.zookeeper.sasl": ("zookeeper_sasl", None, credentials),
    "replica.lag.time.max.ms": ("replica_lag_time_max_ms", "30000", integer(1)),
    "replica.socket.timeout.ms": ("replica_socket_timeout_ms", "30000", integer(1)),
    "replica.fetch.wait.max.ms": ("replica_fetch_wait_max_ms", "500", integer(0)),
    "replica.fetch.min.bytes": ("replica_fetch_min_bytes", "1", integer(0)),
    "replica.fetch.max.bytes": ("replica_fetch_max_bytes", "1048576", integer(1)),
    "replica.fetch.response.max.bytes": ("replica_fetch_response_max_bytes", "10485760", integer(1)),
    "replica.fetch.backoff.ms": ("replica_fetch_backoff_ms", "1000", integer(0)),
    "num.replica.fetchers": ("num_replica_fetchers", "1", integer(1)),
    "replica.high.watermark.checkpoint.interval.ms": (
        "replica_high_watermark_checkpoint_interval_ms",
        "5000",
        integer(1),
    ),
    "fetch.max.bytes": ("fetch_max_bytes", "57671680", integer(1024)),
    "max.incremental.fetch.session.cache.slots": ("max_incremental_fetch_session_cache_slots", "1000", integer(0)),
    "fetch.purgatory.purge.interval.requests": ("fetch_purgatory_purge_interval_requests", "1000", integer(1)),
    "producer.purgatory.purge.interval.requests": ("producer_purgatory_purge_interval_requests", "1000", integer(1)),
    "delete.records.purgatory.purge.interval.requests": (
        "delete_records_purgatory_purge_interval_requests",
        "1",
        integer(1),
    ),
    "log.flush.scheduler.interval.ms": ("log_flush_scheduler_interval_ms", str(LONG_MAX), integer(1, LONG_MAX)),
    "log.flush.offset.checkpoint.interval.ms": ("log_flush_offset_checkpoint_interval_ms", "60000", integer(1)),
    "log.flush.start.offset.checkpoint.interval.ms": (
        "log_flush_start_offset_checkpoint_interval_ms",
        "60000",
        integer(1),
    ),
    "log.retention.check.interval.ms": ("log_retention_check_interval_ms", "300000", integer(1, LONG_MAX)),
    "log.cleaner.enable": ("log_cleaner", "true", boolean),
    "log.segment.delete.delay.ms": ("log_segment_delete_delay_ms", "60000", integer(1, LONG_MAX)),
    "connections.max.idle.ms": ("connections_max_idle_ms", "600000", integer(-1, LONG_MAX)),
    "camerlengo.request.stall.timeout.ms": ("request_stall_timeout_ms", "30000", integer(1)),
    "camerlengo.request.entries.max": ("request_entries_max", "100000", integer(2_000)),
    "camerlengo.producer.ids.max": ("producer_ids_max", "500000", integer(1)),
    "camerlengo.groups.max": ("groups_max", "100000", integer(1)),
    "camerlengo.group.members.max.bytes": ("group_members_max_bytes", "268435456", integer(1024 * 1024, LONG_MAX)),
    "camerlengo.transactional.ids.max": ("transactional_ids_max", "200000", integer(1)),
    "camerlengo.topic.partitions.max": ("topic_partitions_max", "10000", integer(1)),
    "camerlengo.request.partitions.max": ("request_partitions_max", "20000", integer(1)),
    "camerlengo.response.max.bytes": ("response_max_bytes", "16777216", integer(1024)),
    "camerlengo.log.open.files.max": ("log_open_files_max", "-1", integer(-1)),
    "camerlengo.device.threads": ("device_threads", "4", integer(1, 64)),
    "camerlengo.device.queued.jobs": ("device_queued_jobs", "10000", integer(1)),
    "camerlengo.device.queued.bytes": ("device_queued_bytes", "268435456", integer(1024 * 1024, LONG_MAX)),
    "camerlengo.device.timeout.ms": ("device_timeout_ms", "15000", integer(1)),
    "camerlengo.device.close.timeout.ms": ("device_close_timeout_ms", "30000", integer(0)),
    "queued.max.request.bytes": ("queued_max_request_bytes", "-1", integer(-1, LONG_MAX)),
}
_NAMES = frozenset(_SETTINGS) | frozenset(BROKER_NAMES) | ALONE_IN_USE
DEFAULT_TEXTS: Mapping[str, str | None] = {name: default for name, (_, default, _) in _SETTINGS.items()}
"""What each setting is if it is not given, as a text; None where it follows from others, or may be missing. Those of
logs that `LogSettings` alone knows are not among them."""

_REQUIRED = ("zookeeper.connect",)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Values in the units of their names. `broker_id` is `GENERATED` until one was generated. `cluster_id`: the cluster
    that the log directories belong to; None where they keep none. `log_dirs`: where the logs are; a broker without any
    holds no records. `log`: the settings of a log whose topic has no config. `without_effect`: the given names that
    this broker does not implement."""

    broker_id: int
    broker_id_generation: bool
    reserved_broker_max_id: int
    rack: str | None
    listeners: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    protocols: tuple[tuple[str, str], ...]
    inter_broker_listener: str
    control_plane_listener: str | None
    """The only one that requests of a controller may come by; None: any."""
    authorizer_class: str
    """Kafka's AclAuthorizer, MODULE:CLASS of another, or empty."""
    super_users: tuple[Principal, ...]
    allow_everyone_if_no_acl_found: bool
    zookeeper_connect: str
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int
    zookeeper_set_acl: bool
    zookeeper_digest: str | None
    zookeeper_sasl: str | None
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
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    """How long an empty group waits for more members once one has joined."""
    group_max_size: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    """How long the write of a commit or a group may wait for the followers."""
    offsets_load_buffer_size: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    transaction_max_timeout_ms: int
    transaction_log_num_partitions: int
    transaction_log_replication_factor: int
    transaction_log_segment_bytes: int
    transaction_log_min_isr: int
    transaction_log_load_buffer_size: int
    transaction_abort_timed_out_interval_ms: int
    """After so long another attempt is made to abort a transaction whose time is up."""
    transaction_remove_expired_interval_ms: int
    log_dirs: tuple[str, ...]
    tiers: TierSettings
    quotas: QuotaSettings
    address_map: tuple[tuple[Address, Address], ...]
    metrics_address: Address | None
    trace_file: str | None
    log: LogSettings
    replica_lag_time_max_ms: int
    replica_socket_timeout_ms: int
    replica_fetch_wait_max_ms: int
    replica_fetch_min_bytes: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_backoff_ms: int
    num_replica_fetchers: int
    replica_high_watermark_checkpoint_interval_ms: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    fetch_purgatory_purge_interval_requests: int
    producer_purgatory_purge_interval_requests: int
    delete_records_purgatory_purge_interval_requests: int
    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    log_segment_delete_delay_ms: int
    """How long the files of a deleted partition stay at most. A segment that retention takes goes at once."""
    connections_max_idle_ms: int
    """-1: for ever."""
    request_stall_timeout_ms: int
    """How long a request that has begun to arrive may bring no byte before its connection is closed."""
    request_entries_max: int
    """Elements of all arrays of one client request together: names, partitions, resources."""
    producer_ids_max: int
    """Producer ids that all partitions here remember together."""
    groups_max: int
    """Groups that a broker coordinates."""
    group_members_max_bytes: int
    """Of the members of all groups here: ids, metadata, assignments."""
    transactional_ids_max: int
    """Transactional ids that a broker coordinates."""
    topic_partitions_max: int
    """Partitions that a client may give one topic."""
    request_partitions_max: int
    """Partitions that a client may create with one request."""
    response_max_bytes: int
    """Of a DescribeConfigs response; a fetch has fetch.max.bytes."""
    log_open_files_max: int
    """-1: a sixth of the descriptors that the process may have."""
    log_cleaner: bool
    device_threads: int
    """The next three, too: of each device; see `DeviceLimits`."""
    device_queued_jobs: int
    device_queued_bytes: int
    device_timeout_ms: int
    device_close_timeout_ms: int
    """How long a shutdown waits for the devices: for what is under way, and for the logs to be closed."""
    queued_max_request_bytes: int
    """Of all connections' requests together that were read and not answered; -1: `QUEUED_REQUESTS` of the largest
    there may be, where Kafka has no limit."""
    cluster_id: str | None = None
    without_effect: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """The names and texts that all of this was read from, to be shown."""

    def is_of_brokers(self, listener: str) -> bool:
        """Whether this broker connects to that listener of others."""
        return listener in (self.inter_broker_listener, self.control_plane_listener)

    def protocol(self, listener: str) -> str:
        """The security protocol of a listener of this broker's."""
        return dict(self.protocols)[listener]

    def with_bound_ports(self, ports: Mapping[str, int], hostname: str) -> BrokerSettings:
        """The settings once the listeners are bound: an advertised port of 0 becomes the port bound for that
        listener's name, an empty advertised host becomes `hostname`."""
        advertised = tuple(
            replace_struct(listener, host=listener.host or hostname, port=listener.port or ports[listener.name])
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
    problems += refused_settings(given) + faults_alone(given)
    problems += [f"{name} is required" for name in _REQUIRED if name not in given]
    fields: dict[str, Any] = {}
    for name, (meaning, default, parse) in _SETTINGS.items():
        text = given.get(name, default)
        try:
            fields[meaning] = None if text is None else parse(text.strip())
        except Unfit as unfit:
            problems.append(f"{name}={text}: expected {unfit}")
    if problems:
        raise BadSettings(tuple(problems))
    problems = _complete(fields, given)
    if problems:
        raise BadSettings(tuple(problems))
    without_effect = tuple(sorted(name for name in given if name not in _NAMES and not _is_read_elsewhere(name)))
    settings = BrokerSettings(**fields, without_effect=without_effect, given=dict(given))
    problems = _contradictions(settings)
    if problems:
        raise BadSettings(tuple(problems))
    return settings


def _is_read_elsewhere(name: str) -> bool:
    return _is_of_listener(name) or name in READ_ZOOKEEPER_TLS_SETTINGS


def _is_of_listener(name: str) -> bool:
    own = name.removeprefix("listener.name.").partition(".")[2] if name.startswith("listener.name.") else name
    return own in READ_TLS_SETTINGS or own in READ_SASL_SETTINGS or of_listener(name) is not None


def _known(name: str) -> bool:
    return _is_of_listener(name) or name in _NAMES or has_no_effect(name)


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, _NAMES, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _complete(fields: dict[str, Any], given: Mapping[str, str]) -> list[str]:
    """Fills in what follows from other settings; what contradicts another setting."""
    problems = _broker_id_problems(fields)
    fields["log"], wrong = _log_settings(given)
    problems += wrong
    log_dir = fields.pop("log_dir")
    if fields["log_dirs"] is None:
        fields["log_dirs"] = (log_dir,) if log_dir else ()
    if len(set(fields["log_dirs"])) < len(fields["log_dirs"]):
        problems.append(f"log.dirs={','.join(fields['log_dirs'])}: expected each directory once")
    fields["quotas"], wrong = take_quotas(fields, given)
    problems += wrong
    fields["tiers"], wrong = take_tiers(fields, fields["log_dirs"])
    problems += wrong
    if fields["zookeeper_connection_timeout_ms"] is None:
        fields["zookeeper_connection_timeout_ms"] = fields["zookeeper_session_timeout_ms"]
    own_identity = fields["zookeeper_digest"] or fields["zookeeper_sasl"]
    own_identity = own_identity or given.get("zookeeper.ssl.keystore.location", "").strip()
    if fields["zookeeper_set_acl"] and not own_identity:
        problems.append(
            "zookeeper.set.acl=true: expected camerlengo.zookeeper.digest, camerlengo.zookeeper.sasl or"
            " zookeeper.ssl.keystore.location, because without an identity no client could write"
        )
    if not fields["listeners"]:
        return [*problems, "listeners=: expected at least one"]
    if fields["advertised"] is None:
        fields["advertised"] = fields["listeners"]
    problems += _inter_broker_problems(fields)
    return problems + _listener_problems(fields)


def _inter_broker_problems(fields: dict[str, Any]) -> list[str]:
    """Takes the listener between brokers from its name, or from its security protocol, as Kafka does."""
    problems = []
    by_protocol = fields.pop("inter_broker_security")
    if by_protocol and fields["inter_broker_listener"] is not None:
        problems.append("security.inter.broker.protocol and inter.broker.listener.name: expected one of them, not both")
    fields["inter_broker_listener"] = (fields["inter_broker_listener"] or by_protocol or "PLAINTEXT").upper()
    fields["control_plane_listener"] = control_plane = fields["control_plane_listener"].upper() or None
    if control_plane == fields["inter_broker_listener"]:
        problems.append(f"control.plane.listener.name={control_plane}: expected another than the inter-broker listener")
    return problems


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
            problems.append(
                f"listeners: {name} has security protocol {protocol}, which {known}; expected PLAINTEXT or SSL"
            )
    for listener in fields["advertised"]:
        if listener.name not in bound:
            problems.append(f"advertised.listeners: {listener.name} is not in listeners")
        if listener.host == "0.0.0.0":
            problems.append("advertised.listeners: 0.0.0.0 can't be reached; expected an address of this machine")
    if fields["inter_broker_listener"] not in {listener.name for listener in fields["advertised"]}:
        problems.append(
            f"inter.broker.listener.name={fields['inter_broker_listener']}: expected an advertised listener"
        )
    control_plane = fields["control_plane_listener"]
    if control_plane is not None and control_plane not in {listener.name for listener in fields["advertised"]}:
        problems.append(f"control.plane.listener.name={control_plane}: expected an advertised listener")
    return problems


def _log_settings(given: Mapping[str, str]) -> tuple[LogSettings, list[str]]:
    """What the names and values say of logs, and a sentence for each value that is wrong."""
    texts = {name: given[name].strip() for name in BROKER_NAMES if name in given}
    if "log.flush.interval.ms" not in texts and "log.flush.scheduler.interval.ms" in given:
        # As in Kafka: who asks for looks at what is to be flushed, and for nothing else, wants it flushed then.
        texts["log.flush.interval.ms"] = given["log.flush.scheduler.interval.ms"].strip()
    problems: list[str] = []
    for name, text in texts.items():
        try:
            LogSettings.from_broker({name: text})
        except ValueError as error:
            problems.append(str(error))
    return (LogSettings() if problems else LogSettings.from_broker(texts)), problems


def _contradictions(settings: BrokerSettings) -> list[str]:
    """What contradicts another setting."""
    problems = zookeeper_tls(settings.given)[1]
    for listener in settings.listeners:
        if settings.protocol(listener.name).endswith("SSL"):
            problems += tls_settings(settings.given, listener.name)[1]
        if settings.protocol(listener.name).startswith("SASL"):
            mine = settings.is_of_brokers(listener.name)
            problems += sasl_settings(settings.given, listener.name, between_brokers=mine)[1]
    authorizer = settings.authorizer_class
    if authorizer and authorizer not in ACL_AUTHORIZERS and not re.fullmatch(r"[\w.]+:\w+", authorizer):
        problems.append(f"authorizer.class.name={authorizer}: expected {ACL_AUTHORIZERS[0]}, or MODULE:CLASS in Python")
    if settings.super_users and not authorizer:
        problems.append("super.users: expected authorizer.class.name, without which everyone may do everything")
    queued = settings.queued_max_request_bytes
    if 0 <= queued < settings.socket_request_max_bytes:
        problems.append(
            f"queued.max.request.bytes={queued}: expected -1, or "
            f"socket.request.max.bytes={settings.socket_request_max_bytes} or more"
        )
    if settings.replica_fetch_wait_max_ms > settings.replica_socket_timeout_ms:
        problems.append(
            f"replica.socket.timeout.ms={settings.replica_socket_timeout_ms}: expected "
            f"replica.fetch.wait.max.ms={settings.replica_fetch_wait_max_ms} or more"
        )
    if settings.replica_fetch_wait_max_ms > settings.replica_lag_time_max_ms:
        problems.append(
            f"replica.fetch.wait.max.ms={settings.replica_fetch_wait_max_ms}: expected at most "
            f"replica.lag.time.max.ms={settings.replica_lag_time_max_ms}, or ISRs shrink at idle"
        )
    return problems
