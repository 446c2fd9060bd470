"""The other machines of a run: the rendezvous with them, and what their launchers send afterwards.

Before the start, machine 0 is the meeting point. Afterwards the training does not need it: nodes exchange
with their neighbors alone. The launchers relay the reports of their nodes to machine 0, which writes the
summary and informs the others of restarted and late machines.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from decentnode.communication.base import HostProcess
from decentnode.communication.launcher_link.reports import Report
from decentnode.communication.security.curve import Credentials
from decentnode.config.settings import FailureSettings
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.cluster.base import Cluster
from decentnode.launcher.cluster.late_join import LateJoin
from decentnode.launcher.cluster.remote_machines import RemoteMachines
from decentnode.launcher.cluster.rendezvous import Rendezvous
from decentnode.launcher.cluster.vector_sender import VectorSender
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.event_log import EventLog
from decentnode.launcher.state.membership import MembershipTable
from decentnode.launcher.state.messages import ClusterMessage, Contribution, Join, Note, RelayedReports, Start
from decentnode.mapping.base import Mapping


class SeveralMachines(Cluster):
    """The links of this launcher, through machine 0, and what is known of the other machines."""

    def __init__(
        self,
        *,
        machine: int,
        mapping: Mapping,
        processes: Sequence[HostProcess],
        membership: MembershipTable,
        event_log: EventLog,
        report_dispatcher: Dispatcher[Report],
        message_dispatcher: Dispatcher[ClusterMessage],
        join: Join,
        credentials: Credentials | None,
        failures: FailureSettings,
        rounds: int,
        vector_bytes: int,
        run_seconds: Callable[[], float],
        is_stopping: Callable[[], bool],
        why_not_taken_back: str,
    ) -> None:
        """`message_dispatcher` gets what other parts need; `vector_bytes`: of a sum of vectors.

        `run_seconds`: seconds since the start of the run; `why_not_taken_back`: why lost nodes cannot rejoin.
        """
        super().__init__(membership)
        self._machine = machine
        self._event_log = event_log
        self._report_dispatcher, self._message_dispatcher = report_dispatcher, message_dispatcher
        self._unsent: list[Report] = []
        """Reports of this machine that machine 0 does not have."""
        self._advanced: set[int] = set()
        """Ranks of this machine that have done a round since the last relay."""
        self._rendezvous = Rendezvous(mapping, machine, join, credentials, failures)
        self._remote_machines = RemoteMachines(
            machine=machine,
            mapping=mapping,
            processes=processes,
            membership=membership,
            last_received=self._rendezvous.last_received,
            log_event=event_log.log,
            rounds=rounds,
            vector_bytes=vector_bytes,
        )
        self._vector_sender = VectorSender(machine, vector_bytes, self._rendezvous.send)
        self._late_join = LateJoin(
            machine=machine,
            mapping=mapping,
            processes=processes,
            membership=membership,
            rendezvous=self._rendezvous,
            run_seconds=run_seconds,
            is_stopping=is_stopping,
            why_not_taken_back=why_not_taken_back,
        )
        message_dispatcher.register(RelayedReports, self._receive_reports)
        message_dispatcher.register(Join, self._answer_join)

    def meet(self, handshakes: dict[int, bytes], deadline: float, is_stopped: Callable[[], bool]) -> Start:
        start = self._rendezvous.meet(handshakes, deadline, is_stopped)
        self._log_differences()
        return start

    @property
    def refused(self) -> Counter[str]:
        return self._rendezvous.refused + self._remote_machines.refused

    @property
    def descriptors(self) -> Sequence[int]:
        return self._rendezvous.descriptors

    @property
    def has_messages(self) -> bool:
        return self._rendezvous.has_messages

    @property
    def pause(self) -> float:
        return self._remote_machines.pause

    def relay(self, report: Report) -> None:
        # Machine 0 keeps its reports: it writes the summary.
        if self._machine:
            self._unsent.append(report)

    def relay_progress(self, ranks: Iterable[int]) -> None:
        if self._machine:
            self._advanced.update(ranks)

    def exchange(self, now: float) -> None:
        if self._remote_machines.is_relay_due(bool(self._unsent), now):
            self._relay()
        notes = self._rendezvous.receive()
        self._remote_machines.receive(notes)
        # Checked before use: another launcher may be faulty or of another run.
        notes = list(filter(self._remote_machines.admits, notes))
        for message in self._vector_sender.exchange(notes, self._remote_machines.listening):
            self._message_dispatcher.dispatch(message)
        # After the messages: a machine that has just reported is not silent.
        for report in self._remote_machines.forget_silent(now):
            self._report_dispatcher.dispatch(report)

    def _relay(self, last_words: Iterable[Report] = ()) -> None:
        active = sorted(self._advanced & self.membership.active)
        progress = [self.membership.progress_of(rank) for rank in active]
        # In this order: machine 0 must not find a round done before what was reported of earlier ones.
        self._rendezvous.send(RelayedReports(self._machine, [*self._unsent, *progress, *last_words]))
        self._unsent = []
        self._advanced.clear()

    def _receive_reports(self, relayed: RelayedReports) -> None:
        for report in self._remote_machines.reports(relayed):
            self._report_dispatcher.dispatch(report)

    def _answer_join(self, join: Join) -> None:
        for report in self._late_join.answer(join):
            self._report_dispatcher.dispatch(report)
        self._log_differences()

    def _log_differences(self) -> None:
        """Logs which machines run other code than this one, and may."""
        while self._rendezvous.news:
            self._event_log.log("code", self._rendezvous.news.pop(0))

    def contribute(self, contribution: Contribution) -> None:
        self._vector_sender.contributions.put(contribution)

    def flush_contributions(self) -> None:
        self._vector_sender.exchange((), self._remote_machines.listening)

    def send(self, note: Note, to: int | None = None) -> int:
        return self._rendezvous.send(note, to)

    def present(self) -> set[int]:
        return self._remote_machines.present()

    @property
    def observing(self) -> set[int]:
        return self._remote_machines.observing

    @property
    def lost(self) -> set[int]:
        return self._remote_machines.lost

    def is_left_alone(self, seconds: float = Timeouts.machine_silent) -> bool:
        return self._remote_machines.is_left_alone(seconds)

    def conclude(self) -> None:
        # The reports of its nodes' ends may have been lost with a broken connection.
        self._relay(self.membership.last_words() if self._machine else ())

    def close(self) -> None:
        self._rendezvous.close()
