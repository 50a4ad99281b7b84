"""What a secured cluster on this machine has: an authority, keys, users with SCRAM credentials, ACLs.

    made = ClusterSecurity(folder, Security(users=("alice",)), brokers=3)
    made.broker_settings(1, ("SASL_SSL",))   # for server.properties
    made.znodes()                            # to write to ZooKeeper before the brokers start
    made.client("127.0.0.1:9092").confluent

Every listener is SASL_SSL, those between brokers too. Passwords are random and made anew for each cluster. All files
are in one folder of mode 0700, private keys in files of mode 0600. With the mechanism OAUTHBEARER users have tokens in
place of passwords. Needs `cryptography`, and `joserfc` for tokens (the extra `secure`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.broker.security.acls import CLUSTER_NAME
from controller.broker.security.oauth import OAUTHBEARER, OAuthSettings, TokenRules
from controller.broker.security.sasl_settings import SaslSettings
from controller.broker.security.scram import LEAST_ITERATIONS, MECHANISMS, credential_of, salted
from controller.broker.security.scram_store import user_path
from controller.hosts.login import Login, log_in
from controller.hosts.zookeeper_access import ZooKeeperSecurity, connection_to
from controller.zookeeper.acl_znodes import AclResource, AclRow, encode_acls
from controller.zookeeper.blocking import ThreadClock, wait
from controller.zookeeper.codecs import ConfigZnode, encode_config
from controller.zookeeper.operations import ANY_VERSION, Create, MultiFailed, NodeExists, SetData

if TYPE_CHECKING:
    from controller.hosts.certificates import Authority
    from controller.hosts.token_keys import TokenIssuer

BROKER, ADMINISTRATOR, CLIENT = "broker", "admin", "client"
"""Users of every secured cluster. The first two may do everything; the third may use all topics, groups and
transactional ids, and change nothing of the cluster."""
PROTOCOL = "SASL_SSL"
AUTHORITY = "authority"
SECRETS = "secrets"
"""The folder, within that of the cluster."""
RULES: Mapping[AclResource, Sequence[str]] = {
    AclResource("Topic", "*"): ("All",),
    AclResource("Group", "*"): ("All",),
    AclResource("TransactionalId", "*"): ("All",),
    AclResource("Cluster", CLUSTER_NAME): ("IdempotentWrite", "Describe"),
}
"""What CLIENT may do."""
ZOOKEEPER_LIMIT_S = 30.0
TOKEN_ASKED_S = 300.0
"""librdkafka asks for a token again before this."""


@dataclass(frozen=True, slots=True)
class Security:
    """What a secured cluster is like. `users`: names of further users, who may do nothing until an ACL allows it.
    `mechanism`: SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""

    users: tuple[str, ...] = ()
    mechanism: str = "SCRAM-SHA-512"

    def __post_init__(self) -> None:
        if self.mechanism not in (*MECHANISMS, OAUTHBEARER):
            raise ValueError(f"mechanism {self.mechanism!r}: expected {', '.join(MECHANISMS)} or {OAUTHBEARER}")
        for user in self.users:
            if not (user.isascii() and user.isprintable() and user.strip() == user != "") or user in OWN_USERS:
                expected = f"a printable ASCII name other than {', '.join(OWN_USERS)}"
                raise ValueError(f"user {user!r}: expected {expected}")


