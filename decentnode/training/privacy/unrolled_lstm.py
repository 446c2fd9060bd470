"""An LSTM in operations that have a rule for batches of gradients, which torch's own kernel has not."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from decentnode.models.module_copies import copied


class UnrolledLstm(nn.Module):
    """The equations of torch.nn.LSTM, step by step (Hochreiter and Schmidhuber, 1997; Gers et al., 2000).

    i, f, g, o = W_x x_t + b_x + W_h h_{t-1} + b_h
    c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g),   h_t = sigmoid(o) tanh(c_t)

    Its parameters have the names of those of the LSTM that it replaces.
    """

    def __init__(self, lstm: nn.LSTM) -> None:
        """Unrolls an LSTM that `can_unroll`; the parameters are the same tensors."""
        super().__init__()
        self.layers, self.drop, self.batch_first = lstm.num_layers, lstm.dropout, lstm.batch_first
        self.bias = lstm.bias
        for name, parameter in lstm.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The states (batch, length, hidden), or as the LSTM has them, and the last ones of each layer."""
        x = x.transpose(0, 1) if self.batch_first else x
        last = []
        for layer in range(self.layers):
            x, state = self._layer(x, layer)
            last.append(state)
            if layer + 1 < self.layers:
                x = dropout(x, self.drop, self.training)
        hidden, cell = (torch.stack(part) for part in zip(*last, strict=True))
        return (x.transpose(0, 1) if self.batch_first else x), (hidden, cell)

    def _layer(self, x: Tensor, layer: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        inward, recurrent = (getattr(self, f"weight_{kind}_l{layer}") for kind in ("ih", "hh"))
        both = [getattr(self, f"bias_{kind}_l{layer}") for kind in ("ih", "hh")] if self.bias else []
        # All inputs at once; only the recurrent part depends on the step before.
        inputs = linear(x, inward, both[0] + both[1] if both else None)
        # The states are known before gradients are: so the gradient of the recurrent weight is one product
        # over all steps, not a sum of one matrix for each sample and step.
        states, _ = unroll(inputs.detach(), recurrent.detach())
        before = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
        zero = linear(before, recurrent)
        return unroll(inputs + (zero - zero.detach()), recurrent.detach())


def unroll(inputs: Tensor, recurrent: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The states of all steps and the last ones, from the part of the gates that is known before."""
    hidden = cell = torch.zeros_like(inputs[0, :, : recurrent.shape[1]])
    states = []
    for gates in inputs.unbind(0):
        i, f, g, o = (gates + linear(hidden, recurrent)).chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        states.append(hidden)
    return torch.stack(states), (hidden, cell)


def can_unroll(lstm: nn.LSTM) -> bool:
    """Whether UnrolledLstm has the equations of this LSTM."""
    return not lstm.bidirectional and not lstm.proj_size


def unrolled(network: nn.Module) -> nn.Module:
    """The network, or a copy in which LSTMs are unrolled; parameters have the same names."""
    if not any(isinstance(part, nn.LSTM) for part in network.modules()):
        return network
    made = copied(network)
    for name, part in list(made.named_modules()):
        if isinstance(part, nn.LSTM) and can_unroll(part):
            parent, _, last = name.rpartition(".")
            if not name:
                return UnrolledLstm(part).train(network.training)
            setattr(made.get_submodule(parent), last, UnrolledLstm(part))
    return made
