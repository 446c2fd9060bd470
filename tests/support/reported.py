"""A membership table that reports are given to as a launcher does, without the rest of the launcher."""

from types import SimpleNamespace
from unittest.mock import MagicMock

from decentnode.launcher.monitoring.report_handler import ReportHandler


def handler_of(membership, **parts):
    """A handler of which every part not given here accepts everything."""
    names = ("event_log", "monitor", "run_state", "late_join", "evaluations", "evaluators", "console")
    parts = {name: MagicMock() for name in names} | {"graceful_stop": SimpleNamespace(signal=None)} | parts
    return ReportHandler(lambda rank: 0, membership, **parts)


def report_to(membership, *reports, **parts):
    """Processes reports; returns the table."""
    handler = handler_of(membership, **parts)
    for report in reports:
        handler.take(report)
    return membership
