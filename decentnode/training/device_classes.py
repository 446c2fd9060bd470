"""Classes of devices, such as phones and laptops: how long their steps take, and how many nodes are one."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf
from pathlib import Path

from decentnode.core.rng import generator
from decentnode.core.text import quoted
from decentnode.errors import BadInput

KEY = "training.pace.device_classes"
COLUMNS = ["class", "factor", "share"]
"""The header of a file; the last column may be missing."""
TOLERANCE = 1e-6
"""How far a sum of shares may be from 1."""


@dataclass(frozen=True)
class DeviceClass:
    """One class of devices."""

    factor: float
    """How many times longer a step takes than on a device of factor 1."""
    share: float | None
    """The share of the nodes; None: the file has no such column."""


def read_classes(path: Path) -> dict[str, DeviceClass]:
    """Returns the classes in a CSV file by name; raises BadInput with the line of the first defect."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise BadInput.at(KEY, f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput.at(KEY, f"{path}: must be a CSV file with the header class,factor,share") from None
    header: list[str] = []
    classes: dict[str, DeviceClass] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        row, place = [cell.strip() for cell in next(csv.reader([line]))], f"{path}:{number}"
        if not header:
            if row not in (COLUMNS, COLUMNS[:2]):
                raise BadInput.at(KEY, f"{place}: the header must be class,factor or class,factor,share")
            header = row
            continue
        if len(row) != len(header):
            what = f"has {len(row)} columns; it must have {len(header)}: {','.join(header)}"
            raise BadInput.at(KEY, f"{place}: {what}")
        name, *numbers = row
        if not name or name in classes:
            what = f"class {quoted(name)} is there twice" if name else "the class has no name"
            raise BadInput.at(KEY, f"{place}: {what}")
        factor = positive_number(numbers[0], f"{place}: factor", KEY)
        share = positive_number(numbers[1], f"{place}: share", KEY) if numbers[1:] else None
        classes[name] = DeviceClass(factor, share)
    if not classes:
        raise BadInput.at(KEY, f"{path}: has no classes; write lines such as phone,4")
    return classes


def positive_number(text: str, place: str, key: str) -> float:
    """Returns a finite number > 0 of a file; raises BadInput at the key, with the place in the file."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise BadInput.at(key, f"{place} must be a finite number > 0, not {quoted(text)}")
    return value


def dealt(shares: Mapping[str, float], nodes: int, seed: int) -> tuple[str, ...]:
    """Returns the class of each rank: of each as many as its share, rounded, on ranks drawn by the seed."""
    return _dealt(tuple(shares.items()), nodes, seed)


@cache
def _dealt(shares: tuple[tuple[str, float], ...], nodes: int, seed: int) -> tuple[str, ...]:
    bounds = [round(bound * nodes) for bound in accumulate(share for _, share in shares)]
    places = generator(seed, "devices").permutation(nodes)
    # The last class takes what rounding has left.
    first_above = (next((i for i, b in enumerate(bounds) if place < b), -1) for place in places)
    return tuple(shares[index][0] for index in first_above)
