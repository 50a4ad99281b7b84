"""A ZooKeeper on loopback as a process of its own, for tests, demonstrations and chaos: the server in Python, or Apache
ZooKeeper with one server or three.

    with EmbeddedZooKeeper() as zookeeper:
        client = KazooClient(zookeeper.connect_string)
        zookeeper.servers[0].kill()

No server outlives the process that started it (see `launch.py`). Calls block, each with a deadline; no client of
ZooKeeper is used or needed.

A server is asked how it is by the four-letter word `srvr`, on a connection of its own with a short deadline: an Apache
server's port accepts some 0.25 s before the server serves, and a connection made in that gap may hang for a whole
session timeout.

Ports are held (`HeldPorts`) for as long as the servers may restart. Where they can't be held, a server is started on
another if its port is taken.

An Apache server needs a Java runtime and jars: those that PySpark contains (found without importing it), or a directory
of the user's, such as a ZooKeeper distribution's `lib`. Five jars run a server. Without snappy-java the port opens and
then the server ends without a message, so all five are required before it is started.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self, get_args

from controller.system import LOOPBACK, HeldPorts, try_lock
from controller.zookeeper import launch
from controller.zookeeper.memory.session_timeouts import SessionTimeouts
from controller.zookeeper.row_writes import REQUEST_BYTES_MAX

ZooKeeperKind = Literal["python", "java"]
"""The program of a server: the server in Python (`controller.zookeeper.server`), or Apache ZooKeeper."""
KINDS: tuple[ZooKeeperKind, ...] = get_args(ZooKeeperKind)


def kind_for(kind: ZooKeeperKind | None = None, *, servers: int = 1, jars: Path | str | None = None) -> ZooKeeperKind:
    """Return `kind` if it is given; otherwise "java" for what only Apache ZooKeeper has (ensembles, jars), and
    "python" for everything else. Raises ValueError for "python" with three servers or jars."""
    if kind == "python" and servers != 1:
        raise ValueError(f"the ZooKeeper server in Python has no ensembles: {servers} servers need --zookeeper=java")
    if kind == "python" and jars is not None:
        raise ValueError(f"the ZooKeeper server in Python uses no jars: {jars} needs --zookeeper=java")
    return kind or ("python" if servers == 1 and jars is None else "java")


REQUIRED = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
LOGGING = ("log4j-api", "log4j-core", "log4j-slf4j2-impl")
MINIMUM_JAVA = 11
RECOMMENDED_JAVA = 17
_VERSION_DEADLINE_SECONDS = 30.0

HOW_TO_GET_JAVA = """\
Apache ZooKeeper runs on Java 11 or later (17 is recommended). To get it:
  Debian, Ubuntu  apt-get install openjdk-17-jre-headless
  Fedora, RHEL    dnf install java-17-openjdk-headless
  macOS           brew install openjdk@17
or set JAVA_HOME to a Java that is installed already. The server in Python (--zookeeper=python) needs none."""


class EmbeddedServerUnavailable(Exception):
    """Something that an embedded Apache ZooKeeper needs is not on this machine; says what, and how to get it."""


class JavaNotFound(EmbeddedServerUnavailable):
    pass


class JarsNotFound(EmbeddedServerUnavailable):
    pass


@dataclass(frozen=True, slots=True)
class ServerJars:
    """`logging` is empty where the directory has no log4j: the server then logs nothing."""

    required: tuple[Path, ...]
    logging: tuple[Path, ...]

    def class_path(self) -> str:
        return os.pathsep.join(map(str, (*self.required, *self.logging)))


def find_jars(directory: Path | str | None = None) -> ServerJars:
    """The server's jars in `directory`, else in the installed PySpark. Raises JarsNotFound."""
    where = Path(directory) if directory is not None else _pyspark_jars()
    if not where.is_dir():
        raise JarsNotFound(f"{where}: no such directory; expected one with the jars of a ZooKeeper server")
    names = sorted(path.name for path in where.iterdir())
    required = {prefix: _newest(names, prefix) for prefix in REQUIRED}
    missing = [prefix for prefix, name in required.items() if name is None]
    if missing:
        raise JarsNotFound(
            f"{where}: no {', '.join(f'{prefix}-VERSION.jar' for prefix in missing)} there. An embedded ZooKeeper"
            f" server needs the jars {', '.join(REQUIRED)}: pip install 'camerlengo[zookeeper]' brings them, or name"
            " a directory that has them with --zookeeper-jars DIR"
        )
    logging = [_newest(names, prefix) for prefix in LOGGING]
    return ServerJars(
        required=tuple(where / name for name in required.values() if name),
        logging=tuple(where / name for name in logging if name) if all(logging) else (),
    )


