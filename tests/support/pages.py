"""The pages of the documentation, for the tests that run what they show."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)[ ]*(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^`([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""A block of code below a line that begins with the name of its file and ends with a colon."""


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of a language that are not marked `norun`."""
    examples = BLOCK.findall((ROOT / document).read_text())
    return [code for name, mark, code in examples if name == language and mark != "norun"]


def write_files(folder: Path, *documents: str) -> None:
    """The files that the pages show, where a person would put them."""
    for document in documents:
        for name, content in FILE.findall((ROOT / document).read_text()):
            (folder / name).write_text(content)
