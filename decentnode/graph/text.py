"""Lines of a text file with their numbers, and a list of all its defects."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from decentnode.core.registry import near_file
from decentnode.core.text import counted, quoted
from decentnode.errors import GraphError

MOST_SHOWN = 20
"""Defects of one file that are shown; in a file of another kind every line is a defect."""
INTEGER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class Line:
    """The words of one line, separated by blanks or commas; none when the line is blank."""

    number: int
    words: tuple[str, ...]


@dataclass
class Defects:
    """All defects of one file, so that a user corrects them at once."""

    path: str
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, text: str) -> None:
        """Adds one defect: what is wrong; what would be right."""
        self.found.append((line, text))

    def raise_any(self) -> None:
        """Raises one GraphError with a `file:line: ...` for each defect, in the order of the file."""
        if self.found:
            in_order = sorted(self.found, key=lambda defect: defect[0])
            lines = list(dict.fromkeys(f"{self.path}:{line}: {text}" for line, text in in_order))
            shown, more = lines[:MOST_SHOWN], len(lines) - MOST_SHOWN
            if more > 0:
                shown.append(f"{self.path}: and {counted(more, 'defect')} more; correct these first")
            raise GraphError(*shown)

    def fail(self, line: int, text: str) -> GraphError:
        """The error to raise at once where no later line can be read after this defect."""
        return GraphError(f"{self.path}:{line}: {text}")


def read_lines(path: str) -> list[Line]:
    """The lines without comments (# to the end); a line that is only a comment is left out."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror}{near_file(path)}") from error
    except UnicodeDecodeError as error:
        raise GraphError(f"{path}: is not a text file; expected numbers in UTF-8") from error
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        content, mark, _ = line.partition("#")
        words = tuple(content.replace(",", " ").split())
        if words or not mark:
            lines.append(Line(number, words))
    return lines


def filled(lines: Sequence[Line]) -> list[Line]:
    """The lines that are not blank."""
    return [line for line in lines if line.words]


def ranks(line: Line, words: Sequence[str], nodes: int, defects: Defects) -> list[int]:
    """The words as ranks below `nodes`; every other word is a defect and left out."""
    ranks = []
    for word in words:
        if not INTEGER.fullmatch(word):
            defects.add(line.number, f"{quoted(word)} is not an integer; expected a rank 0..{nodes - 1}")
        elif not 0 <= int(word) < nodes:
            defects.add(
                line.number,
                f"rank {word} is out of range; with {counted(nodes, 'node')} it is 0..{nodes - 1}",
            )
        else:
            ranks.append(int(word))
    return ranks
