"""The output of `decentnode partition`: which training samples each rank of an experiment has."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from decentnode.cli.pictures import drawing_function
from decentnode.config.settings import Settings
from decentnode.core.text import counted, decimal
from decentnode.formats.partition_table import PartitionTable
from decentnode.node.run_samples import RunSamples

MOST_ROWS = 100
"""Ranks that the table on the screen has; the picture and --json have all."""
FEW_LABELS, MANY_LABELS = 12, 80
"""Up to so many labels, each has a column of numbers; up to so many, a letter; more are not shown."""
SHADES = " .:-=+*#%@"
"""A letter for no samples, then from few to as many as the label with most has at any rank."""


def report(settings: Settings, as_json: bool, figure: Path | None) -> Iterator[str]:
    """The lines to print, after the figure was written; raises BadInput."""
    # Before the samples are loaded, which may take minutes.
    draw = None if figure is None else drawing_function("partition", figure)
    samples = RunSamples.load(settings, settings.graph.make().num_nodes)
    table = samples.table(settings)
    if draw is not None:
        draw(table, figure)
    if as_json:
        yield json.dumps({"partition": settings.dataset.partition.name, **table.content})
        return
    yield from lines(table, settings.dataset.partition.name)
    yield f"in all             {samples.sizes}"
    if figure is not None:
        yield f"figure             {figure}"


def lines(table: PartitionTable, name: str) -> Iterator[str]:
    """The ranks as a table, and the whole in a few numbers."""
    rows = [[str(cell) for cell in row] for row in _rows(table)]
    widths = [max(map(len, column)) for column in zip(*rows[:1], *rows[1:], strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if len(table.samples) > MOST_ROWS:
        yield f"... and {counted(len(table.samples) - MOST_ROWS, 'rank')} more; --json and --draw have all"
    yield ""
    yield from _whole(table, name)


def _rows(table: PartitionTable) -> Iterator[Sequence[object]]:
    """The heading, then a row for each rank."""
    labels = len(table.labels[0]) if table.labels else 0
    most = max((count for row in table.labels for count in row), default=0)
    names = [f"label {i}" if not i else str(i) for i in range(labels)] if labels <= FEW_LABELS else []
    shaded = FEW_LABELS < labels <= MANY_LABELS
    skews = [str(skew["name"]) for skew in table.skew if any(skew["levels"])]
    heading = ["rank", "samples", *(["groups"] if table.groups else []), *skews]
    if labels:
        heading += ["labels", *names, *([f"0..{labels - 1}".ljust(labels)] if shaded else [])]
    yield heading
    for rank in range(min(len(table.samples), MOST_ROWS)):
        row: list[object] = [rank, f"{table.samples[rank]:,}"]
        row += [table.groups[rank]] if table.groups else []
        row += [_level(skew["levels"][rank]) for skew in table.skew if any(skew["levels"])]
        if labels:
            held = table.labels[rank]
            row += [sum(count > 0 for count in held), *(held if names else [])]
            if shaded:
                darkest = len(SHADES) - 1
                row.append("".join(SHADES[-(-count * darkest // most) if count else 0] for count in held))
        yield row


def _level(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:.3g}" for number in numbers) or "-"


def _whole(table: PartitionTable, name: str) -> Iterator[str]:
    whole = table.figures
    trained = f"{whole['training_ranks']} of {counted(len(table.samples), 'rank')} train"
    yield f"partition          {name}, {trained}"
    yield f"samples            {whole['samples']:,} on {whole['smallest']:,} to {whole['largest']:,} a rank"
    deviation = f"standard deviation {100 * (whole['size_variation'] or 0):.1f} % of it"
    yield f"mean               {whole['mean']:,.1f}, {deviation}"
    if whole["mean_groups"] is not None:
        yield f"groups             on average {whole['mean_groups']:,.1f} at a rank"
    if whole["labels"] is not None:
        yield f"labels             {whole['labels']}, on average {whole['mean_labels']:.1f} of them at a rank"
        yield f"label distance     {decimal(whole['label_distance'])} (0: as the whole, 1: nothing in common)"
