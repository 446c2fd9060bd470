"""What the callbacks of training frameworks have in common: a node beside a loop that the framework owns."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.optim import Optimizer

import decentnode
from decentnode.errors import BadInput, RunFailed
from decentnode.mapping.rank_place import find_place
from decentnode.node.own_loop.loop_node import BlockingNode

JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
JOB_PREFIXES = (
    "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCAL",
    "MV2_COMM_WORLD_",
)  # fmt: skip
"""The variables by which torchrun, srun and mpirun number processes, and how further ones of them begin."""


@contextmanager
def single_process() -> Iterator[None]:
    """Hides from a block that this process is one of several, so that a framework's trainer trains alone.

    A trainer that sees the variables of torchrun, srun or mpirun wraps the model in torch's DDP. On a machine
    with several GPUs this process sees that of its local rank alone from here on, also after the block.
    """
    _choose_gpu()
    names = [name for name in os.environ if name in JOB or name.startswith(JOB_PREFIXES)]
    hidden = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _choose_gpu() -> None:
    place, count = find_place(), torch.cuda.device_count()
    if place is None or count < 2 or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[place.local_rank % count]


class FrameworkCallback:
    """A node that joins, steps and leaves at the events of a framework.

    The arguments are those of `decentnode.join`, without the model and the optimizer. An object is also of
    the framework's own class of callbacks, which is imported when the first object is made. As a context it
    leaves at the end of the block, as failed after an exception.
    """

    FRAMEWORKS: ClassVar[Mapping[str, str]]
    """By module: its class of callbacks. Those that are imported count, else the first that is installed."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        bases = tuple(base for base in _classes(cls.FRAMEWORKS) if not issubclass(cls, base))
        if not bases:
            return super().__new__(cls)
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        return super().__new__(type(cls.__name__, (cls, *bases), names))

    def __init__(self, config: Any = None, **options: Any) -> None:
        self.node: BlockingNode | None = None
        """What `decentnode.join` has returned, during the training."""
        self._config = config
        self._options = options
        self._pause = ExitStack()
        self._is_paused = False
        self._last_state: dict[str, Any] = {}
        """The state of the node when it left."""

    def _join(
        self, model: nn.Module, optimizers: Iterable[Optimizer], processes: int, state: dict[str, Any]
    ) -> None:
        """Joins the other ranks, and loads a node's state if there is one.

        Raises BadInput where the trainer has several processes.
        """
        if processes > 1:
            raise BadInput(
                f"this trainer trains one model on {processes} processes; make it in a block of "
                "`with single_process():`, so that every rank trains its own"
            )
        self.node = decentnode.join(
            model, self._config, optimizer=list(optimizers), state=state or None, **self._options
        )

    def _step(self) -> bool:
        """Reports a step of the optimizer, if there was one; returns False when the run is over."""
        assert self.node is not None
        self._end_pause()
        return not self.node.is_over and self.node.step()

    def _begin_pause(self) -> None:
        """The other ranks wait for this one from here on, however long it takes."""
        if self.node is not None and not self._is_paused:
            self._pause.enter_context(self.node.busy())
            self._is_paused = True

    def _end_pause(self) -> None:
        self._pause.close()
        self._is_paused = False

    def _log(self, metrics: Mapping[str, Any]) -> None:
        """Logs those metrics that are numbers, where the model is that after a round."""
        if self.node is not None and self.node.round_ended:
            numbers = {name: float(value) for name, value in metrics.items() if _is_number(value)}
            self.node.log(**numbers)

    def _node_state(self) -> dict[str, Any]:
        """Returns the node's state, and after the training its last one."""
        return self._last_state if self.node is None else self.node.state_dict()

    def leave(self, failed: bool = False, error: BaseException | None = None) -> None:
        """Ends this rank's part, if it has one; `failed`, by this `error`: as that of `decentnode.join`."""
        if self.node is None:
            return
        self._end_pause()
        node, self.node, self._last_state = self.node, None, {}
        with suppress(RunFailed):  # within a round whose exchange is in progress
            self._last_state = node.state_dict()
        node.leave(failed, error if isinstance(error, Exception) else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(error is not None, error)


def _classes(frameworks: Mapping[str, str]) -> list[type]:
    """The frameworks' classes of callbacks; raises BadInput where none is installed."""
    modules = [module for module in frameworks if module in sys.modules]
    if not modules:
        roots = {module: module.partition(".")[0] for module in frameworks}
        modules = [module for module, root in roots.items() if importlib.util.find_spec(root)][:1]
    if not modules:
        raise BadInput(f"none of {', '.join(frameworks)} is installed: pip install 'decentnode[frameworks]'")
    return [getattr(importlib.import_module(module), frameworks[module]) for module in modules]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)
