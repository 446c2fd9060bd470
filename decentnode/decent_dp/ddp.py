"""Decent-DP's wrapper by its own words (Wang et al., ICLR 2025), over the wrapper of this package."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from decentnode.decent_dp.topo import EdgeGraph, TopologyReg
from decentnode.errors import RunFailed
from decentnode.graph.strength import at_strength
from decentnode.parallel import module as wrapper
from decentnode.parallel.bucket_optimizers import Factory
from decentnode.parallel.mixture import MixInput
from decentnode.parallel.options import Options
from decentnode.parallel.rendezvous import RankRendezvous, RankStoreRendezvous

OPTIM_FN_TYPE = Factory
LR_SCHEDULER_FN_TYPE = Callable[[Optimizer], LRScheduler]


class DecentralizedDataParallel(wrapper.DecentralizedDataParallel):
    """Wraps a module; every backward pass mixes it with those of the rank's group, and makes a step.

    With the weights of the step's edge and the adaptive factor a,

        x_i(t+1) = z + d(z),  z = (1 - a) x_i(t) + a sum_j w_ij x_j(t),  with the gradient at x_i(t)
    """

    FLOAT_DTYPES = (torch.float16, torch.float32, torch.float64)

    def __init__(
        self,
        model: nn.Module,
        optim_fn: OPTIM_FN_TYPE,
        lr_scheduler_fn: LR_SCHEDULER_FN_TYPE | None = None,
        topology: str = "complete",
        scaler: Any = None,
        grad_clip_norm: float = 0.0,
        param_as_bucket_view: bool = True,
        sync_buffer_in_global_avg: bool = False,
        bucket_size_in_mb: float = 25,
        _local_world_size: int | None = None,
        *,
        rendezvous: RankRendezvous | None = None,
        **options: Any,
    ) -> None:
        """Takes the arguments of Decent-DP, and as keywords further options of our wrapper.

        `param_as_bucket_view` changes nothing: parameters are always views of their bucket.
        """
        chosen = Options.read({
            "step_from": "mix", "scheduler": lr_scheduler_fn, "scaler": scaler,
            "clip_norm": grad_clip_norm or None, "bucket_mb": bucket_size_in_mb,
            "buffers": "average" if sync_buffer_in_global_avg else "local", **options,
        })  # fmt: skip
        rendezvous = rendezvous or RankStoreRendezvous.from_environment(chosen.deadline)
        if _local_world_size is None:
            _local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._edges = EdgeGraph(
            TopologyReg.make(topology, rendezvous.rank, rendezvous.size, _local_world_size)
        )
        model = model.cuda() if torch.cuda.is_available() else model
        super().__init__(model, optim_fn, self._edges, rendezvous=rendezvous, **vars(chosen))
        self._is_due = False
        """Whether gradients that were accumulated wait for their step."""
        self._global_average: AbstractContextManager[float] | None = None
        if any(hasattr(part.optimizer, "pre_average_hook") for part in self._engine.optimizers):
            # The sum of the others is not known where one all-reduce computes the mix.
            self._engine.has_means = False
            self._engine.options = replace(self.options, before_mixing=self._show_sum)

    @property
    def _model(self) -> nn.Module:
        """The wrapped module, by its name there."""
        return self.module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module; an average that nothing has reverted is what training goes on from."""
        if self._global_average is not None and self.training and torch.is_grad_enabled():
            self.revert_global_avg()
            self.average()
        elif not self.training:
            self._make_due_step()
        return super().forward(*args, **kwargs)

    def set_accumulate_grad(self, enable: bool = True) -> None:
        """Chooses whether backward passes only accumulate gradients.

        After `False` the next backward pass makes the step, with what was accumulated. Where none follows,
        the next call that needs the step makes it: `True`, an evaluation, an average or a saved state.
        """
        if enable:
            self._make_due_step()
        else:
            parts = self._engine.optimizers
            self._is_due = any(p.grad is not None for part in parts for p in part.parameters)
        self._accumulating = enable

    def global_avg(self, will_revert: bool = True, return_d2c: bool = False) -> float | None:
        """Replaces the model by the average of all ranks; returns the distance from it, if that is asked for.

        With `will_revert`, `revert_global_avg` restores the model; where training goes on without it, it goes
        on from the average.
        """
        self._make_due_step()
        if self._global_average is not None:
            return 0.0 if return_d2c else None
        if will_revert:
            self._global_average = self.averaged()
            distance = self._global_average.__enter__()
        else:
            distance = self.average()
        return distance if return_d2c else None

    def revert_global_avg(self) -> None:
        """Restores the model before `global_avg`; raises RunFailed where there is none to restore."""
        if self._global_average is None:
            raise RunFailed(f"rank {self.rank}: no global_avg(will_revert=True) was made")
        self._global_average.__exit__(None, None, None)
        self._global_average = None

    def set_adaptive_factor(self, factor: float) -> None:
        """Sets a, the same on all ranks."""
        self.mixing_strength = factor

    def get_extra_state(self) -> dict[str, Any]:
        """Returns what the next step depends on; nothing of an average, which one rank alone may save."""
        self._make_due_step()
        return {} if self._global_average is not None else super().get_extra_state()

    def set_extra_state(self, state: Any) -> None:
        if state:
            super().set_extra_state(state)

    def _make_due_step(self) -> None:
        if self._is_due:
            self._backward.fired = True
            self._end_backward()

    def _end_backward(self) -> None:
        super()._end_backward()
        self._is_due = False

    def _show_sum(self, mix_input: MixInput) -> None:
        """Has the optimizer of a bucket see, and change, the sum of its group before it is mixed in."""
        bucket = mix_input.bucket
        optimizer = self._engine.optimizers[self._engine.buckets.index(bucket)].optimizer
        edge = self._edges.edge(self.rank, mix_input.step)
        total = torch.zeros_like(mix_input.own)
        for j in edge.ranks:
            total.add_(mix_input.own if j == self.rank else mix_input.received[j], alpha=edge.share)
        for entry, parameter in zip(bucket.layout.entries, bucket.tensors, strict=True):
            parameter.comm_buffer = entry.view(total)  # type: ignore[attr-defined]
        hook: Callable[[Any, float], None] = optimizer.pre_average_hook  # type: ignore[attr-defined]
        hook(edge, edge.weight)
        if mix_input.received:
            # a total + ((1 - a) + a (w - share)) x_i, where the sum stands for the received model of one.
            a, peer = self.options.strength(mix_input.step), next(iter(mix_input.received))
            mix_input.received = {peer: total}
            weights = {self.rank: edge.weight - edge.share, peer: 1.0}
            mix_input.weights = at_strength(a, weights, self.rank)


__all__ = ["LR_SCHEDULER_FN_TYPE", "OPTIM_FN_TYPE", "DecentralizedDataParallel"]
