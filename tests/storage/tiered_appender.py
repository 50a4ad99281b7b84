"""An appender to a log on two tiers, to be killed: `python -m tests.storage.tiered_appender DIRECTORY SEED`.

Appends, rolls, copies to an HDD a piece at a time, evicts, changes the tier that is appended to, truncates and flushes,
and says on standard output, a line each, up to which offset it has flushed.
"""

from __future__ import annotations

import random
import sys
import time

from controller.storage import LogDirectory
from controller.storage.disk_files import FileDisk
from controller.storage.tiered_log import TieredLog, TierSteps, copying
from statemachines.tier_placement import Tier, next_to_copy, to_evict
from tests.storage.appender import PARTITION, SETTINGS, made


def open_tiers(path: str) -> tuple[LogDirectory, list[LogDirectory]]:
    """The log directory on the SSD, and those on HDDs."""
    disk = FileDisk()

    def opened(name: str, hdds: list[LogDirectory]) -> LogDirectory:
        stores = [one.as_store() for one in hdds]
        now_ms = time.time
        return LogDirectory(disk, f"{path}/{name}", lambda _: SETTINGS, lambda: int(now_ms() * 1000), stores=stores)

    hdds = [opened("hdd1", []), opened("hdd2", [])]
    return opened("ssd", hdds), hdds


def step(copy: TierSteps) -> bool:
    """Whether the copy goes on."""
    try:
        copy.send(next(copy)())
    except StopIteration:
        return False
    return True


def main(path: str, seed: int) -> None:
    draw = random.Random(seed)
    directory, _ = open_tiers(path)
    directory.health.check()
    log = directory.create(PARTITION)
    assert isinstance(log, TieredLog)
    copy: TierSteps | None = None
    print("ready", flush=True)
    while True:
        log.append_as_leader(made(seed, log.log_end_offset), seed % 100_000)
        if copy is None and (segment := next_to_copy(log.segments)) is not None:
            copy = copying(log, segment)
        if copy is not None and not step(copy):
            copy = None
        if draw.random() < 0.05:
            used = log.ssd_bytes()
            for one in to_evict(log.segments, used, used // 2, used // 3):
                log.evict(one)
        if draw.random() < 0.01:
            log.tiers.append_to = draw.choice(list(Tier))
        if draw.random() < 0.02:
            log.flush()
            print(log.log_end_offset, flush=True)
            if draw.random() < 0.3:
                directory.checkpoint_recovery_points()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