OWN_USERS = (BROKER, ADMINISTRATOR, CLIENT)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How one user's clients connect, in the words of each client. `password`: with OAUTHBEARER, the token; the
    settings then have a callable that returns it, and there are none for kcat and Java."""

    bootstrap_servers: str
    user: str
    password: str
    mechanism: str
    authority: Path

    @property
    def confluent(self) -> dict[str, Any]:
        """For librdkafka and what is built on it, such as confluent-kafka."""
        login: dict[str, Any] = {"sasl.username": self.user, "sasl.password": self.password}
        if self.mechanism == OAUTHBEARER:
            login = {"oauth_cb": lambda _config: (self.password, time.time() + TOKEN_ASKED_S)}
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": PROTOCOL,
            "sasl.mechanism": self.mechanism,
            **login,
            "ssl.ca.location": str(self.authority),
        }

    @property
    def kafka_python(self) -> dict[str, Any]:
        """For KafkaProducer, KafkaConsumer and KafkaAdminClient of kafka-python."""
        login: dict[str, Any] = {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
        if self.mechanism == OAUTHBEARER:
            from kafka.net.sasl.oauth import AbstractTokenProvider

            provider = type("TokenProvider", (AbstractTokenProvider,), {"token": lambda _self: self.password})
            login = {"sasl_oauth_token_provider": provider()}
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": PROTOCOL,
            "sasl_mechanism": self.mechanism,
            **login,
            "ssl_cafile": str(self.authority),
        }

    @property
    def aiokafka(self) -> dict[str, Any]:
        """For AIOKafkaProducer and AIOKafkaConsumer."""
        options = self.kafka_python
        del options["ssl_cafile"]
        if self.mechanism == OAUTHBEARER:
            from aiokafka.abc import AbstractTokenProvider

            async def token(_self: object) -> str:
                return self.password

            options["sasl_oauth_token_provider"] = type("TokenProvider", (AbstractTokenProvider,), {"token": token})()
        return options | {"ssl_context": ssl.create_default_context(cafile=str(self.authority))}

    @property
    def kcat(self) -> list[str]:
        """The arguments of kcat, before those that say what it is to do."""
        named = self.confluent
        return [
            "-b",
            named.pop("bootstrap.servers"),
            *(word for pair in named.items() for word in ("-X", "=".join(pair))),
        ]

    def text(self) -> str:
        """Lines for a terminal: the settings of librdkafka and kcat (`kcat -F FILE`), and kafka-python's as a comment;
        aiokafka's are the same with an `ssl_context`."""
        lines = [f"{name}={value}" for name, value in self.confluent.items() if name != "bootstrap.servers"]
        python = ", ".join(f"{name}={value!r}" for name, value in self.kafka_python.items())
        context = f"ssl_context=ssl.create_default_context(cafile={str(self.authority)!r})"
        return "\n".join(
            (*lines, f"# kafka-python: {python}", f"# aiokafka: as kafka-python, {context} for ssl_cafile")
        )

    @property
    def java(self) -> dict[str, str]:
        """For Kafka's own clients and tools (`--command-config`)."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": PROTOCOL,
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": scram_login(self.user, self.password),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
        }


def scram_login(user: str, password: str) -> str:
    """The JAAS option of a user that logs in by SCRAM."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="{user}" password="{password}";'


