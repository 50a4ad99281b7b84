"""Cluster metadata as received from the controller, and the answers that are made from it."""