def _newest(names: list[str], prefix: str) -> str | None:
    """The jar of that artifact with the highest version: a version starts with a digit, so that `zookeeper` is not
    taken for `zookeeper-jute`."""
    pattern = re.compile(re.escape(prefix) + r"-(\d[\w.\-]*)\.jar")
    found = [(match[1], name) for name in names if (match := pattern.fullmatch(name))]
    return max(found, key=lambda item: [int(number) for number in re.findall(r"\d+", item[0])])[1] if found else None


def _pyspark_jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsNotFound(
            "no jars of a ZooKeeper server: they come with PySpark, which is not installed."
            " pip install 'camerlengo[zookeeper]', or name a directory of them with --zookeeper-jars DIR"
        )
    return Path(spec.origin).parent / "jars"


def java_problem(minimum: int = MINIMUM_JAVA) -> str | None:
    """Say in one line why there is no Java of at least this version, and how to install one; None if there is."""
    try:
        find_java(minimum)
    except JavaNotFound as error:
        found = str(error).partition("\n")[0].rstrip(".")
        return (
            f"needs a Java {max(minimum, RECOMMENDED_JAVA)} runtime ({found}): apt-get install openjdk-17-jre-headless,"
            " dnf install java-17-openjdk-headless or brew install openjdk@17, or set JAVA_HOME"
        )
    return None


def find_java(minimum: int = MINIMUM_JAVA) -> Path:
    """$JAVA_HOME/bin/java if JAVA_HOME is set, else `java` on the PATH, checked to be recent enough. Raises
    JavaNotFound."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    if home and not os.access(java, os.X_OK):
        raise JavaNotFound(f"JAVA_HOME is {home}, but there is no {java}.\n{HOW_TO_GET_JAVA}")
    if not java.name:
        raise JavaNotFound(f"no java on the PATH, and JAVA_HOME is not set.\n{HOW_TO_GET_JAVA}")
    version = _java_version(java)
    if version < minimum:
        raise JavaNotFound(f"{java} is Java {version}.\n{HOW_TO_GET_JAVA}")
    return java


def _java_version(java: Path) -> int:
    """The major version: from the `release` file beside it where there is one, which saves starting it."""
    try:
        text = (java.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
        match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    except OSError:
        match = None
    if match is None:
        try:
            ran = subprocess.run(
                [str(java), "-version"], capture_output=True, timeout=_VERSION_DEADLINE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise JavaNotFound(f"{java} does not run: {error}\n{HOW_TO_GET_JAVA}") from error
        output = (ran.stderr + ran.stdout).decode("utf-8", errors="replace")
        match = re.search(r'version "([^"]+)"', output)
        if match is None:
            raise JavaNotFound(f"{java} -version says {output.strip()[:200]!r}.\n{HOW_TO_GET_JAVA}")
    numbers = [int(number) for number in re.findall(r"\d+", match[1])]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


PROBE_DEADLINE_SECONDS = 0.1
_PROBE_DEADLINE_MAX_SECONDS = 1.0
_PROBE_PAUSE_SECONDS = 0.02
_LOG_TAIL_LINES = 15

_JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
    "-Dlog4j2.disableJmx=true",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.4lw.commands.whitelist=*",
)
_LOGIN = "org.apache.zookeeper.server.auth.DigestLoginModule"
_SASL = "-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
_LOG4J = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p [%t] %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


class ServerDied(Exception):
    """The server's process ended while it was being started; carries the end of its log."""

    def __init__(self, server: ServerProcess, status: int) -> None:
        super().__init__(
            f"ZooKeeper server {server.index + 1} ended with status {status} as it started; {server.log_path} says:\n"
            f"{server.log_tail()}"
        )
        self.address_in_use = "address already in use" in server.log_tail(200).lower()


class ServerTimedOut(Exception):
    """The server did not serve before the deadline."""


