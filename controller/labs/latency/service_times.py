"""Service times that `camerlengo lab latency --calibrate` has measured, for the queueing model.

Two brokers on loopback, 2 cores, load average 8 to 14, 23 November 2026. Clients are Kafka 2.8's Java clients in both.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.labs.latency.cluster_model import ServiceTimes

MEASURED: Mapping[str, ServiceTimes] = {
    "kafka": ServiceTimes(
        produce_us=68.5,
        produce_partition_us=7.00,
        produce_byte_us=0.00110,
        fetch_us=69.7,
        fetch_session_us=0.652,
        fetch_partition_us=3.91,
        fetch_byte_us=0.000817,
        follow_us=75.7,
        follow_partition_us=16.8,
        follow_byte_us=0.00167,
        send_us=3.98,
        sender_us=9.47,
        poll_us=2.25,
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
