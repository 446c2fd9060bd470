"""A machine that fails before all have met tells the others why, so that none of them waits for it."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from decentnode.config import extends, loader
from decentnode.config import overrides as command_line
from decentnode.config.extends import ConfigSource
from decentnode.config.overrides import Override
from decentnode.config.settings import Settings
from decentnode.config.yaml_source import Document
from decentnode.core.process_setup import exit_by_signals, signals_that_stop
from decentnode.core.streams import print_line
from decentnode.core.timeouts import Timeouts
from decentnode.core.version import __version__
from decentnode.errors import BadInput, StartError
from decentnode.launcher import preflight
from decentnode.launcher.cluster.rendezvous import Rendezvous, refusal_for
from decentnode.launcher.cluster.scheduler import is_open, settle, this_machine
from decentnode.launcher.state.messages import Join
from decentnode.mapping.base import Mapping
from decentnode.mapping.environment import known_addresses, started_machines
from decentnode.mapping.job import SchedulerJob

OF_MACHINES = ("mapping", "machine", "security", "failures")
"""The sections that say who the machines are, and how they are linked."""
STAND_IN = "quickstart"
"""A configuration whose other sections stand for those that have defects."""


@contextlib.contextmanager
def end_announced_in_store(job: SchedulerJob | None) -> Iterator[None]:
    """Tells the machines of a job, which learn each other's addresses, of a signal that ends this one."""
    if job is None or len(job.processes) == 1:
        yield
        return
    with _signals_raise():
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as error:
            _ignore_signals()
            _end_job(job, error, Timeouts.refusal)
            raise


def announce_defects(source: ConfigSource, overrides: Sequence[Override], error: BadInput) -> None:
    """Tells the other machines what is wrong with the configuration of this one, as far as it names them."""
    # What prevents that is a consequence of the defects.
    with contextlib.suppress(Exception):
        settings = _machines_alone(source, overrides)
        mapping: Mapping = settings.mapping.make()
        job = mapping.job
        if job and len(job.processes) > 1 and not known_addresses(job):
            _end_job(job, error, Timeouts.early_end)
            return
        # Machines that nobody has listed are not awaited by others.
        if is_open(settings):
            return
        # With a directory, which nothing is written to, no machine is asked.
        settings, name = settle(replace(settings, run_dir=str(Path("runs") / STAND_IN)))
        if len(mapping.machines) > 1:
            _end(settings, this_machine(settings), name, error)


def _machines_alone(source: ConfigSource, overrides: Sequence[Override]) -> Settings:
    """Returns settings with the machines and links of a configuration that has defects in other sections."""
    document = extends.read(source)
    for override in overrides:
        command_line.apply(document, override)
    values = {name: document.value[name] for name in OF_MACHINES if name in document.value}
    mapping = values.get("mapping")
    options = mapping if isinstance(mapping, dict) else {}
    if listed := options.get("machines"):
        nodes = sum(machine["nodes"] for machine in listed)
    else:
        nodes = started_machines() * options.get("nodes_per_machine", 1)
    whole = extends.read(STAND_IN).value | {"graph": {"name": "ring", "nodes": nodes}}
    return loader.understand(Document(document.file, whole | values))


def _end_job(job: SchedulerJob, error: BaseException, seconds: float) -> None:
    # Imported here, because it loads torch's network code.
    from decentnode.mapping.job_store import end_all

    refusal = refusal_for(error)
    print_line(
        f"machine {job.machine} ends before the run begins: {refusal.reason}; the other machines are told, "
        f"for at most {seconds:.0f} s"
    )
    with contextlib.suppress(RuntimeError, OSError, StartError):
        end_all(job, refusal.reason, refusal.is_bad_input, seconds)


@contextlib.contextmanager
def end_announced(settings: Settings, machine: int, job: str) -> Iterator[None]:
    """Tells the other machines what ends this one inside of the context: an error, or a signal.

    `job`: the name of the job that has started all machines; empty where the settings list them.
    """
    mapping = settings.mapping.make()
    if len(mapping.machines) == 1:
        yield
        return
    with _signals_raise():
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                _ignore_signals()
            # What prevents that has an error of its own.
            with contextlib.suppress(Exception):
                _end(settings, machine, job, error)
            raise


def _end(settings: Settings, machine: int, job: str, error: BaseException) -> None:
    credentials = preflight.credentials(settings, machine)
    join = Join(machine, __version__, digest="", dataset="", job=job)
    rendezvous = Rendezvous(settings.mapping.make(), machine, join, credentials, settings.failures)
    try:
        rendezvous.announce_end(refusal_for(error))
    finally:
        rendezvous.close()


def _ignore_signals() -> None:
    """Has engines that repeat SIGTERM not end this process while it tells the others."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Has signals that stop runs raise SystemExit; by default they would end this process without a word."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signum: signal.getsignal(signum) for signum in signals_that_stop()}
    exit_by_signals()
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
