"""Kafka's ZooKeeper control plane as a framework. As a library it logs nothing until asked to:
`loguru.logger.enable("controller")`."""

from loguru import logger

logger.disable("controller")
