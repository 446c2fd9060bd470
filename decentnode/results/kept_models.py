"""The models that a run keeps, in torch: one node's as a state_dict, and their mean as a module."""

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from decentnode.config.loader import load_plugin
from decentnode.core.registry import MODELS, import_from, reading_only
from decentnode.core.text import counted, first_line
from decentnode.core.vector import DTYPES, Precision
from decentnode.errors import BadInput
from decentnode.formats.model_files import model_rounds, names_in, path_of
from decentnode.formats.reader import code_folders, read_value
from decentnode.models.base import Model, initial_model
from decentnode.models.module_copies import copied
from decentnode.models.pretrained import content_of


class ArgumentForm(msgspec.Struct):
    """One argument of the network."""

    shape: tuple[int, ...]
    """Without the batch."""
    ids: bool
    """Whether it takes ids, in int64; otherwise floating-point numbers."""


class SamplesForm(msgspec.Struct):
    """What the network of a run is built for; `samples` in `run.json`."""

    shape: tuple[int, ...]
    """The shape of one input."""
    num_classes: int
    arguments: tuple[ArgumentForm, ...]


KEEPS = "records.models"
"""The option that keeps models."""
MOST_ROUNDS = 8
"""Rounds that a message lists."""


def state_of(run_dir: Path, rank: int, round: int | None = None) -> dict[str, Any]:
    """A node's model after a round, counted from 1, as its `state_dict`; raises BadInput."""
    kept = _kept(run_dir)
    if rank not in kept:
        ranks = [*kept]
        raise BadInput(f"{run_dir}: keeps no model of rank {rank}; it has ranks {ranks[0]} to {ranks[-1]}")
    chosen = kept[rank][-1] if round is None else _chosen(run_dir, f"rank {rank}", round, kept=kept[rank])
    return _content(path_of(run_dir, rank, chosen))


def mean_state(run_dir: Path, lost: Collection[int] = (), round: int | None = None) -> dict[str, Any]:
    """The mean of the models of all nodes but the lost ones after a round, counted from 1; raises BadInput.

    Without a round it is the last one after which all of them kept a model. Floating-point and complex
    tensors are averaged, summed in double precision; all else, such as counters and extra state, is that of
    the first node.
    """
    kept = _kept(run_dir)
    ranks = [rank for rank in kept if rank not in lost] or [*kept]
    shared = sorted(set.intersection(*(set(kept[rank]) for rank in ranks)))
    if not shared:
        raise BadInput(f"{run_dir}: there is no round yet after which all nodes kept a model")
    chosen = shared[-1] if round is None else _chosen(run_dir, "all nodes", round, kept=shared)
    paths = [path_of(run_dir, rank, chosen) for rank in ranks]
    first = _content(paths[0])
    sums = {name: _double(value) for name, value in first.items() if _is_averaged(value)}
    for path in paths[1:]:
        state = _content(path)
        for name, total in sums.items():
            if name not in state or state[name].shape != total.shape:
                raise BadInput(f"{path}: its '{name}' is not as in {paths[0]}, so they have no mean")
            total += _double(state[name])
    return first | {name: (total / len(paths)).to(first[name].dtype) for name, total in sums.items()}


def mean_model(
    run_dir: Path, lost: Collection[int], round: int | None, network: nn.Module | None, seed: int,
    precision: Precision, with_its_code: bool = False,
) -> nn.Module:  # fmt: skip
    """The mean of the nodes' models in mode `eval`: a copy of `network` with it, or of the run's own network.

    `with_its_code`: whether a model that is a plug-in is built by the run's copy of its code. Raises
    BadInput.
    """
    state = mean_state(run_dir, lost, round)
    mean = built_network(run_dir, seed, precision, with_its_code) if network is None else copied(network)
    try:
        mean.load_state_dict(state)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise BadInput(f"{run_dir}: the network does not take the models of this run: {problem}") from error
    return mean.eval()


def built_network(run_dir: Path, seed: int, precision: Precision, with_its_code: bool) -> nn.Module:
    """The network that the configuration of a run names, for its samples; raises BadInput."""
    path = run_dir / "run.json"
    form = read_value(path, "samples", SamplesForm)
    if with_its_code:
        import_from(*code_folders(run_dir), first=True)
    try:
        with contextlib.nullcontext() if with_its_code else reading_only():
            plugin = load_plugin(run_dir / "config.yaml", "model", MODELS)
        model: Model = replace(plugin.make(), pretrained=None)
    except BadInput as error:
        has_code = not with_its_code and code_folders(run_dir)
        code = ", or run its code: with_its_code=True (--with-its-code)" if has_code else ""
        instead = "give a module of the same architecture: mean_model(network=...)"
        raise BadInput(f"{first_line(error)}; to do without it, {instead}{code}") from error
    zeros = tuple(
        torch.zeros(2, *argument.shape, dtype=torch.int64 if argument.ids else torch.float32)
        for argument in form.arguments
    )
    return initial_model(model, form.shape, form.num_classes, seed=seed, dtype=DTYPES[precision], zeros=zeros)


def _content(path: Path) -> dict[str, Any]:
    try:
        state = content_of(path)
        return {name: state[name] for name in names_in(path.read_bytes()) if name in state} | state
    except BadInput as error:  # here the file is no option of the configuration
        raise BadInput(*(defect.what for defect in error.defects)) from error


def _is_averaged(value: Any) -> bool:
    is_dense = isinstance(value, Tensor) and value.layout is torch.strided
    return is_dense and (value.is_floating_point() or value.is_complex())


def _double(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64, copy=True)


def _kept(run_dir: Path) -> dict[int, list[int]]:
    """The rounds, counted from 0, by rank; raises BadInput where no model was kept."""
    rounds = model_rounds(run_dir)
    if not rounds:
        raise BadInput(
            f"{run_dir}: keeps no models; run it with {KEEPS}: {{every: 10}} in its configuration, or with "
            f"{KEEPS}: {{}} for those of the last round alone"
        )
    return rounds


def _chosen(run_dir: Path, whose: str, round: int, kept: Sequence[int]) -> int:
    """The round, counted from 0; raises BadInput where no model was kept after it."""
    if round - 1 in kept:
        return round - 1
    shown = [str(other + 1) for other in kept]
    if len(shown) > MOST_ROUNDS:
        shown = [*shown[: MOST_ROUNDS - 2], "...", shown[-1]]
    raise BadInput(
        f"{run_dir}: keeps no model of {whose} after round {round}, but after {counted(len(kept), 'round')}: "
        f"{', '.join(shown)}; {KEEPS}.every in the configuration says which"
    )
