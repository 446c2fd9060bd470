"""Lists of hosts as SLURM writes them: `a[1-3,07-09],b` and `2(x3),1`."""

import re
from collections.abc import Iterator

from decentnode.errors import MappingError

MOST_HOSTS = 65_536
"""More than any cluster has: what names more is a mistake."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_PIECE = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]|([^\[\],]+)")


def expand_hosts(text: str) -> list[str]:
    """`a[1-3,07-09],b` as a1, a2, a3, a07, a08, a09, b; raises MappingError."""
    hosts = [host for word in _words(text) for host in _expand_word(word, text)]
    if not hosts:
        raise _unreadable(text)
    return hosts


def expand_counts(text: str) -> list[int]:
    """`2(x3),1` as 2, 2, 2, 1; raises MappingError."""
    counts: list[int] = []
    for word in text.split(","):
        match = _TASKS.fullmatch(word.strip())
        times = int(match[2] or 1) if match else 0
        if not match or len(counts) + times > MOST_HOSTS:
            raise MappingError(f"'{text[:80]}' is no list of tasks per machine, such as 2(x3),1")
        counts += [int(match[1])] * times
    return counts


def _words(text: str) -> Iterator[str]:
    """The parts between commas that are in no brackets."""
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise _unreadable(text)
        if letter == "," and not depth:
            yield text[start:place]
            start = place + 1
    if depth:
        raise _unreadable(text)
    yield text[start:]


def _expand_word(word: str, text: str) -> list[str]:
    """One word with any number of brackets, the last one counting fastest."""
    found, end = [""], 0
    for match in _PIECE.finditer(word):
        if match.start() != end:
            raise _unreadable(text)
        end = match.end()
        prefix, ranges, plain = match.groups()
        tails = [plain] if ranges is None else [f"{prefix}{number}" for number in _numbers(ranges, text)]
        if len(found) * len(tails) > MOST_HOSTS:
            raise _unreadable(text)
        found = [head + tail for head in found for tail in tails]
    if end != len(word) or not word:
        raise _unreadable(text)
    return found


def _numbers(ranges: str, text: str) -> Iterator[str]:
    """`1-3,07-09` with the zeros in front that the first number of a range has."""
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise _unreadable(text)
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MOST_HOSTS:
            raise _unreadable(text)
        yield from (str(number).zfill(len(match[1])) for number in range(first, last + 1))


def _unreadable(text: str) -> MappingError:
    return MappingError(f"'{text[:80]}' is no list of hosts, such as a[1-3,07-09],b")
