"""The broker's settings: their types and defaults, what ZooKeeper says of them beside the file, and who is told."""
