"""What may happen: state machines as tables, leader election as pure functions.

Values in, values out: no I/O, no clock, no thread, no logging. Imports the standard library, numpy and transitions,
and nothing of `controller`.

- `partition`, `replica`, `reassignment`, `group`: the machines, each declared and compiled to a table (`machine`).
- `leader_election`, `leader_election_columns`: who leads, for one partition and for a column of them.
- `diagrams`: the pictures of `docs/state-machines.md`, drawn from the tables.
"""
