"""The all-reduce baseline: one model on all nodes, by torch's DistributedDataParallel."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Literal

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from decentnode.communication.torch_distributed import backend_choice, torch_groups
from decentnode.communication.torch_distributed.backend_choice import Backend, BackendChoice
from decentnode.communication.torch_distributed.missing_ranks import MissingRanks
from decentnode.communication.torch_distributed.process_group import prepare_nccl
from decentnode.core.registry import TRAININGS
from decentnode.datasets.base import Samples
from decentnode.errors import BadInput, Defect, RunFailed
from decentnode.mapping.base import is_loopback
from decentnode.models.module_state import all_buffers
from decentnode.options import Port, PositiveFloat, option
from decentnode.training.gradient_sync import GradientSync, SyncContext
from decentnode.training.minibatches import Shard
from decentnode.training.reducer import Reducer, Rehearsed

NAME = "ddp"
UNUSED = "Expected to have finished reduction"
"""Start of torch's error about a parameter without a gradient."""


@TRAININGS.register(NAME)
@dataclass
class DDPBaseline(GradientSync):
    """Every step uses the mean gradient of all nodes (PyTorch DDP: Li et al., VLDB 2020).

    The graph only sets the number of nodes, and `sharing` must be `none`. All ranks run the same number of
    steps in a round: an epoch has as many as the smallest part allows. Bytes are computed, not measured:
    those of a ring all-reduce, 2 (n - 1) / n times the gradient in every step.
    """

    one_model: ClassVar[bool] = True
    samples: Literal["partition", "reshuffled"] = "partition"
    """partition: each rank its own part; reshuffled: all samples are redistributed in every epoch."""
    backend: Backend = "auto"
    """auto: NCCL if every node has a GPU of its own, otherwise gloo."""
    port: Port = option(29400, changes="nothing")
    """TCP port of the store in the process of rank 0; a run on one machine opens none."""
    share_gpu: bool = False
    """Whether several nodes on one GPU may use NCCL; slow, for tests."""
    trusted_network: bool = option(False, changes="nothing")
    """Whether the network between the machines is private; gradients are not encrypted there."""
    bucket_mb: PositiveFloat = 25.0
    """Size of the buckets in which gradients are sent, in MB."""
    find_unused_parameters: bool = False
    """Needed by networks that do not use all parameters in every step."""

    def crosses_network(self, addresses: Sequence[str]) -> bool:
        reachable = len(addresses) > 1 and not all(map(is_loopback, addresses))
        return reachable and not self.trusted_network

    def defects(self, device: str, nodes: int) -> Iterator[Defect]:
        if problem := backend_choice.backend_defect(self.backend, device, 0 if self.share_gpu else nodes):
            yield Defect(("backend",), problem)

    def shard(self, samples: Samples, parts: Sequence[Tensor], seed: int, rank: int) -> Shard:
        if self.samples == "reshuffled":
            everything = torch.cat(list(parts)).sort().values
            if len(everything) < len(parts):
                few = f"{len(everything)} training samples are too few for {len(parts)} ranks"
                raise BadInput.at("training", f"{NAME}: {few}")
            return Reshuffled(samples, everything, seed, rank=rank, nodes=len(parts))
        sizes = list(map(len, parts))
        if not min(sizes):
            why = f"rank {sizes.index(0)} has no samples, and all must make the same steps"
            raise BadInput.at(
                "training", f"{NAME}: {why}; correct dataset.partition, or use samples: reshuffled"
            )
        return Shard(samples, parts[rank], seed, rank=rank, epoch_size=min(sizes))

    def connect(self, context: SyncContext) -> Reducer:
        rendezvous = torch_groups.StoreRendezvous(context.directory, NAME, self.port, run_id=context.run_id)
        device = context.vector.values.device
        store = rendezvous.store(context.start_deadline, opens=True)
        capabilities = backend_choice.facts_of(device, context.directory.process.machine, takes_part=True)
        choose = BackendChoice(self.backend, self.share_gpu, "training.backend")
        plan = rendezvous.plan(store, capabilities, choose, timeout=context.start_deadline)
        backend = plan.backend or "gloo"
        print(f"{NAME}: {backend} carries the gradients: {plan.reason}", flush=True)
        prepare_nccl(context.rank, self.share_gpu, settings={})
        group = rendezvous.open(store, backend, device, context.deadline)
        missing_ranks = MissingRanks(rendezvous.store(context.deadline), context.rank, len(rendezvous.ranks))
        return DDPReducer(self, context, group, missing_ranks=missing_ranks)


