"""The settings of a broker as clients are shown them: type, default, whether they may change while it runs, and what
they are for. Pure; what a topic's are is `controller.core.topic_settings`'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.broker.configs.settings import DEFAULT_TEXTS
from controller.core.topic_settings import BROKER_ALONE, BY_BROKER_NAME, THROTTLE_RATES
from controller.protocol.admin_values import (
    CONFIG_TYPE_BOOLEAN,
    CONFIG_TYPE_INT,
    CONFIG_TYPE_LIST,
    CONFIG_TYPE_LONG,
    CONFIG_TYPE_PASSWORD,
    CONFIG_TYPE_STRING,
)


@dataclass(frozen=True, slots=True)
class BrokerSetting:
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
        "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
    }
)
"""Synonyms of a broker's setting, in order of precedence."""

READ_AT_START = frozenset(["log.segment.delete.delay.ms"])
"""Dynamic in Kafka, but here what server.properties says counts."""

DYNAMIC_NAMES = frozenset({*BY_BROKER_NAME, *THROTTLE_RATES, *BROKER_ALONE} - READ_AT_START)
"""What may be altered while a broker runs: the defaults of its topics, how fast replicas may catch up, and what has no
effect here and is kept for Kafka brokers."""

_BOOLEANS = frozenset(
    {
        "auto.create.topics.enable",
        "auto.leader.rebalance.enable",
        "broker.id.generation.enable",
        "camerlengo.controlled.shutdown.check",
        "controlled.shutdown.enable",
        "delete.topic.enable",
        "zookeeper.set.acl",
    }
)
_LISTS = frozenset({"log.dirs", "camerlengo.address.map"})
_LONGS = frozenset(
    {
        "connections.max.idle.ms",
        "controlled.shutdown.retry.backoff.ms",
        "log.flush.scheduler.interval.ms",
        "log.retention.check.interval.ms",
        "log.segment.delete.delay.ms",
        "queued.max.request.bytes",
        "replica.high.watermark.checkpoint.interval.ms",
        "replica.lag.time.max.ms",
    }
)
_STRINGS = frozenset(
    {
        "advertised.listeners",
        "broker.rack",
        "camerlengo.metrics.address",
        "camerlengo.trace.file",
        "inter.broker.listener.name",
        "inter.broker.protocol.version",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "zookeeper.connect",
    }
)

