"""A cluster on loopback: ZooKeeper and broker processes, started, waited for and stopped together.

    with LocalCluster(brokers=3) as cluster:
        client = SomeClient(cluster.bootstrap_servers)
        cluster.brokers[1].kill()

All child processes end when the process that started them ends, however that happens. `BrokerChild` is one broker as a
child process; its output goes to a log file, where its ready line is searched for. All calls block, with deadlines.
"""

from __future__ import annotations

import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import javaproperties

from controller.broker.settings import Address, address, address_text, listeners
from controller.hosts.login import read_frame
from controller.hosts.secured import CLIENT, PROTOCOL, SECRETS, ClientSettings, ClusterSecurity, Security
from controller.hosts.zookeeper_access import ZooKeeperSecurity
from controller.protocol.client import MetadataRequest, MetadataResponse
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ProtocolError
from controller.protocol.framing import framed
from controller.protocol.schema import RequestValue, ResponseValue
from controller.system import LOOPBACK, HeldPorts
from controller.zookeeper import launch
from controller.zookeeper.embedded import EmbeddedZooKeeper, ZooKeeperKind

_VERSION = 9


Secure: TypeAlias = Callable[[socket.socket, str], socket.socket]
"""(a new connection, its host): takes it through TLS and SASL, and returns what to use in its place."""


def ask_metadata(address: Address, timeout_s: float, secure: Secure | None = None) -> MetadataResponse:
    """OSError if the broker can't be reached or does not answer in time, ProtocolError for an answer that is none."""
    request = MetadataRequest(None, allow_auto_topic_creation=False)
    answer = ask_broker(address, ApiKey.METADATA, _VERSION, request, timeout_s, secure)
    assert isinstance(answer, MetadataResponse)
    return answer


def ask_broker(
    address: Address, api: ApiKey, version: int, request: RequestValue, timeout_s: float, secure: Secure | None = None
) -> ResponseValue:
    """Send one request over a connection of its own, and return the answer. Raises as `ask_metadata`."""
    frame = encode_request(RequestHeader(api, version, 1, "camerlengo"), request)
    with ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(address, timeout_s))
        if secure is not None:
            connection = stack.enter_context(secure(connection, address[0]))
        connection.sendall(framed(frame))
        return decode_response(api, version, read_frame(connection))[1]


READY = re.compile(rb"^broker (?P<id>[0-9]+) ready at (?P<address>\S+)$", re.MULTILINE)
LOOK_S = 0.02
LOG_TAIL_LINES = 15
BROKER_STOP_LIMIT_S = 30.0
CONNECTION_TIMEOUT_MS = 60_000
"""For brokers beside a ZooKeeper of their own: the setting's default is the session timeout, which a test wants short,
and a machine that starts many processes at once may take longer than that to answer the first."""


class BrokerDied(Exception):
    """A broker ended by itself; the message has its exit status and the end of its log."""


class BrokerNotReady(Exception):
    """A broker, or a cluster of them, was not ready in time."""


class BrokerChild:
    """One broker as a child process, which can be started again after it has ended. `settings` are server.properties'
    names and values. A subclass may run another program."""

    program = "broker"
    ready = READY
    stop_limit_s = BROKER_STOP_LIMIT_S

    def __init__(self, broker_id: int, settings: Mapping[str, str], folder: Path) -> None:
        self.broker_id = broker_id
        self.settings = dict(settings) | {"broker.id": str(broker_id)}
        self.config_file = folder / f"{self.program}-{broker_id}.properties"
        self.log_file = folder / f"{self.program}-{broker_id}.log"
        self._process: launch.Process | None = None
        self._log_start = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._alive().pid

    @property
    def exit_status(self) -> int | None:
        """The exit status as subprocess reports it (-9 for SIGKILL), or None while it runs or before the start."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Returns when the process runs, not when it is ready. RuntimeError if it runs already."""
        if self.running:
            raise RuntimeError(f"broker {self.broker_id} is running already")
        self._write_settings()
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = launch.launch(self.command(), stdout=log, stderr=log)

    def _write_settings(self) -> None:
        """For its owner alone: there may be passwords among the settings."""
        text = javaproperties.dumps(self.settings, timestamp=False)
        self.config_file.touch(0o600)
        self.config_file.chmod(0o600)
        self.config_file.write_text(text, encoding="latin-1")

    def command(self) -> list[str]:
        return [sys.executable, "-m", "controller.cli", "broker", "--config", str(self.config_file)]

    def await_ready(self, deadline: float) -> Address:
        """Wait until the broker is registered and serves, and return its address.

        Args:
            deadline: as time.monotonic() counts.

        Raises:
            BrokerDied: the process ended first.
            BrokerNotReady: the deadline passed.
        """
        while (found := self.ready_at()) is None:
            self.require_running()
            if time.monotonic() > deadline:
                raise BrokerNotReady(f"broker {self.broker_id} was not ready in time{self.log_tail()}")
            time.sleep(LOOK_S)
        return found

    def ready_at(self) -> Address | None:
        """Return the address in the current process's ready line, or None if it has not written one."""
        if self._process is None:
            return None
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            match = self.ready.search(log.read())
        return self.address_of(match) if match else None

    def address_of(self, ready: re.Match[bytes]) -> Address:
        return address(ready["address"].decode())

    def require_running(self) -> None:
        if not self.running:
            raise BrokerDied(f"broker {self.broker_id} ended by itself, status {self.exit_status}{self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL."""
        launch.kill(self._alive())

    def stop(self, limit_s: float | None = None) -> int:
        """SIGTERM, a controlled shutdown; killed after `limit_s`. The exit status."""
        return launch.stop(self._alive(), self.stop_limit_s if limit_s is None else limit_s)

    def pause(self) -> None:
        """SIGSTOP."""
        launch.pause(self._alive())

    def resume(self) -> None:
        launch.resume(self._alive())

    def close(self) -> None:
        """Kills it if it runs."""
        if self.running:
            self.kill()

    def log_tail(self) -> str:
        """The last lines of its log, each on a line of its own, to put behind a message."""
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "".join(f"\n    {line}" for line in lines[-LOG_TAIL_LINES:])

    def _alive(self) -> launch.Process:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"broker {self.broker_id} is not running")
        return self._process


