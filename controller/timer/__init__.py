"""The hierarchical timing wheel, and the purgatory for requests that wait.

    wheel = TimingWheel()                        # resolution 1 ms, 20 buckets a wheel
    wheel.start(TimerTask(callback), 200)        # 200 ms from `wheel.now_ms`
    task.cancel()                                # constant time
    wheel.turn(now_ms)                           # True: tasks of the next tick that is due are ready
    wheel.take()                                 # the next ready task, or None

The wheel knows no host: a driver reads a clock, turns the wheel and runs the tasks. In the product the driver is
`controller.hosts.network.RealClock`, whose timers all are on one wheel. `controller.timer.purgatory` needs any object
with `call_later`, such as a `controller.clock.Clock`.
"""

from controller.timer.wheel import COMPILED, AlreadyStarted, TimerError, TimerTask, TimingWheel

__all__ = ["COMPILED", "AlreadyStarted", "TimerError", "TimerTask", "TimingWheel"]
