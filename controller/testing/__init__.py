"""A Kafka cluster inside the process of a test, and the fixtures of the pytest plugin (docs/testing-your-app.md).

A name is loaded when it is used, so that pytest can load the plugin of this package and little else.
"""

from typing import TYPE_CHECKING

from controller.lazy_names import lazy_names

if TYPE_CHECKING:
    from controller.testing.brokers import BrokerControl as BrokerControl
    from controller.testing.cluster import ClusterTimeout as ClusterTimeout
    from controller.testing.cluster import Kafka as Kafka
    from controller.testing.cluster import TopicNotCreated as TopicNotCreated
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
