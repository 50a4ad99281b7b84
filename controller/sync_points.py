"""Sync points: named places in the product's threads at which a test can hold whichever thread comes by.

A race of two threads can't be tested by running it often: a test must be able to stop one of them between two steps,
let the other continue, and then release it. The code calls `reach("...")` between those steps; with nothing installed
that is a call and a look at one global. `tests/sync_points.py` has what tests install.

A leaf that knows no thread, so that every package may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

POINTS: Mapping[str, str] = {
    # The event loop (core/event_loop.py).
    "event loop: before the check": "an answer is there; whether the term still holds has not been looked at",
    "event loop: before resume": "the term was looked at; the handler is about to go on with what was found",
    "event loop: waits": "the handler awaits a request that is not answered; the thread is about to sleep",
    # The channels (core/channels.py), on the network's loop: all of its connections stand still meanwhile.
    "channel: request taken": "a request is first in its queue; whether the term still holds has not been looked at",
    "channel: answered": "a broker has answered; the answer has not been made an event",
    # The timer (labs/thread_timer.py), on its own thread.
    "timer: task taken": "a task that is due is no longer pending; it has not been run",
    # ZooKeeper (zookeeper/kazoo_*.py), on the thread that asks.
    "zookeeper: request made": "a request has been made; it belongs to no session yet",
    # ZooKeeper, on the connection's thread.
    "zookeeper: dialling": "a server is about to be connected to; that there will be a session is not decided",
    "zookeeper: connecting": "a session is about to be asked for, or asked for again; close has been looked for",
    "zookeeper: connected": "the server has granted the session; the listener has not been notified",
    "zookeeper: before a request is sent": "a request is next; when it was sent has not been noted",
    "zookeeper: answered": "a reply has been read; the request has not been completed",
    "zookeeper: state changes": "the connection broke or the session ended; the listener has not been notified",
    "zookeeper: requests fail": "the listener was notified of the new state; the requests that it ends have not failed",
    "zookeeper: watch fired": "a watch's event has been read; the listener has not been notified",
}
"""All sync points: the name of each, and the state of the thread there."""

_reached: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Report that this thread is at `point`. Returns at once unless a test has installed something."""
    reached = _reached
    if reached is not None:
        reached(point)


def install(reached: Callable[[str], None] | None) -> None:
    """Call `reached` with the name of each point that a thread comes to, on that thread; None: call nothing again.

    Raises RuntimeError where something is installed already.
    """
    global _reached
    if reached is not None and _reached is not None:
        raise RuntimeError("a script is installed already")
    _reached = reached
