"""The directories of a study's runs, which are all the state that a sweep has."""

import os
from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path

import msgspec

from decentnode.config import loader as config
from decentnode.core.atomic_files import TEMPORARY, write_durably
from decentnode.core.text import counted
from decentnode.errors import UNDECODABLE, BadInput
from decentnode.formats.lease import LOCK, Lease, lease_of
from decentnode.formats.reader import CodeVersion, read_object, read_value
from decentnode.launcher.recovery.fingerprint import difference, fingerprint
from decentnode.launcher.state.run_directory import RunLock, machine_directory
from decentnode.node import plugin_sources
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.store import FOLDER
from decentnode.node.plugin_sources import PluginSources
from decentnode.results.study import STUDY_FILE
from decentnode.studies.expansion import PlannedRun
from decentnode.studies.study_file import PlannedStudy

OF_A_RUN = ("config.yaml", "run.json", "summary.json")
"""Files of every run that has ended; without one of them readers take the directory for no run."""
OWN = {LOCK, f"{STUDY_FILE}{TEMPORARY}"}
"""Files that another sweep that starts at the same time may have made."""


class RunStatus(Enum):
    """The state of a run's directory."""

    NEW = "to do"
    DONE = "done"
    RESUMABLE = "to resume"
    BROKEN = "to repeat"
    """The directory has some rounds, and no way to continue them."""
    RUNNING = "running"
    """A process has the lease of the run, on this host or another one of a shared disk."""


class RunDirectory:
    """One run's directory, its log beside it, and what became of earlier attempts."""

    def __init__(self, planned: PlannedRun) -> None:
        self.planned = planned
        directory = planned.directory
        # Of several machines the first one has the summary.
        self.path = machine_directory(directory, 0) if planned.machines > 1 else directory
        self.log = directory.with_name(f"{directory.name}.log")

    @property
    def status(self) -> RunStatus:
        """Returns the current status; raises BadInput for files of another kind."""
        found = self.found
        return RunStatus.RUNNING if found is not RunStatus.DONE and self.lease else found

    @property
    def found(self) -> RunStatus:
        """Returns the status by the files of the run alone, as who has its lease wants to know."""
        if not self.path.is_dir() or all(path.name == LOCK for path in self.path.iterdir()):
            return RunStatus.NEW
        if self._is_done:
            return RunStatus.DONE
        if self._has_state and not self.settings_change and not self.code_change:
            return RunStatus.RESUMABLE
        return RunStatus.BROKEN

    @property
    def lease(self) -> Lease | None:
        """Who has the run now, whatever sweep or command that is; None: nobody."""
        return lease_of(self.path)

    def take(self) -> RunLock | None:
        """Takes the run, so that no other sweep does; None where another one was faster. Raises BadInput."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be made: {error.strerror}") from error
        try:
            return RunLock(self.path)
        except BadInput:
            if self.lease is None:
                raise
            return None

    @property
    def _is_done(self) -> bool:
        """Whether all nodes finished; where a fault is injected, whether those finished that were left."""
        if not all((self.path / name).exists() for name in OF_A_RUN):
            return False
        summary = self.path / "summary.json"
        finished, nodes, stopped = (
            read_value(summary, key, int) for key in ("finished_nodes", "nodes", "stopped_nodes")
        )
        return finished >= nodes or bool(self.planned.settings.faults and finished and not stopped)

    @property
    def _has_state(self) -> bool:
        """Whether all nodes were saved after one round; a node that was lost may not have been."""
        if not (self.path / "run.json").exists():
            return False
        nodes = self.planned.settings.graph.make().num_nodes
        saved = checkpoint.rounds_of(self.path / FOLDER, range(nodes))
        return bool(set.intersection(*map(set, saved.values())))

    @property
    def settings_change(self) -> str:
        """Returns the differences from the settings that the run was made with, as text; may be empty."""
        made = read_object(self.path / "run.json").get("settings")
        settings = self.planned.settings
        if made == fingerprint(settings, settings.graph.make()):
            return ""
        try:
            before = config.load(self.path / "config.yaml")
        except BadInput as error:
            return error.lines[0]
        return difference(before, settings) or "the content of a file that graph or sharing.weights names"

    @property
    def code_change(self) -> str:
        """Returns the differences from the code that the run was made with; empty without any."""
        versions = read_object(self.path / "run.json").get("code")
        try:
            made = msgspec.convert(versions, list[CodeVersion])[-1]
        except (IndexError, *UNDECODABLE):
            return "it has no record of its code"
        changed = plugin_sources.difference(made.parts, self._plugin_parts)
        ours = made.package != plugin_sources.package_digest()
        return ", ".join(filter(None, [changed, "decentnode itself" if ours else ""]))

    @cached_property
    def _plugin_parts(self) -> dict[str, str]:
        return PluginSources(self.planned.settings).parts

    def move_aside(self, why: str, lock: RunLock) -> None:
        """Renames the directory and its log, to make room for another attempt, and releases its lock."""
        number = 1
        while os.path.lexists(aside := self.path.with_name(f"{self.path.name}.{why}-{number}")):
            number += 1
        self.path.rename(aside)
        if self.log.exists():
            self.log.rename(aside.with_name(f"{aside.name}.log"))
        lock.release()


def refuse_changes(directories: Sequence[RunDirectory], accepts_other_code: bool) -> None:
    """Raises BadInput, in one line, if finished runs were made with other settings or another code."""
    changed = {directory.path: change for directory in directories if (change := directory.settings_change)}
    if changed:
        raise BadInput(
            f"{_first(changed)} was made with other settings: {next(iter(changed.values()))}; "
            "restore them, or name another directory (out=...)"
        )
    edited = {directory.path: change for directory in directories if (change := directory.code_change)}
    if edited and not accepts_other_code:
        raise BadInput(
            f"{_first(edited)} was made with other code: {next(iter(edited.values()))}; name another "
            "directory (out=...), or continue with --accept-code-change"
        )


def _first(changed: dict[Path, str]) -> str:
    first, *others = changed
    return f"{first} (and {counted(len(others), 'other run')}):" if others else f"{first}:"


def open_study(study: PlannedStudy) -> None:
    """Makes the directory of a study, with a copy of its file. Raises BadInput."""
    copy = study.out / STUDY_FILE
    try:
        study.out.mkdir(parents=True, exist_ok=True)
        if not copy.exists() and any(path.name not in OWN for path in study.out.iterdir()):
            raise BadInput(f"out: {study.out} is not empty and no study; name another one (out=...)")
        content = study.copy.encode()
        if not copy.exists() or copy.read_bytes() != content:
            lock = RunLock(study.out)
            write_durably(copy, [content])
            lock.release()
    except OSError as error:
        raise BadInput(f"out: {study.out} cannot be written: {error.strerror}") from error
