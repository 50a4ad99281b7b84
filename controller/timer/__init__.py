"""A timer for a million outstanding tasks: start and cancel in constant time, on a hierarchical timing wheel.

    timer = VirtualTimer()                       # or ThreadTimer(), AsyncioTimer(): the same start, cancel, restart
    task = TimerTask(lambda: print("late"))      # or a subclass that overrides `run`
    timer.start(task, 200)                       # the delay is the timer's to know, the task does not keep it
    task = timer.call_later(200, callback)       # the two in one, for less
    timer.cancel(task)                           # True: it will not run
    timer.restart(task, 500)                     # pending or not
    timer.advance_to(1_000)                      # VirtualTimer alone: runs what is due, tick by tick; how many
    len(timer), task.pending, task.due_ms

Rooms that know no host import from here. The drivers that have a host are in `controller.timer.threaded`
(`ThreadTimer`, a thread of its own) and `controller.timer.on_loop` (`AsyncioTimer`); `controller.timer.on_clock`
(`TimerOnClock`) has a `controller.clock.Clock`, whichever host's it is. `Timer` is what they share.
"""

from controller.timer.ports import Timer
from controller.timer.task import COMPILED, TimerTask
from controller.timer.virtual import VirtualTimer
from controller.timer.wheel import AlreadyStarted, TimerError, TimingWheel

__all__ = ["COMPILED", "AlreadyStarted", "Timer", "TimerError", "TimerTask", "TimingWheel", "VirtualTimer"]
