"""Settings of Kafka 2.8's broker that this one has no part for yet: told apart from names that nobody knows."""

from __future__ import annotations

# By family, where none or few of it are read; those that are, `settings.py` knows.
_FAMILIES = (
    "alter.config.policy.class.name",
    "alter.log.dirs.replication.quota.",
    "background.threads",
    "compression.type",
    "connection.failed.authentication.delay.ms",
    "connections.max.reauth.ms",
    "control.plane.listener.name",
    "controller.quota.",
    "create.topic.policy.class.name",
    "delegation.token.",
    "group.",
    "host.name",
    "kafka.metrics.",
    "log.",
    "max.connection.creation.rate",
    "max.connections.",
    "metric.reporters",
    "metrics.",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.",
    "offset.metadata.max.bytes",
    "offsets.",
    "password.encoder.",
    "principal.builder.class",
    "queued.max.",
    "quota.",
    "replica.",
    "replication.quota.",
    "sasl.",
    "security.inter.broker.protocol",
    "security.providers",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "ssl.",
    "transaction.",
    "zookeeper.clientCnxnSocket",
    "zookeeper.max.in.flight.requests",
    "zookeeper.ssl.",
)


def has_no_effect(name: str) -> bool:
    """Whether Kafka knows this setting and this broker does nothing with it, if it is none that is read."""
    return any(name.startswith(family) if family.endswith(".") else name == family for family in _FAMILIES)
