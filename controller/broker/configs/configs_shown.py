"""What a client is shown of a topic's or a broker's settings: each value, where it comes from, and what else it might
have been (its synonyms, the one that counts first). Pure; Kafka 2.8's ConfigHelper, but that a topic's value which
comes from another of the broker's names (log.retention.hours) is not called a default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controller.broker.configs.configs_table import ALTERNATIVES, BROKER_SETTINGS, BrokerSetting
from controller.broker.configs.settings import BrokerSettings
from controller.broker.configs.topic_configs import TopicConfigs
from controller.core.topic_settings import TOPIC_SETTINGS
from controller.protocol.admin_values import ConfigSynonym, DescribedConfig
from controller.protocol.client_values import (
    CONFIG_SOURCE_DEFAULT,
    CONFIG_SOURCE_DYNAMIC_BROKER,
    CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER,
    CONFIG_SOURCE_STATIC_BROKER,
    CONFIG_SOURCE_TOPIC,
)

Config = Mapping[str, str]


def topic_shown(configs: TopicConfigs, settings: BrokerSettings, config: Config) -> tuple[DescribedConfig, ...]:
    """All settings of a topic with that config."""
    values = configs.shown(config)
    shown = []
    for name, setting in TOPIC_SETTINGS.items():
        synonyms = [*_own(name, config)]
        if setting.broker:
            synonyms += _of_broker(setting.broker, configs.broker, configs.default, settings.given, setting.default)
        source = synonyms[0].source if synonyms else CONFIG_SOURCE_DEFAULT
        shown.append(
            DescribedConfig(
                name,
                values[name],
                read_only=False,
                config_source=source,
                is_default=source == CONFIG_SOURCE_DEFAULT,
                synonyms=tuple(synonyms),
                config_type=setting.kind,
                documentation=setting.documentation,
            )
        )
    return tuple(shown)


def _own(name: str, config: Config) -> Iterator[ConfigSynonym]:
    if name in config:
        yield ConfigSynonym(name, config[name], CONFIG_SOURCE_TOPIC)


def broker_shown(settings: BrokerSettings, broker: Config, default: Config) -> tuple[DescribedConfig, ...]:
    """All settings of this broker, with its own dynamic config and that of all brokers."""
    return tuple(_broker_setting(one, settings.given, broker, default) for one in BROKER_SETTINGS.values())


def all_brokers_shown(default: Config) -> tuple[DescribedConfig, ...]:
    """What is set for all brokers, and nothing else."""
    known = [BROKER_SETTINGS[name] for name in sorted(default) if name in BROKER_SETTINGS]
    return tuple(_broker_setting(one, {}, {}, default, with_default=False) for one in known)


def _broker_setting(
    setting: BrokerSetting, given: Config, broker: Config, default: Config, *, with_default: bool = True
) -> DescribedConfig:
    last = setting.default if with_default else None
    if setting.dynamic:
        synonyms = tuple(_of_broker(setting.name, broker, default, given, last))
    else:
        synonyms = tuple(_of_broker(setting.name, {}, {}, given, last))
    hidden = setting.is_sensitive
    if hidden:
        synonyms = tuple(ConfigSynonym(one.name, None, one.source) for one in synonyms)
    first = synonyms[0] if synonyms else ConfigSynonym(setting.name, None, CONFIG_SOURCE_DEFAULT)
    return DescribedConfig(
        setting.name,
        None if hidden else first.value,
        read_only=not setting.dynamic,
        is_sensitive=hidden,
        config_source=first.source,
        is_default=first.source == CONFIG_SOURCE_DEFAULT,
        synonyms=synonyms,
        config_type=setting.kind,
        documentation=setting.documentation,
    )


def _of_broker(name: str, broker: Config, default: Config, given: Config, last: str | None) -> Iterator[ConfigSynonym]:
    """The broker's values by that name, or another that means the same, as they count."""
    names = (name, *ALTERNATIVES.get(name, ()))
    sources = (
        (CONFIG_SOURCE_DYNAMIC_BROKER, broker),
        (CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER, default),
        (CONFIG_SOURCE_STATIC_BROKER, given),
    )
    for source, config in sources:
        for one in names:
            if one in config:
                yield ConfigSynonym(one, config[one], source)
    if last is not None:
        yield ConfigSynonym(name, last, CONFIG_SOURCE_DEFAULT)
