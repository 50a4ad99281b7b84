"""Questions bigger than one run, on Spark: campaigns of simulations, traces and Kafka's own logs as one table of
events, and what a cluster would lose with its brokers.

Importing this package imports no Spark; its modules that need PySpark import it, and nothing below them does.
"""
