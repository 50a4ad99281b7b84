"""The library's logger. It is silent until an application calls `loguru.logger.enable("controller")`.

Modules of this project import `logger` from here and never from loguru itself. The package's own `__init__` does not
import loguru: that takes longer than all else that the command line does before it handles signals.
"""

from loguru import logger

logger.disable("controller")

__all__ = ["logger"]