_WORDS: Mapping[str, str] = {
    "advertised.listeners": "The addresses that brokers and clients use to reach this broker.",
    "auto.create.topics.enable": "Always false: topics are created by request alone.",
    "auto.leader.rebalance.enable": "Whether leaders go back to the preferred ones by themselves.",
    "broker.id": "Who this broker is.",
    "broker.id.generation.enable": "Whether a broker without an id is given one.",
    "broker.rack": "Where it stands, for the spread of replicas.",
    "camerlengo.address.map": "Addresses that are dialled instead of others.",
    "camerlengo.controlled.shutdown.check": "Whether a broker that goes keeps what would be left under "
    "min.insync.replicas.",
    "camerlengo.decompressed.batch.max.bytes": "How many bytes a produced batch's records may have when they are "
    "decompressed, unless message.max.bytes is larger.",
    "camerlengo.log.open.files.max": "How many log files are open while no connection reads them; -1: a sixth of "
    "what the process may have open.",
    "camerlengo.producer.ids.max": "How many producer ids all partitions of the broker remember together; those that "
    "appended longest ago are evicted first.",
    "camerlengo.producer.ids.per.partition.max": "How many producer ids a partition remembers; the one that appended "
    "longest ago is evicted first.",
    "camerlengo.reassignments.in.cluster": "How many partitions may be gaining replicas at once; 0: all.",
    "camerlengo.reassignments.on.broker": "The same for each broker that gains them.",
    "camerlengo.request.entries.max": "Elements of all lists of one client's request together.",
    "camerlengo.request.partitions.max": "Partitions that one request may create.",
    "camerlengo.request.stall.timeout.ms": "How long a request that has begun to arrive may bring no byte.",
    "camerlengo.response.max.bytes": "Bytes of a DescribeConfigs response.",
    "camerlengo.topic.partitions.max": "Partitions that a client may give one topic.",
    "camerlengo.metrics.address": "Where metrics are served over HTTP; nowhere if it is not set.",
    "camerlengo.trace.file": "Where typed events of this broker are written.",
    "camerlengo.zookeeper.digest": "What it is known to ZooKeeper by.",
    "connections.max.idle.ms": "How long a connection may do nothing before it is closed; -1: for ever.",
    "controlled.shutdown.enable": "Whether what this broker leads is moved before it ends.",
    "controlled.shutdown.max.retries": "How often that is asked for.",
    "controlled.shutdown.retry.backoff.ms": "How long it waits between two attempts.",
    "controller.socket.timeout.ms": "How long a request between controller and broker may take.",
    "default.replication.factor": "How many replicas a topic has whose creator does not say.",
    "delete.records.purgatory.purge.interval.requests": "How many ended DeleteRecords requests are worth a purge.",
    "delete.topic.enable": "Whether topics may be deleted.",
    "fetch.max.bytes": "How many bytes of records one response holds, about.",
    "fetch.purgatory.purge.interval.requests": "How many ended fetches are worth a purge.",
    "inter.broker.listener.name": "By which listener brokers reach each other.",
    "inter.broker.protocol.version": "Which versions of the control requests are spoken.",
    "leader.imbalance.check.interval.seconds": "How often is looked how far leaders have drifted.",
    "leader.imbalance.per.broker.percentage": "Above which share of what a broker should lead they go back to it.",
    "listener.security.protocol.map": "Which security protocol each listener has.",
    "listeners": "Where connections are accepted.",
    "log.dir": "Where the logs are, if log.dirs does not say.",
    "log.dirs": "Where the logs are.",
    "log.flush.offset.checkpoint.interval.ms": "How often it is noted how far logs are on disk.",
    "log.flush.scheduler.interval.ms": "How often it is looked for logs to be flushed.",
    "log.flush.start.offset.checkpoint.interval.ms": "How often it is noted where logs begin.",
    "log.retention.check.interval.ms": "How often it is looked for segments to be deleted.",
    "log.retention.hours": "log.retention.ms in hours.",
    "log.retention.minutes": "log.retention.ms in minutes.",
    "log.roll.hours": "log.roll.ms in hours.",
    "log.segment.delete.delay.ms": "How long the files of a deleted partition stay.",
    "max.connections": "How many connections there may be.",
    "max.incremental.fetch.session.cache.slots": "How many fetch sessions are kept.",
    "num.partitions": "How many partitions a topic has whose creator does not say.",
    "num.replica.fetchers": "How many connections to each leader fetch for the replicas here.",
    "producer.purgatory.purge.interval.requests": "How many ended produce requests are worth a purge.",
    "queued.max.request.bytes": "How many bytes of requests that are not answered yet are held.",
    "replica.fetch.backoff.ms": "How long a follower waits after a fetch that failed.",
    "replica.fetch.max.bytes": "How many bytes of one partition a follower asks for.",
    "replica.fetch.min.bytes": "How many bytes a leader waits for before it answers a follower.",
    "replica.fetch.response.max.bytes": "How many bytes a follower asks for at once.",
    "replica.fetch.wait.max.ms": "How long a leader waits for bytes before it answers a follower.",
    "replica.high.watermark.checkpoint.interval.ms": "How often high watermarks are written down.",
    "replica.lag.time.max.ms": "After how long without having had everything a follower leaves the ISR.",
    "replica.socket.timeout.ms": "How long a follower's request may take.",
    "request.timeout.ms": "How long a request to another broker may take.",
    "reserved.broker.max.id": "Generated broker ids are above it.",
    "socket.request.max.bytes": "How large a request may be.",
    "transactional.id.expiration.ms": "After how long an idempotent producer that sends nothing is forgotten.",
    "zookeeper.connect": "Where ZooKeeper is.",
    "zookeeper.connection.timeout.ms": "How long a start waits for a first connection to ZooKeeper.",
    "zookeeper.session.timeout.ms": "How long ZooKeeper may hear nothing before the broker counts as dead.",
    "zookeeper.set.acl": "Whether what is made in ZooKeeper is this cluster's alone to write.",
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
    if name == "camerlengo.zookeeper.digest":
        return CONFIG_TYPE_PASSWORD
    return CONFIG_TYPE_INT


def _table() -> Mapping[str, BrokerSetting]:
    found: dict[str, BrokerSetting] = {}
    for name, setting in BY_BROKER_NAME.items():
        if name in DYNAMIC_NAMES:
            found[name] = BrokerSetting(name, setting.kind, setting.default, setting.documentation, dynamic=True)
    for name, alone in {**THROTTLE_RATES, **BROKER_ALONE}.items():
        found[name] = BrokerSetting(name, alone.kind, alone.default, alone.documentation, dynamic=True)
    for name, words in _WORDS.items():
        found.setdefault(name, BrokerSetting(name, _kind(name), DEFAULT_TEXTS.get(name), words))
    return MappingProxyType(dict(sorted(found.items())))


BROKER_SETTINGS: Mapping[str, BrokerSetting] = _table()
"""By name, in the order of names."""