@dataclass(frozen=True, eq=False)
class Reshuffled(Shard):
    """All samples, redistributed to the ranks in every epoch; some twice, so that all parts are equal."""

    nodes: int = 1

    @property
    def size(self) -> int:
        return -(-len(self.indices) // self.nodes)

    def order(self, epoch: int) -> Tensor:
        # The sampler only needs the length of a data set.
        sampler: DistributedSampler[int] = DistributedSampler(
            self.indices, self.nodes, self.rank, seed=self.seed  # type: ignore[arg-type]
        )  # fmt: skip
        sampler.set_epoch(epoch)
        return self.indices[torch.tensor(list(sampler))]


@dataclass(eq=False)
class DDPReducer(Reducer):
    """Averages the gradients of all nodes in every backward pass; names missing ranks when that fails."""

    rehearses = True
    baseline: DDPBaseline
    context: SyncContext
    group: dist.ProcessGroup
    missing_ranks: MissingRanks
    _round: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        layout, nodes = self.context.vector.layout, self.group.size()
        trained = sum(e.shape.numel() for e in layout.entries if not e.is_buffer)
        self._bytes = 2 * (nodes - 1) * layout.dtype.itemsize * trained // nodes

    def wrap(self, module: nn.Module, rehearsed: Rehearsed) -> nn.Module:
        # Those of one shape alone can be sent; the others stay with their nodes.
        kept = {*rehearsed.varying} | {name for name, part, _ in all_buffers(module) if not _is_sent(part)}
        # Collectives, in the constructor, too: a missing rank is named here.
        with self.step(-1, -1):
            kept = self._of_any(kept)
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
                module, sorted(kept)
            )
            self._module = DistributedDataParallel(
                module, process_group=self.group, bucket_cap_mb=self.baseline.bucket_mb,
                find_unused_parameters=self.baseline.find_unused_parameters,
            )  # fmt: skip
        return self._module

    def _of_any(self, names: Collection[str]) -> set[str]:
        """The names that any rank has; DDP must be told the same ones by all."""
        device = self.context.vector.values.device
        content = torch.frombuffer(bytearray(msgspec.json.encode(sorted(names))), dtype=torch.uint8)
        length = torch.tensor([len(content)], device=device)
        most = dist.AllreduceOptions()
        most.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
        self.group.allreduce([length], most).wait()
        capabilities = torch.zeros(int(length), dtype=torch.uint8, device=device)
        capabilities[: len(content)].copy_(content)
        gathered = [torch.zeros_like(capabilities) for _ in range(self.group.size())]
        self.group.allgather([gathered], [capabilities]).wait()
        texts = (bytes(row.tolist()).rstrip(b"\0") for row in gathered)
        return set(chain.from_iterable(msgspec.json.decode(text, type=list[str]) for text in texts))

    @contextmanager
    def step(self, round: int, step: int) -> Iterator[None]:
        self._round = round
        try:
            yield
        except RuntimeError as error:
            when = f"round {round + 1}, step {step + 1}" if round >= 0 else "before round 1"
            if str(error).startswith(UNUSED):
                unused = "the network leaves parameters out of its loss"
                why = f"{unused}; write training.find_unused_parameters: true"
            elif torch_groups.is_of_collective(error):
                why = f"all-reduce failed{self.missing_ranks.verdict()} ({torch_groups.reason(error)})"
            else:
                raise
            raise RunFailed(f"rank {self.context.rank}, {when}: {why}") from error

    @contextmanager
    def partial(self) -> Iterator[None]:
        with self._module.no_sync():
            yield

    def backward(self, loss: Tensor) -> None:
        if not self._module.require_backward_grad_sync:
            super().backward(loss)
            return
        self.missing_ranks.progress += 1
        if self._round < 0:
            super().backward(loss)
            return
        # Marked as waiting: DDP's all-reduce runs within the backward pass.
        self.context.mark(self._round, True)
        super().backward(loss)
        self.context.mark(self._round, False)
        self.context.counters.sent_payload += self._bytes
        self.context.counters.received_payload += self._bytes

    def mean(self, round: int, step: int, total: float, samples: float) -> float:
        sums = torch.tensor([total, samples], dtype=torch.float64, device=self.context.vector.values.device)
        # Counted before the collective, so a rank that never starts it is behind in the roll call.
        self.missing_ranks.progress += 1
        with self.step(round, step):
            self.context.mark(round, True)
            self.group.allreduce([sums]).wait()
            self.context.mark(round, False)
        total, samples = sums.tolist()
        return total / samples

    def close(self) -> None:
        self.missing_ranks.close()


def _is_sent(buffer: Tensor | None) -> bool:
    """Whether DDP can send a buffer from rank 0 to all others."""
    return buffer is not None and buffer.layout is torch.strided and not buffer.is_complex()
