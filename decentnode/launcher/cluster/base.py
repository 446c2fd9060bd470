"""The machines of a run as one launcher sees them.

`OneMachine` has no others: a start on one machine opens no port, sends nothing, and needs only `agreement.py`
of this package. `SeveralMachines` (`several_machines.py`) has the rendezvous and the messages after it.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf

import msgspec

from decentnode.communication.launcher_link.reports import Report
from decentnode.launcher.cluster.agreement import agreed
from decentnode.launcher.state.membership import MembershipTable
from decentnode.launcher.state.messages import Contribution, Join, LauncherMessage, Start
from decentnode.mapping.base import Mapping


class Cluster(ABC):
    """What a launcher asks of the other machines and sends to them; by default there are none."""

    def __init__(self, membership: MembershipTable) -> None:
        self.membership = membership

    @abstractmethod
    def meet(self, handshakes: dict[int, bytes], deadline: float, is_stopped: Callable[[], bool]) -> Start:
        """Agrees with all machines on the start; `handshakes` are those of this machine.

        Raises StartError that names missing or different machines, and BadInput if one has other code.
        """

    @property
    def refused(self) -> Counter[str]:
        """Refused connections, messages and reports, by reason."""
        return Counter()

    @property
    def descriptors(self) -> Sequence[int]:
        """What a thread polls while `has_messages` is False."""
        return ()

    @property
    def has_messages(self) -> bool:
        """Whether a message is waiting although no descriptor may be readable."""
        return False

    @property
    def pause(self) -> float:
        """Seconds until this launcher has to send something, or until a machine counts as silent."""
        return inf

    def exchange(self, now: float) -> None:
        """Sends what is due, and dispatches what has arrived; never waits."""
        return None

    def send(self, message: LauncherMessage, to: int | None = None) -> int:
        """Sends to a machine, or to the coordinator, or from there to all; returns the bytes. Never waits."""
        return 0

    @property
    def addresses(self) -> dict[int, str]:
        """Where machines are reached, if the configuration does not say it."""
        return {}

    @property
    def coordinator(self) -> int:
        """The machine that decides for all: it was here first of those that are heard."""
        return 0

    @property
    def coordinates(self) -> bool:
        """Whether this machine decides for all."""
        return True

    def relay(self, report: Report) -> None:
        """Keeps a report of this machine for the others, until the next exchange."""
        return None

    def relay_progress(self, ranks: Iterable[int]) -> None:
        """Has the progress of these nodes of this machine sent to the others with the next reports."""
        return None

    def contribute(self, contribution: Contribution) -> None:
        """Has a contribution of this machine's observer sent; any thread may call it."""
        return None

    def present(self) -> set[int]:
        """Returns the machines that take part: this one, and those with nodes that may still report."""
        return {0}

    @property
    def observing(self) -> set[int]:
        """Machines that may contribute models to the mean."""
        return {0}

    @property
    def lost(self) -> set[int]:
        """Ranks that need no checkpoint: lost, and not merely silent for a while."""
        return self.membership.lost

    def flush_contributions(self) -> None:
        """Sends the last contributions of the observer."""
        return None

    def conclude(self) -> None:
        """Sends the others what they may not know yet of the ends of nodes here."""
        return None

    def announce_end(self, error: BaseException) -> None:
        """Tells the machines that have not met what ends this one, and waits a while for those to come."""
        return None

    def close(self) -> None:
        """Delivers what was sent within two seconds, and closes the sockets."""
        return None


class OneMachine(Cluster):
    """The only machine of a run: there is nobody to agree with, to send to, or to wait for."""

    def __init__(self, mapping: Mapping, membership: MembershipTable, join: Join) -> None:
        """`join`: what the run continues, if it is resumed."""
        super().__init__(membership)
        self._mapping = mapping
        self._join = join

    def meet(self, handshakes: dict[int, bytes], deadline: float, is_stopped: Callable[[], bool]) -> Start:
        return agreed({0: msgspec.structs.replace(self._join, handshakes=handshakes)}, self._mapping, [])
