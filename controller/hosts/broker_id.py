"""A broker's id when none is set: the one generated at its first start, kept in meta.properties as Kafka keeps it."""

from __future__ import annotations

import os
from pathlib import Path

from controller.broker.configs.settings import GENERATED, BadSettings, BrokerSettings
from controller.zookeeper.blocking import run, wait
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import ZooKeeperClient

META_PROPERTIES = "meta.properties"


def kept_broker_id(settings: BrokerSettings) -> BrokerSettings:
    """The settings with the id that the log directories keep, if they keep one. BadSettings if they keep another than
    is set, or none is set and there is nowhere to keep one."""
    kept = {directory: found for directory in settings.log_dirs if (found := _read(Path(directory))) is not None}
    if len(set(kept.values())) > 1:
        raise BadSettings((f"log.dirs: the directories are of different brokers: {kept}",))
    broker_id = next(iter(kept.values()), GENERATED)
    if settings.broker_id == GENERATED:
        if broker_id == GENERATED and not settings.log_dirs:
            raise BadSettings(("broker.id=-1: expected log.dirs, where a generated id can be kept",))
        return settings.with_broker_id(broker_id)
    if broker_id not in (GENERATED, settings.broker_id):
        raise BadSettings((f"broker.id={settings.broker_id}: expected {broker_id}, which the log directories are of",))
    return settings


def generate_broker_id(settings: BrokerSettings, client: ZooKeeperClient) -> int:
    """A new id from a started client's ZooKeeper, kept in each log directory. OSError if it can't be."""
    limit_s = settings.zookeeper_connection_timeout_ms / 1_000.0
    wait(client.start(), limit_s)
    broker_id = run(BrokerWrites(client).generate_broker_id(), limit_s)
    for directory in settings.log_dirs:
        _write(Path(directory), broker_id)
    return broker_id


def _read(directory: Path) -> int | None:
    try:
        lines = (directory / META_PROPERTIES).read_text(encoding="ascii").splitlines()
    except OSError:  # none is kept, or what keeps it can't be read: then its logs can't either, which will be told
        return None
    values = dict(line.partition("=")[::2] for line in lines if "=" in line)
    text = values.get("broker.id", "").strip()
    return int(text) if text.isdigit() else None


def _write(directory: Path, broker_id: int) -> None:
    """Whole or not at all: a torn file would be another broker's at the next start."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / META_PROPERTIES
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", encoding="ascii") as file:
        file.write(f"version=0\nbroker.id={broker_id}\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
