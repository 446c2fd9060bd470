"""What a launcher keeps of a run beyond its own end: lock, checkpoints, and the round it resumed after."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import msgspec
import torch

from decentnode.config import loader as config
from decentnode.core.line_file import RateLimiter
from decentnode.core.version import __version__
from decentnode.errors import BadInput
from decentnode.formats.reader import CodeVersion
from decentnode.launcher.recovery.checkpoint_retention import CheckpointRetention
from decentnode.launcher.recovery.fingerprint import fingerprint
from decentnode.launcher.recovery.resume import (
    ResumePlan,
    nodes_of_machines,
    settings_digest,
    write_state,
)
from decentnode.launcher.state.messages import CheckpointsCommitted, Join, LauncherMessage, Start
from decentnode.launcher.state.run_directory import RunLock
from decentnode.node.checkpoint.node_checkpoints import FROM_THE_START, RunIdentity
from decentnode.node.checkpoint.store import FOLDER
from decentnode.node.experiment import Experiment
from decentnode.node.plugin_sources import changes, package_digest, package_hashes


class RunState:
    """The state of one machine."""

    def __init__(
        self, experiment: Experiment, machine: int, run_dir: Path, resume_plan: ResumePlan | None,
        job: str = "", threads: int = 1, or_resume: bool = False, lock: RunLock | None = None,
    ) -> None:  # fmt: skip
        """`resume_plan`: the run to resume; None: a new one. `job`: whose machines these are, if not listed.
        `threads`: of torch in each process. `or_resume`: a new run may be the one that others resume.
        `lock`: that of a new run, where who starts it holds it already.

        Raises BadInput if the run is in progress.
        """
        self._threads = threads
        self.resume_plan = resume_plan
        self.lock = resume_plan.lock if resume_plan else lock or RunLock(run_dir)
        self.identity = RunIdentity(run_dir / FOLDER, settings_digest(experiment), experiment.graph.num_nodes)
        ranks, local = range(experiment.graph.num_nodes), experiment.mapping.ranks_of(machine)
        self.retention = CheckpointRetention(run_dir / FOLDER, ranks, local)
        self._experiment = experiment
        self._run_dir = run_dir
        self._machine, self._job, self._or_resume = machine, job, or_resume
        self._ranks, self._local = ranks, local
        self._limiter = RateLimiter()
        self._versions: list[CodeVersion] = []
        """Those of the code up to this start."""
        self._code_change = ""
        """What is another than at the start before, as text."""

    def join_message(self) -> Join:
        """Returns the message with which this machine joins; checkpoints only to resume. Raises BadInput."""
        experiment = self._experiment
        settings, graph = experiment.settings, experiment.graph.graph
        agreed = config.agreed(settings, graph)
        own = experiment.mapping.address(self._machine)
        if self._job:
            # Its machines learn their addresses from each other.
            agreed["mapping"] = nodes_of_machines(settings)
        join = Join(
            machine=self._machine, version=__version__, digest=config.hash_of(agreed),
            dataset=experiment.samples.digest, job=self._job, code=experiment.sources.parts,
            torch=str(torch.__version__),
            settings=config.flattened(agreed), or_resume=self._or_resume, address=own if self._job else "",
        )  # fmt: skip
        if len(experiment.mapping.machines) > 1:
            join = msgspec.structs.replace(join, package=package_digest(), files=package_hashes())
        if self.resume_plan is None:
            nothing = {rank: [FROM_THE_START] for rank in self._local}
            return msgspec.structs.replace(join, offers=nothing) if self._or_resume else join
        if self._machine == 0:
            # Other machines do not know how remote nodes ended; their own may have to go back a round.
            self.resume_plan.refuse_finished(len(self._ranks))
        return self.resume_plan.with_checkpoints(join, sorted(self._local), self.identity.settings)

    def begin(self, start: Start) -> None:
        """Prepares the directory after the rendezvous and before the start signal."""
        self._is_late = bool(start.late)
        if self.resume_plan is not None:
            self.resume_plan.begin(start, sorted(self._local), self._experiment.settings)
            if not start.late and start.round != FROM_THE_START:
                machine_of = self._experiment.mapping.machine_of
                here = (rank for rank in self._ranks if machine_of(rank) not in start.absent)
                self.retention.begin(start.round, here)
        self.identity.settle(start.run_id, start.incarnation, FROM_THE_START if start.late else start.round)
        # Last: a failure above leaves the directory as an earlier start of the run.
        experiment = self._experiment
        self._add_version(start.round)
        settings = fingerprint(experiment.settings, experiment.graph.graph)
        write_state(self._run_dir, start, experiment, self._versions, settings, self._threads)

    def _add_version(self, round: int) -> None:
        """Adds the version of the code with a copy, if it is another than before; raises BadInput."""
        self._versions = [*self.resume_plan.versions] if self.resume_plan else []
        sources = self._experiment.sources
        if self._versions and self._versions[-1].is_same(sources.version):
            return
        try:
            sources.save(self._run_dir)
        except OSError as error:
            raise BadInput(f"{self._run_dir}: the code cannot be copied there: {error.strerror}") from error
        self._code_change = changes(self._versions[-1], sources.version) if self._versions else ""
        self._versions.append(msgspec.structs.replace(sources.version, round=round + 1))

    @property
    def code_changes(self) -> dict[str, str]:
        """What was another than before, as text, by the first round that used it."""
        pairs = ((version.round, changes(before, version)) for before, version in pairwise(self._versions))
        return {str(round): text for round, text in pairs if text}

    @property
    def news(self) -> str:
        """The round after which the run resumes, as text; empty for a new run."""
        round = self.identity.round
        changed = f"; changed since: {self._code_change}" if self._code_change else ""
        if round != FROM_THE_START:
            return f"continues after round {round + 1}{changed}"
        begins_again = self.resume_plan is not None and not self._is_late
        aside = self.resume_plan.aside if self.resume_plan else None
        earlier = f"; the results so far are in {aside}" if aside else ""
        return f"begins again: no round was saved by all nodes{earlier}{changed}" if begins_again else ""

    @property
    def saved_by_all(self) -> int | None:
        """The newest round that all nodes were saved after, if known here; None: none."""
        newest = self.retention.newest_round
        # A machine that came late does not know of all checkpoints.
        known = max(self.retention.kept, self.identity.round, FROM_THE_START if newest is None else newest)
        return known if known != FROM_THE_START else None

    @property
    def kept_bytes(self) -> int:
        """The bytes on this machine's disk from which its nodes can resume."""
        return sum(path.stat().st_size for path in (self._run_dir / FOLDER).glob("[0-9]*/*.*"))

    def tend(self, lost: Iterable[int], coordinates: bool, send: Callable[[LauncherMessage], object]) -> str:
        """Deletes unneeded checkpoints; returns a line about those that could not be written or deleted.

        The coordinator decides for all.
        """
        retention = self.retention
        if coordinates and retention.tend(lost):
            send(CheckpointsCommitted(retention.settled, retention.kept, retention.whole, self._machine))
        problem, self.retention.problem = self.retention.problem, ""
        return problem if problem and self._limiter.allows() else ""
