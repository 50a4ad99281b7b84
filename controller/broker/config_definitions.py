"""The settings of a broker as clients are shown them: type, default, whether they may change while it runs, and what
they are for. Pure; what a topic's are is `controller.core.topic_settings`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from controller.broker.quotas.quota_settings import CONNECTION_LIMITS, connection_limit, of_listener
from controller.broker.settings import DEFAULT_TEXTS
from controller.core.topic_settings import BROKER_ALONE, BY_BROKER_NAME, THROTTLE_RATES, TopicSetting
from controller.protocol.admin import (
    CONFIG_TYPE_BOOLEAN,
    CONFIG_TYPE_INT,
    CONFIG_TYPE_LIST,
    CONFIG_TYPE_LONG,
    CONFIG_TYPE_PASSWORD,
    CONFIG_TYPE_STRING,
)


class BrokerSetting(msgspec.Struct, frozen=True):
    """`default` None: it follows from other settings, or may be missing. `dynamic`: it may be altered while the broker
    runs. `kind`: a CONFIG_TYPE_ number."""

    name: str
    kind: int
    default: str | None
    documentation: str
    dynamic: bool = False

    @property
    def is_sensitive(self) -> bool:
        return self.kind == CONFIG_TYPE_PASSWORD


ALTERNATIVES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
        "log.roll.ms": ("log.roll.hours",),
        "log.roll.jitter.ms": ("log.roll.jitter.hours",),
        "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
    }
)
"""Synonyms of a broker's setting, in order of precedence."""

READ_AT_START = frozenset(["log.segment.delete.delay.ms"])
"""Dynamic in Kafka, but here what server.properties says counts."""

DYNAMIC_NAMES = frozenset({*BY_BROKER_NAME, *THROTTLE_RATES, *BROKER_ALONE, *CONNECTION_LIMITS} - READ_AT_START)
"""What may be altered while a broker runs: the defaults of its topics, how fast replicas may catch up, limits on
connections, and what has no effect here and is kept for Kafka brokers."""


def dynamic_setting(name: str) -> TopicSetting | None:
    """Return what may be altered while a broker runs, which may be a listener's; None for any other setting."""
    if (limit := connection_limit(name)) is not None:
        return limit
    tables = (THROTTLE_RATES, BROKER_ALONE, BY_BROKER_NAME) if name in DYNAMIC_NAMES else ()
    return next((table[name] for table in tables if name in table), None)


def setting_of_listener(name: str) -> BrokerSetting | None:
    """Return a limit that a listener has of its own; None for any other setting."""
    limit = connection_limit(name)
    if limit is None or name in CONNECTION_LIMITS:
        return None
    words = BROKER_SETTINGS[of_listener(name) or ""].documentation
    return BrokerSetting(name, limit.kind, None, words, dynamic=True)


_BOOLEANS = frozenset(
    {
        "auto.create.topics.enable",
        "auto.leader.rebalance.enable",
        "allow.everyone.if.no.acl.found",
        "broker.id.generation.enable",
        "camerlengo.controlled.shutdown.check",
        "controlled.shutdown.enable",
        "delete.topic.enable",
        "log.cleaner.enable",
        "zookeeper.set.acl",
    }
)
_LISTS = frozenset({"log.dirs", "log.dirs.tiers", "camerlengo.address.map"})
_LONGS = frozenset(
    {
        "camerlengo.tier.copy.bytes.per.second",
        "camerlengo.tier.copy.bytes.per.second.min",
        "camerlengo.tier.ssd.bytes",
        "connections.max.idle.ms",
        "controlled.shutdown.retry.backoff.ms",
        "log.flush.scheduler.interval.ms",
        "log.retention.check.interval.ms",
        "log.segment.delete.delay.ms",
        "offsets.retention.check.interval.ms",
        "queued.max.request.bytes",
        "quota.consumer.default",
        "quota.producer.default",
        "replica.high.watermark.checkpoint.interval.ms",
        "replica.lag.time.max.ms",
    }
)
_STRINGS = frozenset(
    {
        "advertised.listeners",
        "authorizer.class.name",
        "broker.rack",
        "camerlengo.metrics.address",
        "camerlengo.trace.file",
        "control.plane.listener.name",
        "inter.broker.listener.name",
        "inter.broker.protocol.version",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "security.inter.broker.protocol",
        "super.users",
        "zookeeper.connect",
    }
)

