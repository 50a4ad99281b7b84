"""The effective configs of each topic: the topic's config over the broker's dynamic configs over its settings.

State and rules alone; `config_watch.py` reads ZooKeeper and passes the results in. A topic whose config has not been
read yet is treated so that nothing is lost that the config may protect: retention deletes none of its records, and no
record is acknowledged with acks=all (Kafka reads the config before it creates the log, and waits for ZooKeeper).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from controller.broker.configs.settings import BrokerSettings
from controller.core.topic_settings import (
    BY_BROKER_NAME,
    THROTTLE_RATES,
    TOPIC_SETTINGS,
    elements,
)
from controller.storage import LogSettings
from controller.storage.settings import TOPIC_NAMES as OF_LOGS
from controller.storage.settings import UNLIMITED
from controller.trace import Noted, Trace

MORE_THAN_ANY_ISR = 2**31 - 1
NOTHING: Mapping[str, str] = MappingProxyType({})


class TopicConfigs:
    """`changed` is called with the topics whose settings may be others now, None for all of them."""

    def __init__(self, settings: BrokerSettings, trace: Trace) -> None:
        self._settings = settings
        self._trace = trace
        self._topics: dict[str, Mapping[str, str]] = {}
        self._logs: dict[str | None, LogSettings] = {}
        """Of the topics whose config is known; None: of all others."""
        self._min_insync: dict[str, int] = {}
        """Of those that were asked for; by produce requests, again and again."""
        self.changed: Callable[[Collection[str] | None], None] = lambda _topics: None
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

    def throttled_replicas(self, name: str, topic: str) -> str:
        """leader. or follower.replication.throttled.replicas of a topic whose config is known."""
        return self._value(self._topics.get(topic, NOTHING), name)

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
            self.changed(others)

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
        self.changed(None)

    # -- logs

    def _log_settings(self, config: Mapping[str, str] | None) -> LogSettings:
        settings = self._of_log({} if config is None else config)
        if config is None or not self._deletes(config):
            # Nothing compacts here, and what a compacted topic keeps is not to go by age.
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
