"""The default handler for a task's exception: it is logged, as everything here is."""

from __future__ import annotations

from controller.log import logger
from controller.timer.task import TimerTask


def log_failure(task: TimerTask, error: Exception) -> None:
    logger.opt(exception=error).error("a timer's task failed: {!r}", task)
