"""The parts of a record's latency from `send()` to `poll()`: workloads, a queueing model of a cluster, statistics."""
