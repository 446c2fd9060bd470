"""Weights from a local file, for any network."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from decentnode.errors import BadInput, is_out_of_memory

SAFETENSORS = ".safetensors"


def load_weights(network: nn.Module, path: Path) -> None:
    """Copies a file's tensors into the network, in the network's dtype.

    Raises BadInput, with the first tensor that is missing, has another shape, or is none of the network's.
    A tensor that a network uses under several names may have any of them in the file.
    """
    wanted = {
        name: tensor
        for name, tensor in network.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor)
    }
    found = tensors_of(path)
    if defect := first_defect(wanted, found):
        raise BadInput(f"model.pretrained: {path}: {defect}")
    with torch.no_grad():
        for name, tensor in found.items():
            wanted[name].copy_(tensor)


def tensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name; raises BadInput. Runs no code of the file."""
    try:
        if path.suffix == SAFETENSORS:
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"model.pretrained: {path}: cannot be read: {error}") from error
    except Exception as error:  # torch.load raises whatever its parsers do
        if is_out_of_memory(error):
            raise
        raise BadInput(
            f"model.pretrained: {path}: neither a {SAFETENSORS} file nor a state_dict of tensors alone, "
            "written by torch.save"
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise BadInput(
            f"model.pretrained: {path}: must hold the tensors of a state_dict, by name; it holds "
            f"a {type(found).__name__} with other things"
        )
    return {str(name): tensor for name, tensor in found.items()}


def first_defect(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """The first tensor that does not fit, in the network's order, in words; empty if all fit."""
    given = {id(wanted[name]) for name in found if name in wanted}
    for name, tensor in wanted.items():
        if name in found and found[name].shape != tensor.shape:
            return f"'{name}' has the shape {tuple(found[name].shape)}; the model needs {tuple(tensor.shape)}"
        if name not in found and id(tensor) not in given:
            return f"it has no '{name}', which the model needs, of the shape {tuple(tensor.shape)}"
    extra = next((name for name in found if name not in wanted), None)
    return "" if extra is None else f"the model has no '{extra}'"
