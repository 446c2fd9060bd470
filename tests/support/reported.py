"""A membership table that reports are given to as a launcher does, without the rest of the launcher."""

from collections import defaultdict
from pathlib import Path
from unittest.mock import MagicMock

from decentnode.launcher.monitoring.incidents import Incidents
from decentnode.launcher.state.dispatcher import Dispatcher


def dispatcher_of(membership, *parts, event_log=None, is_stopping=False):
    """What passes reports to the table, to the event log, and to these parts of a launcher."""
    reports = Dispatcher()
    membership.register(reports)
    incidents = Incidents(
        membership=membership,
        event_log=event_log or MagicMock(),
        machine_of=lambda rank: 0,
        logs=defaultdict(Path),
        show_log=MagicMock(),
        is_stopping=lambda: is_stopping,
    )
    for part in (incidents, *parts):
        part.register(reports)
    return reports


def report_to(membership, *reports, parts=(), **options):
    """Processes reports; returns the table."""
    dispatcher = dispatcher_of(membership, *parts, **options)
    for report in reports:
        dispatcher.dispatch(report)
    return membership
