"""The files of a run: reading, comparing, plotting. The names below read them without torch."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decentnode.formats.model_files import model_rounds, read_model
    from decentnode.formats.reader import read_evaluations, read_events, read_object
    from decentnode.formats.records import read_records, records_by_rank
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
    "model_rounds": "decentnode.formats.model_files",
    "read_evaluations": "decentnode.formats.reader",
    "read_events": "decentnode.formats.reader",
    "read_model": "decentnode.formats.model_files",
    "read_object": "decentnode.formats.reader",
    "read_records": "decentnode.formats.records",
    "records_by_rank": "decentnode.formats.records",
}
"""Modules that are imported on first use, because `decentnode status` needs no numpy."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'decentnode.results' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
