"""What each broker of a cluster believes: a client library asks whichever it likes."""

from __future__ import annotations

from controller.hosts.local_cluster import LocalCluster, ask_metadata
from controller.protocol.client import MetadataResponse
from tests.processes import DEADLINE_S


def answers_of_all(cluster: LocalCluster) -> list[MetadataResponse]:
    """Each broker's own."""
    addresses = (address.rpartition(":") for address in cluster.bootstrap_servers.split(","))
    return [ask_metadata((host, int(port)), DEADLINE_S) for host, _, port in addresses]