_WORDS: Mapping[str, str] = {
    "advertised.listeners": "The addresses that brokers and clients use to reach this broker.",
    "auto.create.topics.enable": "Whether a Metadata request may create the topics that it names.",
    "auto.leader.rebalance.enable": "Whether the controller runs preferred leader elections by itself.",
    "broker.id": "This broker's id.",
    "broker.id.generation.enable": "Whether an id is generated for a broker without one.",
    "broker.rack": "This broker's rack, for the rack-aware assignment of replicas.",
    "camerlengo.address.map": "Addresses to connect to in place of others.",
    "camerlengo.controlled.shutdown.check": "Whether a controlled shutdown is held back while partitions would be left "
    "under min.insync.replicas.",
    "camerlengo.decompressed.batch.max.bytes": "How many bytes a produced batch's records may have when they are "
    "decompressed, unless message.max.bytes is larger.",
    "camerlengo.device.close.timeout.ms": "How long a shutdown waits for the log directories of a device.",
    "camerlengo.device.queued.bytes": "The memory that operations that wait for a device may hold.",
    "camerlengo.device.queued.jobs": "How many operations may wait for a device; a further one fails.",
    "camerlengo.device.threads": "How many operations run on a device (a file system of log directories) at a time.",
    "camerlengo.device.timeout.ms": "How long a read may take until its partitions answer KAFKA_STORAGE_ERROR.",
    "camerlengo.group.members.max.bytes": "The memory that the members of all groups on the broker may hold; beyond it "
    "members are refused.",
    "camerlengo.groups.max": "How many groups the broker coordinates; a further one is refused.",
    "camerlengo.log.open.files.max": "How many log files are open while no connection reads them; -1: a sixth of "
    "what the process may have open.",
    "camerlengo.producer.ids.max": "How many producer ids all partitions of the broker remember together; those that "
    "appended longest ago are evicted first.",
    "camerlengo.producer.ids.per.partition.max": "How many producer ids a partition remembers; the one that appended "
    "longest ago is evicted first.",
    "camerlengo.reassignments.in.cluster": "How many partitions may be gaining replicas at once; 0: all.",
    "camerlengo.reassignments.on.broker": "The same limit for each broker that gains replicas.",
    "camerlengo.request.entries.max": "The maximum number of elements in all lists of one client request together.",
    "camerlengo.request.partitions.max": "The maximum number of partitions that one request may create.",
    "camerlengo.request.stall.timeout.ms": "The timeout for the next byte of a partly received request.",
    "camerlengo.response.max.bytes": "The maximum size of a DescribeConfigs response.",
    "camerlengo.tier.copy.bytes.per.second": "How fast sealed segments are copied from SSDs to HDDs, at most.",
    "camerlengo.tier.copy.bytes.per.second.min": "The least rate of copies that follow the produce latency.",
    "camerlengo.tier.copy.produce.p99.ms": "The produce latency above which copies slow down; 0: the rate is fixed.",
    "camerlengo.tier.interval.ms": "How often is looked for what to copy and what to evict.",
    "camerlengo.tier.ssd.bytes": "What the segments in a log directory on an SSD may take; 0: its file system.",
    "camerlengo.tier.ssd.evict.above.percent": "The use of an SSD above which copied segments leave it.",
    "camerlengo.tier.ssd.evict.to.percent": "The use of an SSD down to which they leave it.",
    "camerlengo.tier.ssd.full.percent": "The use of an SSD above which appends are refused.",
    "camerlengo.topic.partitions.max": "The maximum number of partitions that a client may give one topic.",
    "camerlengo.metrics.address": "The address that serves metrics over HTTP; none if it is not set.",
    "camerlengo.trace.file": "The file to which this broker writes its typed events.",
    "camerlengo.transactional.ids.max": "How many transactional ids the broker coordinates; a further one is refused.",
    "camerlengo.zookeeper.digest": "The user and password for digest authentication to ZooKeeper.",
    "camerlengo.zookeeper.sasl": "The user and password for SASL DIGEST-MD5 to ZooKeeper.",
    "connections.max.idle.ms": "How long a connection may be idle before it is closed; -1: for ever.",
    "controlled.shutdown.enable": "Whether this broker's leaders are moved to other brokers before it ends.",
    "controlled.shutdown.max.retries": "The maximum number of attempts at a controlled shutdown.",
    "controlled.shutdown.retry.backoff.ms": "The back-off between two attempts at a controlled shutdown.",
    "controller.quota.window.num": "How many samples the rate of controller_mutation_rate has.",
    "controller.quota.window.size.seconds": "The time of one of these samples.",
    "controller.socket.timeout.ms": "The timeout of a request between controller and broker.",
    "default.replication.factor": "The replication factor of a topic that is created without one.",
    "delete.records.purgatory.purge.interval.requests": "How many ended DeleteRecords requests start a purge.",
    "delete.topic.enable": "Whether topics may be deleted.",
    "fetch.max.bytes": "The approximate maximum size of the records in one response.",
    "fetch.purgatory.purge.interval.requests": "How many ended fetches start a purge.",
    "group.initial.rebalance.delay.ms": "How long an empty group waits for more members once one has joined.",
    "group.max.session.timeout.ms": "The largest session timeout of a group's member.",
    "group.max.size": "The maximum number of members of a group.",
    "group.min.session.timeout.ms": "The smallest session timeout of a group's member.",
    "authorizer.class.name": "The authorizer; empty: every client may do everything.",
    "super.users": "Principals that may do everything, separated by semicolons.",
    "allow.everyone.if.no.acl.found": "Whether every client may use a resource without any ACL.",
    "control.plane.listener.name": "The only listener that requests of a controller may come by.",
    "security.inter.broker.protocol": "The listener for connections between brokers, if its name is its protocol.",
    "inter.broker.listener.name": "The listener for connections between brokers.",
    "inter.broker.protocol.version": "The version that determines the versions of requests between brokers.",
    "leader.imbalance.check.interval.seconds": "The interval between checks of the leader imbalance.",
    "leader.imbalance.per.broker.percentage": "The leader imbalance of a broker above which preferred leaders are "
    "elected.",
    "listener.security.protocol.map": "The security protocol of each listener.",
    "listeners": "The addresses at which connections are accepted.",
    "log.cleaner.enable": "Whether compacted topics are cleaned.",
    "log.dir": "The log directory, if log.dirs is not set.",
    "log.dirs": "The log directories.",
    "log.dirs.tiers": "The tier of each log directory, ssd or hdd; without it they are all alike.",
    "log.flush.offset.checkpoint.interval.ms": "The interval between checkpoints of the recovery points.",
    "log.flush.scheduler.interval.ms": "The interval between checks for logs to be flushed.",
    "log.flush.start.offset.checkpoint.interval.ms": "The interval between checkpoints of the log start offsets.",
    "log.retention.check.interval.ms": "The interval between checks for segments to be deleted.",
    "log.retention.hours": "log.retention.ms in hours.",
    "log.retention.minutes": "log.retention.ms in minutes.",
    "log.roll.hours": "log.roll.ms in hours.",
    "log.roll.jitter.hours": "log.roll.jitter.ms in hours.",
    "log.segment.delete.delay.ms": "How long the files of a deleted partition are kept.",
    "max.incremental.fetch.session.cache.slots": "The maximum number of fetch sessions.",
    "num.partitions": "The number of partitions of a topic that is created without one.",
    "num.replica.fetchers": "How many connections to each leader fetch for the replicas here.",
    "offset.metadata.max.bytes": "The maximum size of the metadata of a committed offset.",
    "offsets.commit.timeout.ms": "The timeout for the followers to have a committed offset.",
    "offsets.load.buffer.size": "How many bytes of __consumer_offsets are read at once.",
    "offsets.retention.check.interval.ms": "The interval between checks for committed offsets that have expired.",
    "offsets.retention.minutes": "How long the offsets of a group without members are kept.",
    "offsets.topic.num.partitions": "The number of partitions of __consumer_offsets when it is created.",
    "offsets.topic.replication.factor": "The replication factor of __consumer_offsets when it is created.",
    "offsets.topic.segment.bytes": "The segment size of __consumer_offsets.",
    "producer.purgatory.purge.interval.requests": "How many ended produce requests start a purge.",
    "queued.max.request.bytes": "The maximum size of all requests that are not answered yet.",
    "quota.consumer.default": "Bytes a second that a client id may consume without another quota.",
    "quota.producer.default": "Bytes a second that a client id may produce without another quota.",
    "quota.window.num": "How many samples the rates of client quotas have.",
    "quota.window.size.seconds": "The time of one of these samples.",
    "replica.fetch.backoff.ms": "How long a follower waits after a fetch that failed.",
    "replica.fetch.max.bytes": "How many bytes of one partition a follower requests.",
    "replica.fetch.min.bytes": "How many bytes a leader waits for before it answers a follower.",
    "replica.fetch.response.max.bytes": "How many bytes a follower requests at once.",
    "replica.fetch.wait.max.ms": "How long a leader waits for bytes before it answers a follower.",
    "replica.high.watermark.checkpoint.interval.ms": "The interval between checkpoints of the high watermarks.",
    "replica.lag.time.max.ms": "How long a follower may lag before the leader removes it from the ISR.",
    "replica.socket.timeout.ms": "The timeout of a follower's request.",
    "request.timeout.ms": "The timeout of a request to another broker.",
    "reserved.broker.max.id": "The largest broker id that is never generated.",
    "socket.request.max.bytes": "The maximum size of a request.",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "The interval between attempts to abort.",
    "transaction.max.timeout.ms": "The maximum timeout of a transaction that a producer may ask for.",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "How often expired ids are looked for.",
    "transaction.state.log.load.buffer.size": "How many bytes of __transaction_state are read at once.",
    "transaction.state.log.min.isr": "min.insync.replicas of __transaction_state when it is created.",
    "transaction.state.log.num.partitions": "The number of partitions of __transaction_state when it is created.",
    "transaction.state.log.replication.factor": "The replication factor of __transaction_state when it is created.",
    "transaction.state.log.segment.bytes": "The segment size of __transaction_state.",
    "transactional.id.expiration.ms": "How long an unused transactional id or producer id is kept.",
    "zookeeper.connect": "The addresses of the ZooKeeper servers.",
    "zookeeper.connection.timeout.ms": "How long a start waits for a first connection to ZooKeeper.",
    "zookeeper.session.timeout.ms": "The timeout of the ZooKeeper session.",
    "zookeeper.set.acl": "Whether znodes are created so that this cluster alone can write them.",
}


