"""The scenarios with groups and transactions on many seeds: `python -m tests.simulator.transactions --seeds 0..49`."""

from __future__ import annotations

import argparse
import sys
import time

from controller.cli.values import seeds
from controller.scenarios.files import load_scenario
from controller.simulator.run import simulate

SCENARIOS = (
    "group-rebalance",
    "coordinator-kill",
    "transaction-kill",
    "zombie-producer",
    "exactly-once",
    "transaction-timeout",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--seeds", type=seeds, default=seeds("0..49"))
    arguments = parser.parse_args()
    violated = 0
    for name in arguments.scenarios:
        began_s, passed = time.process_time(), 0
        for seed in arguments.seeds:
            judgement = simulate(load_scenario(name), seed).report.judgement
            wrong = [each for each in judgement.invariants if each.held is not True]
            passed += not wrong
            for each in wrong[:3]:
                print(f"{name}, seed {seed}: {each.name}: {each.detail}", flush=True)
        count = len(arguments.seeds)
        violated += count - passed
        cpu_s = (time.process_time() - began_s) / count
        print(f"{name}: {passed} of {count} passed, {cpu_s:.2f} s of CPU each", flush=True)
    return min(violated, 1)


if __name__ == "__main__":
    sys.exit(main())
