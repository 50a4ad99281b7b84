"""The broker's settings: types, defaults, dynamic configs in ZooKeeper, and the components that changes are sent to."""
