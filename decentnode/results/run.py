"""One run as a study sees it: settings, state, curves of the headline metric, a tidy table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from decentnode.core.text import counted, first_line, ratio, readable_bytes, readable_seconds
from decentnode.errors import UNDECODABLE, BadInput
from decentnode.formats.metrics import Metric, chosen_metric
from decentnode.formats.partition_table import read_partition
from decentnode.formats.reader import (
    SCHEMA,
    StrPath,
)
from decentnode.formats.records import records_by_rank, write_atomically
from decentnode.formats.run import RUNNING, RunFiles
from decentnode.results import cards
from decentnode.results.coordinates import counts_of
from decentnode.results.curves import axis_of, read_runs
from decentnode.results.extra import missing, need
from decentnode.results.tidy import RECORD_COLUMNS, TEXTS, Cell, cells, columns, record_cells

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

    from decentnode.results.figures.plots import NotebookFigure

ROWS_PER_BLOCK = 50_000
ENTRY = "study.json"
"""The file in a run's directory where a sweep records the run, once it has ended."""


class RunEntry(msgspec.Struct):
    """The content of a run's `study.json`: written at its first round, and with its times after its end."""

    study: str
    variant: str
    axes: Mapping[str, str]
    """The label of the variant on each axis."""
    seed: int
    alone: bool = False
    """Whether no other run of the study had the machine meanwhile; otherwise its seconds mean little."""
    wall_seconds: float | None = None
    """Seconds of the whole process, with start and end; None before it has ended."""
    cpu_seconds: float | None = None
    """Processor time of all its processes; None before the end."""
    exit_code: int | None = None
    """The exit code of the run; None before the end."""
    boot: str = ""
    """Identifies the machine since its start: its kernel's boot."""
    began: float = 0.0
    """When the process began, by the monotonic clock of this boot."""

    def overlaps(self, other_entry: "RunEntry", is_running: bool) -> bool:
        """Whether both had the same machine at some time; `is_running`: whether the other one still does."""
        if not self.boot or self.boot != other_entry.boot:
            return False
        ended, other_ended = (one.began + (one.wall_seconds or 0.0) for one in (self, other_entry))
        return other_entry.began < ended and (is_running or self.began < other_ended)

    def save(self, run_dir: Path) -> None:
        """Writes the file; raises OSError."""
        write_atomically(run_dir / ENTRY, {"schema": SCHEMA, **msgspec.to_builtins(self)})


def read_entry(run_dir: StrPath) -> RunEntry | None:
    """The entry of a run; None where there is none, or it cannot be read."""
    try:
        return msgspec.json.decode((Path(run_dir) / ENTRY).read_bytes(), type=RunEntry)
    except (OSError, *UNDECODABLE):
        return None


