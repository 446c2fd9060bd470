"""Executors: where the runs of a study are started (docs/studies.md, "Clusters")."""

from decentnode.studies.executors import dask, local, ray, slurm, submitit

__all__ = ["dask", "local", "ray", "slurm", "submitit"]
