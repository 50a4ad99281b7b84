"""Kafka's ZooKeeper control plane as a framework. As a library it logs nothing until asked to: see `controller.log`."""
