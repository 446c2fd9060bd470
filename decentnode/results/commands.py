"""The commands that show runs: plot and compare.

Heavy modules are imported inside.
"""

from pathlib import Path
from typing import Annotated

import typer

from decentnode.cli.words import app, examples
from decentnode.core.streams import print_lines
from decentnode.results.figure_options import (
    FontOption,
    FormatOption,
    LabelOption,
    SizeOption,
    StyleOption,
)


@app.command(
    epilog=examples(
        "decentnode plot runs/mine",
        "decentnode plot runs/a runs/b --out pictures",
        "decentnode plot runs/a runs/b --style paper --font Times:8 --label a='Gossip SGD'",
    )
)
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, shown together.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where figures go; default: into a single run, or comparison."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="The metric to judge by: local_accuracy; default: the headline metric.")
    ] = None,
    style: StyleOption = "screen",
    font: FontOption = None,
    size: SizeOption = None,
    label: LabelOption = None,
    format: FormatOption = None,
) -> None:
    """Draw the figures of one run, or of several for comparison."""
    from decentnode.results.figures import plots as figures
    from decentnode.results.figures.style import chosen_style

    look = chosen_style(style, font, size, label or (), format)
    print_lines(map(str, figures.plot(runs, out, metric, look)))


@app.command(
    epilog=examples("decentnode compare runs/a runs/b", "decentnode compare runs/quick --target 90 --no-draw")
)
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN|STUDY...", help="Directories of runs, or of studies.")
    ],
    target: Annotated[
        float | None,
        typer.Option(
            help="Headline metric to count costs up to (accuracy: in percent); default: what all reach."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the figures go.")] = Path("comparison"),
    draw: Annotated[bool, typer.Option(help="Draw the figures, too.")] = True,
    metric: Annotated[str | None, typer.Option(help="As for plot.")] = None,
    style: StyleOption = "screen",
    font: FontOption = None,
    size: SizeOption = None,
    label: LabelOption = None,
    format: FormatOption = None,
) -> None:
    """Show runs side by side, seeds of a variant together: metric, bytes and time, and figures."""
    from decentnode.results import compare as comparison
    from decentnode.results.curves import chosen_metric
    from decentnode.results.study import read_variants

    variants = chosen_metric(read_variants(runs), metric)
    print_lines(comparison.compare(variants, target))
    if draw:
        from decentnode.results.figures import plots as figures
        from decentnode.results.figures.style import chosen_style

        look = chosen_style(style, font, size, label or (), format)
        print_lines(["", *map(str, figures.draw(variants, out, look))])
