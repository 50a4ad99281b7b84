"""Requests that the controller answers, or that are answered when its work is seen: topics, elections, moves."""
