"""`camerlengo stop`: controlled shutdown of brokers that run on this machine, with the outcome of each."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from controller.cli.main import COULD_NOT_RUN, UsageError
from controller.cli.running import RunningBroker, running_brokers
from controller.cli.values import integer, number

LOOK_S = 0.05
NOT_STOPPED = 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Asks brokers of this user on this machine, started by `camerlengo cluster` or `camerlengo broker`, for a"
        " controlled shutdown (SIGTERM), waits until their processes have ended, and reports the outcome. Exit status:"
        " 0 if all have shut down in order, 1 if one has not, 2 for wrong arguments, 3 if no such broker runs."
    )
    parser.add_argument(
        "--broker",
        type=integer(0),
        action="append",
        metavar="N",
        help="id of the broker; may be repeated (default: all of the cluster)",
    )
    parser.add_argument(
        "--zookeeper", metavar="HOST:PORT", help="zookeeper.connect of the brokers, where several clusters run"
    )
    parser.add_argument(
        "--timeout", type=number(), default=120.0, metavar="S", help="how long to wait for the brokers in all (120)"
    )


def run(arguments: argparse.Namespace) -> int:
    brokers = running_brokers()
    try:
        chosen = _chosen(brokers, arguments)
        if not chosen:
            which = "no broker" if not arguments.broker else "none of brokers " + ", ".join(map(str, arguments.broker))
            print(f"camerlengo stop: {which} of this user runs on this machine", file=sys.stderr)
            return COULD_NOT_RUN
        missing = sorted({*(arguments.broker or ())} - {each.broker_id for each in chosen})
        for broker in missing:
            print(f"broker {broker}: not running")
        stopped = _stop(chosen, arguments.timeout)
    finally:
        for each in brokers:
            each.file.close()
    return 0 if stopped and not missing else NOT_STOPPED


def _chosen(brokers: Sequence[RunningBroker], arguments: argparse.Namespace) -> list[RunningBroker]:
    """UsageError where the options could mean brokers of several clusters."""
    found = [each for each in brokers if arguments.broker is None or each.broker_id in arguments.broker]
    if arguments.zookeeper is not None:
        return [each for each in found if each.zookeeper_connect == arguments.zookeeper]
    clusters = sorted({each.zookeeper_connect for each in found})
    if len(clusters) > 1:
        several = "".join(f"\n  --zookeeper {each}" for each in clusters)
        raise UsageError(f"expected --zookeeper: brokers of {len(clusters)} clusters run on this machine:{several}")
    return found


def _stop(brokers: Sequence[RunningBroker], timeout_s: float) -> bool:
    """Whether all have shut down in order."""
    began_s = time.monotonic()
    waited = [each for each in brokers if _terminate(each)]
    in_order = True
    while waited and time.monotonic() - began_s < timeout_s:
        for each in [one for one in waited if one.has_ended()]:
            waited.remove(each)
            in_order &= _report(each, time.monotonic() - began_s)
        time.sleep(LOOK_S)
    for each in waited:
        print(
            f"broker {each.broker_id}: still running after {timeout_s:g} s (process {each.pid}); its log says what it"
            " waits for, and a second SIGTERM ends it at once",
            flush=True,
        )
    return in_order and not waited


def _terminate(broker: RunningBroker) -> bool:
    """Ask the process that holds the announcement to end; False if it has ended meanwhile."""
    try:
        process = os.pidfd_open(broker.pid)
    except ProcessLookupError:
        return True  # reported as ended
    try:
        # The id was this process's as long as the file is locked: the descriptor is its, whatever comes afterwards.
        if not broker.has_ended():
            signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)
    return True


def _report(broker: RunningBroker, seconds: float) -> bool:
    shut_down, failure = broker.end()
    if not shut_down:
        outcome = f"ended after {seconds:.1f} s without a shutdown (it was killed, or failed)"
    elif failure is not None:
        outcome = f"stopped after {seconds:.1f} s, not in order: {failure}"
    else:
        outcome = f"stopped in {seconds:.1f} s"
    print(f"broker {broker.broker_id}: {outcome}", flush=True)
    return shut_down and failure is None
