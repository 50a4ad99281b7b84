"""Client quotas and limits on connections, as Kafka 2.8 has them."""
