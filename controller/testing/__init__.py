"""A Kafka cluster inside the process of a test (docs/testing-your-app.md).

A name is loaded when it is used, so that pytest can load the plugin of this package and little else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.testing.brokers import BrokerControl
    from controller.testing.cluster import ClusterTimeout, Kafka, TopicNotCreated

__all__ = ["BrokerControl", "ClusterTimeout", "Kafka", "TopicNotCreated"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "brokers" if name == "BrokerControl" else "cluster"
    return getattr(import_module(f"controller.testing.{module}"), name)
