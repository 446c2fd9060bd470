"""What a network gives beside its main output: auxiliary heads, hidden states, a loss of its own."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

MAIN = ("logits", "out")
"""The names of main outputs, in transformers and in torchvision."""


def named_outputs(outputs: Any) -> dict[str, Any]:
    """Returns the outputs of a network by name, the main one first; by position in a plain tuple.

    Main is `logits` or `out` where there is one, as in a ModelOutput of transformers or in the networks of
    torchvision, otherwise the first.
    """
    if isinstance(outputs, Mapping):
        named = dict(outputs)
    elif isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        named = dict(zip(outputs._fields, outputs, strict=True))
    elif isinstance(outputs, tuple | list):
        named = {str(index): output for index, output in enumerate(outputs)}
    else:
        return {"0": outputs}
    first = next((name for name in MAIN if name in named), next(iter(named), "0"))
    # In transformers classes are last where there is one for each token, and losses have them first.
    if is_of_transformers(outputs) and isinstance(named[first], Tensor) and named[first].dim() == 3:
        named[first] = named[first].movedim(-1, 1)
    return {first: named.get(first), **named}


def main_output(outputs: Any) -> Any:
    """Returns the output that the loss and the metrics are about; a tensor, if the network can be trained."""
    return outputs if isinstance(outputs, Tensor) else next(iter(named_outputs(outputs).values()))


def is_of_transformers(outputs: Any) -> bool:
    """Whether it is a ModelOutput of transformers, which is not imported."""
    return any(cls.__name__ == "ModelOutput" for cls in type(outputs).__mro__)
