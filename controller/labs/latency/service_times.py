"""Service times that `camerlengo lab latency --calibrate` has measured, for the queueing model.

Two brokers on loopback, 2 cores without other work, load average below 1, 24 November 2026, e3707f3b. Clients are Kafka
2.8's Java clients in both.

What TLS and waking a thread cost was measured on the same day beside other work, in two runs at load averages of 5 to
11, and is applied to the idle figures as a ratio to the same runs' own. Of a network thread's time, a request with TLS
took 1.14 and 1.47 times as long and a byte 2.40 and 2.84 times (means are used). 64 requests at once took 0.58 times as
long each as one at a time, and 0.70 times as long of a handler.

So was, in two runs of 25 November at load averages of 2 to 6: a partition of a follower's session by one of a
consumer's, 1.54 and 1.23; of the follower's own work by the latter, 0.56 and 0.55; a byte of random values that lz4
leaves as they are and a leader unpacks by one that it appends, 0.55 and 0.80. What a fetch that waits takes besides
was not above 0 in either. Of Trogdor's producer with TLS, lz4 and random values, the second run has all four points
(4.3, 26.9, 15.0 and 8.5 us of the application's thread for a record, 7.7, 76.7, 6.6 and 10.2 of the sender's); its
fit is scaled by the least time that three runs had for the second point, 13.7 and 50.7 us, and for a record by the
first, 3.8.
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
        follow_us=56.0,
        follow_partition_us=8.91,
        follow_byte_us=0.00302,
        send_us=3.7,
        sender_us=34.0,
        poll_us=0.649,
        network_us=42.9,
        network_byte_us=0.000276,
        tls_network_us=55.8,
        tls_network_byte_us=0.000723,
        unpack_byte_us=0.0021,
        handler_wake_us=3.16,
        network_wake_us=8.93,
        batch_us=10.7,
        sender_batch_us=12.6,
        sender_record_us=3.6,
        replica_session_us=0.51,
        follow_session_us=0.20,
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
