"""The real host of scenarios: broker processes, an embedded ZooKeeper, real signals, real sockets, a real client.

Everything it starts dies with it, also under SIGKILL (`launch` sees to that). One thread runs the scenario and blocks
in what it asks for; the client and the observer have threads of their own and only add to the trace.
"""

from __future__ import annotations

import sys
from pathlib import Path

from controller.chaos.live_host import LiveHost, live_faults
from controller.chaos.observer import Observer
from controller.chaos.proxy import ProxyNetwork
from controller.hosts.local_cluster import CONNECTION_TIMEOUT_MS
from controller.hosts.secured import PROTOCOL, SECRETS, ClusterSecurity, Security
from controller.scenarios.faults import (
    REAL,
    ZOOKEEPER,
    Cut,
    Expire,
    HostFailure,
    Kill,
    KillZooKeeper,
    Link,
    Pause,
    Stop,
)
from controller.scenarios.host import Workload
from controller.scenarios.language import ClusterSpec
from controller.system import LOOPBACK, HeldPorts
from controller.trace_records import DamagedRecord, TraceRecord, decode_record
from controller.zookeeper import EmbeddedZooKeeper
from controller.zookeeper.embedded import ZooKeeperKind
from controller.zookeeper.launch import Process, kill, launch, pause, resume, stop

STOP_GRACE_S = 30.0
LEADER_LIMIT_MS = 15_000.0
"""How long a busy ensemble may take to name its leader."""
_LOG_LINES = 12


REAL_FAULTS = live_faults(REAL)


def _secured(folder: Path, brokers: int) -> ClusterSecurity:
    """Raises HostFailure, with the extra to install, where a package is missing."""
    try:
        return ClusterSecurity(folder, Security(), brokers)
    except ModuleNotFoundError as error:
        raise HostFailure(str(error)) from error


