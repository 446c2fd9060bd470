"""Resuming a run in its own directory: what may change, what is there, and what is removed.

Every start of a run writes `run.json`, which identifies the run, and locks the file `lock` while any process
of it lives.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from decentnode.config import loader as config
from decentnode.config.overrides import Override
from decentnode.config.python_source import objects_in
from decentnode.config.settings import Settings
from decentnode.config.type_check import show
from decentnode.core.atomic_files import write_durably
from decentnode.core.registry import import_from
from decentnode.core.streams import print_line
from decentnode.core.text import counted
from decentnode.errors import STOPPED_BY, UNDECODABLE, BadInput, ExitCode
from decentnode.formats import transcript
from decentnode.formats.model_files import COORDINATES
from decentnode.formats.model_files import FOLDER as MODELS
from decentnode.formats.reader import (
    NOT_OURS,
    SCHEMA,
    CodeVersion,
    check_run,
    code_folders,
    read_object,
    read_value,
)
from decentnode.formats.records import cut_back, record_files, write_atomically
from decentnode.launcher.recovery.verify import RunRecords
from decentnode.launcher.state.messages import RUN_STARTS, Join, Start
from decentnode.launcher.state.run_directory import RunLock
from decentnode.mapping.base import Consecutive
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.node_checkpoints import FROM_THE_START
from decentnode.node.checkpoint.store import BadCheckpoint
from decentnode.node.experiment import Experiment
from decentnode.node.plugin_sources import difference
from decentnode.node.recording import tensor_records
from decentnode.options import Effect

MOST_SHOWN = 5
THREADS = range(1, 1 << 16)
ROUNDS = range(-1, 1 << 62)
EARLIER = "earlier"
"""Begins the names of the folders that have the results of attempts which began again: `earlier-1`."""
OF_ROUNDS = ("records", MODELS, COORDINATES, transcript.FOLDER, checkpoint.FOLDER)
"""The folders with files of rounds."""


@dataclass(frozen=True)
class RunEnd:
    """How a run has ended that has no rounds left."""

    how: str
    remedy: str
    """What would continue or repeat it."""
    code: ExitCode
    """The exit code that it ended with."""


class ResumePlan:
    """A run on this machine that is resumed."""

    def __init__(
        self, run_dir: Path, overrides: Sequence[Override] = (), accepts_other_code: bool = False,
        with_its_code: bool = False, by_scripts: bool = False, settings: Settings | None = None,
        lock: RunLock | None = None,
    ) -> None:  # fmt: skip
        """Raises BadInput if there is no run to resume, or if an override would change the models.

        Objects that Python passes are taken for those that the run began with.

        `accepts_other_code`: whether plug-ins may have been edited since the start of the run;
        `with_its_code`: take them from the copies in the run; `by_scripts`: scripts have joined again;
        `settings`: those of a start that is repeated, which the run's own are compared with. Such a run may
        begin again where no round was saved by all its nodes. `lock`: the run's, if it is held already.
        """
        self.run_dir = run_dir.absolute()
        self.config = self.run_dir / "config.yaml"
        check_run(run_dir)
        if with_its_code:
            import_from(*code_folders(self.run_dir), first=True)
        # Before anything is read: another start could change it meanwhile.
        self.lock = lock or RunLock(self.run_dir)
        before = config.load(self.config, [objects_in(o) for o in overrides if not isinstance(o, str)])
        self.may_begin_again = settings is not None
        self.settings = replace(settings or config.load(self.config, overrides), run_dir=str(self.run_dir))
        self._rounds_before = before.rounds
        remedy = "begin a new run"
        if self.may_begin_again:
            remedy = "take another run_dir or DECENTNODE_JOB"
        else:
            self.refuse_fewer_rounds()
        refuse_changes(before, self.settings, remedy)
        if self.settings.is_of_scripts and not by_scripts:
            raise BadInput(
                f"{run_dir}: a script has trained this run; start it again with `decentnode launch --resume "
                f"{run_dir} SCRIPT`"
            )
        self._state = _read_state(self.run_dir)
        try:
            self.versions = msgspec.convert(self._state.get("code"), list[CodeVersion])
        except UNDECODABLE as error:
            raise BadInput(f"{self.run_dir / 'run.json'}: {NOT_OURS}: 'code': {error}") from error
        """Versions of the code that the run used, the newest last."""
        self.threads: int = self._state["threads"]
        """Threads of torch in each process so far."""
        self._accepts_other_code = accepts_other_code
        self.aside: Path | None = None
        """Where the results of the attempts before are since `begin`, if there were any to begin again."""
        self.seconds = 0.0
        """Elapsed time of the run up to the round it resumes after."""
        self._seconds: dict[int, float] = {}

    def refuse_fewer_rounds(self) -> None:
        """Raises BadInput for fewer rounds than the run has; nothing is wrong with them once it is over."""
        before = self._rounds_before
        if self.settings.rounds < before:
            raise BadInput(
                f"rounds can only grow; this run has {before}, not {self.settings.rounds} "
                f"(for instance rounds={2 * before})"
            )
        privacy = self.settings.training.privacy
        if self.settings.rounds > before and privacy is not None and privacy.make().needs_all_rounds:
            raise BadInput.at(
                "rounds",
                f"the noise of this run was planned for {before} rounds, so it cannot get "
                f"{self.settings.rounds}; begin a new run",
            )

    def refuse_finished(self, nodes: int) -> None:
        """Raises BadInput if no node has rounds left."""
        if ended := self.finished(nodes, self.run_dir):
            raise BadInput(f"{self.run_dir}: {ended.how}; to continue, set {ended.remedy}")

    def finished(self, nodes: int, run_dir: Path) -> RunEnd | None:
        """Returns how the run has ended, if all nodes have finished and none has rounds left.

        `run_dir`: the directory of a machine that knows of all nodes. Raises BadInput for another run.
        """
        if not (summary := self._summary(run_dir)) or summary["finished_nodes"] < nodes:
            return None
        rounds, code = summary["rounds"], _code_of(summary) or ExitCode.OK
        reached, last = self._reached(summary)
        done = last + 1 if isinstance(last, int) else rounds
        more = f", and more rounds (for instance rounds={2 * rounds})" if self.settings.rounds <= done else ""
        if reached is not None:
            how = f"this run has reached its target in round {reached + 1}"
            return RunEnd(how, f"another one, or none (evaluation.target=null){more}", code)
        if self.settings.rounds <= done:
            how = f"this run has finished all its {rounds} rounds"
            return RunEnd(how, f"more (for instance rounds={2 * rounds})", code)
        return None

    def ended_with_losses(self, nodes: int, run_dir: Path) -> RunEnd | None:
        """Returns how the run has ended, if by itself, with results of some nodes, and without the others.

        `run_dir`: as for `finished`. Not where a signal has stopped it, where it has no result, where a loss
        ends a run so that all continue together, and where more is asked of it.
        """
        settings, summary = self.settings, self._summary(run_dir)
        finished = summary["finished_nodes"] if summary else 0
        code = _code_of(summary)
        if not 0 < finished < nodes or code is None or code in STOPPED_BY.values():
            return None
        stops = settings.failures.on_loss == "stop" or not settings.sharing.make().promises.tolerates_loss
        is_at_other_target = isinstance((summary.get("target") or {}).get("reached_round"), int)
        is_at_other_target &= self._reached(summary)[0] is None
        if stops or settings.rounds > self._rounds_before or is_at_other_target:
            return None
        how = f"this run has ended with {nodes - finished} of {counted(nodes, 'node')} lost"
        return RunEnd(how, "to repeat it, name another run_dir", code)

    def _summary(self, run_dir: Path) -> dict[str, Any]:
        """Returns the summary of the run in a machine's directory; empty without any. Raises BadInput."""
        path = run_dir / "summary.json"
        if not os.path.exists(path):  # noqa: PTH110 - that of another machine may not be ours
            return {}
        for key in ("finished_nodes", "rounds"):
            read_value(path, key, int)
        summary = read_object(path)
        if (run_id := summary.get("run_id")) != self._state["run_id"]:
            raise BadInput(f"{path}: is of another run, {run_id}; remove it")
        return summary

    def _reached(self, summary: dict[str, Any]) -> tuple[int | None, int | None]:
        """Returns the rounds that reached the target of the settings, and after which the nodes ended."""
        target: dict[str, Any] = summary.get("target") or {}
        reached, last = target.get("reached_round"), target.get("last_round")
        is_wanted = {target.get("metric"): target.get("value")} == self.settings.evaluation.target
        return reached if isinstance(reached, int) and is_wanted else None, last

    def with_checkpoints(self, join: Join, ranks: Sequence[int], settings: str) -> Join:
        """Returns the Join with this machine's checkpoints; raises BadInput that names a rank without any.

        Also raises it for another dataset or code, and where `begin` would fail: by then the others have the
        start signal and would continue alone. `settings`: the hash in valid checkpoints.
        """
        if self._state.get("dataset") != join.dataset:
            raise BadInput(
                f"{self.run_dir}: the dataset is not the one that this run began with; "
                "restore that one, or begin a new run"
            )
        other_code = difference(self.versions[-1].parts, join.code) if self.versions else ""
        if other_code and not self._accepts_other_code:
            copy = self.versions[-1].folder(self.run_dir)
            remedy = f"restore it from {copy}" if copy.is_dir() else "use the code that it began with"
            raise BadInput(
                f"{self.run_dir}: the code is not that of this run: {other_code}; {remedy}, "
                "or continue with --accept-code-change (in Python accept_code_change=True)"
            )
        records = RunRecords(self.run_dir)
        with _able_to_write(self.run_dir):
            # The same content: only a write proves that the disk accepts one.
            write_durably(self.config, [self.config.read_bytes()])
        directory = self.run_dir / checkpoint.FOLDER
        # The run is locked, so no process is writing these files.
        for folder in directory.glob("[0-9]*"):
            checkpoint.clean_up(folder)
        saved = checkpoint.rounds_of(directory, ranks)
        offers = {rank: self._good_rounds(records, rank, saved[rank], settings) for rank in ranks}
        # Other machines may lack that round; what is said of a later one then is written again.
        for round in sorted(set.intersection(*map(set, offers.values())))[-1:]:
            for line in records.problems(round) if round != FROM_THE_START else ():
                print_line(f"{line}; resume does not repair it")
        return msgspec.structs.replace(
            join, run_id=self._state["run_id"], incarnation=self._state["incarnation"],
            starts=self._state["starts"], offers=offers,
        )  # fmt: skip

    def _good_rounds(self, records: RunRecords, rank: int, saved: Sequence[int], settings: str) -> list[int]:
        good, defects = [], []
        for round in saved:
            try:
                self._check(records, rank, round, settings)
                good.append(round)
            except BadCheckpoint as error:
                defects.append(str(error))
        if self.may_begin_again and not defects:
            return [FROM_THE_START, *good]
        if not good:
            remedy = "begin a new run, which checkpoint.final or checkpoint.every lets continue"
            reason = f"there is none in {self.run_dir / checkpoint.FOLDER}; {remedy}"
            if defects:
                reason = f"{defects[-1]}; restore that file, or begin a new run"
            raise BadInput(f"{self.run_dir}: rank {rank} has no checkpoint to resume from: {reason}")
        for defect in defects:
            print_line(f"{defect}; this checkpoint is not used")
        return good

    def _check(self, records: RunRecords, rank: int, round: int, settings: str) -> None:
        saved = records.read_checkpoint(rank, round, self._state["run_id"])
        path = saved.path
        # Other settings would continue with other numbers, without an error.
        if saved.stamp.settings != settings:
            raise BadCheckpoint(f"{path}: was made with other settings, or by another version of decentnode")
        state = saved.state if isinstance(saved.state, dict) else {}
        seconds = state.get("wall_seconds")
        if not isinstance(seconds, float):
            raise BadCheckpoint(f"{path}: has no elapsed time of the run")
        self._seconds[round] = max(self._seconds.get(round, 0.0), seconds)

    def begin(self, start: Start, ranks: Collection[int], settings: Settings) -> None:
        """Cuts the directory back to the round that all continue after, and records the settings.

        No node writes yet. Raises BadInput.
        """
        # A late machine has rounds that the others have discarded only if they were started without it.
        if start.late and self._state["incarnation"] >= start.incarnation:
            return
        self.seconds = self._seconds.get(start.round, 0.0)
        # In a start without this machine the others may have continued from an earlier round.
        missed = start.starts[len(self._state["starts"]) :]
        last = min([start.round, *missed])
        with _able_to_write(self.run_dir):
            if last == FROM_THE_START:
                self.aside = set_aside(self.run_dir)
            self._cut_back(last, ranks)
            # Last: a failure above leaves the earlier settings.
            resolved = config.dump(replace(settings, run_dir=str(self.run_dir)))
            write_durably(self.config, [resolved.encode()])

    def _cut_back(self, last: int, ranks: Collection[int]) -> None:
        directory = self.run_dir / checkpoint.FOLDER
        for path in record_files(self.run_dir):
            cut_back(path, last)
        for rank in ranks:
            for folder in (MODELS, COORDINATES):
                tensor_records.cut_back(self.run_dir, rank, last, folder)
            transcript.cut_back(self.run_dir, rank, last)
        for round in set[int]().union(*checkpoint.rounds_of(directory, ranks).values()):
            if round > last:
                checkpoint.delete(directory, ranks, round)
        cut_back(self.run_dir / "evaluations.jsonl", last)
        # That of an earlier end: a run that continues has not finished.
        (self.run_dir / "summary.json").unlink(missing_ok=True)


