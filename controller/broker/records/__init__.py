"""Requests about records, of those who produce, consume, follow or delete: each with its handler, and what waits."""
