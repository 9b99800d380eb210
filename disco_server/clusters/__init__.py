"""Clusters in the jobs of a batch system."""

from __future__ import annotations

from disco_server.clusters.queues import QueueCluster
from disco_server.clusters.slurm import SlurmCluster

__all__ = ["QueueCluster", "SlurmCluster"]
