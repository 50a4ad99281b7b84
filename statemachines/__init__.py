"""What may happen: state machines as tables, leader election as pure functions.

Values in, values out: no I/O, no clock, no thread, no logging. Imports the standard library, numpy and transitions,
and nothing of `controller`.

- `partition`, `replica`, `reassignment`, `group`, `log_segment`: the machines, each declared and compiled to a table
  (`machine`).
- `tier_placement`: which segments are copied to an HDD and evicted from an SSD, how fast, and when a log is flushed.
- `leader_election`, `leader_election_columns`: who leads, for one partition and for a column of them.
- `diagrams`: the pictures of `docs/state-machines.md`, drawn from the tables.
"""
