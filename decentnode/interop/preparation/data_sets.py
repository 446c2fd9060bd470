"""The data sets that `decentnode prepare` knows, and what configurations then say to use them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from decentnode.cli.download import made
from decentnode.core.registry import guess
from decentnode.core.text import quoted
from decentnode.datasets.image_folder import ImageFolder
from decentnode.datasets.parallel import Parallel
from decentnode.errors import BadInput
from decentnode.interop.preparation import imagenet, openwebtext, wmt14
from decentnode.interop.preparation.parts import Preparation

READERS = {"imagenet": "image_folder", "wmt14": "parallel", "openwebtext": "tokens"}
"""The data sets that read what is made."""
EXPERIMENTS = {
    "imagenet": "resnet50_imagenet_all_reduce",
    "wmt14": "transformer_wmt14_all_reduce",
    "openwebtext": "gpt2_all_reduce",
}


def prepare(
    name: str, folder: Path, options: Sequence[str], processes: int | None = None, checks_sums: bool = True
) -> list[str]:
    """Makes what the data set reads from the raw files in a folder; returns what is there, and its use.

    `options`: those of the data set, such as size=64. Raises BadInput or PartFailed.
    """
    if name not in READERS:
        known = ", ".join(READERS)
        raise BadInput(f"prepare: unknown data set {quoted(name)}{guess(name, READERS)} (known: {known})")
    dataset, given = made(READERS[name], options), dict(option.partition("=")[::2] for option in options)
    if "path" in given:
        raise BadInput("prepare: path is no option here; name the folder after the data set")
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; put the raw files of {name} into it")
    preparation, experiment = Preparation(folder, processes, checks_sums), EXPERIMENTS[name]
    with preparation.locked():
        if isinstance(dataset, ImageFolder):
            lines = imagenet.prepare(preparation, replace(dataset, path=str(folder)))
        elif isinstance(dataset, Parallel):
            pair = wmt14.pair_of(dataset)
            given = {"source": dataset.source, "target": dataset.target, **given}
            given.setdefault("vocabulary", str(pair.vocabulary))
            dataset = replace(dataset, path=folder, vocabulary=int(given["vocabulary"]))
            lines = wmt14.prepare(preparation, dataset)
            lines.append("test is newstest2014; dataset.valid=test measures BLEU with it")
            experiment = experiment if dataset.target != "fr" else "transformer_big_wmt14_all_reduce"
        else:
            lines = openwebtext.prepare(preparation)
    words = ", ".join(f"{key}: {value}" for key, value in {"path": str(folder), **given}.items())
    use = f"use it as dataset: {{name: {READERS[name]}, {words}}}"
    return [*lines, f"{use}, as in experiments/decent_dp/{experiment}"]
