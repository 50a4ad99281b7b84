"""Reads this broker's configs from ZooKeeper and follows their changes.

A topic's config is read when its first log is created here. All topic configs and the dynamic broker configs are read
at the start and again in each new session, since notices may have been created and deleted between sessions. Within a
session, /config/changes says whose config changed. Notices are processed in order, each once. The config that a notice
names is read again, so that a late notice never brings back an older value. Notices that all brokers have had time to
read are deleted by the next broker that checks (Kafka's ZkNodeChangeNotificationListener).

`look` and `wanted` are called on the broker's thread, where the result of a read is also applied. ZooKeeper is read by
one coroutine at a time.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from controller.broker.configs.topic_configs import NOTHING, TopicConfigs
from controller.clock import Clock, Timer
from controller.core.topic_rules import name_fault
from controller.pending import Pending
from controller.trace import Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_data_writes import BrokerDataWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_config, decode_config_change
from controller.zookeeper.drive import drive
from controller.zookeeper.errors import DamagedZnode, SessionGone, ZooKeeperError
from controller.zookeeper.operations import Row

NOTICE_LIFE_MS = 15 * 60 * 1000
"""Kafka's: how long a notice is left for brokers that have not looked yet."""
DELETED_A_LOOK = 100
RETRY_MS = 5_000.0
_DEFAULT = "brokers/<default>"
NO_SESSION = 0


@dataclass(frozen=True, slots=True)
class _Found:
    """What one look has read. A topic without a config has an empty one; `brokers`: this one's and that of all, None
    if it was not looked."""

    session: int
    last_notice: int
    topics: Mapping[str, Mapping[str, str]]
    brokers: tuple[Mapping[str, str], Mapping[str, str]] | None
    old_notices: tuple[str, ...]


