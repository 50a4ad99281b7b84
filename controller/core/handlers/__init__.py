"""The controller's event handlers: one file for each responsibility, each handler a coroutine over a `Term`."""
