"""Six architectures of a broker's log storage on models of devices and caches, and on throttled devices."""
