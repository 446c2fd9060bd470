"""Whether the files of a run belong together: records, checkpoints, evaluations, models, events, summary.

Nothing is started, written or imported from a plug-in. `resume` asks the same before it continues a run.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from decentnode.core.registry import ATTACKS
from decentnode.core.text import first_line, ranks_in_words
from decentnode.errors import BadInput
from decentnode.formats import transcript as transcript_files
from decentnode.formats.metrics import Values
from decentnode.formats.model_files import FOLDER as MODELS
from decentnode.formats.model_files import model_hash, model_rounds
from decentnode.formats.partition_table import PARTITION_FILE
from decentnode.formats.reader import (
    EvaluationRow,
    StrPath,
    check_run,
    machine_parts,
    read_evaluations,
    read_events,
    read_object,
    read_value,
)
from decentnode.formats.records import read_records, record_files
from decentnode.formats.run import RUNNING, RunFiles
from decentnode.formats.transcript import Transcript, bytes_path, lines_path
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.safetensors_io import content_of
from decentnode.node.checkpoint.store import BadCheckpoint, Checkpoint

DELIVERIES = "network.csv"
MOST_NAMED = 5
"""Rounds or ranks that a line names."""


@dataclass
class NodeRecords:
    """The records of one node, by round, as far as other files tell the same."""

    path: Path
    """A file with records of it."""
    losses: dict[int, float | None] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    """Bytes sent in the round."""
    scores: dict[int, Values] = field(default_factory=dict)
    """The metrics of rounds in which the node was tested, empty where another process tested it."""
    seconds: dict[int, float] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)
    """Rounds in which a payload arrived."""
    repeated: set[int] = field(default_factory=set)
    """Rounds with more than one line."""
    counters: dict[int, int] = field(default_factory=dict)
    """What other files say of the bytes sent up to a round."""


class RunRecords:
    """The records of a run on one machine, beside the files that they must agree with."""

    def __init__(self, run_dir: Path) -> None:
        """Raises BadInput for records and evaluations that cannot be read."""
        self.run_dir = run_dir
        self.settings = RunFiles(run_dir).settings
        self.nodes: dict[int, NodeRecords] = {}
        for path in record_files(run_dir):
            for record in read_records(path):
                node = self.nodes.setdefault(record.rank, NodeRecords(path))
                if record.round in node.losses:
                    node.repeated.add(record.round)
                node.losses[record.round] = record.loss
                node.sent[record.round] = record.sent_payload + record.sent_index + record.sent_header
                node.seconds[record.round] = record.seconds
                if record.heard:
                    node.heard.add(record.round)
                if record.metrics or record.evaluate_seconds:
                    node.scores[record.round] = record.metrics
        path = run_dir / "evaluations.jsonl"
        self.rows: list[EvaluationRow] = read_evaluations(path) if path.exists() else []
        for row in self.rows:
            for rank in row.bytes_sent.keys() & self.nodes.keys():
                self.nodes[rank].counters[row.round] = row.bytes_sent[rank]

    @cached_property
    def deleted(self) -> set[str]:
        """The folders that were deleted on purpose; empty where events cannot be read."""
        try:
            events = read_events(self.run_dir / "events.jsonl")
        except BadInput:
            return set()
        return {event.text for event in events if event.kind == "cleaned"}

    def read_checkpoint(self, rank: int, round: int, run_id: object) -> Checkpoint:
        """Reads a checkpoint of this run; raises BadCheckpoint, also if its node's records do not reach it.

        Each record is on the disk before the checkpoint of its round. A run that continued without it would
        never write it again.
        """
        directory = self.run_dir / checkpoint.FOLDER
        saved = checkpoint.read(directory, rank, round)
        if f"{saved.stamp.run_id:016x}" != run_id:
            raise BadCheckpoint(f"{saved.path}: is of another run, {saved.stamp.run_id:016x}")
        node = self.nodes.get(rank)
        if node is None or round not in node.losses:
            path = node.path if node else self.run_dir / "records" / f"{rank:05d}.jsonl"
            found = f"its last one is of round {max(node.losses) + 1}" if node else "there is none"
            raise BadCheckpoint(
                f"{path}: has no record of rank {rank} in round {round + 1}, after which it was saved "
                f"({found})"
            )
        try:
            loss, counters = saved.state["node"]["training"].get("loss"), saved.state["bytes"]
            node.counters[round] = sum(n for name, n in counters.items() if name.startswith("sent_"))
        except (KeyError, TypeError, AttributeError):
            # The node says whether the state is one of it.
            return saved
        recorded = node.losses[round]
        if None not in (loss, recorded) and loss != recorded:
            raise BadCheckpoint(
                f"{node.path}: rank {rank} has the loss {recorded:.6g} in round {round + 1}, and {loss:.6g} "
                "in its checkpoint: they are of different runs"
            )
        return saved

    def problems(self, last: int | None = None) -> Iterator[str]:
        """Yields what is missing or does not fit in records, evaluations, models, transcripts and events.

        `last`: only of rounds up to this one; None: of all.
        """
        for rank, node in self.nodes.items():
            yield from _gaps(rank, node, last)
        of_files = self._of_models, self._of_transcripts, self._of_deliveries, self._of_events
        for problems in (self._of_evaluations, *of_files):
            try:
                yield from problems(last)
            except BadInput as error:
                yield from error.lines
            except (OSError, ValueError) as error:
                yield f"{self.run_dir}: {first_line(error)}"
        # Of a run on several machines, others have records of their own.
        unknown = {rank for row in self.rows for rank in row.bytes_sent if rank not in self.nodes}
        if unknown and self.settings.get("machine") is None:
            yield f"{self.run_dir / 'records'}: has none of {ranks_in_words(sorted(unknown), MOST_NAMED)}"
        if not (self.run_dir / PARTITION_FILE).exists():
            yield f"{self.run_dir / PARTITION_FILE}: is missing"

    def _of_evaluations(self, last: int | None) -> Iterator[str]:
        path = self.run_dir / "evaluations.jsonl"
        rounds = [row.round for row in self.rows]
        other = []
        for row in self.rows:
            here = row.bytes_sent.keys() & self.nodes.keys()
            # A node that has repeated rounds may differ from its first time, but not all of them.
            if here and not any(_agree(row, rank, self.nodes[rank]) for rank in here):
                other.append(row.round)
        if other:
            yield f"{path}: has other losses or metrics than the records in {_rounds(other)}"
        if repeated := sorted({one for one, following in pairwise(rounds) if one == following}):
            yield f"{path}: more than one line of {_rounds(repeated)}"
        tested = {round for node in self.nodes.values() for round in node.scores if _counts(round, last)}
        if missing := sorted(tested - {*rounds}):
            yield f"{path}: has no line of {_rounds(missing)}, after which nodes were tested"

    def _of_models(self, last: int | None) -> Iterator[str]:
        kept = model_rounds(self.run_dir)
        every = _option(self.settings, "records", "models", "every")
        if not kept and every and any(every - 1 in node.losses for node in self.nodes.values()):
            yield f"{self.run_dir / MODELS}: has no models, although records.models keeps them"
        # The last one is kept of each node's own last round.
        wanted = {round for rounds in kept.values() for round in rounds[:-1] if _counts(round, last)}
        for rank, node in self.nodes.items():
            if kept and (missing := sorted((wanted & node.losses.keys()) - {*kept.get(rank, ())})):
                yield f"{self.run_dir / MODELS / f'{rank:05d}'}: has no model of {_rounds(missing)}"

    def _of_transcripts(self, last: int | None) -> Iterator[str]:
        listening = set[int]()
        for options in self.settings.get("adversaries") or ():
            cls = ATTACKS.classes().get(str(_option(options, "name")))
            if cls is not None and not getattr(cls, "active", True):
                # Plug-ins from outside are not imported to be asked.
                listening.update(options.get("ranks") or (), *(options.get("links") or ()))
        if transcript_files.FOLDER in self.deleted:
            return
        for rank in sorted(listening & self.nodes.keys()):
            path, transcript = lines_path(self.run_dir, rank), Transcript(self.run_dir, rank)
            transcript.advance()
            node, lines = self.nodes[rank], transcript.lines
            # The line that completes a round comes with the next one.
            before = [r for r in sorted(node.heard) if _counts(r, last)][:-1]
            if before and before[-1] > max(transcript.complete, *lines, -1):
                yield f"{path}: ends before round {before[-1] + 1}"
            content = bytes_path(self.run_dir, rank)
            ends = [at.offset + at.bytes for of in lines.values() for at in of if at.offset >= 0]
            if max(ends, default=0) > (content.stat().st_size if content.exists() else 0):
                yield f"{content}: lacks bytes that {path.name} refers to"

    def _of_deliveries(self, last: int | None) -> Iterator[str]:
        path, began = self.run_dir / DELIVERIES, []
        for node in self.nodes.values():
            rounds = [round for round in sorted(node.sent) if node.sent[round] and _counts(round, last)]
            began.append(node.seconds[rounds[-2]] if len(rounds) > 1 else 0.0)
        if not _option(self.settings, "communication", "delivery_log") or not began:
            return
        lines = path.read_bytes().split(b"\n")[1:-1] if path.exists() else []
        # A payload arrives after the end of its sender's round before; some of them may be lost.
        if max((int(line.partition(b",")[0]) for line in lines), default=0) < 1e9 * min(began):
            yield f"{path}: lacks deliveries of the last rounds"

    def _of_events(self, last: int | None) -> Iterator[str]:
        path = self.run_dir / "events.jsonl"
        kinds = [event.kind for event in read_events(path)] if path.exists() else []
        if self.nodes and "started" not in kinds:
            yield f"{path}: does not say that the run began"
        elif last is None and (self.run_dir / "summary.json").exists() and "ended" not in kinds:
            yield f"{path}: does not say how the run ended"


def verify(run_dir: StrPath) -> list[str]:
    """Returns what does not belong together in the files of a run, one line each; empty: all does.

    Compares records, checkpoints, evaluations, kept models, transcripts, events, partition and summary, also
    of other machines whose directories are below. Starts nothing, and imports no plug-in. Raises BadInput if
    that is not the directory of a run, or is one in progress.
    """
    below = machine_parts(run_dir)
    if not below:
        check_run(run_dir)
        below = [Path(run_dir), *sorted(path.parent for path in Path(run_dir).glob("machine-*/config.yaml"))]
    found, ids = list[str](), set[str]()
    for part in below:
        if (run := RunFiles(part)).state == RUNNING:
            raise BadInput(f"{part}: this run is in progress; stop it first")
        try:
            ids.update({run.run_id} - {""})
            found.extend(_problems(part, run.run_id))
        except BadInput as error:
            found.extend(error.lines)
    if len(ids) > 1:
        found.append(f"{run_dir}: its machines have different runs: {', '.join(sorted(ids))}")
    return found


def _problems(run_dir: Path, run_id: str) -> Iterator[str]:
    """Yields what does not belong together in the directory of one machine; raises BadInput."""
    records = RunRecords(run_dir)
    if not run_id:
        # Without records it ended before its first round.
        yield from [f"{run_dir / 'run.json'}: is missing"] if records.nodes else []
        return
    digests: dict[int, dict[int, str]] = {}
    """By round and rank, of the models in checkpoints."""
    settings = set()
    for rank, rounds in checkpoint.rounds_of(run_dir / checkpoint.FOLDER).items():
        for round in rounds:
            try:
                saved = records.read_checkpoint(rank, round, run_id)
                vector = saved.state["node"]["vector"]
                digests.setdefault(round, {})[rank] = hashlib.sha256(content_of(vector)).hexdigest()
                settings.add(saved.stamp.settings)
            except BadCheckpoint as error:
                yield str(error)
            except (KeyError, TypeError):
                yield f"{run_dir / checkpoint.FOLDER}: rank {rank}, round {round + 1}: has no state of a node"
    if len(settings) > 1:
        yield f"{run_dir / checkpoint.FOLDER}: checkpoints were made with different settings"
    yield from records.problems()
    yield from _of_summary(run_dir, run_id, records, digests)


def _of_summary(
    run_dir: Path, run_id: str, records: RunRecords, digests: Mapping[int, Mapping[int, str]]
) -> Iterator[str]:
    path = run_dir / "summary.json"
    if not path.exists():
        return
    summary = read_object(path)
    if summary.get("run_id") != run_id:
        yield f"{path}: is of another run, {summary.get('run_id')}"
        return
    row = records.rows[-1] if records.rows else None
    for name in ("consensus_distance", "average_model"):
        if row is not None and summary.get(name) != getattr(row, name):
            yield f"{path}: has another {name} than the last line of evaluations.jsonl"
    if summary.get("checkpoint_bytes") and not digests and checkpoint.FOLDER not in records.deleted:
        yield f"{run_dir / checkpoint.FOLDER}: has none of the checkpoints that summary.json counts"
    nodes, finished = summary.get("nodes"), summary.get("finished_nodes")
    ended = _option(summary, "target", "last_round")
    last = ended if isinstance(ended, int) else read_value(path, "rounds", int) - 1
    if finished != nodes:
        return
    for rank, node in records.nodes.items():
        if (end := max(node.losses)) < last:
            yield f"{node.path}: rank {rank} ends at round {end + 1}, and has finished round {last + 1}"
    models = digests.get(last, {})
    if len(models) == nodes and model_hash(models) != summary.get("model_hash"):
        yield f"{path}: has another model_hash than the models of the last checkpoints"


def _option(settings: Mapping[str, Any], *path: str) -> Any:
    """An option of resolved settings; None where its section has another form."""
    value: Any = settings
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _counts(round: int, last: int | None) -> bool:
    return last is None or round <= last


def _rounds(rounds: Sequence[int]) -> str:
    return "round" + ranks_in_words([round + 1 for round in rounds], MOST_NAMED).removeprefix("rank")


def _agree(row: EvaluationRow, rank: int, node: NodeRecords) -> bool:
    """Whether a row has the loss and the metrics of a node's record, as far as both are there."""
    recorded = node.losses.get(row.round)
    loss = row.train_loss.get(rank, recorded)
    scores = node.scores.get(row.round, {})
    return recorded == loss and all(row.metrics.get(name, {}).get(rank, v) == v for name, v in scores.items())


def _gaps(rank: int, node: NodeRecords, last: int | None) -> Iterator[str]:
    """Yields rounds of a node that its file lacks, or has twice.

    A node that was away, or has come late, has skipped rounds; but what it has sent is in its records.
    """
    if repeated := sorted(round for round in node.repeated if _counts(round, last)):
        yield f"{node.path}: more than one line of rank {rank} in {_rounds(repeated)}"
    before, lacking = -1, dict[int, list[int]]()
    for round, sent in sorted(node.counters.items()):
        if not _counts(round, last):
            break
        rounds = [r for r in range(before + 1, round + 1) if r not in node.losses]
        if rounds and sum(n for r, n in node.sent.items() if r <= round) < sent:
            lacking[round] = rounds
        before = round
    if missing := sorted(r for rounds in lacking.values() for r in rounds):
        yield f"{node.path}: has no line of rank {rank} in {_rounds(missing)}, in which it has sent payloads"
