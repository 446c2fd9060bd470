"""The common part of selecting transforms: how many values, which positions, and what fills the gaps."""

import numpy as np
import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload, PayloadError
from decentnode.core.vector import ParameterLayout, accumulator
from decentnode.errors import BadInput

Spans = tuple[tuple[int, int], ...]
"""The first element and the length of each part that is selected from on its own."""


def count(fraction: float, n: int) -> int:
    """Returns k of n values: the fraction rounded to an integer (halves to even), but at least one."""
    return max(1, round(fraction * n)) if n else 0


def spans(n: int, per_layer: bool, parameters: ParameterLayout | None) -> Spans:
    """All n values, or the tensors of the model; raises BadInput when the values are not the model's."""
    if not per_layer:
        return ((0, n),)
    if parameters is None:
        raise BadInput("selects per layer, but an earlier transform mixed the layers, or there are none")
    if parameters.numel != n:
        raise BadInput(f"selects per layer, but gets {n} values of a model of {parameters.numel}")
    return tuple((entry.offset, entry.shape.numel()) for entry in parameters.entries)


def positions(mask: Tensor) -> Tensor:
    """The indices (int64, ascending) where a 1-D mask is true."""
    if mask.device.type != "cpu":
        return mask.nonzero().view(-1)
    return torch.from_numpy(np.flatnonzero(mask.numpy()))


def largest(score: Tensor, k: int) -> Tensor:
    """The indices (int64, ascending) of exactly k <= n largest scores >= 0; of equal ones the first."""
    if not k:
        return torch.empty(0, dtype=torch.int64, device=score.device)
    score = score.to(accumulator(score.dtype))  # numpy has no bfloat16
    if score.device.type != "cpu":
        return _largest_on_device(score, k)
    kth = _kth_largest(score, k)
    chosen = positions(score >= kth)
    if chosen.numel() == k:
        return chosen
    keep = score[chosen] > kth
    ties = positions(~keep)
    keep[ties[: k - int(keep.sum())]] = True
    return chosen[keep]


def _largest_on_device(score: Tensor, k: int) -> Tensor:
    # The bits of scores ascend as the scores do, and the lower of two equal ones gets the larger number. So
    # no two are equal, no count is needed, and the result is that of the CPU.
    if score.dtype == torch.float64:
        return score.sort(descending=True, stable=True).indices[:k].sort().values
    bits = score.view(torch.int32).long() << 32
    order = torch.arange(score.numel() - 1, -1, -1, device=score.device)
    return torch.topk(bits | order, k, sorted=False).indices.sort().values


def _kth_largest(score: Tensor, k: int) -> float:
    array = score.numpy()
    nonzero = np.count_nonzero(array)
    if nonzero < k:
        return 0.0
    if 2 * nonzero < array.size:
        # numpy's vectorized partition is twenty times slower where one value fills most of the array.
        array = array[array != 0]
    return float(np.partition(array, array.size - k)[array.size - k])


def filled(dense_layout: Layout, values: Tensor, indices: Tensor, fill: Tensor | None) -> Payload:
    """Returns `values` at `indices`, elsewhere the own signal or zeros, as a payload of layout `dense`."""
    (field,) = dense_layout.fields
    if fill is None:
        whole = values.new_zeros(field.elements, dtype=field.dtype)
    else:
        whole = fill.to(field.dtype, copy=True)
    # A later stage of the chain may leave the values in half precision.
    whole.index_copy_(0, indices.long(), values.to(field.dtype))
    return Payload.dense(whole)


def check_indices(indices: Tensor, values: Tensor, n: int) -> None:
    """Raises PayloadError unless there is one index per value, ascending, each of 0..n-1."""
    if indices.numel() != values.numel():
        raise PayloadError(f"{values.numel()} values with {indices.numel()} indices")
    if not indices.numel():
        return
    descend = (indices[1:] <= indices[:-1]).any()
    # One transfer from the device in the usual case.
    if not bool(descend | (indices[0] < 0) | (indices[-1] >= n)):
        return
    if bool(descend):
        raise PayloadError("indices that do not ascend")
    raise PayloadError(f"indices from {int(indices[0])} to {int(indices[-1])} where there are {n} values")
