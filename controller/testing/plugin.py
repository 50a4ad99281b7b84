"""A pytest plugin."""
