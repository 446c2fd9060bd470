"""Models as results: `models/RANK/ROUND.safetensors`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from torch import Tensor, nn

from decentnode.formats.model_files import FOLDER
from decentnode.models.pretrained import METADATA, OTHERS, SCHEMA
from decentnode.models.state_encoding import encoded
from decentnode.node.checkpoint.safetensors_io import holds
from decentnode.node.recording.tensor_records import Content, TensorRecords


@dataclass(eq=False)
class ModelRecords(TensorRecords[nn.Module]):
    """The models of one node, from the module that is the source."""

    folder: ClassVar = FOLDER
    noun: ClassVar = "model"

    attach: Callable[[], None] = lambda: None
    """Makes the tensors of the module those of this node."""

    def content(self) -> Content:
        self.attach()
        return content_of_model(self.source)


def content_of_model(module: nn.Module) -> Content:
    """A copy of what `state_dict` gives, as the tensors and the metadata of a file; raises UnknownKind.

    What the format lacks, as extra state and sparse tensors, is in the metadata, with tensors of their own.
    """
    tensors, others = dict[str, Tensor](), dict[str, Any]()
    for name, value in module.state_dict().items():
        if holds(value):
            tensors[name] = value.detach().to("cpu", copy=True)
        else:
            others[name] = value
    if not others:
        return tensors, {}
    inner: dict[str, Tensor] = {}
    tree = encoded(others, inner, "state_dict()")
    tensors |= {OTHERS + name: tensor.to("cpu", copy=True) for name, tensor in inner.items()}
    return tensors, {METADATA: msgspec.json.encode({"schema": SCHEMA, "state": tree}).decode()}
