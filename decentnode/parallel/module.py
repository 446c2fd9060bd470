"""`DecentralizedDataParallel`: a module that is averaged with its neighbors' modules while it trains."""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from decentnode.communication.base import BufferSpec, Communication, Endpoint
from decentnode.communication.device.staging import DeviceStaging
from decentnode.core.process_setup import keep_freed_memory
from decentnode.core.registry import COMMUNICATIONS
from decentnode.core.version import __version__
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.mixing import Mixing, WeightedGraph
from decentnode.graph.strength import Strength, is_share
from decentnode.models.module_copies import copied
from decentnode.models.module_state import all_buffers, set_buffer
from decentnode.parallel import averaging
from decentnode.parallel.bucket_optimizers import AllBuckets, BucketOptimizer, Factory
from decentnode.parallel.buckets import BucketMemory, Plan
from decentnode.parallel.engine import MixingEngine
from decentnode.parallel.exchange_queue import ExchangeQueue
from decentnode.parallel.finite_check import VERDICT
from decentnode.parallel.options import Options
from decentnode.parallel.rendezvous import Link, RankRendezvous, RankStoreRendezvous
from decentnode.parallel.topology import Topology, digest, made, weighted_graph

STATE_VERSION = 2
"""The version of the extra state."""


@dataclass(slots=True)
class BackwardState:
    """The wrapper's state of the pass; not in the module itself, where setting an attribute is slow."""

    task: int | None = None
    """The pass at whose end the step is finished."""
    is_open: bool = False
    """Whether a forward or backward pass has started and not ended; True between passes: by an error."""
    fired: bool = False
    """Whether any gradient has arrived for a step that is not made yet."""
    finishing: bool = False
    missing: list[set[int]] = field(default_factory=list)
    """The parameters of each bucket whose gradients are missing."""


