"""A cluster for tests whose brokers are processes (`camerlengo broker`), with the Python ZooKeeper in this process.

Needs no Java. All processes end with this one. Links between brokers pass proxies, so that they can be cut.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from controller.broker.settings import parse_settings
from controller.chaos.proxy import ProxyNetwork
from controller.hosts.local_cluster import BrokerChild
from controller.hosts.secured import PROTOCOL, SECRETS
from controller.system import LOOPBACK, HeldPorts
from controller.testing.host import ClusterOptions, Target
from controller.testing.remote_host import RemoteHost
from controller.zookeeper.server.server import ZooKeeperServer

LONGEST_SESSION_MS = 600_000


class ProcessHost(RemoteHost):
    name = "process"
    abilities: ClassVar = frozenset({"links", "lost-disks", "security", "sessions", "zookeeper-links"})

    def __init__(self, options: ClusterOptions) -> None:
        super().__init__(options)
        self._brokers: dict[int, BrokerChild] = {}
        self._temporary: Path | None = None
        self._server: ZooKeeperServer | None = None
        self._ports: HeldPorts | None = None
        self._proxies: ProxyNetwork | None = None
        self._cut_sessions: dict[int, int] = {}
        """By broker: the session that was cut off from ZooKeeper."""

    # -- begin and end

    def start(self) -> None:
        options = self.options
        brokers = range(1, options.brokers + 1)
        if options.directory is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="camerlengo-kafka-"))
        self._folder = self._temporary or options.directory or Path()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._server = ZooKeeperServer(
            tick_ms=max(50, min(500, options.session_timeout_ms // 4)), max_session_timeout_ms=LONGEST_SESSION_MS
        )
        self._server.start()
        self.make_security(self._folder / SECRETS)
        if self.security is not None:
            self.security.write_znodes(self._server.connect_string)
        self._ports = HeldPorts(options.brokers)
        self._proxies = ProxyNetwork()
        for broker in brokers:
            settings = self._settings_of(broker)
            parse_settings({**settings, "broker.id": str(broker)})
            self._brokers[broker] = BrokerChild(broker, settings, self._folder)
        self._connect(self._server.connect_string)
        for child in self._brokers.values():
            child.start()

    def _settings_of(self, broker: int) -> dict[str, str]:
        assert self._server is not None
        assert self._proxies is not None
        others = [other for other in range(1, self.options.brokers + 1) if other != broker]
        own = {
            "broker.id": str(broker),
            "listeners": f"{self.protocol}://{self.address(broker)}",
            "zookeeper.connect": self._server.connect_string,
            "zookeeper.session.timeout.ms": str(self.options.session_timeout_ms),
            "log.dirs": str(self._log_directory(broker)),
            "camerlengo.trace.file": str(self._folder / f"trace-{broker}.jsonl"),
            "camerlengo.address.map": ",".join(
                f"{self.address(other)}={LOOPBACK}:{self._proxies.link(broker, other, self._port(other))}"
                for other in others
            ),
        }
        if self.security is not None:
            own |= self.security.broker_settings(broker, (PROTOCOL,)) | {"security.inter.broker.protocol": PROTOCOL}
        return {**own, **self.options.settings_beside(own)}

    def stop(self) -> None:
        try:
            self._disconnect()
        finally:
            for child in self._brokers.values():
                child.close()
            if self._proxies is not None:
                self._proxies.close()
            if self._server is not None:
                self._server.stop()
            if self._ports is not None:
                self._ports.release()
            self.remove_security()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    # -- state

    def _port(self, broker: int) -> int:
        assert self._ports is not None
        return self._ports.numbers[broker - 1]

    def _log_directory(self, broker: int) -> Path:
        return self._folder / f"broker-{broker}"

    def address(self, broker: int) -> str:
        return f"{LOOPBACK}:{self._port(broker)}"

    def running(self, broker: int) -> bool:
        return self._brokers[broker].running

    def logs(self) -> str:
        return "\n".join(f"broker {one}:{child.log_tail()}" for one, child in self._brokers.items())

    def _log_tail(self, broker: int) -> str:
        return self._brokers[broker].log_tail()

    def _trace_lines(self) -> Iterator[bytes]:
        for broker in self._brokers:
            path = self._folder / f"trace-{broker}.jsonl"
            if path.is_file():
                yield from path.read_bytes().splitlines()

    # -- brokers

    def kill(self, broker: int, *, expire: bool) -> None:
        child = self._require(broker)
        session = self._session(broker) if expire else None
        self.inject("kill", broker)
        child.kill()
        self._ended(broker)
        if session is not None:
            self._expire(session)

    def begin_stop(self, broker: int) -> None:
        child = self._require(broker)
        self.inject("stop", broker)
        child.stop(self.options.timeout_s)
        self._ended(broker)

    def begin_start(self, broker: int) -> None:
        if self.running(broker):
            raise RuntimeError(f"broker {broker} runs")
        self.inject("restart", broker)
        self._ended(broker)
        self._brokers[broker].start()

    def pause(self, broker: int) -> None:
        child = self._require(broker)
        self.inject("pause", broker)
        child.pause()
        self._paused.add(broker)

    def resume(self, broker: int) -> None:
        child = self._require(broker)
        if broker in self._paused:
            self.inject("resume", broker)
            self._paused.discard(broker)
            child.resume()

    def expire_session(self, broker: int) -> None:
        self._require(broker)
        session = self._session(broker)
        if session is None:
            raise RuntimeError(f"broker {broker} has no ZooKeeper session")
        self.inject("expire", broker)
        self._expire(session)

    def _expire(self, session: int) -> None:
        assert self._server is not None
        try:
            self._server.expire(session)
        except KeyError:
            return  # it has ended by itself

    def cut(self, broker: int, other: Target) -> None:
        assert self._server is not None
        assert self._proxies is not None
        if other == "zookeeper":
            self._require(broker)
            session = self._session(broker)
            if session is None:
                raise RuntimeError(f"broker {broker} has no ZooKeeper session")
            self._cut_sessions[broker] = session
            self.inject("cut", f"{broker}->zookeeper")
            self._server.partition(session)
            return
        for source, target in ((broker, other), (other, broker)):
            self.inject("cut", f"{source}->{target}")
            self._proxies.cut(source, target)

    def heal(self, broker: int, other: Target | None) -> None:
        assert self._server is not None
        assert self._proxies is not None
        if other in (None, "zookeeper") and broker in self._cut_sessions:
            self.inject("heal", f"{broker}->zookeeper")
            self._server.heal(self._cut_sessions.pop(broker))
        for one in [one for one in self._brokers if one != broker] if other is None else [other]:
            if isinstance(one, int):
                for source, target in ((broker, one), (one, broker)):
                    self._proxies.heal(source, target)

    def lose_disk(self, broker: int) -> None:
        self.inject("lose disk", broker)
        if self.running(broker):
            self.kill(broker, expire=True)
        shutil.rmtree(self._log_directory(broker), ignore_errors=True)

    def _require(self, broker: int) -> BrokerChild:
        if not self.running(broker):
            raise RuntimeError(f"broker {broker} does not run")
        return self._brokers[broker]

    def _ended(self, broker: int) -> None:
        """Forget what went with the process."""
        self._paused.discard(broker)
        session = self._cut_sessions.pop(broker, None)
        if session is not None and self._server is not None:
            self._server.heal(session)