class ClusterSecurity:
    """Everything of one cluster, in `folder`, which is made anew. `passwords`: of each user."""

    def __init__(self, folder: Path, security: Security, brokers: int) -> None:
        self.folder = folder
        self.mechanism = security.mechanism
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        self.authority: Authority = _authority(folder, AUTHORITY)
        self.passwords = {name: secrets.token_urlsafe(18) for name in (*OWN_USERS, *security.users)}
        self.issuer: TokenIssuer | None = None
        if self.mechanism == OAUTHBEARER:
            self.issuer = _issuer(folder)
            self.passwords = {name: self.issuer.token(name) for name in self.passwords}
            for name, token in self.passwords.items():
                self._write(f"{name}.token", token)
        self.zookeeper: ZooKeeperSecurity | None = None
        """None: anyone on this machine may read and change what is in ZooKeeper."""
        self._context = ssl.create_default_context(cafile=str(self.authority.certificate))
        for broker in range(1, brokers + 1):
            self.replace_certificate(broker)

    def secure_zookeeper(self) -> ZooKeeperSecurity:
        """Make what a ZooKeeper of the cluster and its clients need. Called once, before it starts."""
        self.zookeeper = ZooKeeperSecurity(self.folder, self.authority, self._write)
        return self.zookeeper

    def replace_certificate(self, broker: int) -> Path:
        """Give a broker a new key and certificate, in one step. A broker that runs takes them within a second."""
        return self.authority.issue(f"broker-{broker}")

    def broker_settings(self, broker: int, listeners: Sequence[str]) -> dict[str, str]:
        """The settings of a broker whose listeners, of these names, are all SASL_SSL."""
        login = scram_login(BROKER, self.passwords[BROKER])
        users = {f"listener.name.{name.lower()}.{self.mechanism.lower()}.sasl.jaas.config": login for name in listeners}
        if self.issuer is not None:
            users = {
                **self.issuer.expected,
                "sasl.oauthbearer.jwks.endpoint.url": f"file://{self.issuer.keys_file.absolute()}",
                "sasl.oauthbearer.token.endpoint.url": f"file://{(self.folder / BROKER).absolute()}.token",
            }
        return {
            "listener.security.protocol.map": ",".join(f"{name}:{PROTOCOL}" for name in listeners),
            "sasl.enabled.mechanisms": self.mechanism,
            "sasl.mechanism.inter.broker.protocol": self.mechanism,
            **users,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / f"broker-{broker}.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:{BROKER};User:{ADMINISTRATOR}",
        }

    def znodes(self) -> list[tuple[str, bytes]]:
        """The users' credentials and the ACLs, each with its path. Parents are not among them."""
        found = [
            (user_path(user), encode_config(ConfigZnode({self.mechanism: self._credential(password)})))
            for user, password in self.passwords.items()
            if self.issuer is None
        ]
        for resource, operations in RULES.items():
            rows = [AclRow(f"User:{CLIENT}", "Allow", operation, "*") for operation in operations]
            found.append((resource.path, encode_acls(rows)))
        return found

    def creations(self) -> list[Create]:
        """`znodes` with all their parents, to restore into an empty ZooKeeper in memory."""
        made: dict[str, bytes | None] = {}
        for path, data in self.znodes():
            names = path.split("/")
            for depth in range(2, len(names)):
                made.setdefault("/".join(names[:depth]), None)
            made[path] = data
        return [Create(path, data) for path, data in made.items()]

    def write_znodes(self, connect_string: str) -> None:
        """Write `znodes` to a ZooKeeper server; what is there of them is replaced."""
        given = {} if self.zookeeper is None else self.zookeeper.settings
        timeout_ms = int(ZOOKEEPER_LIMIT_S * 1_000)
        connection = connection_to(connect_string, ThreadClock(), timeout_ms, given, lambda _level, _line: None)
        try:
            wait(connection.start(), ZOOKEEPER_LIMIT_S)
            for one in self.creations():
                try:
                    wait(connection.multi([one]), ZOOKEEPER_LIMIT_S)
                except MultiFailed as failed:
                    if not isinstance(failed.error, NodeExists):
                        raise
                    if one.data is not None:
                        wait(connection.multi([SetData(one.path, one.data, ANY_VERSION)]), ZOOKEEPER_LIMIT_S)
        finally:
            wait(connection.close(), ZOOKEEPER_LIMIT_S)

    def _credential(self, password: str) -> str:
        salt = secrets.token_bytes(24)
        hashed = salted(self.mechanism, password, salt, LEAST_ITERATIONS)
        return credential_of(self.mechanism, hashed, salt, LEAST_ITERATIONS).text()

    def client(self, bootstrap_servers: str, user: str = CLIENT) -> ClientSettings:
        """Raises KeyError that names the users there are."""
        if user not in self.passwords:
            raise KeyError(f"user {user!r}: expected one of {sorted(self.passwords)}")
        certificate = self.authority.certificate
        return ClientSettings(bootstrap_servers, user, self.passwords[user], self.mechanism, certificate)

    def write_clients(self, bootstrap_servers: str) -> None:
        """Write two files for each user: NAME.conf for librdkafka (`kcat -F`), and NAME.properties for Kafka's tools
        (`--command-config`). With OAUTHBEARER there is NAME.token in their place."""
        import javaproperties

        for user in () if self.issuer is not None else self.passwords:
            settings = self.client(bootstrap_servers, user)
            lines = "".join(f"{name}={value}\n" for name, value in settings.confluent.items())
            self._write(f"{user}.conf", lines)
            self._write(f"{user}.properties", javaproperties.dumps(settings.java, timestamp=False))

    def _write(self, name: str, text: str) -> None:
        descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="latin-1") as file:
            file.write(text)

    def connect(self, connection: socket.socket, host: str, user: str = ADMINISTRATOR) -> socket.socket:
        """Take a new connection to a broker through TLS and SASL. Raises OSError, ProtocolError."""
        encrypted = self._context.wrap_socket(connection, server_hostname=host)
        own = (user, self.passwords[user])
        token = OAuthSettings("", TokenRules(), str(self.folder / f"{user}.token"))
        log_in(encrypted, Login(SaslSettings((self.mechanism,), {}, self.mechanism, own, {}, token)))
        return encrypted

    def remove(self) -> None:
        """Delete the folder, with all keys."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _authority(folder: Path, name: str) -> Authority:
    try:
        from controller.hosts.certificates import Authority
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return Authority(folder, name)


def _issuer(folder: Path) -> TokenIssuer:
    try:
        from controller.hosts.token_keys import TokenIssuer
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return TokenIssuer(folder / "tokens.json")


def _missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"a secured cluster needs {error.name}: pip install 'camerlengo[secure]'", name=error.name
    )
