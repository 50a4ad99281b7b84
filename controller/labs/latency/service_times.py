"""Service times that `camerlengo lab latency --calibrate` has measured, for the queueing model.

Two brokers on loopback, 2 cores without other work, load average below 1, 24 November 2026, e3707f3b. Clients are Kafka
2.8's Java clients in both.

What TLS, lz4 and waking a thread cost was measured on the same day beside other work, in two runs at load averages of
5 to 11, and is applied to the idle figures as a ratio to the same runs' own. Of a network thread's time, a request with
TLS took 1.14 and 1.47 times as long and a byte 2.40 and 2.84 times (means are used). 64 requests at once took 0.58
times as long each as one at a time, and 0.70 times as long of a handler. lz4 of constant values cost Kafka's producer
less than the bytes that it saves.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.labs.latency.cluster_model import ServiceTimes

MEASURED: Mapping[str, ServiceTimes] = {
    "kafka": ServiceTimes(
        produce_us=10.7,
        produce_partition_us=4.15,
        produce_byte_us=0.00314,
        fetch_us=8.77,
        fetch_session_us=0.367,
        fetch_partition_us=2.22,
        fetch_byte_us=0.0,
        follow_us=62.5,
        follow_partition_us=8.91,
        follow_byte_us=0.00302,
        send_us=3.80,
        sender_us=11.5,
        poll_us=0.649,
        network_us=42.9,
        network_byte_us=0.000276,
        tls_network_us=55.8,
        tls_network_byte_us=0.000723,
        pack_byte_us=0.0,
        unpack_byte_us=0.00026,
        handler_wake_us=3.16,
        network_wake_us=8.93,
    ),
    "camerlengo": ServiceTimes(
        produce_us=74.3,
        produce_partition_us=26.8,
        produce_byte_us=0.00247,
        fetch_us=77.5,
        fetch_session_us=0.0,
        fetch_partition_us=13.4,
        fetch_byte_us=0.000103,
        follow_us=76.5,
        follow_partition_us=30.6,
        follow_byte_us=0.000931,
        send_us=2.43,
        sender_us=12.6,
        poll_us=0.986,
    ),
}
LIBRDKAFKA: Mapping[str, float] = {"send_us": 40.0, "sender_us": 53.0, "poll_us": 20.0}
"""Of the clients that `--fit` measures, confluent-kafka in Python: both took 64 to 163 µs of CPU a record at 600 and
1,500 records/s with linger 0 and 20 ms, 24 November 2026, load average 8 to 11. How they share it is estimated."""
THREADS: Mapping[str, int] = {"kafka": 8, "camerlengo": 1}
"""Kafka's default of num.io.threads; a broker of this project handles requests in one thread."""
NETWORK_THREADS: Mapping[str, int] = {"kafka": 3, "camerlengo": 0}
"""Kafka's default of num.network.threads; a broker of this project reads and sends in the same thread."""
