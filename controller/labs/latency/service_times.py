"""Service times that `camerlengo lab latency --calibrate` has measured, for the queueing model.

Two brokers on loopback, 2 cores. Kafka: 24 November 2026, load average 13 to 15, network threads apart. This project:
23 November 2026, load average 8 to 14. Clients are Kafka 2.8's Java clients in both.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.labs.latency.cluster_model import ServiceTimes

MEASURED: Mapping[str, ServiceTimes] = {
    "kafka": ServiceTimes(
        produce_us=27.5,
        produce_partition_us=7.15,
        produce_byte_us=0.00121,
        fetch_us=16.4,
        fetch_session_us=0.542,
        fetch_partition_us=3.35,
        fetch_byte_us=3.61e-05,
        follow_us=153,
        follow_partition_us=28,
        follow_byte_us=0.00227,
        send_us=3.39,
        sender_us=17.9,
        poll_us=0.993,
        network_us=46.4,
        network_byte_us=0.000299,
    ),
    "camerlengo": ServiceTimes(
        produce_us=80.4,
        produce_partition_us=35.6,
        produce_byte_us=0.00287,
        fetch_us=63.4,
        fetch_session_us=0.00151,
        fetch_partition_us=16.1,
        fetch_byte_us=0.0,
        follow_us=195.0,
        follow_partition_us=39.7,
        follow_byte_us=0.00217,
        send_us=3.88,
        sender_us=24.7,
        poll_us=1.58,
    ),
}
THREADS: Mapping[str, int] = {"kafka": 8, "camerlengo": 1}
"""Kafka's default of num.io.threads; a broker of this project handles requests in one thread."""
NETWORK_THREADS: Mapping[str, int] = {"kafka": 3, "camerlengo": 0}
"""Kafka's default of num.network.threads; a broker of this project reads and sends in the same thread."""