def started_before(
    settings: Settings, overrides: Sequence[Override] = (), by_scripts: bool = False,
    lock: RunLock | None = None,
) -> ResumePlan | None:  # fmt: skip
    """Returns the plan to resume what an earlier start of the same command began; None for a new run.

    `settings`: with the directory of this machine. `lock`: the run's, if it is held. Raises as `ResumePlan`.
    """
    run_dir = Path(str(settings.run_dir))
    # Where it cannot be seen, nothing can be written either, and the error of a new directory says so.
    if not os.path.exists(run_dir / "run.json"):  # noqa: PTH110 - it may be too long, or not ours
        return None
    return ResumePlan(run_dir, overrides, by_scripts=by_scripts, settings=settings, lock=lock)


def how_it_is_over(
    resume_plan: ResumePlan, machine: int, repeats_losses: bool = False
) -> tuple[str, ExitCode] | None:
    """Returns a line and the exit code of a run that has ended by itself, as a machine knows that was there.

    `repeats_losses`: one that lost nodes is not over. Raises BadInput for fewer rounds where it is not.
    """
    run_dir, settings = resume_plan.run_dir, resume_plan.settings
    nodes = settings.mapping.make().num_nodes
    # Machines that share a file system have their directories side by side.
    others = [run_dir.with_name("machine-0")] if machine else []
    for known in (run_dir, *others):
        if ended := resume_plan.finished(nodes, known):
            return f"{run_dir}: {ended.how}; nothing is left to do", ended.code
        if not repeats_losses and (ended := resume_plan.ended_with_losses(nodes, known)):
            return f"{run_dir}: {ended.how}; nothing is left to do; {ended.remedy}", ended.code
    # The command of a run that was extended since is no mistake once it has finished.
    resume_plan.refuse_fewer_rounds()
    return None


