"""`decentnode.join`: a rank's part in a run, from a training loop of your own."""

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from decentnode.core.process_setup import check_kernel
from decentnode.core.rng import restored_generators
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, DecentnodeError, StartError
from decentnode.mapping.rank_place import RankPlace, find_place
from decentnode.node.own_loop.loop_node import BlockingNode
from decentnode.parallel.joined_process import (
    JoinedProcess,
    JoiningRank,
    continued_from,
    note_uncaught_errors,
)
from decentnode.parallel.shared_model import Shared, TensorsOfLoop

_models: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[BlockingNode]]" = weakref.WeakKeyDictionary()


def join(
    model: nn.Module,
    config: str | PathLike[str] | Mapping[str, Any] | None = None,
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    steps_per_round: int | None = None,
    shared: Shared = None,
    loss: Callable[[nn.Module], float] | None = None,
    samples: int | None = None,
    count: Literal["step", "optimizer"] = "step",
    state: Mapping[str, Any] | None = None,
    rank: int | None = None,
    size: int | None = None,
    quiet: bool = False,
    or_resume: bool = False,
    **sections: Any,
) -> BlockingNode:
    """Takes part in a run with this model, which any loop trains; returns the node of this rank.

    All ranks call it at once: processes that torchrun, srun, mpirun or `decentnode launch` has started, or
    threads of one process, which say `rank` and `size`.

    Args:
        model: its trained parameters become views of one vector (d,), and point to another slot after each
            round; the objects stay the same. All ranks begin with equal values: make the models of processes
            after the same torch.manual_seed; threads take those of rank 0.
        config: a configuration as a path, a shipped name or a mapping. Sections about the loop are ignored.
        optimizer: the loop's own; schemes that change gradients do so before its steps.
        steps_per_round: local steps from one exchange to the next; by default 1, or as `config` says.
        shared: what is shared in place of all trained parameters: names with * for any letters, tensors, or
            a pair of functions (get() -> tensors, set(tensors)) for what cannot be a view.
        loss: the loss of a model on samples of this rank, for schemes that test models.
        samples: the number of this rank's training samples, for schemes that weight by it.
        count: what counts as a step: a call of `node.step()`, or a step of the optimizer by itself.
        state: what `node.state_dict()` returned, to continue with a model that has its saved values; or load
            both after join, before the first step.
        rank: of this thread, where ranks are threads.
        size: the number of ranks, where ranks are threads.
        quiet: whether the launcher prints nothing; under `decentnode launch` without effect.
        or_resume: whether the run is resumed if an earlier start of the script has begun it; it needs a
            `run_dir`, or `DECENTNODE_JOB`. Where the run has finished, the script exits with code 0.
        sections: values of a configuration, as `graph="ring"`, `sharing={"name": "choco", "gamma": 0.4}`,
            `transforms=[...]` (those of `sharing`), `rounds=100`, `checkpoint={"every": 10}`.

    Raises:
        BadInput: what the user has to correct, in one line, before the first round.
        StartError: a rank did not join in time, or has failed before.
    """
    check_kernel()
    note_uncaught_errors()
    if not isinstance(model, nn.Module):
        raise BadInput(f"join: model must be a torch.nn.Module, not {type(model).__name__}")
    known = _models.get(model)
    if known is not None and (node := known()) is not None and not node.has_left:
        raise BadInput("join: this model has joined already; leave() first, or use the node that you have")
    place = _place(rank, size)
    given = [] if optimizer is None else optimizer
    optimizers = [*given] if isinstance(given, Sequence) else [given]
    if wrong := next((type(one).__name__ for one in optimizers if not isinstance(one, Optimizer)), ""):
        raise BadInput(f"join: optimizer must be one of torch.optim, or several, not {wrong}")
    if count == "optimizer" and not optimizers:
        raise BadInput("join: count='optimizer' counts the steps of an optimizer; optimizer=...")
    if config is None:
        config = os.environ.get("DECENTNODE_CONFIG")
    name, values = _values(config, sections)
    for key, value in json.loads(os.environ.get("DECENTNODE_VALUES", "{}")).items():
        values = _with_value(values, key.split("."), value)
    training, failures = values.get("training") or {}, values.get("failures")
    # What is no mapping is an error that the launcher reports with the right remedy.
    if steps_per_round is not None and isinstance(training, Mapping):
        values = {**values, "training": {**training, "steps_per_round": steps_per_round}}
    deadline = failures.get("start_deadline") if isinstance(failures, Mapping) else None
    deadline = float(deadline) if isinstance(deadline, int | float) else Timeouts.join
    values = {**values, "or_resume": True} if or_resume else values
    joining = JoiningRank(place.rank, TensorsOfLoop(model, shared), optimizers, samples, loss, state)
    # A loop that continues has restored its generators.
    with restored_generators():
        if rank is not None:
            node = _Group.of(place).join(joining, name, values, deadline, quiet)
        else:
            JoinedProcess.attached([joining], place, name, values, deadline, quiet)
            assert joining.node is not None
            node = joining.node
    _models[model] = weakref.ref(node)
    if state is not None:
        node.load_state_dict(state)
    if node.must_start_at_once:
        node.start()
    if count == "optimizer":
        node.count_steps_of(optimizers[0])
    return node


