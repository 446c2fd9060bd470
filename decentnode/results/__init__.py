"""The files of a run: reading, comparing, plotting. The names below read them without torch."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decentnode.results.model_files import model_rounds, read_model
    from decentnode.results.reader import read_evaluations, read_events, read_object
    from decentnode.results.records import read_records, records_by_rank
    from decentnode.results.run import Run
    from decentnode.results.study import Study

__all__ = [
    "Run", "Study",
    "model_rounds", "read_evaluations", "read_events", "read_model", "read_object", "read_records",
    "records_by_rank",
]  # fmt: skip

_HOMES = {
    "Run": "decentnode.results.run",
    "Study": "decentnode.results.study",
    "model_rounds": "decentnode.results.model_files",
    "read_evaluations": "decentnode.results.reader",
    "read_events": "decentnode.results.reader",
    "read_model": "decentnode.results.model_files",
    "read_object": "decentnode.results.reader",
    "read_records": "decentnode.results.records",
    "records_by_rank": "decentnode.results.records",
}
"""Modules that are imported on first use, because `decentnode status` needs no numpy."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'decentnode.results' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