class Run(RunFiles):
    """A run, from the files in its directory; each is read when something first needs it.

        run = Run("runs/quickstart")
        run.plot("accuracy", x="bytes")

    It remembers what it has read; a new one shows what a run in progress has written since. The properties
    raise BadInput for files that decentnode has not written. Rounds count from 1.
    """

    def __init__(self, directory: StrPath) -> None:
        """Raises BadInput if that is not the directory of a run."""
        super().__init__(directory)
        self.network: nn.Module | None = None
        """The module that was passed as the model of the run, if it was started here; no file has it."""

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        """Returns a card for notebooks: state, settings, result, cost and the headline curve."""
        try:
            return Run(self.directory)._card()  # of a run in progress as it is now
        except (BadInput, OSError) as error:  # a notebook shows a card even where files are damaged
            return cards.card(str(self.directory), "", "", cards.notes([first_line(error)]))

    def _card(self) -> str:
        picture = b""
        if self.rows and not missing("matplotlib", "figures"):
            from decentnode.results.figures import plots

            picture = plots.thumbnail(read_runs([self.directory])[0])
        return cards.card(self.name, self.state, self._outline(), cards.pairs([*self._facts()]), picture)

    def _outline(self) -> str:
        """Returns the main settings in one line."""
        settings, nodes, rounds = self.settings, self._nodes, self.settings.get("rounds")
        sizes = [counted(nodes, "node")] if nodes else []
        sizes += [counted(rounds, "round")] if isinstance(rounds, int) else []
        sizes += [f"seed {self.seed}"]
        sharing = settings.get("sharing")
        transforms = sharing.get("transforms") or [] if isinstance(sharing, dict) else []
        parts = {key: _named(settings.get(key)) for key in ("graph", "sharing", "model", "dataset")}
        parts["sharing"] += f" ({', '.join(map(_named, transforms))})" if transforms else ""
        return ", ".join([*sizes, *(f"{key} {name}" for key, name in parts.items() if name)])

    @property
    def _nodes(self) -> int:
        """The number of nodes; 0 before it is known."""
        partition = None if "nodes" in self.summary else read_partition(self.directory)
        return len(partition.samples) if partition else int(self.summary.get("nodes", 0))

    def _facts(self) -> Iterator[tuple[str, str]]:
        """Yields names and values for the card."""
        headline = self.headline
        if self.rows:
            row = self.rows[-1]
            known = [value for value in row.values(headline.name) if value is not None]
            mean = fmean(known) if len(known) == len(row.ranks) else None
            of = f"mean of {row.mean_over or 'the nodes'}"
            yield f"{headline.title}", f"{headline.text(mean)} after round {row.round + 1}, {of}"
            if known:
                ends = headline.worst(known), headline.best(known)
                yield "worst, best node", " and ".join(map(headline.text, ends))
            if (average := row.of_average(headline.name)) is not None:
                yield "average model", headline.text(average)
            yield "sent per node", readable_bytes(self.bytes_per_node[-1])
            if row.wall_seconds is None:
                yield "simulated time" if self.is_simulated else "time", readable_seconds(row.seconds)
            else:
                times = ratio(row.seconds, row.wall_seconds)
                yield "simulated time", f"{readable_seconds(row.seconds)}, {times} the wall time"
                yield "wall time", readable_seconds(row.wall_seconds)
        else:
            yield headline.title, "no evaluation yet" if self.state == RUNNING else "no evaluation"
        if lost := self.summary.get("lost_nodes"):
            yield "lost", counted(len(lost), "node")
        for event in self.summary.get("health", ()):
            yield "beside nodes", event["text"]
        if self.model_hash:
            yield "model hash", self.model_hash[:16]
        yield "directory", str(self.directory)

    @cached_property
    def entry(self) -> RunEntry | None:
        """The entry that a sweep has recorded of it; None for a run of its own."""
        return read_entry(self.directory)

    def curve(self, metric: Metric | None = None) -> list[float]:
        """The mean over nodes after each evaluation, as people read it; nan if one is not finite."""
        metric = metric or self.headline
        columns = (row.values(metric.name) for row in self.rows)
        return [
            metric.scale * fmean(nan if value is None else value for value in column) if column else nan
            for column in columns
        ]

    @property
    def end(self) -> float:
        """The headline metric at the last evaluation, mean over nodes, as people read it; nan without any."""
        return self.curve()[-1] if self.rows else nan

    @property
    def best(self) -> float:
        """The headline metric where it is best, as people read it; nan where no evaluation is finite.

        With validation samples: where the same metric is best on those.
        """
        judged = self.judged_by
        pairs = [*zip(self.curve(judged), self.curve(), strict=True)]
        # Of equal ones the first evaluation counts.
        known = {value: shown for value, shown in reversed(pairs) if isfinite(value)}
        return known[judged.best([*known])] if known else nan

    @property
    def judged_by(self) -> Metric:
        """The metric to choose by: the headline metric, on validation samples where there are some."""
        wanted = self.headline.of_validation
        return wanted if wanted in self.metrics else self.headline

    @property
    def rounds(self) -> list[float]:
        """The rounds that were evaluated, counted from 1."""
        return [row.round + 1 for row in self.rows]

    @property
    def bytes_per_node(self) -> list[float]:
        """Bytes that a node has sent on average, at each evaluation."""
        return [fmean(row.bytes_sent.values()) for row in self.rows]

    @property
    def seconds(self) -> list[float]:
        """Seconds since the start of the run, at each evaluation."""
        return [row.seconds for row in self.rows]

    @property
    def evaluations(self) -> "DataFrame":
        """A frame with a row for each rank and evaluation; needs pandas.

        Columns: `run`, `seed`, `rank`, `round` (from 1), `seconds` (since the start), `wall_seconds` (real
        ones, where `seconds` are those of a simulation), `bytes_sent` (by this rank, since the start),
        `train_loss`, `consensus_distance` (relative, of all nodes), then the metrics
        in the units of the files (accuracy: 0 to 1).
        """
        rows = (line for row in self.rows for line in cells(self.name, self.seed, self.metrics, row=row))
        return _frame(rows, columns(self.metrics))

    @property
    def records(self) -> "DataFrame":
        """A frame with a row for each rank and round, of the nodes of this machine; needs pandas.

        Columns: `run`, `seed`, `rank`, `round` (from 1), `train_loss`, `steps`; `seconds` since the start;
        `train_seconds`, `exchange_seconds`, `mix_seconds` and `evaluate_seconds` of the round; bytes of the
        round in `sent_payload`, `sent_index`, `sent_header`, `received_payload`, `received_index` and
        `received_header`; `heard`, `late` and `lost`: numbers of neighbors; `refused`: that of messages;
        `epsilon`, `attacker_weight`, `memory_mb` (MiB) and the metrics, where they are known.
        """
        rows = (
            line
            for records in records_by_rank(self.directory).values()
            for line in record_cells(self.name, self.seed, self.metrics, records)
        )
        return _frame(rows, [*RECORD_COLUMNS, *(metric.name for metric in self.metrics)])

    def coordinates(self, rank: int, round: int | None = None) -> dict[str, Any]:
        """How often a node has sent each coordinate, until a round, by default the last one that is written.

        `rounds` are numbers of rounds, and `latest` the last of them, 0 where there is none, both of shape
        (d,), in the basis in which the chain selects. Raises BadInput without `records.coordinates`.
        """
        counts = counts_of(self.directory, rank, None if round is None else round - 1)
        return {"rounds": counts["rounds"], "latest": counts["latest"] + 1}

    def model(self, rank: int, round: int | None = None) -> dict[str, Any]:
        """The `state_dict` of a node's model after a round, by default the last one that is kept of it.

        `records.models` in the configuration says which are kept. Raises BadInput where that one is not.
        """
        from decentnode.results import kept_models  # loads torch

        return kept_models.state_of(self.directory, rank, round)

    def mean_model(
        self, round: int | None = None, network: "nn.Module | None" = None, with_its_code: bool = False
    ) -> "nn.Module":
        """The mean of the nodes' models as a module in mode `eval`, by default after the last round.

        It averages the nodes that were not lost: floating-point tensors, buffers too; integers and other
        state are those of the first node. The module is built from the configuration of the run, and takes
        no samples to build; `network`: a module to copy instead. A model that is a plug-in is built only
        `with_its_code`, which runs the copy of it that the run has. Raises BadInput where a model is not kept
        (`records.models`), or the configuration names a file that is gone.
        """
        from decentnode.results import kept_models  # loads torch

        network = self.network if network is None else network
        return kept_models.mean_model(
            self.directory, {int(rank) for rank in self.summary.get("lost_nodes") or ()}, round, network,
            seed=self.seed, precision=(self.settings.get("training") or {}).get("dtype", "float32"),
            with_its_code=with_its_code,
        )  # fmt: skip

    def merged_model(
        self, rank: int | None = None, round: int | None = None, with_its_code: bool = False
    ) -> "nn.Module":
        """The model of a node, or by default the mean, as a module; its weights have their adapters added.

        `round` as in `model`, `with_its_code` as in `mean_model`. Raises BadInput where no model is kept.
        """
        from decentnode.models.adapters import merge  # loads torch

        network = self.mean_model(round, with_its_code=with_its_code)
        if rank is not None:
            network.load_state_dict(self.model(rank, round))
        return merge(network)

    def plot(self, metric: str | None = None, x: str = "rounds") -> "NotebookFigure":
        """A matplotlib figure of a metric: the mean of the nodes, of many the median, and their spread.

        Args:
            metric: a metric of the run, by default the headline metric; `train_loss`; `consensus_distance`.
            x: `rounds`, `bytes` (sent per node) or `seconds`.

        Raises BadInput for other names, and where no evaluation has been written yet.
        """
        from decentnode.results.figures import plots  # loads matplotlib

        run_curves = read_runs([self.directory])[0]
        chosen, axis = chosen_metric(run_curves.metrics, metric), axis_of([run_curves], x)
        if not run_curves.rows:
            raise BadInput(f"{self.directory}: holds no evaluation, so there is nothing to draw")
        return plots.run_figure(run_curves, chosen, axis)

    def figure(self, name: str) -> "NotebookFigure":
        """One of the figures that `decentnode plot` draws, by its file name without the ending.

        Raises BadInput where the run has no such figure.
        """
        from decentnode.results.figures import plots  # loads matplotlib

        return plots.named_figure(read_runs([self.directory])[0], name)


def _named(section: Any) -> str:
    """Returns the name of a plug-in in the settings, or the stem of a file that stands for it."""
    if not isinstance(section, dict):
        return str(section or "")
    path = section.get("path") if section.get("name") == "file" else None
    return Path(path).stem if isinstance(path, str) else str(section.get("name") or "")


def _frame(rows: Iterable[Sequence[Cell]], names: Sequence[str]) -> "DataFrame":
    """The rows as a frame; unknown numbers are nan, also in a column that has no other."""
    pandas, blocks = need("pandas"), list["DataFrame"]()
    left = iter(rows)
    # In blocks: as objects, a million rows take ten times the memory of their frame.
    while (block := [*islice(left, ROWS_PER_BLOCK)]) or not blocks:
        frame = pandas.DataFrame(block, columns=names)
        unknown = [name for name in names if name not in TEXTS and frame[name].dtype == object]
        blocks.append(frame.astype(dict.fromkeys(unknown, "float64")))
    return blocks[0] if len(blocks) == 1 else pandas.concat(blocks, ignore_index=True)