class RealHost(LiveHost):
    """One run's cluster. `cuttable` puts a proxy on every link, which only scenarios that cut one need.

    `folder` gets the brokers' settings, logs and traces; a temporary one is removed by `close`. `zookeeper` and `jars`
    are as EmbeddedZooKeeper takes them.
    """

    name = REAL
    faults = REAL_FAULTS

    def __init__(
        self,
        *,
        folder: Path | None = None,
        zookeeper: ZooKeeperKind | None = None,
        jars: Path | None = None,
        cuttable: bool = False,
        tick_ms: int | None = None,
    ) -> None:
        super().__init__(folder)
        self._kind = zookeeper
        self._jars = jars
        self._cuttable = cuttable
        self._tick_ms = tick_ms
        self._zookeeper: EmbeddedZooKeeper | None = None
        self._proxies: ProxyNetwork | None = None
        self._ports: HeldPorts | None = None
        self._processes: dict[int, Process] = {}

    async def boot(self, cluster: ClusterSpec, workload: Workload) -> None:
        self._cluster = cluster
        self.folder.mkdir(parents=True, exist_ok=True)
        self._standstills.start()
        tick_ms = self._tick_ms or max(50, min(500, cluster.session_timeout_ms // 4))
        self._zookeeper = EmbeddedZooKeeper(
            cluster.zookeeper_servers,
            kind=self._kind,
            data_dir=self.folder / "zookeeper",
            jars=self._jars,
            tick_ms=tick_ms,
        )
        self._zookeeper.start()
        if cluster.secure:
            self._security = _secured(self.folder / SECRETS, cluster.brokers)
            self._security.write_znodes(self._zookeeper.connect_string)
        self._ports = HeldPorts(cluster.brokers)
        if self._cuttable:
            self._proxies = ProxyNetwork()
        self._observer = observer = Observer(self._zookeeper.connect_string, self.clock, self.take)
        observer.start()
        servers = ",".join(f"{LOOPBACK}:{port}" for port in self._ports.numbers)
        security = self._security
        connect = {"bootstrap.servers": servers} if security is None else security.client(servers).confluent
        self._ask_for_metadata(connect, workload)

    async def start(self, node: int) -> None:
        if node in self.running():
            raise HostFailure(f"broker {node} is running already")
        settings = self._write_settings(node)
        with (self.folder / f"broker-{node}.log").open("ab") as log:
            self._processes[node] = launch(
                [sys.executable, "-m", "controller.cli", "broker", "--config", str(settings)], stdout=log, stderr=log
            )
        assert self._client is not None
        self._client.begin()

    def _write_settings(self, node: int) -> Path:
        assert self._ports is not None
        values = {
            "broker.id": str(node),
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self._port(node)}",
            **self._secured_settings(node),
            "zookeeper.connect": self._zookeeper_address(node),
            "zookeeper.session.timeout.ms": str(self._cluster.session_timeout_ms),
            "zookeeper.connection.timeout.ms": str(CONNECTION_TIMEOUT_MS),
            "log.dirs": str(self.folder / f"logs-{node}"),
            "camerlengo.trace.file": str(self.folder / f"trace-{node}.jsonl"),
        }
        if self._cluster.racks:
            values["broker.rack"] = self._cluster.racks[(node - 1) % len(self._cluster.racks)]
        if self._proxies is not None:
            values["camerlengo.address.map"] = ",".join(
                f"{LOOPBACK}:{self._port(peer)}={LOOPBACK}:{self._proxies.link(node, peer, self._port(peer))}"
                for peer in self._cluster.nodes
                if peer != node
            )
        values |= self._cluster.properties
        path = self.folder / f"broker-{node}.properties"
        path.touch(0o600)  # there may be a password in it
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return path

    def _secured_settings(self, node: int) -> dict[str, str]:
        if self._security is None:
            return {}
        return {
            "listeners": f"{PROTOCOL}://{LOOPBACK}:{self._port(node)}",
            "security.inter.broker.protocol": PROTOCOL,
            **self._security.broker_settings(node, (PROTOCOL,)),
        }

    def _port(self, node: int) -> int:
        assert self._ports is not None
        return self._ports.numbers[node - 1]

    def _zookeeper_address(self, node: int) -> str:
        assert self._zookeeper is not None
        if self._proxies is None:
            return self._zookeeper.connect_string
        ports = [int(address.rpartition(":")[2]) for address in self._zookeeper.hosts]
        # One directed link to the ensemble, of as many proxies as it has servers: they are cut together.
        return ",".join(
            f"{LOOPBACK}:{self._proxies.link(node, ZOOKEEPER - index, port)}" for index, port in enumerate(ports)
        )

    @REAL_FAULTS.of(Kill)
    async def _kill(self, fault: Kill) -> None:
        kill(self._process(fault.broker))

    @REAL_FAULTS.of(Stop)
    async def _stop(self, fault: Stop) -> None:
        node = fault.broker
        process = self._process(node)
        status = stop(process, STOP_GRACE_S)
        if status != 0:
            raise HostFailure(f"broker {node} ended with status {status} when asked to stop{self._log_tail(node)}")
        del self._processes[node]

    @REAL_FAULTS.of(Pause)
    async def _pause(self, fault: Pause) -> None:
        pause(self._process(fault.broker))

    async def resume(self, node: int) -> None:
        resume(self._process(node))

    @REAL_FAULTS.of(Cut)
    async def _cut(self, fault: Cut) -> None:
        self._set_link(fault.link, cut=True)

    async def heal(self, link: Link) -> None:
        self._set_link(link, cut=False)

    def _set_link(self, link: Link, *, cut: bool) -> None:
        proxies = self._proxied()
        for target in self._targets(link):
            (proxies.cut if cut else proxies.heal)(link.source, target)

    def _targets(self, link: Link) -> list[int]:
        if link.target != ZOOKEEPER:
            return [link.target]
        return [ZOOKEEPER - index for index in range(self._cluster.zookeeper_servers)]

    def _proxied(self) -> ProxyNetwork:
        if self._proxies is None:
            raise HostFailure("this run's links can't be cut: it was started without proxies")
        return self._proxies

    @REAL_FAULTS.of(Expire)
    async def _expire(self, fault: Expire) -> None:
        """Keeps the server from hearing of the session until it ends it: the only way to end another's session
        that needs nothing of the broker. Its link heals as soon as the session is gone."""
        node = fault.broker
        session = self.observe().registered.get(node)
        if session is None:
            raise HostFailure(f"broker {node} has no session to end")
        await self._cut(Cut(source=node, target=ZOOKEEPER))
        deadline_ms = self.clock.now_ms() + 10 * self._cluster.session_timeout_ms
        while self.observe().registered.get(node) == session:
            if self.clock.now_ms() > deadline_ms:
                raise HostFailure(f"the session of broker {node} did not end in ten times its timeout")
            await self.clock.sleep(10.0)
        await self.heal(Link(node, ZOOKEEPER))

    async def zookeeper_leader(self) -> int:
        deadline_ms = self.clock.now_ms() + LEADER_LIMIT_MS
        while (leader := self._ensemble().leader()) is None:
            if self.clock.now_ms() > deadline_ms:
                raise HostFailure("no ZooKeeper server leads")
            await self.clock.sleep(50.0)
        return leader + 1

    def zookeepers_running(self) -> tuple[int, ...]:
        return tuple(server.index + 1 for server in self._ensemble().servers if server.running)

    @REAL_FAULTS.of(KillZooKeeper)
    async def _kill_zookeeper(self, fault: KillZooKeeper) -> None:
        server = fault.number
        if server not in self.zookeepers_running():
            raise HostFailure(f"ZooKeeper server {server} is not running")
        self._ensemble().servers[server - 1].kill()

    async def start_zookeeper(self, server: int) -> None:
        if server in self.zookeepers_running():
            raise HostFailure(f"ZooKeeper server {server} is running already")
        self._ensemble().restart(server - 1)

    def _ensemble(self) -> EmbeddedZooKeeper:
        assert self._zookeeper is not None
        return self._zookeeper

    def running(self) -> tuple[int, ...]:
        """Raises HostFailure for a broker that ended of itself: nothing that follows would mean anything."""
        for node, process in sorted(self._processes.items()):
            status = process.poll()
            if status is not None and status != -9:
                raise HostFailure(f"broker {node} ended of itself with status {status}{self._log_tail(node)}")
        return tuple(node for node, process in sorted(self._processes.items()) if process.poll() is None)

    def _process(self, node: int) -> Process:
        process = self._processes.get(node)
        if process is None or process.poll() is not None:
            raise HostFailure(f"broker {node} is not running")
        return process

    def _log_tail(self, node: int) -> str:
        try:
            lines = (self.folder / f"broker-{node}.log").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "".join(f"\n    {line}" for line in lines[-_LOG_LINES:])

    def _close_cluster(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                kill(process)
        if self._observer is not None:
            self._observer.close()
        if self._proxies is not None:
            self._proxies.close()
        if self._zookeeper is not None:
            self._zookeeper.close()
        if self._ports is not None:
            self._ports.release()
        if self._security is not None:
            self._security.remove()
        self._collect()
        self._proxies = self._zookeeper = self._ports = None

    def _collect(self) -> None:
        """The brokers' own traces, on the scenario's clock. A line torn by a kill is the last of its file."""
        for path in sorted(self.folder.glob("trace-*.jsonl")):
            for line in path.read_bytes().splitlines():
                try:
                    record = decode_record(line)
                except DamagedRecord:
                    continue
                self._records.append(TraceRecord(record.at_ms - self.clock.zero_ms, record.node, record.event))
            path.unlink()
