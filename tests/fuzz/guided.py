"""The campaign's targets under atheris, which looks for inputs that reach new code: `python -m tests.fuzz.guided`.

Needs the extra `fuzz` (Linux). Bounded in time; libFuzzer prints how much was reached and, after a crash, the input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import atheris

with atheris.instrument_imports(include=["controller"]):
    from tests.fuzz.targets import targets

INPUT_LIMIT_S = 5
MEMORY_LIMIT_MIB = 1_024


def main(arguments: Sequence[str]) -> None:
    """Ends the process: 0 when the time is up with nothing found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args(arguments)
    fed = targets()

    def one_input(data: bytes) -> None:
        """The first byte chooses the target."""
        if data:
            fed[data[0] % len(fed)].feed(data[1:])

    limits = [f"-max_total_time={given.seconds}", f"-timeout={INPUT_LIMIT_S}", f"-rss_limit_mb={MEMORY_LIMIT_MIB}"]
    atheris.Setup([sys.argv[0], *limits], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