def _kind(name: str) -> int:
    if name in _BOOLEANS:
        return CONFIG_TYPE_BOOLEAN
    if name in _LISTS:
        return CONFIG_TYPE_LIST
    if name in _LONGS:
        return CONFIG_TYPE_LONG
    if name in _STRINGS:
        return CONFIG_TYPE_STRING
    if name in ("camerlengo.zookeeper.digest", "camerlengo.zookeeper.sasl"):
        return CONFIG_TYPE_PASSWORD
    return CONFIG_TYPE_INT


def _table() -> Mapping[str, BrokerSetting]:
    found: dict[str, BrokerSetting] = {}
    for name, setting in BY_BROKER_NAME.items():
        if name in DYNAMIC_NAMES:
            found[name] = BrokerSetting(name, setting.kind, setting.default, setting.documentation, dynamic=True)
    for name, alone in {**THROTTLE_RATES, **BROKER_ALONE, **CONNECTION_LIMITS}.items():
        found[name] = BrokerSetting(name, alone.kind, alone.default, alone.documentation, dynamic=True)
    for name, words in _WORDS.items():
        found.setdefault(name, BrokerSetting(name, _kind(name), DEFAULT_TEXTS.get(name), words))
    return MappingProxyType(dict(sorted(found.items())))


BROKER_SETTINGS: Mapping[str, BrokerSetting] = _table()
"""By name, in the order of names."""
