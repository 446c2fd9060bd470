r"""Reads the tables of the corpus, in which a case is a line or two.

    = what is replaced
    by what | where | message
    by what, if that is long,
        + and its rest
        | where | message
        | where | message of a second line
        | ... * 3

Where and message are joined as the program does it: `3 rounds | must be ...` stands for what follows
`x.yaml:` in `x.yaml:3 rounds: must be ...`. In them `...` is any text, and alone it is any line, or several.
In all cells `\n` and the like stand for one character, `<a * 260>` for a text that is repeated, and `""` for
nothing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "e": "\x1b", "s": " "}


@dataclass(frozen=True)
class Row:
    """One case: what replaces what, and the lines that say so."""

    old: str
    new: str
    lines: list[str]
    id: str
    """The first cell and what is said of it, as the table has them, but not too long."""


def rows(table: str) -> Iterator[Row]:
    """Yields the cases of a table in their order; `old` is empty above the first `=`."""
    old = ""
    for block in re.split(r"\n+(?=\S)", table.strip()):
        block = re.sub(r"\n +\+", "", block)
        if block.startswith("= "):
            old = text(block.removeprefix("= "))
            continue
        first, *cells = re.split(r"\n +\| ", re.sub(r"\n? +\| ", "\n | ", block, count=1))
        lines = [line for cell in cells for line in _lines(cell)]
        yield Row(old, text(first), lines, f"{first[:70]}: {lines[0][:30]}")


def _lines(cell: str) -> list[str]:
    """Returns the line that a message stands for, or several of any text."""
    any_lines = re.fullmatch(r"\.\.\.(?: \* (\d+))?", cell)
    if any_lines:
        return ["..."] * int(any_lines[1] or 1)
    return [text(cell.replace(" | ", ": ", 1))]


def text(cell: str) -> str:
    """Returns what a cell stands for."""
    if cell == '""':
        return ""
    repeated = re.sub(r"<(.+?) \* (\d+)>", lambda match: match[1] * int(match[2]), cell)
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[1]), repeated)


def fits(wanted: str, line: str) -> bool:
    """Returns whether a line is the wanted one, in which `...` stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, wanted.split("..."))), line) is not None
