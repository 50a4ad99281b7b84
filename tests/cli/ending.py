"""The command line in this process: how a call ends, whether argparse or the command itself ends it."""

from __future__ import annotations

from collections.abc import Sequence

from controller.cli.main import main


def status_of(words: Sequence[str]) -> int:
    """Return the exit status that the program would have."""
    try:
        return main(list(words))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else -1
