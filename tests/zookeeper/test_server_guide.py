"""The example in the documentation of the ZooKeeper server in Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "zookeeper-server.md"


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(GUIDE), "exec"), {})
