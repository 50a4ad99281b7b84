"""`camerlengo broker`: one broker, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from controller.broker.settings import GENERATED, BadSettings, BrokerSettings, parse_properties, parse_settings
from controller.cli.main import UsageError
from controller.cli.running import Announcement

LOG_LEVELS = ("debug", "info", "warning", "error")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings file with Kafka's names (server.properties)"
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting that overrides the file's; may be repeated",
    )
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="level of the log on standard error (info)"
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = parse_settings(settings_file(arguments.config) | overrides(arguments.override))
        # Imported now: a usage error needs no broker.
        from controller.hosts.process import run_broker

        with Announcement("broker") as announcement:

            def announce(found: BrokerSettings) -> None:
                content = {"broker.id": found.broker_id, "zookeeper.connect": found.zookeeper_connect}
                announcement.put({"pid": os.getpid(), **content})

            if settings.broker_id != GENERATED:
                announce(settings)
            return run_broker(settings, arguments.log_level.upper(), announce, announcement.note_end)
    except BadSettings as error:
        raise UsageError("\n  ".join(("bad settings:", *error.problems))) from error


def settings_file(path: Path | None) -> dict[str, str]:
    """The names and values in a server.properties file. Raises UsageError and BadSettings."""
    if path is None:
        return {}
    try:
        source = path.read_text(encoding="latin-1")  # as Java reads them; anything else is a \u escape
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    return parse_properties(source)


def overrides(given: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE pairs; the last of a name holds. UsageError for one without `=`."""
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--override {pair}: expected NAME=VALUE")
        found[name] = value
    return found
