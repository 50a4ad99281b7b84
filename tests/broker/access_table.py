"""The table of checks for the documentation: `python -m tests.broker.access_table`."""

from __future__ import annotations

from controller.broker.security.table import documentation

if __name__ == "__main__":
    print("\n".join(documentation()))
