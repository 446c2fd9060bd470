"""Executors: where the runs of a study are started (docs/studies.md, "Clusters")."""

from decentnode.studies.executors import dask, local, ray, slurm, submitit
from decentnode.studies.executors.base import Executor, RunTask

__all__ = ["Executor", "RunTask", "dask", "local", "ray", "slurm", "submitit"]
