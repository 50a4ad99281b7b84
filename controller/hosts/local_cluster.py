"""A cluster on loopback: a real ZooKeeper and broker processes, started, waited for and taken down as one.

    with LocalCluster(brokers=3) as cluster:
        client = SomeClient(cluster.bootstrap_servers)
        cluster.brokers[1].kill()

Nothing of it outlives the process that made it, however that ends.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from controller.broker.configs.setting_types import address_text
from controller.hosts.ask import ask_metadata
from controller.hosts.broker_process import CONNECTION_TIMEOUT_MS, LOOK_S, BrokerNotReady, BrokerProcess
from controller.protocol.errors import MalformedFrame
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.ports import LOOPBACK, HeldPorts

START_LIMIT_S = 60.0
ASK_LIMIT_S = 2.0
STOP_LIMIT_S = 15.0


class LocalCluster:
    """Brokers 1 to `brokers`. `settings` go into every broker's server.properties, before what this sets. `data_dir`
    keeps ZooKeeper's data, the settings and the logs; a temporary one is removed by `close`.

    The constructor raises what EmbeddedZooKeeper's does; `start` also BrokerDied, BrokerNotReady, ServerDied and
    ServerTimedOut, with everything stopped.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        zookeeper_servers: int = 1,
        session_timeout_ms: int = 6_000,
        data_dir: Path | None = None,
        zookeeper_jars: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers is {brokers}: expected 1 or more")
        self._temporary = data_dir is None
        self.folder = Path(tempfile.mkdtemp(prefix="camerlengo-cluster-")) if data_dir is None else data_dir
        self.folder.mkdir(parents=True, exist_ok=True)
        self._session_timeout_ms = session_timeout_ms
        self._settings = dict(settings or {})
        self._ports: HeldPorts | None = None
        self._count = brokers
        self.brokers: dict[int, BrokerProcess] = {}
        try:
            self.zookeeper = EmbeddedZooKeeper(
                zookeeper_servers,
                data_dir=self.folder / "zookeeper",
                jars=zookeeper_jars,
                tick_ms=max(50, min(500, session_timeout_ms // 4)),
            )
        except BaseException:
            self._remove()
            raise

    @property
    def bootstrap_servers(self) -> str:
        """`HOST:PORT,...` of every broker, the same for as long as this object lives, once started."""
        return ",".join(self._address_text(number) for number in self.brokers)

    def start(self, limit_s: float = START_LIMIT_S) -> None:
        """Returns when every broker is registered, a controller is elected, and each broker's metadata has both."""
        deadline = time.monotonic() + limit_s
        try:
            self.zookeeper.start(limit_s)
            self._ports = HeldPorts(self._count)
            for number in range(1, self._count + 1):
                self.brokers[number] = BrokerProcess(number, self._broker_settings(number), self.folder)
                self.brokers[number].start()
            for broker in self.brokers.values():
                broker.await_ready(deadline)
            self.await_metadata(deadline)
        except BaseException:
            self.close()
            raise

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
                seen = ask_metadata((LOOPBACK, self._port(number)), ASK_LIMIT_S)
            except (OSError, MalformedFrame):
                return False
            views.add((seen.controller_id, frozenset(broker.node_id for broker in seen.brokers)))
        if len(views) != 1:
            return False
        ((controller, brokers),) = views
        return brokers == frozenset(self.brokers) and controller in brokers

    def _broker_settings(self, number: int) -> dict[str, str]:
        own = {
            "listeners": f"PLAINTEXT://{self._address_text(number)}",
            "zookeeper.connect": self.zookeeper.connect_string,
            "zookeeper.session.timeout.ms": str(self._session_timeout_ms),
            "log.dirs": str(self.folder / f"logs-{number}"),
        }
        return {"zookeeper.connection.timeout.ms": str(CONNECTION_TIMEOUT_MS)} | self._settings | own

    def _port(self, number: int) -> int:
        assert self._ports is not None
        return self._ports.numbers[number - 1]

    def _address_text(self, number: int) -> str:
        return address_text((LOOPBACK, self._port(number)))

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
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
