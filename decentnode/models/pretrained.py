"""Weights from a local file, for any network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from decentnode.core.text import first_line
from decentnode.errors import UNDECODABLE, BadInput, is_out_of_memory
from decentnode.models.module_state import all_buffers, set_buffer
from decentnode.models.state_encoding import InvalidState, decoded

SAFETENSORS = ".safetensors"
METADATA, SCHEMA = "decentnode", 2
"""The key in the metadata of a file for what the format lacks, and its version; without it, it is 1."""
OTHERS = "decentnode:"
"""Begins the names of tensors that are parts of that."""
EXTRA = "_extra_state"
"""Ends the names that torch gives extra state in a state_dict."""
FIXED = "torch.nn.modules."
"""Package of modules that never change the shape of a buffer."""


def load_weights(network: nn.Module, path: Path) -> None:
    """Copies a file's tensors and extra state into the network, in the network's dtype.

    Raises BadInput, with the first tensor that is missing, has another shape, or is none of the network's. A
    tensor that a network uses under several names may have any of them in the file. Extra state that the file
    lacks, and buffers that the network has not made, stay as they are.
    """
    state = network.state_dict(keep_vars=True)
    wanted = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
    tensors = content_of(path)
    extra = {name: value for name, value in tensors.items() if name in state and name not in wanted}
    extra |= {name: tensors[name] for name in tensors if name.endswith(EXTRA) and name in state}
    changing = _changing_buffers(network)
    buffers = {name: value for name, value in tensors.items() if name in changing and name not in extra}
    others = tensors.keys() - extra.keys() - buffers.keys()
    parameters = {name: value for name, value in tensors.items() if name in others}
    if other := next((name for name, value in parameters.items() if not isinstance(value, Tensor)), None):
        raise BadInput.at("model.pretrained", f"{path}: the model has no '{other}'")
    needed = {name: tensor for name, tensor in wanted.items() if name not in changing | extra.keys()}
    if defect := first_defect(needed, parameters):
        raise BadInput.at("model.pretrained", f"{path}: {defect}")
    with torch.no_grad():
        for name, tensor in parameters.items():
            wanted[name].copy_(tensor)
        for name, buffer in buffers.items():
            present = wanted.get(name)
            set_buffer(network, name, buffer if present is None else buffer.to(present.dtype))
        for name, value in extra.items():
            owner = network.get_submodule(name.removesuffix(EXTRA).removesuffix("."))
            try:
                owner.set_extra_state(value)
            except Exception as error:  # the user's own class may raise anything
                problem = f"the model does not take its '{name}': {first_line(error)}"
                raise BadInput.at("model.pretrained", f"{path}: {problem}") from error


def _changing_buffers(network: nn.Module) -> set[str]:
    """Names of buffers whose shape may be another one in the file: those of modules from elsewhere."""
    parts = dict(network.named_modules())
    return {
        name
        for name, _, is_persistent in all_buffers(network)
        if is_persistent and not type(parts[name.rpartition(".")[0]]).__module__.startswith(FIXED)
    }


def content_of(path: Path) -> dict[str, Any]:
    """The tensors and the extra state of a file, by name; raises BadInput. Runs no code of the file."""
    try:
        if path.suffix == SAFETENSORS:
            return _with_others(path, load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except BadInput:
        raise
    except (OSError, SafetensorError) as error:
        raise BadInput.at("model.pretrained", f"{path}: cannot be read: {error}") from error
    except Exception as error:  # torch.load raises whatever its parsers do
        if is_out_of_memory(error):
            raise
        raise BadInput.at(
            "model.pretrained",
            f"{path}: neither a {SAFETENSORS} file nor a state_dict of tensors alone, written by torch.save",
        ) from error
    is_state = isinstance(content, Mapping) and all(
        isinstance(value, Tensor) or str(name).endswith(EXTRA) for name, value in content.items()
    )
    if not is_state:
        raise BadInput.at(
            "model.pretrained",
            f"{path}: must hold the tensors of a state_dict, by name; it holds "
            f"a {type(content).__name__} with other things",
        )
    return {str(name): value for name, value in content.items()}


def _with_others(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Returns all that a model of a run consists of, also what the format lacks."""
    with safe_open(path, framework="pt") as file:
        metadata: Mapping[str, str] = file.metadata() or {}
    if METADATA not in metadata:
        return tensors
    inner = {name.removeprefix(OTHERS): tensor for name, tensor in tensors.items() if name.startswith(OTHERS)}
    plain = {name: tensor for name, tensor in tensors.items() if not name.startswith(OTHERS)}
    try:
        content = msgspec.json.decode(metadata[METADATA], type=dict[str, Any])
        if content.get("schema") != SCHEMA:
            raise InvalidState(f"its state has schema {content.get('schema')}; this version reads {SCHEMA}")
        others = decoded(content.get("state"), inner, torch.device("cpu"))
    except (InvalidState, *UNDECODABLE) as error:
        raise BadInput.at("model.pretrained", f"{path}: cannot be read: {error}") from error
    return plain | others if isinstance(others, dict) else plain


def first_defect(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    """The first tensor that does not fit, in the network's order, in words; empty if all fit."""
    filled = {id(wanted[name]) for name in tensors if name in wanted}
    for name, tensor in wanted.items():
        if name in tensors and tensors[name].shape != tensor.shape:
            shape = tuple(tensors[name].shape)
            return f"'{name}' has the shape {shape}; the model needs {tuple(tensor.shape)}"
        if name not in tensors and id(tensor) not in filled:
            return f"it has no '{name}', which the model needs, of the shape {tuple(tensor.shape)}"
    extra = next((name for name in tensors if name not in wanted), None)
    return "" if extra is None else f"the model has no '{extra}'"