def _place(rank: int | None, size: int | None) -> RankPlace:
    if (rank is None) != (size is None):
        raise BadInput("join: rank and size are of threads of one process; give both, or neither")
    if rank is not None and size is not None:
        if not 0 <= rank < size:
            raise BadInput(f"join: rank must be from 0 to {size - 1}, not {rank}")
        return RankPlace("threads", rank, size, 0, size)
    place = find_place()
    if place is None:
        raise BadInput(
            "join: no rank in the environment; start with `decentnode launch --nodes 4 train.py`, torchrun, "
            "srun or mpirun, or join from threads with rank= and size="
        )
    return place


def _values(
    config: str | PathLike[str] | Mapping[str, Any] | None, sections: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """Returns the name of a configuration, and values in addition to it."""
    values: dict[str, Any] = {}
    name = None
    if isinstance(config, Mapping):
        values = {key: value for key, value in config.items()}
    elif config is not None:
        name = str(config)
    for key, value in sections.items():
        if key in ("transforms", "weights"):
            sharing = sections.get("sharing", values.get("sharing", "gossip"))
            sharing = {"name": sharing} if isinstance(sharing, str) else dict(sharing)
            said = values.get("sharing")
            said = said if isinstance(said, dict) else {}
            others = {name: said[name] for name in ("transforms", "weights") if name in said}
            values["sharing"] = {**sharing, **others, key: value}
        elif key != "sharing" or not isinstance(values.get("sharing"), dict) or "sharing" not in sections:
            values[key] = value
    try:
        # As other processes see them: a tuple is a list, and a path its text.
        return name, json.loads(json.dumps(values, default=os.fspath))
    except (TypeError, ValueError) as error:
        raise BadInput(f"join: arguments must be as in a configuration: {error}") from error


def _with_value(values: Mapping[str, Any], key: Sequence[str], value: Any) -> dict[str, Any]:
    """Returns the values with another one at a dotted key; a plug-in that is a name alone gets options."""
    first, *rest = key
    if not rest:
        return {**values, first: value}
    inner = values.get(first) or {}
    inner = inner if isinstance(inner, Mapping) else {"name": inner}
    return {**values, first: _with_value(inner, rest, value)}


@dataclass
class _Group:
    """Threads of this process that join together."""

    size: int
    joining_ranks: dict[int, JoiningRank] = field(default_factory=dict)
    arguments: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    error: BaseException | None = None
    is_done: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, place: RankPlace) -> "_Group":
        """Returns the group that is forming, or a new one."""
        with _lock:
            group = _forming.get(place.size)
            if group is None:
                group = _forming[place.size] = cls(place.size)
            if place.rank in group.joining_ranks:
                raise BadInput(f"join: rank {place.rank} joins twice, in two threads")
            return group

    def join(
        self, joining: JoiningRank, name: str | None, values: dict[str, Any], deadline: float, quiet: bool
    ) -> BlockingNode:
        with _lock:
            self.joining_ranks[joining.rank] = joining
            self.arguments[joining.rank] = name, values
            is_last = len(self.joining_ranks) == self.size
            if is_last:
                _forming.pop(self.size, None)
        if is_last:
            try:
                self._begin(deadline, quiet)
            except BaseException as error:
                self.error = error
                raise
            finally:
                self.is_done.set()
        else:
            self._wait(deadline)
        assert joining.node is not None
        return joining.node

    def _begin(self, deadline: float, quiet: bool) -> None:
        joining_ranks = [self.joining_ranks[rank] for rank in sorted(self.joining_ranks)]
        first = self.arguments[0]
        for rank, arguments in sorted(self.arguments.items()):
            if arguments != first:
                raise BadInput(f"rank {rank}: the arguments of join differ from those of rank 0")
        places = [continued_from(joining.state) for joining in joining_ranks]
        for joining, place_of_state in zip(joining_ranks, places, strict=True):
            if place_of_state != places[0]:
                raise BadInput(
                    f"rank {joining.rank}: its saved state is {place_of_state or 'none'}, that of rank 0 is "
                    f"{places[0] or 'none'}"
                )
        name, values = first
        values = {"communication": "inproc", **values}
        place = RankPlace("threads", 0, self.size, 0, self.size)
        JoinedProcess.attached(joining_ranks, place, name, values, deadline, quiet)

    def _wait(self, deadline: float) -> None:
        limit = time.monotonic() + deadline
        while not self.is_done.wait(0.1):
            if time.monotonic() > limit and len(self.joining_ranks) < self.size:
                missing = sorted(set(range(self.size)) - self.joining_ranks.keys())
                with _lock:
                    _forming.pop(self.size, None)
                raise StartError(f"ranks {missing} of {self.size} did not join within {deadline:.0f} s")
        if self.error is not None:
            kind = type(self.error) if isinstance(self.error, DecentnodeError) else StartError
            raise kind(str(self.error)) from None


_lock = threading.Lock()
_forming: dict[int, _Group] = {}
