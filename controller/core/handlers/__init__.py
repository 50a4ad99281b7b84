"""What the controller does about each event: one file a responsibility, each a coroutine over a `Term`."""
