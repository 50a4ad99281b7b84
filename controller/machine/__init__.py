"""A broker's machine where no process of the operating system runs it: processes that pause and die, disks in memory.

The simulator and the in-process cluster (`controller.testing`) share it: both pause a broker, kill it, and let its disk
outlive it.
"""
