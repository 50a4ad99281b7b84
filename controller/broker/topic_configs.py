"""The effective configs of each topic, read from ZooKeeper: a topic's own, the brokers' dynamic configs, the
settings, in this order of precedence.

A topic whose config has not been read yet is treated so that nothing is lost that the config may protect: retention
deletes none of its records, and no record is acknowledged with acks=all (Kafka reads the config before it creates the
log, and waits for ZooKeeper).

`ConfigWatch` reads a topic's config when its first log is created here. All topic configs and the dynamic broker
configs are read at the start and again in each new session, since notices may have been created and deleted between
sessions. Within a session, /config/changes says whose config changed. Notices are processed in order, each once. The
config that a notice names is read again, so that a late notice never brings back an older value. Notices that all
brokers have had time to read are deleted by the next broker that checks (Kafka's ZkNodeChangeNotificationListener).

`ConfigGate` delays a LeaderAndIsr request until the configs of its new topics have been read, so that
min.insync.replicas applies from a topic's first record on. Requests are handled in the order of their arrival. None
waits for longer than a limit, because leaders must also be informed while ZooKeeper is unavailable.
"""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import msgspec

from controller.broker.request_context import on_broker_thread
from controller.broker.settings import BrokerSettings
from controller.clock import Clock, Future, Timer, spawn
from controller.core.topic_settings import (
    BROKER_ALONE,
    BY_BROKER_NAME,
    THROTTLE_RATES,
    TOPIC_SETTINGS,
    elements,
    name_fault,
)
from controller.protocol.control import LeaderAndIsrRequest
from controller.storage import LogSettings
from controller.storage.settings import TOPIC_NAMES as OF_LOGS
from controller.storage.settings import UNLIMITED
from controller.trace import Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_config, decode_config_change
from controller.zookeeper.operations import DamagedZnode, SessionGone, Znode, ZooKeeperError

MORE_THAN_ANY_ISR = 2**31 - 1
NOTHING: Mapping[str, str] = MappingProxyType({})


