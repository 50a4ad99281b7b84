"""The replicas that follow: fetchers, each a coroutine that asks one leader for the partitions that it leads."""