def _code_of(summary: dict[str, Any]) -> ExitCode | None:
    """Returns the exit code of the launcher that wrote it; None for one that does not say it."""
    return next((code for code in ExitCode if code == summary.get("exit_code")), None)


def set_aside(run_dir: Path) -> Path | None:
    """Moves the results of a run that begins again to a folder of their own, and returns it.

    Without an evaluation and a summary nothing is moved: such a start has come to nothing. Events stay where
    they are, because a launcher writes there already. Raises OSError.
    """
    last = [run_dir / "evaluations.jsonl", run_dir / "summary.json"]
    if not any(path.exists() and path.stat().st_size for path in last):
        return None
    number = 1
    while (aside := run_dir / f"{EARLIER}-{number}").exists():
        number += 1
    # Folders stay: nodes that wait for the start may have made them. The summary is last, so that a start
    # after a crash amid this moves what is left.
    for path in [*(p for name in OF_ROUNDS for p in sorted((run_dir / name).rglob("*"))), *last]:
        # A node writes its private key before the start.
        if path.is_file() and path.suffix != transcript.KEY_ENDING:
            moved = aside / path.relative_to(run_dir)
            moved.parent.mkdir(parents=True, exist_ok=True)
            path.rename(moved)
    return aside


def write_state(
    run_dir: Path, start: Start, experiment: Experiment, versions: Sequence[CodeVersion] = (),
    settings: str = "", threads: int = 1,
) -> None:  # fmt: skip
    """Writes `run.json`: the run, its samples, its metrics and its starts; raises BadInput.

    `versions`: the versions of the code it used, the newest last; `settings`: their `fingerprint`;
    `threads`: of torch in each process of this machine.
    """
    content = {
        "schema": SCHEMA, "run_id": f"{start.run_id:016x}", "incarnation": start.incarnation,
        "starts": start.starts, "dataset": experiment.samples.digest, "tests": experiment.samples.test_digest,
        "metrics": msgspec.to_builtins(experiment.plan.metrics), "code": msgspec.to_builtins(versions),
        "settings": settings, "threads": threads,
        "samples": experiment.samples.form,
    }  # fmt: skip
    path = run_dir / "run.json"
    try:
        write_atomically(path, content)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _able_to_write(run_dir: Path) -> Iterator[None]:
    """Raises BadInput for errors of the disk within the block."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{run_dir}: this run cannot continue there: {error.strerror or error}") from error


def _read_state(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "run.json"
    if not path.exists():
        raise BadInput(f"{run_dir}: this run was never started, so there is nothing to resume from")
    content = read_object(path)
    run_id, incarnation = content.get("run_id"), content.get("incarnation")
    if not isinstance(run_id, str) or len(run_id) != 16:
        raise BadInput(f"{path}: has no run id")
    # True is an int, too.
    if type(incarnation) is not int or incarnation not in RUN_STARTS:
        raise BadInput(
            f"{path}: incarnation must be a whole number, 0..{RUN_STARTS[-1]}, not {show(incarnation)}"
        )
    threads = content.get("threads")
    if type(threads) is not int or threads not in THREADS:
        raise BadInput(f"{path}: threads must be a whole number above 0, not {show(threads)}")
    starts = content.get("starts")
    if not isinstance(starts, list) or not all(type(round) is int and round in ROUNDS for round in starts):
        raise BadInput(f"{path}: starts must be a list of rounds, not {show(starts)}")
    return content


def settings_digest(experiment: Experiment) -> str:
    """Returns a hash of all settings that affect the models, without options that may change at a resume."""
    settings = experiment.settings
    content = config.with_contents(settings, experiment.graph.graph, settings.decides_models)
    return config.hash_of(content | {"mapping": nodes_of_machines(settings)})


def refuse_changes(old_settings: Settings, new_settings: Settings, remedy: str = "begin a new run") -> None:
    """Raises BadInput with a line for each changed key that would make it another run, but for `rounds`.

    `remedy`: how that other run is begun.
    """

    def decides_models(effect: Effect) -> bool:
        return old_settings.decides_models(effect) or new_settings.decides_models(effect)

    # Compared as resolved values, so a different spelling in YAML is no change.
    before, after = (
        config.resolved(settings, keep=decides_models) | {"mapping": nodes_of_machines(settings)}
        for settings in (old_settings, new_settings)
    )
    refused = [
        f"{key} cannot change from {show(old)} to {show(new)}, because it would be another run; {remedy}"
        for key, (old, new) in differences(before, after)
    ]
    if refused:
        raise BadInput(*refused[:MOST_SHOWN])


def nodes_of_machines(settings: Settings) -> dict[str, Any]:
    """Returns the section `mapping`, reduced to the nodes of each machine: whatever names them."""
    mapping = settings.mapping.make()
    others = {} if isinstance(mapping, Consecutive) else config.plain(settings.mapping)
    return others | {"machines": [machine.nodes for machine in mapping.machines]}


def differences(before: Any, after: Any, key: str = "") -> Iterable[tuple[str, tuple[Any, Any]]]:
    """Yields each key whose value differs, with both values; None for a missing one."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in (*before, *(name for name in after if name not in before)):
            inner = f"{key}.{name}" if key else str(name)
            yield from differences(before.get(name), after.get(name), inner)
    elif before != after:
        yield key, (before, after)
