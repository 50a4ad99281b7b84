"""The configs of users, clients and addresses in ZooKeeper, read for what goes by them: quotas and SCRAM credentials.

All of them are read when the broker starts and in each new session. Within a session /config/changes says whose config
changed; it is followed by `ConfigWatch`, which calls `changed`. The config that a notice names is read again, so that a
late notice never brings back an older value.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeAlias

from controller.broker.quotas.rules import plain
from controller.broker.request_context import on_broker_thread
from controller.clock import Clock, Future, spawn
from controller.trace import Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_config
from controller.zookeeper.operations import DamagedZnode, SessionGone, Znode, ZooKeeperError

USER, CLIENT_ID, IP = "user", "client-id", "ip"
RETRY_MS = 5_000.0

EntityConfigs: TypeAlias = Mapping[str, Mapping[str, str] | None]
"""By the path below /config. Empty: there is none; None: it can't be read, and what was known of it stays."""


class TakesConfigs(Protocol):
    def __call__(self, configs: EntityConfigs, *, whole: bool) -> None:
        """`whole`: what is not among them does not exist."""


def entity_of(path: str) -> dict[str, str | None] | None:
    """Return the parts of an entity by type, with None for the default, as the path below /config names it; None for
    what is no entity with quotas."""
    match path.split("/"):
        case ["users", user]:
            return {USER: plain(user)}
        case ["clients", client_id]:
            return {CLIENT_ID: plain(client_id)}
        case ["users", user, "clients", client_id]:
            return {USER: plain(user), CLIENT_ID: plain(client_id)}
        case ["ips", ip]:
            return {IP: plain(ip)}
    return None


class EntityConfigReader:
    """All of it is called on the broker's thread, and so is each of `takers`."""

    def __init__(self, client: ZooKeeperClient, clock: Clock, trace: Trace, takers: Collection[TakesConfigs]) -> None:
        self._client = client
        self._clock = clock
        self._trace = trace
        self._takers = takers
        self._wanted: dict[str, None] | None = {}
        """What is to be read again; None: everything."""
        self._reading = False

    def changed(self, entities: Collection[str] | None) -> None:
        """These configs (paths below /config) may be others now; None: any of them."""
        if entities is None:
            self._wanted = None
        elif self._wanted is not None:
            self._wanted.update(dict.fromkeys(one for one in entities if entity_of(one) is not None))
        self._read_wanted()

    def _read_wanted(self) -> None:
        if self._reading or self._wanted == {}:
            return
        self._reading = True
        wanted, self._wanted = self._wanted, {}
        reading = spawn(self._read(wanted))
        on_broker_thread(reading, self._clock, lambda: self._taken(reading, wanted))

    def _taken(self, reading: Future[dict[str, Znode | None]], wanted: dict[str, None] | None) -> None:
        self._reading = False
        try:
            rows = reading.result()
        except Exception as error:  # noqa: BLE001 - ZooKeeper's, or a bug: logged; it is read again
            self._wanted = None if wanted is None or self._wanted is None else wanted | self._wanted
            if not isinstance(error, SessionGone):  # a new session reads everything
                known = isinstance(error, ZooKeeperError)
                text = str(error) if known else "".join(traceback.format_exception(error)).rstrip()
                self._note("warning" if known else "error", f"quotas and credentials are not read yet: {text}")
                self._clock.call_later(RETRY_MS, self._read_wanted)
            return
        configs = {path: self._config(row) for path, row in rows.items()}
        for take in self._takers:
            take(configs, whole=wanted is None)
        self._read_wanted()

    def _config(self, row: Znode | None) -> Mapping[str, str] | None:
        try:
            return {} if row is None else decode_config(row.path, row.data).config
        except DamagedZnode as damaged:
            self._note("error", f"{damaged}; what was known of it stays")
            return None

    async def _read(self, wanted: Iterable[str] | None) -> dict[str, Znode | None]:
        names = await entity_paths(self._client) if wanted is None else list(wanted)
        return await read_entities(self._client, names)

    def _note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))


async def read_entities(client: ZooKeeperClient, names: Collection[str]) -> dict[str, Znode | None]:
    rows = (await client.read([f"{paths.CONFIG}/{name}" for name in names])).rows if names else ()
    return dict(zip(names, rows, strict=True))


async def entity_paths(client: ZooKeeperClient, user: str | None = None, client_id: str | None = None) -> list[str]:
    """Those of all entities, or of those with that user or that client id."""
    roots = [paths.CONFIG_USERS, paths.CONFIG_CLIENTS, paths.CONFIG_IPS]
    all_users, clients, ips = (names or () for names in (await client.children(roots)).children)
    users = [name for name in all_users if user is None or name == user]
    below = [f"{paths.CONFIG_USERS}/{name}/clients" for name in users]
    listing = (await client.children(below)).children if below else ()
    return [
        *(f"users/{name}" for name in users),
        *(f"clients/{name}" for name in clients if client_id is None or name == client_id),
        *(
            f"users/{name}/clients/{one}"
            for name, names in zip(users, listing, strict=True)
            for one in names or ()
            if client_id is None or one == client_id
        ),
        *(f"ips/{name}" for name in ips),
    ]