class UnconnectedModule(nn.Module):
    """A copy of a wrapper for one rank alone, such as `torch.optim.swa_utils.AveragedModel` makes.

    Its tensors have the names that they have in the wrapper, and belong to no exchange.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class DecentralizedDataParallel(nn.Module):
    """Wraps a module: every backward pass updates it, and averages it with those of its neighbors.

    `optimizer` makes an optimizer for a list of (name, parameter), once per bucket. `topology` is a name, a
    mapping of a name and options, a Graph, or a matrix of weights. All ranks must wrap an equal module in the
    same way. The other keywords are those of `Options`. Raises BadInput and StartError, one line each.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Factory,
        topology: Topology = "ring",
        *,
        weights: str | Mapping[str, Any] | Mixing | None = None,
        rendezvous: RankRendezvous | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.module = module
        chosen = Options.read(options)
        if chosen.keep_freed_memory:
            keep_freed_memory()
        rendezvous = rendezvous or RankStoreRendezvous.from_environment(chosen.deadline)
        graph = weighted_graph(topology, weights, rendezvous.size)
        plan = Plan.of(module, int(chosen.bucket_mb * 1e6), chosen.buffers != "local")
        link, endpoint = joined(rendezvous, plan, graph, options=chosen, module=module)
        self.rank, self.size = rendezvous.rank, rendezvous.size
        tolerant, parts = chosen.on_loss == "continue", len(plan.buckets) + 1
        exchanges = ExchangeQueue(
            endpoint,
            rendezvous.size,
            parts,
            deadline=chosen.deadline,
            tolerant=tolerant,
            in_flight=chosen.in_flight,
        )
        # Before any exchange, so that an error below disconnects this rank, too.
        self._close = weakref.finalize(self, _end, link, exchanges)
        # From here on the module's trainable parameters are views of the first slot.
        blocks = [BucketMemory(bucket, module, endpoint.slots) for bucket in plan.buckets]
        if chosen.broadcast and rendezvous.size > 1:
            dense = [t for t in (*module.parameters(), *module.buffers()) if t.layout is torch.strided]
            averaging.broadcast(dense, endpoint.slots[1], exchanges)
        trained = [b for b in blocks if not b.layout.is_buffers]
        optimizers = [BucketOptimizer(b, optimizer, chosen.scheduler) for b in trained]
        self.optimizer = AllBuckets(optimizers, self._update)
        """All buckets' optimizers as one."""
        self._engine = MixingEngine(blocks, optimizers, graph, exchanges=exchanges, options=chosen)
        # Otherwise the saved storage is the block that parameters are views of, with all of both slots.
        module.register_state_dict_post_hook(_detach_from_blocks)  # type: ignore[no-untyped-call]
        self._accumulating = self._averaged = False
        self._backward = BackwardState()
        self._expect_all()
        if chosen.update_in == "backward":
            for i, part in enumerate(self._engine.optimizers):
                for parameter in self._engine.buckets[i].tensors:
                    hook = partial(self._note_gradient, i)
                    parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                part.clear()

    # Training.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module; in training, the exchange of its parameters has started by then."""
        if not (self.training and torch.is_grad_enabled()):
            return self.module(*args, **kwargs)
        if self._averaged:
            raise RunFailed(f"rank {self.rank}: inside averaged() the model can be looked at, not trained")
        self._check_whole()
        self._backward.task = None
        with torch.no_grad():
            self._engine.start()
        self._backward.is_open = True
        output = self.module(*args, **kwargs)
        self._backward.is_open = False
        for tensor in [output] if isinstance(output, Tensor) else tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(self._note_backward)  # type: ignore[no-untyped-call]
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context whose backward passes only accumulate gradients; the next one after it makes a step."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """A context for loops of different lengths: all ranks leave it together, after as many steps.

        In the steps that only other ranks have batches for, this one mixes, and its optimizer makes no step:
        x(t+1) = (1 - a) x(t) + a W x(t). All ranks enter it at the same step. Raises RunFailed.
        """
        self._refuse_in_join("another join()")
        if self._averaged:
            raise RunFailed(f"rank {self.rank}: inside averaged() the model can be looked at, not trained")
        self._check_whole()
        self._engine.joint = True
        try:
            yield
            self._check_whole()
            with torch.no_grad():
                self._engine.follow()
        finally:
            self._engine.joint = False

    def _refuse_in_join(self, call: str) -> None:
        if self._engine.joint:
            raise RunFailed(
                f"rank {self.rank}, step {self.step}: {call} is for all ranks, but inside join() some may "
                "have no batches any more; call it after join()"
            )

    @property
    def step(self) -> int:
        """The number of steps so far; the graph's round."""
        return self._engine.step

    @property
    def options(self) -> Options:
        """All options with their values."""
        return self._engine.options

    @property
    def mixing_strength(self) -> Strength:
        """The factor a of (1 - a) x + a W x; may be changed between steps, to the same value on all ranks."""
        return self.options.mixing_strength

    @mixing_strength.setter
    def mixing_strength(self, a: Strength) -> None:
        self._engine.options = replace(self.options, mixing_strength=a)

    @property
    def endpoint(self) -> Endpoint:
        """Returns this rank's end of the transport, with its counters of bytes and of refused messages."""
        return self._engine.exchanges.endpoint

    def get_lr(self) -> float:
        """The learning rate of the first group."""
        return float(self.optimizer.param_groups[0]["lr"]) if self.optimizer.param_groups else 0.0

    # All ranks together.

    @contextmanager
    def averaged(self) -> Iterator[float]:
        """A context in which the model is the average of all ranks; yields this rank's distance from it."""
        distance = self._average()
        before = [(part._buffers, {**part._buffers}) for part in self.module.modules()]
        contents = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        self._flip()
        self._averaged = True
        try:
            yield distance
        finally:
            self._averaged = False
            self._flip()
            # An evaluation may have replaced them, or have made new ones.
            for buffers, first in before:
                buffers.clear()
                buffers.update(first)
            for buffer, content in contents:
                buffer.copy_(content)

    def average(self) -> float:
        """Replaces every rank's model by the average of all; returns this rank's distance from it."""
        distance = self._average()
        self._engine.exchanges.drop_all()
        self._flip()
        return distance

    def distance_to_average(self) -> float:
        """The Euclidean norm of the difference of this rank's parameters from the average of all."""
        return self._average()

    @torch.no_grad()
    def resend(self) -> None:
        """Sends the parameters again after a change by hand; call it on all ranks at once."""
        self._refuse_in_join("resend()")
        self._check_whole()
        self._engine.withdraw()

    @torch.no_grad()
    def _average(self) -> float:
        """Computes the average into the spare slots."""
        self._refuse_in_join("an average")
        if self._averaged or self._ended_early:
            raise RunFailed(f"rank {self.rank}: averages are made between steps, and not inside averaged()")
        return averaging.average_all(self._engine)

    @torch.no_grad()
    def _flip(self) -> None:
        for block in self._engine.buckets:
            block.flip()

    # Saving.

    def get_extra_state(self) -> dict[str, Any]:
        """The extra state: all that the next step depends on, except the module's tensors."""
        if self._averaged or self._ended_early:
            raise RunFailed(f"rank {self.rank}: a state is saved between steps, and not inside averaged()")
        parts = self._engine.optimizers
        waiting = any(p.grad is not None for part in parts for p in part.parameters)
        if self.options.update_in == "backward" and waiting:
            raise RunFailed(
                f"rank {self.rank}, step {self.step}: a state is saved between steps, and gradients of "
                "no_sync() wait for theirs; zero_grad() drops them"
            )
        scaler = self.options.scaler
        return {
            "version": STATE_VERSION,
            "step": self.step,
            "optimizer": self.optimizer.state_dict(),
            "mixing_strength": self.mixing_strength if is_share(self.mixing_strength) else None,
            "schedules": [part.schedule_state() for part in parts],
            "scaler": None if scaler is None else scaler.state_dict(),
            "passing": {
                name: None if buffer is None else buffer.clone()
                for name, buffer, is_persistent in all_buffers(self.module)
                if not is_persistent
            },
        }

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `get_extra_state`; raises BadInput."""
        if state.get("version") != STATE_VERSION:
            raise BadInput(f"the saved state has version {state.get('version')}; this is {STATE_VERSION}")
        if lacking := [key for key in ("step", "optimizer", "schedules", "scaler") if key not in state]:
            raise BadInput(f"the saved state is not whole: it has no {lacking[0]}")
        has = any(part["state"] for part in state["schedules"]), bool(state["scaler"])
        scaler = self.options.scaler
        # One that is disabled has no state.
        wanted = self.options.scheduler is not None, scaler is not None and bool(scaler.state_dict())
        for name, saved, given in zip(("scheduler", "scaler"), has, wanted, strict=True):
            if saved != given and self._engine.optimizers:
                one, other = ("a", "no") if saved else ("no", "a")
                raise BadInput(f"the saved state has {one} {name}, and this wrapper has {other} {name}")
        for name, buffer in state.get("passing", {}).items():
            set_buffer(self.module, name, buffer, is_persistent=False)
        self.optimizer.load_state_dict(state["optimizer"])
        for part in self._engine.optimizers:
            part.load_schedule(state["schedules"])
        strength = state.get("mixing_strength")
        if strength is not None and is_share(self.mixing_strength):
            self.mixing_strength = strength
        if self.options.scaler is not None and state["scaler"]:
            self.options.scaler.load_state_dict(state["scaler"])
        self._engine.continue_at(state["step"])

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Continues from a `state_dict()` of this rank; call it on all ranks at once."""
        if assign:
            raise BadInput("load_state_dict: assign=True would take the parameters out of their buckets")
        if self._averaged:
            raise RunFailed(f"rank {self.rank}: a state loaded inside averaged() would be lost at its end")
        self._refuse_in_join("load_state_dict()")
        with torch.no_grad():
            if self._ended_early or self._backward.is_open:
                # The others have made this step, and wait for payloads that this rank has not sent.
                self._engine.abandon()
            self._restart()
            self._engine.withdraw()
            self._give_shapes(state_dict)
        return super().load_state_dict(state_dict, strict)

    def _give_shapes(self, state_dict: Mapping[str, Any]) -> None:
        """Gives buffers that are made, or made longer, in steps the shapes of the saved ones."""
        for name, buffer, is_persistent in [*all_buffers(self.module)]:
            saved = state_dict.get(f"module.{name}")
            if (
                is_persistent
                and isinstance(saved, Tensor)
                and (buffer is None or buffer.shape != saved.shape)
            ):
                set_buffer(self.module, name, saved)

    def __deepcopy__(self, memo: dict[int, Any]) -> "UnconnectedModule":
        """A copy that computes what this rank's model does, and is no part of any exchange."""
        # Parameters have hooks of this wrapper.
        return UnconnectedModule(copied(self.module, gradient_hooks=False))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise BadInput(
            "a DecentralizedDataParallel holds connections, so it cannot be pickled; save its state_dict(), "
            "or use its .module"
        )

    def close(self) -> None:
        """Disconnects this rank; also called when the process exits."""
        self._close()

    # The backward pass.

    def _note_backward(self, gradient: Tensor) -> None:
        """Registers the end of a new backward pass, which finishes the buckets that are left."""
        task = torch._C._current_graph_task_id()
        if task != self._backward.task:
            self._check_whole()
            self._backward.task, self._backward.is_open = task, True
            # Autograd calls it at the end of this pass, when no more gradients can arrive.
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _note_gradient(self, i: int, parameter: Tensor) -> None:
        if self._accumulating:
            return
        if self._averaged:
            raise RunFailed(f"rank {self.rank}: inside averaged() the model can be looked at, not trained")
        if self._backward.task is None:
            self._note_backward(parameter)
        if i < self._engine.updated:
            name = self._engine.optimizers[i].names[id(parameter)]
            raise RunFailed(
                f"rank {self.rank}, step {self.step}: parameter '{name}' got a second gradient in one "
                "backward pass; use update_in='step'"
            )
        self._backward.fired = True
        self._backward.missing[i].discard(id(parameter))
        # With these no bucket can be updated before the last gradient is ready.
        if self.options.clip_norm is None and self.options.scaler is None:
            self._update_complete()

    def _update_complete(self) -> None:
        """Updates the next buckets in order while all their gradients are ready."""
        engine, missing = self._engine, self._backward.missing
        while engine.updated < len(missing) and not missing[engine.updated]:
            with torch.no_grad():
                engine.update_next()
                engine.optimizers[engine.updated - 1].clear()

    def _end_backward(self) -> None:
        self._backward.task = None
        if not self._backward.fired:
            self._backward.is_open = False
            return
        self._backward.finishing = True
        try:
            scaler = self.options.scaler
            if scaler is None:
                self.optimizer.step()
            else:
                scaler.step(self.optimizer)
                scaler.update()
        finally:
            self._backward.finishing = False
        self._backward.fired = self._backward.is_open = False
        self._expect_all()

    @property
    def _ended_early(self) -> bool:
        """Whether the last pass left a step unfinished; called between passes."""
        return self._engine.begun or self._backward.fired

    def _check_whole(self) -> None:
        if self._ended_early:
            raise RunFailed(
                f"rank {self.rank}, step {self.step}: the last backward pass ended early, and the step with "
                "it; load a saved state on all ranks"
            )

    def _restart(self) -> None:
        """Discards a backward pass that ended early, and gradients without a step."""
        self._backward = BackwardState()
        self._expect_all()
        for part in self._engine.optimizers:
            part.clear()

    def _expect_all(self) -> None:
        self._backward.missing = [set(part.names) for part in self._engine.optimizers]

    @torch.no_grad()
    def _update(self, scale: Tensor | None, skip: bool) -> None:
        """Makes the step of all buckets that have not been updated; see `AllBuckets`."""
        in_backward = self.options.update_in == "backward"
        if in_backward and not self._backward.finishing:
            if scale is not None:
                raise BadInput(
                    "the scaler comes too late: the backward pass has made the step, with scaled gradients; "
                    "give it to the wrapper (scaler=...), or use update_in='step'"
                )
            return
        if not in_backward:
            self._check_whole()
        parameters = [p for part in self._engine.optimizers for p in part.chosen]
        if scale is not None and not skip:
            for p in parameters:
                if p.grad is not None:
                    p.grad.div_(scale)
        if self.options.clip_norm is not None and not skip:
            nn.utils.clip_grad_norm_([_dense_part(p) for p in parameters], self.options.clip_norm)
        self._engine.finish(skip)
        if in_backward:
            for part in self._engine.optimizers:
                part.clear()


