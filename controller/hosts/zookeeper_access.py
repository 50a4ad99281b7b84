"""How a process gets at ZooKeeper, as the settings of a broker say: TLS, an identity, ACLs for what it creates. And
what secures the ZooKeeper of a cluster on this machine."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from controller.broker.security.tls_settings import zookeeper_tls
from controller.clock import Clock
from controller.hosts.tls import BadCertificates, TlsContext
from controller.zookeeper.paths import secure_acl

if TYPE_CHECKING:  # a cluster in a test's process does not need kazoo
    from controller.hosts.certificates import Authority
    from controller.zookeeper.kazoo_connection import KazooConnection

Note = Callable[[str, str], None]
DIGEST, SASL = "camerlengo.zookeeper.digest", "camerlengo.zookeeper.sasl"
USER = "broker"


def zookeeper_encryption(given: Mapping[str, str], note: Note) -> Callable[[socket.socket, str], socket.socket] | None:
    """What takes a connection to ZooKeeper through TLS; None if it has none. Raises BadCertificates."""
    found, problems = zookeeper_tls(given)
    if problems:
        raise BadCertificates("; ".join(problems))
    if found is None:
        return None
    try:
        context = TlsContext(found, server=False, now_s=time.monotonic, note=note)
    except BadCertificates as error:
        raise BadCertificates(f"ZooKeeper: {error}") from error
    return lambda plain, host: context.current().wrap_socket(plain, server_hostname=host)


def connection_to(
    hosts: str,
    clock: Clock,
    session_timeout_ms: int,
    given: Mapping[str, str],
    note: Note,
    *,
    create_chroot: bool = False,
) -> KazooConnection:
    """A connection that is not started. `given`: the settings. Raises BadCertificates; ValueError for `hosts`."""
    from controller.zookeeper.kazoo_connection import KazooConnection

    user, colon, password = given.get(SASL, "").partition(":")
    return KazooConnection(
        hosts,
        clock,
        session_timeout_ms,
        auth=(("digest", given[DIGEST]),) if given.get(DIGEST) else (),
        acl_of=secure_acl if given.get("zookeeper.set.acl", "").strip().lower() == "true" else None,
        create_chroot=create_chroot,
        encrypt=zookeeper_encryption(given, note),
        sasl=(user, password) if colon else None,
    )


class ZooKeeperSecurity:
    """Of a ZooKeeper on loopback: TLS alone, and one user, who brokers and commands log in as. `server`: what the
    server needs. `settings`: what clients need, which `file` has too."""

    def __init__(self, folder: Path, authority: Authority, write: Callable[[str, str], None]) -> None:
        import javaproperties

        password = secrets.token_urlsafe(18)
        write("zookeeper.users", f"{USER}={password}\n")
        from controller.zookeeper.embedded import ServerSecurity  # not for Windows

        self.server = ServerSecurity(authority.issue("zookeeper"), authority.certificate, folder / "zookeeper.users")
        self.settings = {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.enabled.protocols": "TLSv1.2,TLSv1.3",  # Apache ZooKeeper 3.9 speaks the second alone
            "zookeeper.ssl.truststore.type": "PEM",
            "zookeeper.ssl.truststore.location": str(authority.certificate),
            SASL: f"{USER}:{password}",
            "zookeeper.set.acl": "true",
        }
        self.file = folder / "zookeeper.properties"
        write(self.file.name, javaproperties.dumps(self.settings, timestamp=False))
