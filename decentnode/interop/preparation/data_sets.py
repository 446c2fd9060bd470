"""The data sets that `decentnode prepare` knows, and what configurations then say to use them."""

from collections.abc import Sequence
from pathlib import Path

from decentnode.core.registry import guess
from decentnode.core.text import quoted
from decentnode.errors import BadInput
from decentnode.interop.preparation import imagenet, openwebtext, wmt14
from decentnode.interop.preparation.parts import Preparation

DATA_SETS = {"imagenet": imagenet.prepare, "wmt14": wmt14.prepare, "openwebtext": openwebtext.prepare}

FIXED = {"path", "train", "valid", "documents"}
"""Options of these data sets that name files."""


def prepare(
    name: str, folder: Path, options: Sequence[str], processes: int | None = None, checks_sums: bool = True
) -> list[str]:
    """Makes what the data set reads from the raw files in a folder; returns what is there, and its use.

    `options`: those of the data set, such as size=64. Raises BadInput or PartFailed.
    """
    if name not in DATA_SETS:
        known = ", ".join(DATA_SETS)
        raise BadInput(f"prepare: unknown data set {quoted(name)}{guess(name, DATA_SETS)} (known: {known})")
    given = dict(option.partition("=")[::2] for option in options)
    if fixed := FIXED & given.keys():
        raise BadInput(f"prepare: {min(fixed)} is no option here; files get their names in the folder")
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; put the raw files of {name} into it")
    preparation = Preparation(folder, processes, checks_sums)
    with preparation.locked():
        prepared = DATA_SETS[name](preparation, options)
    values = {"path": str(folder), **prepared.options, **given}
    words = ", ".join(f"{key}: {value}" for key, value in values.items())
    use = f"use it as dataset: {{name: {prepared.reader}, {words}}}"
    return [*prepared.lines, f"{use}, as in experiments/decent_dp/{prepared.experiment}"]
