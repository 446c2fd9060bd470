"""Reads the files of a run directory without loading torch (docs/results.md)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from decentnode.core.registry import COPIES
from decentnode.core.text import counted
from decentnode.errors import UNDECODABLE, BadInput
from decentnode.formats.metrics import CLASSIFICATION, TRAIN_LOSS, Metric

SCHEMA = 3
"""The version of all files of a run directory; a change of meaning or a removal raises it."""
HASH_LETTERS = 12
"""Letters of a hash in the name of a folder."""
MOST_SHOWN = 20
"""Unreadable lines that the error names; in a file of another kind every line is unreadable."""
NOT_OURS = "not written by this version of decentnode"
T = TypeVar("T")
StrPath = str | os.PathLike[str]
"""A path, as readers take it: a text, too."""


class EvaluationRow(msgspec.Struct):
    """The evaluations of all nodes after one round; one line of `evaluations.jsonl`."""

    round: int
    """Counted from 0."""
    seconds: float
    """Mean over nodes of the time since the start of the run."""
    metrics: dict[str, dict[int, float | None]]
    """Scores by name and rank, of the nodes' models on the test samples; None: not a finite number."""
    train_loss: dict[int, float]
    bytes_sent: dict[int, int]
    """Bytes sent since the start, by rank."""
    consensus_distance: float | None = None
    average_model: dict[str, float | None] | None = None
    """The metrics of the mean model, by name; None where they are not known."""
    wall_seconds: float | None = None
    """Real seconds, where `seconds` are those of a simulation."""

    @property
    def ranks(self) -> list[int]:
        """The nodes that were evaluated."""
        return [*next(iter(self.metrics.values()), {})]

    @property
    def mean_over(self) -> str:
        """Returns what a mean of its metrics is over, as `256 of 16,384 nodes`; empty: all nodes."""
        tested, nodes = len(self.ranks), len(self.bytes_sent)
        return f"{tested:,} of {counted(nodes, 'node')}" if tested < nodes else ""

    def values(self, metric: str) -> list[float | None]:
        """Returns one number for each node that was evaluated; `train_loss`: for each that trains."""
        of_metric = self.train_loss if metric == TRAIN_LOSS.name else {}
        return [*self.metrics.get(metric, of_metric).values()]

    def of_average(self, metric: str) -> float | None:
        """The number of that name for the mean model; None where it is not known."""
        return (self.average_model or {}).get(metric)


class Event(msgspec.Struct, omit_defaults=True):
    """One event of a run; one line of `events.jsonl`."""

    seconds: float
    """Seconds since the command started to make the run directory."""
    kind: str
    text: str = ""
    rank: int | None = None
    """The rank that the event concerns, or that reports it."""
    round: int | None = None
    """Counted from 0."""
    peer: int | None = None


class Live(msgspec.Struct):
    """The address where a run in progress answers requests; the content of `live.json`."""

    pid: int
    """The process id of the launcher."""
    machine: int
    control: str
    """Path of its control socket."""


class CodeVersion(msgspec.Struct, frozen=True):
    """The code of a run from one round on; one entry of `code` in `run.json`.

    `files` and what belongs to them are about the plug-ins from outside the package.
    """

    round: int
    """The first round with this version."""
    digest: str
    """SHA-256 over the lines `FILE:SHA-256` of `files`, in their order, and those of `packages`."""
    files: dict[str, str]
    """SHA-256 of each source file, in the order of their names."""
    commit: str | None = None
    """The git commit of the plug-ins; None where it is not known."""
    dirty: bool | None = None
    """Whether some files differ from the commit."""
    package: str = ""
    """SHA-256 over this package's own sources."""
    packages: dict[str, str] = {}
    """The version of each installed package that registers plug-ins of the run, by its name."""
    environment: dict[str, str] = {}
    """Versions of decentnode, Python and torch, the processor and the GPU, by name."""

    @property
    def parts(self) -> dict[str, str]:
        """What must be the same in a start of the run: `files`, and `NAME VERSION` of each package."""
        return self.files | {f"{name} {version}": version for name, version in self.packages.items()}

    def folder(self, run_dir: Path) -> Path:
        """Returns the run's folder with a copy of the files."""
        return run_dir / COPIES / self.digest[:HASH_LETTERS]

    def is_same(self, other_version: "CodeVersion") -> bool:
        """Whether it is the same code on the same kind of machine, whatever git says of it."""
        mine = self.digest, self.package, self.environment
        return mine == (other_version.digest, other_version.package, other_version.environment)