START_LIMIT_S = 60.0
ASK_LIMIT_S = 2.0
STOP_LIMIT_S = 15.0


OWN_SETTINGS = frozenset(["broker.id", "log.dirs", "zookeeper.connect", "zookeeper.session.timeout.ms"])
"""Settings that a cluster sets for each broker itself."""
_PORT = re.compile(r":([0-9]+)(?=\s*(?:,|$))")


class PortInUse(Exception):
    """Another program listens where a broker of the cluster is to; names the address."""


class LocalCluster:
    """Brokers 1 to `brokers`. `settings` go into every broker's server.properties, except OWN_SETTINGS, which raise
    ValueError. `listeners` and `advertised.listeners` are broker 1's: each further broker's ports are one higher.
    `port` is broker 1's on loopback, likewise; without either, brokers listen on free ports of loopback. `data_dir`
    keeps ZooKeeper's data, the settings and the logs; a temporary one is removed by `close`. `zookeeper` is "python" or
    "java", by default as EmbeddedZooKeeper chooses it. With `security` all listeners are SASL_SSL, and ZooKeeper is
    reached by TLS and a login, with ACLs on its znodes; keys and passwords are in the directory `secrets` of `data_dir`
    until `close`, and `client` says how to connect.

    The constructor raises what EmbeddedZooKeeper's does; `start` also PortInUse, BrokerDied, BrokerNotReady,
    ServerDied and ServerTimedOut, with everything stopped.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        zookeeper: ZooKeeperKind | None = None,
        zookeeper_servers: int = 1,
        session_timeout_ms: int = 6_000,
        data_dir: Path | None = None,
        zookeeper_jars: Path | None = None,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        security: Security | None = None,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers is {brokers}: expected 1 or more")
        settings = dict(settings or {})
        taken = sorted(OWN_SETTINGS & settings.keys())
        if taken:
            raise ValueError(f"{taken[0]} can't be overridden: a cluster sets it for each broker")
        if port is not None and "listeners" in settings:
            raise ValueError("port and listeners: expected one of them")
        self._protocol = "PLAINTEXT" if security is None else PROTOCOL
        if port is not None:
            settings["listeners"] = f"{self._protocol}://{LOOPBACK}:{port}"
        self._temporary = data_dir is None
        self.folder = Path(tempfile.mkdtemp(prefix="camerlengo-cluster-")) if data_dir is None else data_dir
        self.folder.mkdir(parents=True, exist_ok=True)
        self._session_timeout_ms = session_timeout_ms
        self._settings = settings
        self._ports: HeldPorts | None = None
        self._addresses: dict[int, Address] = {}
        self._count = brokers
        self.brokers: dict[int, BrokerChild] = {}
        self.security: ClusterSecurity | None = None
        secured: ZooKeeperSecurity | None = None
        try:
            if security is not None:
                self.security = ClusterSecurity(self.folder / SECRETS, security, brokers)
                secured = self.security.secure_zookeeper()
            self.zookeeper = EmbeddedZooKeeper(
                zookeeper_servers,
                kind=zookeeper,
                data_dir=self.folder / "zookeeper",
                jars=zookeeper_jars,
                tick_ms=max(50, min(500, session_timeout_ms // 4)),
                security=None if secured is None else secured.server,
            )
        except BaseException:
            self._remove()
            raise

    @property
    def bootstrap_servers(self) -> str:
        """`HOST:PORT,...` of every broker, the same for as long as this object lives, once started."""
        return ",".join(address_text(self._addresses[number]) for number in self.brokers)

    @property
    def secure(self) -> Secure | None:
        """What takes a new connection to a broker through TLS and SASL."""
        return None if self.security is None else self.security.connect

    def client(self, user: str = CLIENT) -> ClientSettings:
        """How the clients of a user connect. Raises KeyError that names the users, RuntimeError without `security`."""
        if self.security is None:
            raise RuntimeError("this cluster has no users: expected LocalCluster(security=Security())")
        return self.security.client(self.bootstrap_servers, user)

    def start(self, limit_s: float = START_LIMIT_S) -> None:
        """Returns when every broker is registered, a controller is elected, and each broker's metadata has both."""
        deadline = time.monotonic() + limit_s
        try:
            self._require_free_ports()
            self.zookeeper.start(limit_s)
            if self.security is not None:
                self.security.write_znodes(self.zookeeper.connect_string)
            if "listeners" not in self._settings:
                self._ports = HeldPorts(self._count)
            for number in range(1, self._count + 1):
                self.brokers[number] = self.broker_child(number, self._broker_settings(number))
                self.brokers[number].start()
            for number, broker in self.brokers.items():
                self._addresses[number] = broker.await_ready(deadline)
            self.await_metadata(deadline)
            if self.security is not None:
                self.security.write_clients(self.bootstrap_servers)
        except BaseException:
            self.close()
            raise

    def broker_child(self, number: int, settings: Mapping[str, str]) -> BrokerChild:
        """Make one broker, which is started later. A subclass may run another program."""
        return BrokerChild(number, settings, self.folder)

    def await_metadata(self, deadline: float) -> None:
        """Until each running broker's metadata names all of them and one and the same controller among them.
        `deadline` as time.monotonic() counts."""
        while not self._agrees():
            for broker in self.brokers.values():
                broker.require_running()
            if time.monotonic() > deadline:
                raise BrokerNotReady("the brokers' metadata did not agree on who is there in time")
            time.sleep(LOOK_S)

    def _agrees(self) -> bool:
        views = set()
        for number in self.brokers:
            try:
                seen = ask_metadata(self._addresses[number], ASK_LIMIT_S, self.secure)
            except (OSError, ProtocolError):
                return False
            views.add((seen.controller_id, frozenset(broker.node_id for broker in seen.brokers)))
        if len(views) != 1:
            return False
        ((controller, brokers),) = views
        return brokers == frozenset(self.brokers) and controller in brokers

    def _broker_settings(self, number: int) -> dict[str, str]:
        listening: dict[str, str] = {
            name: shifted(self._settings[name], number - 1)
            for name in ("listeners", "advertised.listeners")
            if name in self._settings
        }
        if self._ports is not None:
            listening["listeners"] = f"{self._protocol}://{LOOPBACK}:{self._ports.numbers[number - 1]}"
        if self.security is not None:
            listening |= self.security.broker_settings(number, (PROTOCOL,))
            listening["security.inter.broker.protocol"] = PROTOCOL
            listening |= {} if self.security.zookeeper is None else self.security.zookeeper.settings
        own = {
            "zookeeper.connect": self.zookeeper.connect_string,
            "zookeeper.session.timeout.ms": str(self._session_timeout_ms),
            "log.dirs": str(self.folder / f"logs-{number}"),
        }
        usual = {
            "zookeeper.connection.timeout.ms": str(CONNECTION_TIMEOUT_MS),
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.replication.factor": str(min(3, self._count)),
            "transaction.state.log.replication.factor": str(min(3, self._count)),
            "transaction.state.log.min.isr": str(min(2, self._count)),
        }
        return usual | self._settings | listening | own

    def _require_free_ports(self) -> None:
        """Raise PortInUse for a port that was asked for and is taken, before anything is started."""
        for number in range(self._count):
            for listener in listeners(shifted(self._settings.get("listeners", ""), number)):
                family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
                with socket.socket(family, socket.SOCK_STREAM) as trial:
                    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        trial.bind((listener.host, listener.port))
                    except (OSError, OverflowError) as error:
                        where = address_text((listener.host, listener.port))
                        raise PortInUse(f"broker {number + 1} can't listen on {where}: {error}") from error

    def stop(self) -> None:
        """Each broker's controlled shutdown, one after the other, then ZooKeeper's end."""
        for broker in self.brokers.values():
            if broker.running:
                broker.stop(STOP_LIMIT_S)
        self.zookeeper.stop()

    def close(self) -> None:
        """Kills what still runs and removes a temporary folder. Safe to call twice."""
        for broker in self.brokers.values():
            broker.close()
        self.zookeeper.close()
        if self._ports is not None:
            self._ports.release()
            self._ports = None
        self._remove()

    def _remove(self) -> None:
        if self.security is not None:
            self.security.remove()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def shifted(listeners: str, by: int) -> str:
    """The same listeners with each port raised; 0 stays 0, any free port."""
    return _PORT.sub(lambda match: f":{int(match[1]) + by if int(match[1]) else 0}", listeners)
