"""meta.properties in each log directory, as Kafka keeps it: the broker and the cluster that the directory belongs to.

Kafka 2.8's rules (BrokerMetadataCheckpoint, KafkaServer.getOrGenerateBrokerId): the directories of a broker agree, a
`broker.id` that is set is the one kept, and the file is written once the broker is registered. A file that can't be
understood is refused: to take the directory for a new one's would mix two brokers' or two clusters' logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from controller.broker.settings import GENERATED, BadSettings, BrokerSettings
from controller.system import sync_directory
from controller.zookeeper.blocking import run, wait
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import ZooKeeperClient

META_PROPERTIES = "meta.properties"
VERSION = 0
"""Of brokers with ZooKeeper; KRaft's have version 1."""
_WAY_OUT = (
    "restore the file from another log directory of this broker, or remove it if the directory is known to belong to"
    " this broker and cluster"
)


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """None where the file does not say it; `cluster_id` is missing in directories of earlier versions."""

    broker_id: int | None = None
    cluster_id: str | None = None


def kept_broker_id(settings: BrokerSettings) -> BrokerSettings:
    """The settings with the broker id and the cluster id that the log directories keep, if they keep them. BadSettings
    if a file is damaged, if the directories differ, if they keep another broker id than is set, or if none is set and
    there is nowhere to keep one."""
    kept = {directory: found for directory in settings.log_dirs if (found := _read(Path(directory))) is not None}
    broker_ids = {directory: found.broker_id for directory, found in kept.items() if found.broker_id is not None}
    cluster_ids = {directory: found.cluster_id for directory, found in kept.items() if found.cluster_id is not None}
    if len(set(broker_ids.values())) > 1:
        raise BadSettings((f"log.dirs: the directories are of different brokers: {broker_ids}",))
    if len(set(cluster_ids.values())) > 1:
        raise BadSettings((f"log.dirs: the directories are of different clusters: {cluster_ids}",))
    settings = replace(settings, cluster_id=next(iter(cluster_ids.values()), None))
    broker_id = next(iter(broker_ids.values()), GENERATED)
    if settings.broker_id == GENERATED:
        if broker_id == GENERATED and not settings.log_dirs:
            raise BadSettings(("broker.id=-1: expected log.dirs, where a generated id can be kept",))
        return settings.with_broker_id(broker_id)
    if broker_id not in (GENERATED, settings.broker_id):
        raise BadSettings((f"broker.id={settings.broker_id}: expected {broker_id}, which the log directories are of",))
    return settings


def unreadable(directories: Iterable[str]) -> Mapping[str, OSError]:
    """The directories whose meta.properties exists and can't be read, with the error: they can't be used."""
    found: dict[str, OSError] = {}
    for directory in directories:
        try:
            (Path(directory) / META_PROPERTIES).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue  # none is kept, or the directory can't be opened either, which the logs will say
        except OSError as error:
            found[directory] = error
    return found


def generate_broker_id(settings: BrokerSettings, client: ZooKeeperClient) -> int:
    """A new id from a started client's ZooKeeper, kept in each log directory. OSError if it can't be."""
    limit_s = settings.zookeeper_connection_timeout_ms / 1_000.0
    wait(client.start(), limit_s)
    broker_id = run(BrokerWrites(client).generate_broker_id(), limit_s)
    for directory in settings.log_dirs:
        keep(directory, MetaProperties(broker_id, settings.cluster_id))
    return broker_id


def keep(directory: str, wanted: MetaProperties) -> None:
    """Writes the file unless it says this already. OSError if it can't be written."""
    path = Path(directory)
    if _read(path) == wanted:
        return
    lines = [f"version={VERSION}", f"broker.id={wanted.broker_id}"]
    if wanted.cluster_id is not None:
        lines.append(f"cluster.id={wanted.cluster_id}")
    _write(path, "".join(f"{line}\n" for line in lines))


def _read(directory: Path) -> MetaProperties | None:
    """None: there is no file, an empty one, or one that can't be read (`unreadable`)."""
    path = directory / META_PROPERTIES
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if not data.strip():
        return None  # as a loss of power leaves it; what it said is written again
    # Imported for a file only: it takes a noticeable part of a broker's start.
    import javaproperties

    try:
        values = javaproperties.loads(data.decode("latin-1"))
    except javaproperties.InvalidUEscapeError as error:
        raise _damaged(path, str(error)) from None
    if values.get("version", str(VERSION)).strip() != str(VERSION):
        raise _damaged(path, f"version={values['version']}: expected {VERSION}, which brokers with ZooKeeper have")
    if "broker.id" not in values and "cluster.id" not in values:
        raise _damaged(path, "neither broker.id nor cluster.id: expected the lines version=0, broker.id=, cluster.id=")
    text, cluster_id = values.get("broker.id"), values.get("cluster.id", "").strip()
    if text is not None and not (text.strip().isascii() and text.strip().isdecimal() and len(text.strip()) <= 10):
        raise _damaged(path, f"broker.id={text}: expected a whole number")
    if not (cluster_id.isascii() and cluster_id.isprintable()):
        raise _damaged(path, f"cluster.id={cluster_id!r}: expected printable ASCII")
    return MetaProperties(None if text is None else int(text), cluster_id or None)


def _damaged(path: Path, what: str) -> BadSettings:
    return BadSettings((f"{path} is damaged: {what}; {_WAY_OUT}",))


def _write(directory: Path, text: str) -> None:
    """Whole or not at all: a torn file would be another broker's at the next start."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / META_PROPERTIES
    unfinished = path.with_suffix(".properties.tmp")
    with unfinished.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(directory)
