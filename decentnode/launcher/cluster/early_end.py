"""A machine that fails before all have met tells the others why, so that none of them waits for it."""

import contextlib
import signal
import threading
from collections.abc import Iterator

from decentnode.config.settings import Settings
from decentnode.core.process_setup import exit_by_signals, signals_that_stop
from decentnode.core.text import first_line
from decentnode.core.version import __version__
from decentnode.errors import BadInput, DecentnodeError, explained
from decentnode.launcher import preflight
from decentnode.launcher.cluster.rendezvous import Rendezvous
from decentnode.launcher.state.messages import Join, Refuse


def refusal_for(error: BaseException) -> Refuse:
    """Returns what the other machines are told of the error that ends this one."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return Refuse("it was stopped")
    reason = first_line(error) if isinstance(error, DecentnodeError) else explained(error)
    return Refuse(reason[:500], isinstance(error, BadInput))


@contextlib.contextmanager
def told_to_others(settings: Settings, machine: int, job: str) -> Iterator[None]:
    """Tells the other machines what ends this one inside of the context: an error, or a signal.

    `job`: the name of the job that has started all machines; empty where the settings list them.
    """
    mapping = settings.mapping.make()
    if len(mapping.machines) == 1:
        yield
        return
    try:
        with _signals_raise():
            yield
    except BaseException as error:
        # What prevents that has an error of its own.
        with contextlib.suppress(Exception):
            credentials = preflight.credentials(settings, machine)
            join = Join(machine, __version__, digest="", dataset="", job=job)
            rendezvous = Rendezvous(mapping, machine, join, credentials, settings.failures)
            try:
                rendezvous.part(refusal_for(error))
            finally:
                rendezvous.close()
        raise


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
