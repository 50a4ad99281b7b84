"""Settings of Kafka's broker that are not implemented here: which have no effect, and which are refused.

One that promises security or a limit is refused unless its value asks for nothing (Kafka's default, or empty): a broker
that ignored it would run without what its administrator relies on.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.broker.security.sasl_settings import READ_SASL_SETTINGS
from controller.broker.security.tls_settings import READ_TLS_SETTINGS, READ_ZOOKEEPER_TLS_SETTINGS

# By family, where none or few of it are read; those that are, `settings.py` knows.
_FAMILIES = (
    "alter.config.policy.class.name",
    "alter.log.dirs.replication.quota.",
    "background.threads",
    "compression.type",
    "connection.failed.authentication.delay.ms",
    "connections.max.reauth.ms",
    "create.topic.policy.class.name",
    "delegation.token.",
    "group.",
    "host.name",
    "kafka.metrics.",
    "log.",
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
    "replica.",
    "replication.quota.",
    "sasl.",
    "security.providers",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "ssl.",
    "transaction.",
    "zookeeper.clientCnxnSocket",
    "zookeeper.max.in.flight.requests",
    "zookeeper.ssl.",
)


_NO_ENCRYPTION = "connections would not be encrypted or authenticated"
_NO_AUTHENTICATION = "clients would not be authenticated"
_NO_REVOCATION = "revoked certificates would be accepted"
_NO_QUOTA = "the quota would not be enforced"
_NO_POLICY = "the policy would not be enforced"

# Name, or family with its dot: what would be missing, and the values besides an empty one that ask for nothing.
_PROMISES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "alter.config.policy.class.name": (_NO_POLICY, ()),
    "client.quota.callback.class": (_NO_QUOTA, ()),
    "connections.max.reauth.ms": (_NO_AUTHENTICATION, ("0",)),
    "create.topic.policy.class.name": (_NO_POLICY, ()),
    "delegation.token.master.key": (_NO_AUTHENTICATION, ()),
    "delegation.token.secret.key": (_NO_AUTHENTICATION, ()),
    "password.encoder.old.secret": ("passwords would not be encrypted", ()),
    "password.encoder.secret": ("passwords would not be encrypted", ()),
    "principal.builder.class": (
        _NO_AUTHENTICATION,
        ("org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",),
    ),
    "queued.max.requests": ("requests that wait would not be limited; queued.max.request.bytes does that", ("500",)),
    "sasl.": (_NO_AUTHENTICATION, ()),
    "sasl.enabled.mechanisms": (_NO_AUTHENTICATION, ("GSSAPI",)),
    "sasl.kerberos.kinit.cmd": (_NO_AUTHENTICATION, ("/usr/bin/kinit",)),
    "sasl.kerberos.min.time.before.relogin": (_NO_AUTHENTICATION, ("60000",)),
    "sasl.kerberos.principal.to.local.rules": (_NO_AUTHENTICATION, ("DEFAULT",)),
    "sasl.kerberos.ticket.renew.jitter": (_NO_AUTHENTICATION, ("0.05",)),
    "sasl.kerberos.ticket.renew.window.factor": (_NO_AUTHENTICATION, ("0.8", "0.80")),
    "sasl.login.refresh.buffer.seconds": (_NO_AUTHENTICATION, ("300",)),
    "sasl.login.refresh.min.period.seconds": (_NO_AUTHENTICATION, ("60",)),
    "sasl.login.refresh.window.factor": (_NO_AUTHENTICATION, ("0.8", "0.80")),
    "sasl.login.refresh.window.jitter": (_NO_AUTHENTICATION, ("0.05",)),
    "sasl.mechanism.inter.broker.protocol": (_NO_AUTHENTICATION, ("GSSAPI",)),
    "sasl.server.max.receive.size": (_NO_AUTHENTICATION, ("524288",)),
    "security.providers": (_NO_ENCRYPTION, ()),
    "ssl.": (_NO_ENCRYPTION, ()),
    "ssl.client.auth": (_NO_ENCRYPTION, ("none",)),
    "ssl.enabled.protocols": (_NO_ENCRYPTION, ("TLSv1.2,TLSv1.3", "TLSv1.2")),
    "ssl.endpoint.identification.algorithm": (_NO_ENCRYPTION, ("https",)),
    "ssl.keymanager.algorithm": (_NO_ENCRYPTION, ("SunX509",)),
    "ssl.keystore.type": (_NO_ENCRYPTION, ("JKS",)),
    "ssl.principal.mapping.rules": (_NO_ENCRYPTION, ("DEFAULT",)),
    "ssl.protocol": (_NO_ENCRYPTION, ("TLSv1.3", "TLSv1.2")),
    "ssl.trustmanager.algorithm": (_NO_ENCRYPTION, ("PKIX",)),
    "ssl.truststore.type": (_NO_ENCRYPTION, ("JKS",)),
    "zookeeper.ssl.cipher.suites": ("other ciphers could be used", ()),
    "zookeeper.ssl.crl.enable": (_NO_REVOCATION, ("false",)),
    "zookeeper.ssl.ocsp.enable": (_NO_REVOCATION, ("false",)),
}


def refused_settings(given: Mapping[str, str]) -> list[str]:
    """A sentence for each setting that promises what this broker can't keep. No value of a secret is shown."""
    problems: list[str] = []
    for name, text in given.items():
        if name in READ_TLS_SETTINGS or name in READ_SASL_SETTINGS or name in READ_ZOOKEEPER_TLS_SETTINGS:
            continue
        family = name[: name.find(".") + 1]
        missing, harmless = _PROMISES.get(name) or _PROMISES.get(family) or ("", ())
        if missing and text.strip() and text.strip().lower() not in [one.lower() for one in harmless]:
            shown = "..." if any(word in name for word in ("password", "secret", "key", "jaas")) else text.strip()
            expected = f"{' or '.join(harmless)}, or the setting left out" if harmless else "the setting left out"
            problems.append(f"{name}={shown}: not supported, {missing}; expected {expected}")
    return problems


def has_no_effect(name: str) -> bool:
    """Whether Kafka knows this setting and this broker does nothing with it, if it is none that is read."""
    return name in _PROMISES or any(
        name.startswith(family) if family.endswith(".") else name == family for family in _FAMILIES
    )