class ConfigWatch:
    """`start` once there is a session; the standing watch on /config/changes is not set here."""

    def __init__(
        self, broker_id: int, client: ZooKeeperClient, configs: TopicConfigs, clock: Clock, trace: Trace
    ) -> None:
        self._broker_id = broker_id
        self._client = client
        self._writes = BrokerDataWrites(client)
        self._configs = configs
        self._clock = clock
        self._trace = trace
        self._topics: dict[str, None] = {}
        """Those that have a replica here."""
        self._wanted: dict[str, None] = {}
        """Of these, those whose config is to be read whatever the notices say."""
        self._session = NO_SESSION
        self._last_notice = -1
        self._looking = False
        self._look_again = False
        self._later: Timer | None = None
        self.looked: Callable[[Collection[str]], None] = lambda _topics: None
        """Hears which topics that were wanted have been read, or can't be."""

    def wanted(self, topics: Iterable[str]) -> None:
        """Logs of these topics are made: what their configs are now has to be read. What can be no topic has none."""
        named = dict.fromkeys(sys.intern(topic) for topic in topics if name_fault(topic) is None)
        if named:
            self._topics.update(named)
            self._wanted.update(named)
            self.look()

    def gone(self, topic: str) -> None:
        """No replica of it is here any more."""
        self._topics.pop(topic, None)
        self._wanted.pop(topic, None)
        self._configs.forget_topic(topic)

    def look(self) -> None:
        """Something may have changed, or there is a new session."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._looking:
            self._look_again = True
            return
        self._looking, self._look_again = True, False
        wanted = tuple(self._wanted)
        self._wanted.clear()
        found = drive(self._read(self._session, self._last_notice, tuple(self._topics), wanted))
        found.on_done(lambda: self._hop(found, wanted))

    def _hop(self, found: Pending[_Found], wanted: tuple[str, ...]) -> None:
        self._clock.call_later(0.0, lambda: self._taken(found, wanted))

    def _taken(self, pending: Pending[_Found], wanted: tuple[str, ...]) -> None:
        self._looking = False
        try:
            found = pending.result()
        except SessionGone:
            # The next session's start reads everything again; a retry before it could not succeed.
            self._failed(wanted, None)
            return
        except ZooKeeperError as error:
            self._trace.emit(Noted("warning", f"configs are not read yet: {error}"))
            self._failed(wanted, RETRY_MS)
            return
        except Exception:  # noqa: BLE001 - a bug, logged with its traceback; the next check starts afresh
            self._trace.emit(Noted("error", f"reading configs failed\n{traceback.format_exc()}"))
            self._failed(wanted, RETRY_MS)
            return
        self._session, self._last_notice = found.session, found.last_notice
        if found.brokers is not None:
            self._configs.learn_brokers(*found.brokers)
        # One may have gone meanwhile.
        self._configs.learn_topics({topic: config for topic, config in found.topics.items() if topic in self._topics})
        if found.old_notices:
            self._delete(found.old_notices)
        self.looked(wanted)
        if self._look_again or self._wanted:
            self.look()

    def _failed(self, wanted: tuple[str, ...], retry_ms: float | None) -> None:
        self._wanted.update(dict.fromkeys(topic for topic in wanted if topic in self._topics))
        if self._look_again:
            self.look()
        elif retry_ms is not None and self._later is None:
            self._later = self._clock.call_later(retry_ms, self.look)

    def _delete(self, names: tuple[str, ...]) -> None:
        deletion = drive(self._writes.remove_config_changes(names))

        def done() -> None:
            if isinstance(deletion.error, ZooKeeperError):
                self._trace.emit(Noted("debug", f"old config notices are left for the next look: {deletion.error}"))

        deletion.on_done(done)

    # -- asking ZooKeeper; nothing of this object is changed here, for an answer may come on another thread

    async def _read(self, session: int, last_notice: int, here: tuple[str, ...], wanted: tuple[str, ...]) -> _Found:
        now = self._client.session()
        # Before what they are about is read: what changes meanwhile brings a notice, and another look.
        (names,) = (await self._client.children([paths.CONFIG_CHANGES])).children
        notices = sorted((number, name) for name in names or () if (number := notice_number(name)) is not None)
        latest = max((number for number, _ in notices), default=last_notice)
        old = await self._old([name for number, name in notices[:DELETED_A_LOOK] if number <= last_notice])
        if now != session:
            return _Found(now, latest, await self._configs_of(here), await self._brokers(), old)
        rows = await self._notices([name for number, name in notices if number > last_notice])
        entities = dict.fromkeys(entity for row in rows if row is not None and (entity := self._entity(row)))
        changed = [entity.removeprefix("topics/") for entity in entities if entity.startswith("topics/")]
        topics = tuple(dict.fromkeys([*(topic for topic in changed if topic in here), *wanted]))
        brokers = await self._brokers() if {f"brokers/{self._broker_id}", _DEFAULT} & entities.keys() else None
        return _Found(now, max(latest, last_notice), await self._configs_of(topics), brokers, old)

    async def _old(self, names: list[str]) -> tuple[str, ...]:
        """Of notices that were read before, those that every broker has had the time to read."""
        rows = await self._notices(names)
        return tuple(name for name, row in zip(names, rows, strict=True) if row is not None and self._is_old(row))

    async def _notices(self, names: list[str]) -> tuple[Row | None, ...]:
        wanted = [paths.child(paths.CONFIG_CHANGES, name) for name in names]
        return (await self._client.read(wanted)).rows if wanted else ()

    async def _configs_of(self, topics: tuple[str, ...]) -> dict[str, Mapping[str, str]]:
        if not topics:
            return {}
        rows = (await self._client.read([paths.config_topic(topic) for topic in topics])).rows
        configs = {topic: self._config(row) for topic, row in zip(topics, rows, strict=True)}
        return {topic: config for topic, config in configs.items() if config is not None}

    async def _brokers(self) -> tuple[Mapping[str, str], Mapping[str, str]] | None:
        rows = (await self._client.read([paths.config_broker(self._broker_id), paths.CONFIG_BROKER_DEFAULT])).rows
        own, default = (self._config(row) for row in rows)
        return None if own is None or default is None else (own, default)

    def _config(self, row: Row | None) -> Mapping[str, str] | None:
        """None if it can't be read, and then what was known of it stays."""
        try:
            return NOTHING if row is None else decode_config(row.path, row.data).config
        except DamagedZnode as damaged:
            self._trace.emit(Noted("error", str(damaged)))
            return None

    def _entity(self, row: Row) -> str | None:
        try:
            return decode_config_change(row.path, row.data).entity_path
        except DamagedZnode as damaged:
            self._trace.emit(Noted("error", str(damaged)))
            return None

    def _is_old(self, row: Row) -> bool:
        return self._clock.wall_ms() - row.stat.ctime_ms > NOTICE_LIFE_MS


def notice_number(name: str) -> int | None:
    """A notice's place in the order in which they were left; None for what is none."""
    digits = name.removeprefix(paths.CONFIG_CHANGE_PREFIX)
    return int(digits) if digits != name and digits.isascii() and digits.isdecimal() else None