@dataclass(frozen=True, slots=True)
class JavaServer:
    """The program of an Apache server."""

    java: Path
    class_path: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """Clients connect by TLS alone, to a server with the key and certificates of `keystore`, which those of `authority`
    have signed (PEM). Who is in `users`, a file of lines NAME=PASSWORD, may log in by DIGEST-MD5."""

    keystore: Path
    authority: Path
    users: Path


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings that all servers of an ensemble share. Times in ms; `max_request_bytes` is jute.maxbuffer. Without
    `java`, the server in Python runs."""

    java: JavaServer | None
    timeouts: SessionTimeouts
    fsync: bool
    max_request_bytes: int
    security: ServerSecurity | None = None


class ServerProcess:
    """A server with its own directory (`data`, `log`, and `zoo.cfg` of an Apache server). Not running until `start`."""

    def __init__(self, index: int, directory: Path, settings: ServerSettings) -> None:
        self.index = index
        self.directory = directory
        self.settings = settings
        self.port = 0
        self._process: launch.Process | None = None
        self._trust: ssl.SSLContext | None = None
        if settings.security is not None:
            self._trust = ssl.create_default_context(cafile=str(settings.security.authority))

    @property
    def log_path(self) -> Path:
        """The file with the server's output of all its starts."""
        return self.directory / "log"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process's pid, while there is one."""
        return self._process.pid if self.running else None  # type: ignore[union-attr]

    @property
    def running(self) -> bool:
        """Paused counts as running."""
        return self._process is not None and self._process.poll() is None

    def configure(self, port: int, peers: Mapping[int, tuple[int, int]]) -> None:
        """Write the server's files. `peers` maps each server's number (from 1) to its quorum and election ports; it is
        empty for a server without peers."""
        self.port = port
        self._data.mkdir(parents=True, exist_ok=True)
        if self.settings.java is not None:
            self._configure_java(peers)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _configure_java(self, peers: Mapping[int, tuple[int, int]]) -> None:
        settings, secured = self.settings, self.settings.security
        lines = [
            f"tickTime={settings.timeouts.tick_ms}",
            f"dataDir={self._data}",
            f"{'clientPort' if secured is None else 'secureClientPort'}={self.port}",
            f"{'clientPort' if secured is None else 'secureClientPort'}Address={LOOPBACK}",
            "maxClientCnxns=0",
            f"minSessionTimeout={settings.timeouts.min_ms}",
            f"maxSessionTimeout={settings.timeouts.max_ms}",
            "initLimit=20",
            "syncLimit=10",
        ]
        if secured is not None:
            lines += [
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"ssl.keyStore.location={secured.keystore}",
                "ssl.keyStore.type=PEM",
                f"ssl.trustStore.location={secured.authority}",
                "ssl.trustStore.type=PEM",
                "ssl.clientAuth=none",
            ]
            users = (line.split("=", 1) for line in secured.users.read_text(encoding="utf-8").splitlines())
            named = " ".join(f'user_{name}="{password}"' for name, password in users)
            jaas = self.directory / "jaas.conf"
            jaas.touch(0o600)
            jaas.write_text(f"Server {{ {_LOGIN} required {named}; }};\n", encoding="utf-8")
        lines += [
            f"server.{number}={LOOPBACK}:{quorum}:{election}" for number, (quorum, election) in sorted(peers.items())
        ]
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (self.directory / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
        if peers:
            (self._data / "myid").write_text(f"{self.index + 1}\n", encoding="utf-8")

    def start(self) -> None:
        """Start the process and return at once; `await_serving` waits until it serves."""
        if self.running:
            return
        java = self.settings.java
        argv = self._python_command() if java is None else self._java_command(java)
        with self.log_path.open("ab") as log:
            self._process = launch.launch(argv, stdout=log, stderr=log)

    def _java_command(self, java: JavaServer) -> list[str]:
        settings = self.settings
        path = java.class_path
        login: tuple[str, ...] = ()
        if settings.security is not None:
            netty = sorted(Path(path.split(os.pathsep, 1)[0]).parent.glob("netty-*.jar"))
            path = os.pathsep.join([path, *map(str, netty)])
            login = (f"-Djava.security.auth.login.config={self.directory / 'jaas.conf'}", _SASL)
        return [
            str(java.java),
            *_JVM,
            *login,
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            f"-Djute.maxbuffer={settings.max_request_bytes}",
            f"-Dzookeeper.forceSync={'yes' if settings.fsync else 'no'}",
            *java.options,
            "-cp",
            path,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.directory / "zoo.cfg"),
        ]

    def _python_command(self) -> list[str]:
        settings = self.settings
        options: dict[str, object] = {
            "--port": self.port,
            "--data": self._data,
            "--tick-ms": settings.timeouts.tick_ms,
            "--min-session-timeout-ms": settings.timeouts.min_ms,
            "--max-session-timeout-ms": settings.timeouts.max_ms,
            "--max-request-bytes": settings.max_request_bytes,
        }
        if settings.security is not None:
            options |= {"--tls-keystore": settings.security.keystore, "--sasl-users": settings.security.users}
        return [
            *(sys.executable, "-m", "controller.zookeeper.server"),
            *(word for name, value in options.items() for word in (name, str(value))),
            *(() if settings.fsync else ("--no-fsync",)),
        ]

    def mode(self, deadline_seconds: float = PROBE_DEADLINE_SECONDS) -> str | None:
        """ "standalone", "leader" or "follower", as the server itself says; None if it does not serve."""
        answer = four_letter_word(self.port, "srvr", deadline_seconds, self._trust)
        match = re.search(r"^Mode: (\w+)", answer, re.MULTILINE)
        return match[1] if match and answer.startswith("Zookeeper version:") else None

    def await_serving(self, deadline: float) -> None:
        """Waits until the server serves. `deadline` is on time.monotonic. Raises ServerDied, ServerTimedOut."""
        patience = PROBE_DEADLINE_SECONDS
        while self.mode(patience) is None:
            status = None if self._process is None else self._process.poll()
            if status is not None:
                raise ServerDied(self, status)
            if time.monotonic() > deadline:
                raise ServerTimedOut(f"ZooKeeper server {self.index + 1} does not serve; its log is {self.log_path}")
            patience = min(patience * 1.2, _PROBE_DEADLINE_MAX_SECONDS)
            time.sleep(_PROBE_PAUSE_SECONDS)

    def stop(self) -> None:
        """Asks the server to end, and sees that it does."""
        if self._process is not None:
            launch.stop(self._process)

    def kill(self) -> None:
        if self._process is not None:
            launch.kill(self._process)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        if self._process is not None:
            launch.pause(self._process)

    def resume(self) -> None:
        if self._process is not None:
            launch.resume(self._process)

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def four_letter_word(port: int, word: str, deadline_seconds: float, trust: ssl.SSLContext | None = None) -> str:
    """A server's answer to one of ZooKeeper's four-letter words, over TLS if it has one that is trusted; "" if it gave
    none in time."""
    deadline = time.monotonic() + deadline_seconds
    answer = b""
    try:
        with ExitStack() as opened:
            connection = opened.enter_context(socket.create_connection((LOOPBACK, port), timeout=deadline_seconds))
            if trust is not None:
                connection = opened.enter_context(trust.wrap_socket(connection, server_hostname=LOOPBACK))
            connection.sendall(word.encode("ascii"))
            while (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                received = connection.recv(65536)
                if not received:
                    return answer.decode("utf-8", errors="replace")
                answer += received
    except OSError:
        # Refused, reset or too late: each says the same of the server, that it does not answer.
        return ""
    return ""


START_DEADLINE_SECONDS = 60.0
_PORT_ATTEMPTS = 5
_PORTS_PER_SERVER = 3


class DataDirectoryError(Exception):
    """The data directory can't be used: another ensemble's, or in use; names it."""


class EmbeddedZooKeeper:
    """Started by `start` or a `with`; ended by `close`, which also removes a temporary data directory.

    `kind` is "python" or "java" (Apache's). By default it is "java" only where three servers, `jars` or `java_options`
    need it; the attribute `kind` says which. `port` is the first server's (0: a free one). `data_dir` is kept if given.
    `tick_ms` sets the grain of session timeouts: the server grants nothing below `min_session_timeout_ms` (2 ticks by
    default) and counts expiry in ticks; 500 suits timeouts from 1.5 to 6 s. `max_request_bytes` is jute.maxbuffer, by
    default a production server's. `fsync` False trades durability over a machine's crash (never over a killed server's)
    for speed. `jars` is a directory; by default PySpark's are used.

    The constructor raises ValueError, JavaNotFound, JarsNotFound and DataDirectoryError, and starts nothing.
    """

    def __init__(
        self,
        servers: int = 1,
        *,
        kind: ZooKeeperKind | None = None,
        port: int = 0,
        data_dir: Path | str | None = None,
        jars: Path | str | None = None,
        tick_ms: int = 500,
        min_session_timeout_ms: int | None = None,
        max_session_timeout_ms: int = 120_000,
        fsync: bool = True,
        max_request_bytes: int = REQUEST_BYTES_MAX,
        java_options: Sequence[str] = (),
        security: ServerSecurity | None = None,
    ) -> None:
        if servers not in (1, 3):
            raise ValueError(f"servers is {servers}: an embedded ZooKeeper has 1 server or 3")
        if java_options and kind == "python":
            raise ValueError("the ZooKeeper server in Python has no java_options: expected kind 'java'")
        self.kind = kind_for("java" if java_options else kind, servers=servers, jars=jars)
        settings = ServerSettings(
            java=JavaServer(find_java(), find_jars(jars).class_path(), tuple(java_options))
            if self.kind == "java"
            else None,
            timeouts=SessionTimeouts.of(tick_ms, min_session_timeout_ms, max_session_timeout_ms),
            fsync=fsync,
            max_request_bytes=max_request_bytes,
            security=security,
        )
        self._port = port
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="camerlengo-zookeeper-") if data_dir is None else data_dir)
        self._lock = _lock_directory(self.data_dir.absolute(), servers, self.kind)
        self.data_dir = self.data_dir.absolute()
        self._ports: HeldPorts | None = None
        self.servers = tuple(
            ServerProcess(index, self.data_dir / f"server-{index + 1}", settings) for index in range(servers)
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """`HOST:PORT` of each server, the same for as long as this object lives."""
        return tuple(server.address for server in self.servers)

    @property
    def connect_string(self) -> str:
        """The value for `zookeeper.connect`."""
        return ",".join(self.hosts)

    def start(self, deadline_seconds: float = START_DEADLINE_SECONDS) -> None:
        """Starts what is not running and waits until every server serves (so an ensemble has its quorum). Raises
        ServerDied, ServerTimedOut, or OSError if another program has the port, with everything stopped."""
        deadline = time.monotonic() + deadline_seconds
        try:
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                self._configure()
                try:
                    self._start_servers(deadline)
                    return
                except ServerDied as died:
                    if not died.address_in_use or self._port or attempt == _PORT_ATTEMPTS:
                        raise
                    self.kill()
                    self._release_ports()
        except BaseException:
            self.kill()
            raise

    def _configure(self) -> None:
        if self._ports is not None:
            return
        count = len(self.servers)
        self._ports = HeldPorts(_PORTS_PER_SERVER * count, self._port)
        numbers = self._ports.numbers
        peers = {index + 1: (numbers[count + 2 * index], numbers[count + 2 * index + 1]) for index in range(count)}
        for server in self.servers:
            server.configure(numbers[server.index], peers if count > 1 else {})

    def _start_servers(self, deadline: float) -> None:
        for server in self.servers:
            server.start()
        serving = False
        while not serving:  # one that served may have left its leader while the next was waited for
            for server in self.servers:
                server.await_serving(deadline)
            serving = None not in self.modes()

    def leader(self) -> int | None:
        """The index of the server that leads the ensemble (0 for a server that stands alone); None while none does."""
        return next((server.index for server in self.servers if server.mode() in ("leader", "standalone")), None)

    def modes(self) -> tuple[str | None, ...]:
        """Return the mode that each server reports: see `ServerProcess.mode`."""
        return tuple(server.mode() for server in self.servers)

    def restart(self, index: int, deadline_seconds: float = START_DEADLINE_SECONDS) -> None:
        """Stops one server, if it runs, and starts it on the same port and data. Waits until it serves."""
        server = self.servers[index]
        server.stop()
        server.start()
        server.await_serving(time.monotonic() + deadline_seconds)

    def stop(self) -> None:
        """Ends every server in good order. `start` brings them back on the same ports."""
        for server in self.servers:
            server.stop()

    def kill(self) -> None:
        """SIGKILL to every server."""
        for server in self.servers:
            server.kill()

    def pause(self) -> None:
        """SIGSTOP to every server."""
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        for server in self.servers:
            server.resume()

    def close(self) -> None:
        """Ends the servers and lets go of everything. Safe to call twice."""
        self.kill() if self._temporary else self.stop()
        self._release_ports()
        self._lock.close()
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _release_ports(self) -> None:
        if self._ports is not None:
            self._ports.release()
            self._ports = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _lock_directory(directory: Path, servers: int, kind: ZooKeeperKind) -> IO[str]:
    """Lock the directory against a second ensemble, and refuse the data of one of another size or kind: a single server
    started on one member's data would lose what the other two had agreed on."""
    content = str(servers) if kind == "java" else _PYTHON
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "servers").open("a+", encoding="ascii")
    except OSError as error:
        raise DataDirectoryError(f"{directory}: {error.strerror}") from error
    try:
        if not try_lock(lock.fileno()):
            raise DataDirectoryError(f"{directory} is in use by another embedded ZooKeeper")
        lock.seek(0)
        held = lock.read().strip()
        if held not in ("", content):
            raise DataDirectoryError(f"{directory} holds the data of {_described(held)}, not of {_described(content)}")
        if not held:
            lock.write(f"{content}\n")
            lock.flush()
    except DataDirectoryError:
        lock.close()
        raise
    return lock


_PYTHON = "1 python"
"""What the file says of a directory whose data the server in Python wrote. Of Apache servers it says how many."""


def _described(content: str) -> str:
    if content == _PYTHON:
        return "the server in Python (--zookeeper=python)"
    return f"{content} server(s) of Apache ZooKeeper (--zookeeper=java)"
