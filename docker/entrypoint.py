"""A container's first process: becomes `camerlengo broker`, with settings taken from the environment.

`KAFKA_ZOOKEEPER_CONNECT=...` is the setting `zookeeper.connect`: the names are those of the images of Kafka itself,
where `_` stands for a dot, `__` for an underscore and `___` for a dash. Arguments are handed on, after the environment,
so that `--override NAME=VALUE` goes before it. Standard library alone; decides nothing about a setting's value, which
is the broker's to judge, and it refuses names that it does not know.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

PREFIX = "KAFKA_"
_STANDS_FOR = {"_": ".", "__": "_", "___": "-"}


def setting_name(variable: str) -> str:
    """The setting that an environment variable names, its prefix left away."""
    return re.sub("_{1,3}", lambda run: _STANDS_FOR[run[0]], variable.removeprefix(PREFIX).lower())


def command(environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """The broker's command line. An empty variable is one that is not set: compose files can't leave one out."""
    overrides = [
        word
        for variable, value in sorted(environment.items())
        if variable.startswith(PREFIX) and value
        for word in ("--override", f"{setting_name(variable)}={value}")
    ]
    return [sys.executable, "-m", "controller.cli", "broker", *overrides, *arguments]


if __name__ == "__main__":
    words = command(os.environ, sys.argv[1:])
    # Not a child: the broker is to be the process that gets the container's signals.
    os.execv(words[0], words)
