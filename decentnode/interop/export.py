"""`decentnode export`: the evaluations of a run in the formats of other tools."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decentnode.cli.graph import make
from decentnode.core.atomic_files import write_durably
from decentnode.core.registry import WRITERS
from decentnode.core.text import counted
from decentnode.errors import BadInput
from decentnode.interop.decentralizepy_results import as_decentralizepy
from decentnode.launcher.state.run_directory import RunLock
from decentnode.models.pretrained import SAFETENSORS
from decentnode.node.checkpoint.safetensors_io import pieces
from decentnode.node.recording.model_records import content_of_model
from decentnode.results import Run
from decentnode.results.writers import Writer

DECENTRALIZEPY = "decentralizepy"
TABLES = {"csv": ".csv", "parquet": ".parquet"}
"""Writers of one file, which may be elsewhere, and its ending."""


def export(directory: Path, kind: str, out: Path | None, options: Sequence[str] = ()) -> list[str]:
    """Writes a run in one of the formats; returns lines with the paths, or with what has the run now.

    `out`: the file of a table, or the folder of `decentralizepy`, instead of those in the run. `options`: of
    a writer, as `project=mixing`; all others are those of `records.writers`, if the run has that writer.
    Raises BadInput.
    """
    run = Run(directory)
    directory = run.directory
    if kind not in (DECENTRALIZEPY, *WRITERS.classes()) and ":" not in kind:
        known = ", ".join([*WRITERS.classes(), DECENTRALIZEPY])
        raise BadInput(f"--format: unknown format '{kind}' (known: {known})")
    if not run.rows:
        raise BadInput(f"{directory}: has no evaluation yet, so there is nothing to export")
    if out and kind not in (DECENTRALIZEPY, *TABLES):
        raise BadInput(
            f"--out: {kind} writes no file elsewhere; see its options with: decentnode list writer {kind}"
        )
    if options and kind == DECENTRALIZEPY:
        raise BadInput(f"{options[0]}: {DECENTRALIZEPY} has no options")
    try:
        if kind == DECENTRALIZEPY:
            return [*map(str, as_decentralizepy(run, out or directory / DECENTRALIZEPY))]
        if kind in TABLES:
            path = (out or directory / "evaluations").with_suffix(TABLES[kind])
            # From here, not from the run's directory.
            _write(run, kind, [*options, f"file={json.dumps(str(path.absolute()))}"])
            return [str(path)]
        # A writer of the run may be at work in the same run of the tool.
        run_lock = RunLock(directory)
        try:
            run = Run(directory)
            # The options of the run's first such writer, as they are given in a command.
            writers = (run.settings.get("records") or {}).get("writers") or []
            writer: dict[str, Any] = next(
                (candidate for candidate in writers if candidate.get("name") == kind), {}
            )
            writer_options = [f"{key}={json.dumps(value)}" for key, value in writer.items() if key != "name"]
            _write(run, kind, [*writer_options, *options])
        finally:
            run_lock.release()
        return [f"{kind} has {counted(len(run.rows), 'evaluation')}"]
    except OSError as error:
        raise BadInput(f"{error.filename or out}: cannot be written: {error.strerror}") from error


def export_merged(directory: Path, out: Path | None, rank: int | None, with_its_code: bool) -> list[str]:
    """Writes the weights of the last model that is kept, with adapters added; returns the path.

    `rank`: the node; None: the mean of all, as `Run.mean_model` has it. Raises BadInput.
    """
    run = Run(directory)
    path = (out or run.directory / "merged").with_suffix(SAFETENSORS)
    network = run.merged_model(rank, with_its_code=with_its_code)
    try:
        write_durably(path, pieces(*content_of_model(network)))
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from error
    return [str(path)]


def _write(run: Run, kind: str, options: Sequence[str]) -> None:
    """Has a writer write the whole run; raises BadInput and what its library raises."""
    writer: Writer = make(WRITERS, kind, options)
    if lack := writer.lack():
        raise BadInput(lack)
    writer.begin(run, run.rows)
    writer.close(run.summary)
