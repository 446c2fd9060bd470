"""The options of commands that draw figures."""

from typing import Annotated

import typer

StyleOption = Annotated[
    str,
    typer.Option(
        help="screen, paper (a column), two_columns, or a style of matplotlib: its name, or a file."
    ),
]
FontOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The font, and its size: Times:8, Helvetica, 'DejaVu Serif:9'."),
]
SizeOption = Annotated[str | None, typer.Option(help="Inches of a figure, without its legend: 3.35x2.1.")]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="What a figure shows for a run, a variant or a metric."),
]
FormatOption = Annotated[
    str | None,
    typer.Option(help="Formats of figures: png,pdf,svg,pgf (pgf needs LaTeX)."),
]