def read_lines(path: StrPath, kind: type[T]) -> list[T]:
    """Reads one object per line; ignores a last line that a kill cut off. Raises BadInput."""
    decode = msgspec.json.Decoder(kind).decode
    content = _read(path)
    decoded = []
    defects = []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            decoded.append(decode(line))
        except UNDECODABLE as error:
            defects.append(f"{path}:{number}: {NOT_OURS}: {error}")
    if len(defects) > MOST_SHOWN:
        more = counted(len(defects) - MOST_SHOWN, "line")
        defects[MOST_SHOWN:] = [f"{path}: and {more} more that cannot be read; is this the right file?"]
    if defects:
        raise BadInput(*defects)
    return decoded


def read_evaluations(path: StrPath) -> list[EvaluationRow]:
    """The rows of an `evaluations.jsonl`, by round."""
    return sorted(read_lines(path, EvaluationRow), key=lambda row: row.round)


def is_simulated(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the times of a run are virtual: by its summary, and before its end by its transport."""
    if "simulated" in summary:
        return bool(summary["simulated"])
    section = settings.get("communication")
    return (section.get("name") if isinstance(section, dict) else section) == "simulated"


class EvaluationFollower:
    """Reads an `evaluations.jsonl` while it grows."""

    def __init__(self, path: StrPath) -> None:
        self._path = Path(path)
        self._offset = 0
        self._rounds: set[int] = set()

    def read(self) -> list[EvaluationRow]:
        """The rows since the last call in their order, no round twice; raises BadInput."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:  # rows were discarded
                self._offset = 0
            file.seek(self._offset)
            # A last line without its end is not written yet, or was cut off by a kill.
            content = file.read().rpartition(b"\n")[0]
        try:
            rows = [msgspec.json.decode(line, type=EvaluationRow) for line in content.split(b"\n") if line]
        except UNDECODABLE as error:
            raise BadInput(f"{self._path}: {NOT_OURS}: {error}") from error
        self._offset += len(content) + bool(content)
        rows = [row for row in rows if row.round not in self._rounds]
        self._rounds.update(row.round for row in rows)
        return rows


def read_metrics(run_dir: StrPath) -> list[Metric]:
    """The metrics of a run, the headline first; those of a classification where the run does not say."""
    path = Path(run_dir) / "run.json"
    is_described = path.exists() and "metrics" in read_object(path)
    return read_value(path, "metrics", list[Metric]) if is_described else [*CLASSIFICATION]


def read_events(path: StrPath) -> list[Event]:
    """The lines of an `events.jsonl` in their order."""
    return read_lines(path, Event)


def read_value(path: StrPath, key: str, kind: type[T]) -> T:
    """Reads one value of a `summary.json` or `partition.json`; raises BadInput."""
    try:
        return msgspec.convert(read_object(path).get(key), kind)
    except UNDECODABLE as error:
        raise BadInput(f"{path}: {NOT_OURS}: '{key}': {error}") from error


def code_folders(run_dir: StrPath) -> list[Path]:
    """Returns the folder of the plug-ins' files as a run last used them; none where it has none."""
    versions = read_value(Path(run_dir) / "run.json", "code", list[CodeVersion])
    return [version.folder(Path(run_dir)) for version in versions[-1:] if version.files]


def read_object(path: StrPath) -> dict[str, Any]:
    """The content of a `summary.json` or `partition.json`; raises BadInput when a newer version wrote it."""
    try:
        content = msgspec.json.decode(_read(path), type=dict[str, Any])
    except UNDECODABLE as error:
        raise BadInput(f"{path}: not a JSON object: {error}; restore the file, or remove it") from error
    schema = content.get("schema")
    if schema != SCHEMA:
        raise BadInput(f"{path}: has schema {schema}; this version of decentnode reads schema {SCHEMA}")
    return content


def machine_parts(directory: StrPath) -> list[Path]:
    """Returns the directories of machines in one that several share, by index; empty for that of a run."""
    path = Path(directory)
    if os.path.isfile(path / "config.yaml") or not os.path.isdir(path):  # noqa: PTH112, PTH113 - as below
        return []
    found = {
        int(part.name.removeprefix("machine-")): part
        for part in path.glob("machine-[0-9]*")
        if part.name.removeprefix("machine-").isdecimal() and (part / "config.yaml").exists()
    }
    return [found[machine] for machine in sorted(found)]


def check_run(run_dir: StrPath, more: str = "") -> None:
    """Raises BadInput if that is not the directory of a run; `more` is what else it could have been."""
    if not os.path.isfile(Path(run_dir) / "config.yaml"):  # noqa: PTH113 - a path may also be too long, or not ours
        is_folder = os.path.isdir(run_dir)  # noqa: PTH112 - as above
        if not more and is_folder and any(Path(run_dir).glob("**/seed-*/config.yaml")):
            more = "; it is that of a study: use decentnode report, compare or frontier"
        raise BadInput(f"{run_dir}: not the directory of a run (it has no config.yaml){more}")


def _read(path: StrPath) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        check_run(Path(path).parent)
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