class TopicConfigs:
    """`changed` is called with the topics whose settings may be others now, None for all of them."""

    def __init__(
        self,
        settings: BrokerSettings,
        trace: Trace,
        changed: Callable[[Collection[str] | None], None] = lambda _topics: None,
    ) -> None:
        self._settings = settings
        self._trace = trace
        self._changed = changed
        self._topics: dict[str, Mapping[str, str]] = {}
        self._logs: dict[str | None, LogSettings] = {}
        """Of the topics whose config is known; None: of all others."""
        self._min_insync: dict[str, int] = {}
        """Of those that were asked for; by produce requests, again and again."""
        self.broker: Mapping[str, str] = NOTHING
        """/config/brokers/N, this broker's."""
        self.default: Mapping[str, str] = NOTHING
        """/config/brokers/<default>, for all that have no own."""

    # -- what is asked

    def known(self, topic: str) -> bool:
        """Whether its config has been read."""
        return topic in self._topics

    def log_settings(self, topic: str) -> LogSettings:
        name = topic if topic in self._topics else None
        found = self._logs.get(name)
        if found is None:
            found = self._logs[name] = self._log_settings(self._topics.get(topic))
        return found

    def min_insync(self, topic: str) -> int:
        known = self._min_insync.get(topic)
        if known is None:
            if topic not in self._topics:
                return MORE_THAN_ANY_ISR
            known = self._min_insync[topic] = int(self._value(self._topics[topic], "min.insync.replicas"))
        return known

    def throttle_rate(self, name: str) -> int | None:
        """One of `THROTTLE_RATES`, in bytes a second; None: none was set."""
        if name not in self.broker and name not in self.default:
            return None
        rate = THROTTLE_RATES[name]
        for dynamic in (self.broker, self.default):
            text = dynamic.get(name)
            if text is not None and rate.fault(text) is None:
                return int(text)
        return None

    def of_cleaner(self, name: str) -> str:
        """What a setting of `BROKER_ALONE` comes to for this broker. A value that is not valid is passed over."""
        setting = BROKER_ALONE[name]
        for text in (one.get(name) for one in (self.broker, self.default, self._settings.given)):
            if text is not None and setting.fault(text) is None:
                return text.strip()
        return setting.default

    def throttled_replicas(self, name: str, topic: str) -> str:
        """leader. or follower.replication.throttled.replicas of a topic whose config is known."""
        return self._value(self._topics.get(topic, NOTHING), name)

    def throttle(self, role: str) -> tuple[Callable[[], int | None], Callable[[str], str]]:
        """The throttled rate and each topic's throttled replicas; `role`: leader or follower."""
        rate, replicas = f"{role}.replication.throttled.rate", f"{role}.replication.throttled.replicas"
        return partial(self.throttle_rate, rate), partial(self.throttled_replicas, replicas)

    def deletes(self, topic: str) -> bool | None:
        """Whether its records may be deleted; None if its config has not been read yet."""
        config = self._topics.get(topic)
        return None if config is None else self._deletes(config)

    def _deletes(self, config: Mapping[str, str]) -> bool:
        return "delete" in elements(self._value(config, "cleanup.policy"))

    def shown(self, config: Mapping[str, str]) -> dict[str, str]:
        """What each setting of a topic with that config comes to, as a text."""
        log = self._of_log(config)
        return {name: log.topic_text(name) if name in OF_LOGS else self._value(config, name) for name in TOPIC_SETTINGS}

    def _value(self, config: Mapping[str, str], name: str) -> str:
        """What a setting of a topic with that config comes to: its own, or else the broker's. A value that no such
        setting can have is passed over."""
        setting = TOPIC_SETTINGS[name]
        brokers = (one.get(setting.broker) for one in (self.broker, self.default, self._settings.given))
        for text in (config.get(name), *brokers):
            if text is not None and setting.fault(text) is None:
                return text.strip()
        return setting.default

    # -- what was found out

    def learn_topics(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Their configs, as they were read now; that of a topic without any is empty."""
        others = [topic for topic, config in configs.items() if self._topics.get(topic) != config]
        for topic in others:
            self._topics[topic] = dict(configs[topic]) or NOTHING  # as most are
            self._complain(f"topic {topic}", _faults(configs[topic]))
            self._logs.pop(topic, None)
            self._min_insync.pop(topic, None)
        if others:
            self._changed(others)

    def forget_topic(self, topic: str) -> None:
        """No replica of it is here any more. One of the same name that is made later has a config of its own."""
        self._topics.pop(topic, None)
        self._logs.pop(topic, None)
        self._min_insync.pop(topic, None)

    def learn_brokers(self, broker: Mapping[str, str], default: Mapping[str, str]) -> None:
        if (self.broker, self.default) == (broker, default):
            return
        self.broker, self.default = dict(broker), dict(default)
        self._complain("this broker", _dynamic_faults(broker))
        self._complain("all brokers", _dynamic_faults(default))
        self._logs.clear()
        self._min_insync.clear()
        self._changed(None)

    # -- logs

    def _log_settings(self, config: Mapping[str, str] | None) -> LogSettings:
        settings = self._of_log({} if config is None else config)
        if config is None:
            settings = replace(settings, compacted=False)  # it may be one whose records are all to be kept
        if config is None or not self._deletes(config):
            # What a compacted topic keeps is not to go by age.
            return replace(settings, retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
        return settings

    def _of_log(self, config: Mapping[str, str]) -> LogSettings:
        settings = self._settings.log
        for dynamic in (self.default, self.broker):
            settings = settings.with_broker({name: text for name, text in dynamic.items() if _is_sound(name, text)})
        return settings.with_topic({name: text for name, text in config.items() if not _faults({name: text})})

    def _complain(self, whose: str, faults: list[str]) -> None:
        for fault in faults:
            self._trace.emit(Noted("warning", f"config of {whose}: passed over: {fault}"))


def _faults(config: Mapping[str, str]) -> list[str]:
    """Return the errors in a topic's config as others wrote it; unknown names are no error."""
    found = [TOPIC_SETTINGS[name].fault(text) for name, text in config.items() if name in TOPIC_SETTINGS]
    return [fault for fault in found if fault is not None]


def _dynamic_faults(config: Mapping[str, str]) -> list[str]:
    found = [BY_BROKER_NAME[name].fault(text, name) for name, text in config.items() if name in BY_BROKER_NAME]
    return [fault for fault in found if fault is not None]


def _is_sound(name: str, text: str) -> bool:
    return name in BY_BROKER_NAME and BY_BROKER_NAME[name].fault(text) is None


NOTICE_LIFE_MS = 15 * 60 * 1000
"""Kafka's: how long a notice is left for brokers that have not looked yet."""
DELETED_A_LOOK = 100
RETRY_MS = 5_000.0
_DEFAULT = "brokers/<default>"
NO_SESSION = 0


class _Found(msgspec.Struct, frozen=True):
    """What one look has read. A topic without a config has an empty one; `brokers`: this one's and that of all, None
    if it was not looked. `entities`: what notices named, None in a new session."""

    session: int
    last_notice: int
    topics: Mapping[str, Mapping[str, str]]
    brokers: tuple[Mapping[str, str], Mapping[str, str]] | None
    old_notices: tuple[str, ...]
    entities: tuple[str, ...] | None = None


class ConfigWatch:
    """`configs_read` is called with the wanted topics that have been read, or can't be. The standing watch on
    /config/changes is not set here."""

    def __init__(
        self,
        broker_id: int,
        client: ZooKeeperClient,
        configs: TopicConfigs,
        clock: Clock,
        trace: Trace,
        configs_read: Callable[[Collection[str]], None] = lambda _topics: None,
    ) -> None:
        self._configs_read = configs_read
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
        self._checking = False
        self._check_again = False
        self._later: Timer | None = None
        self.entities_changed: Callable[[Collection[str] | None], None] = lambda _entities: None
        """Called with what the notices of a look named, such as users/U; with None in a new session."""

    def wanted(self, topics: Iterable[str]) -> None:
        """Logs of these topics are made: what their configs are now has to be read. What can be no topic has none."""
        named = dict.fromkeys(sys.intern(topic) for topic in topics if name_fault(topic) is None)
        if named:
            self._topics.update(named)
            self._wanted.update(named)
            self.check()

    def topic_removed(self, topic: str) -> None:
        """No replica of it is here any more."""
        self._topics.pop(topic, None)
        self._wanted.pop(topic, None)
        self._configs.forget_topic(topic)

    def check(self) -> None:
        """Something may have changed, or there is a new session."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._checking:
            self._check_again = True
            return
        self._checking, self._check_again = True, False
        wanted = tuple(self._wanted)
        self._wanted.clear()
        found = spawn(self._read(self._session, self._last_notice, tuple(self._topics), wanted))
        on_broker_thread(found, self._clock, lambda: self._taken(found, wanted))

    def _taken(self, pending: Future[_Found], wanted: tuple[str, ...]) -> None:
        self._checking = False
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
        if found.entities != ():
            self.entities_changed(found.entities)
        self._configs_read(wanted)
        if self._check_again or self._wanted:
            self.check()

    def _failed(self, wanted: tuple[str, ...], retry_ms: float | None) -> None:
        self._wanted.update(dict.fromkeys(topic for topic in wanted if topic in self._topics))
        if self._check_again:
            self.check()
        elif retry_ms is not None and self._later is None:
            self._later = self._clock.call_later(retry_ms, self.check)

    def _delete(self, names: tuple[str, ...]) -> None:
        deletion = spawn(self._writes.remove_config_changes(names))

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
        return _Found(now, max(latest, last_notice), await self._configs_of(topics), brokers, old, tuple(entities))

    async def _old(self, names: list[str]) -> tuple[str, ...]:
        """Of notices that were read before, those that every broker has had the time to read."""
        rows = await self._notices(names)
        since_ms = self._clock.wall_ms() - NOTICE_LIFE_MS
        return tuple(name for name, row in zip(names, rows, strict=True) if row and row.stat.ctime_ms < since_ms)

    async def _notices(self, names: list[str]) -> tuple[Znode | None, ...]:
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

    def _config(self, row: Znode | None) -> Mapping[str, str] | None:
        """None if it can't be read, and then what was known of it stays."""
        try:
            return NOTHING if row is None else decode_config(row.path, row.data).config
        except DamagedZnode as damaged:
            self._trace.emit(Noted("error", str(damaged)))
            return None

    def _entity(self, row: Znode) -> str | None:
        try:
            return decode_config_change(row.path, row.data).entity_path
        except DamagedZnode as damaged:
            self._trace.emit(Noted("error", str(damaged)))
            return None


def notice_number(name: str) -> int | None:
    """A notice's place in the order in which they were left; None for what is none."""
    digits = name.removeprefix(paths.CONFIG_CHANGE_PREFIX)
    return int(digits) if digits != name and digits.isascii() and digits.isdecimal() else None


WAIT_MS = 2_000.0
"""Far below controller.socket.timeout.ms, after which the controller would ask again."""


class _Held(msgspec.Struct):
    missing: set[str]
    admit: Callable[[], None]
    timer: Timer | None = None


class ConfigGate:
    """`watch` reads the configs."""

    def __init__(
        self, broker_id: int, client: ZooKeeperClient, configs: TopicConfigs, clock: Clock, trace: Trace
    ) -> None:
        self._configs = configs
        self._clock = clock
        self._held: deque[_Held] = deque()
        self.watch = ConfigWatch(broker_id, client, configs, clock, trace, self._configs_read)

    def __len__(self) -> int:
        return len(self._held)

    def admit(self, request: LeaderAndIsrRequest, action: Callable[[], None]) -> None:
        """Calls `action` once, at once or later."""
        named = dict.fromkeys(topic.topic_name for topic in request.topic_states)
        missing = [topic for topic in named if not self._configs.known(topic) and name_fault(topic) is None]
        if not missing and not self._held:
            action()
            return
        held = _Held(set(missing), action)
        held.timer = self._clock.call_later(WAIT_MS, lambda: self._late(held))
        self._held.append(held)
        self.watch.wanted(missing)

    def _configs_read(self, topics: Collection[str]) -> None:
        """These were read, or can't be."""
        for held in self._held:
            held.missing.difference_update(topics)
        self._open()

    def _late(self, held: _Held) -> None:
        held.missing.clear()
        self._open()

    def _open(self) -> None:
        while self._held and not self._held[0].missing:
            held = self._held.popleft()
            if held.timer is not None:
                held.timer.cancel()
            held.admit()