def joined(
    rendezvous: RankRendezvous, plan: Plan, graph: WeightedGraph, options: Options, module: nn.Module
) -> tuple[Link, Endpoint]:
    """Connects this rank to all others; returns the link, and its endpoint on the module's device."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    most_bytes = max(VERDICT.max_bytes, rendezvous.size)  # or live ranks: ExchangeQueue.living
    memory = BufferSpec(plan.nbytes, torch.uint8, most_bytes, parts=len(plan.buckets) + 1, device=device)
    parameters = xxhash.xxh3_64_hexdigest(plan.describe().encode())
    terms = {"version": __version__, "topology": digest(graph), "parameters": parameters}
    for name in ("scheme", "step_from", "bucket_mb", "in_flight", "buffers", "broadcast", "on_loss"):
        terms[name] = str(getattr(options, name))
    chosen = "zeromq" if options.communication == "auto" else options.communication
    communication: Communication = made(COMMUNICATIONS, chosen)
    link = rendezvous.join(communication, terms, memory, options.deadline)
    endpoint = link.endpoint
    if endpoint.device != device:
        endpoint = DeviceStaging(endpoint, memory)
    return link, endpoint


def _detach_from_blocks(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """A hook of `state_dict`: copies the tensors to memory of their own."""
    for name, value in state.items():
        if name.startswith(prefix) and isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            state[name] = value.clone()


def _dense_part(parameter: nn.Parameter) -> nn.Parameter:
    """The parameter, or one whose gradient is the values of a sparse gradient, in the same memory."""
    if parameter.grad is None or parameter.grad.layout is torch.strided:
        return parameter
    # Without several values for one place.
    parameter.grad = parameter.grad.coalesce()
    part = nn.Parameter(parameter.grad.values().detach())
    part.grad = parameter.grad._values()
    return part


def _end(link: Link, exchanges: ExchangeQueue) -> None:
    exchanges.release_arrived(link.farewell_timeout)
    link.close()
