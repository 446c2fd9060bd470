"""Memory that a machine's nodes need, memory that is available, and kills for lack of it."""

import contextlib
from pathlib import Path

import torch
from torch import Tensor

from decentnode.communication.launcher_link.reports import Exited, Failed, Report
from decentnode.core.control_groups import control_group, room
from decentnode.core.text import counted, readable_bytes
from decentnode.node.experiment import Experiment
from decentnode.training.optim.uncompiled import trial_step

PROCESS_BYTES = 14 << 20
"""Bytes of a host process without its nodes, measured with small models."""
NODE_BYTES = 72 << 10
"""Bytes of a node's objects, measured with up to 700 nodes of 99 parameters in a process."""
EVALUATOR_BYTES = 9 << 20
"""Bytes of a process that evaluates in the background, without its model."""
TEMPORARY_COPIES = 2
"""Vectors that the gradient and the optimizer's step need for a while; nodes of a process take turns."""
FRAMES_PER_SOURCE = 2
"""Payloads per neighbor that arrive through a socket: one in use, one early."""
MOST_RANKS = 4096
"""Ranks whose neighbors and schemes are looked at; with more, as many that are spread over all."""
WARN_ABOVE = 0.8
SIGKILL_STATUS = -9


def bytes_needed(experiment: Experiment, machine: int, evaluators: int = 0) -> int:
    """Estimates the bytes that a machine's nodes and evaluators need beyond what is loaded.

    Activations are not counted.
    """
    ranks = experiment.mapping.ranks_of(machine)
    processes = sum(process.machine == machine for process in experiment.processes)
    in_place = getattr(experiment.settings.communication.make(), "local", "shared_memory") == "shared_memory"
    some = ranks[:: -(-len(ranks) // MOST_RANKS) or 1]
    frames = sum(_frames(experiment, rank, machine, in_place=in_place) for rank in some)
    staging = sum(experiment.schemes.memory(rank).payload_bytes for rank in some)
    payloads = frames * experiment.schemes.most_payload_bytes + staging
    # Its state per neighbor may come later.
    sharing = experiment.schemes.plain()
    sharing.begin(torch.zeros(experiment.layout.shared.numel, dtype=experiment.layout.dtype))
    # Two slots, gradient, snapshots, copies of vector or gradient, and the state of optimizer and scheme.
    settings = experiment.settings
    copies = (
        4
        + settings.communication.overlap
        + bool(settings.evaluation.background)
        + experiment.samples.gradient_sync.one_model
    )
    copies += _optimizer_copies(experiment)
    vector = experiment.layout.nbytes
    node = NODE_BYTES + vector * copies + _bytes_of(sharing.state_dict())
    process = PROCESS_BYTES + vector * TEMPORARY_COPIES
    evaluation = evaluators * (EVALUATOR_BYTES + vector)
    payloads = payloads * len(ranks) // max(1, len(some))
    return processes * process + len(ranks) * node + payloads + evaluation


def _optimizer_copies(experiment: Experiment) -> int:
    """Counts numbers per parameter in the optimizer's state, from one step on four parameters."""
    # A real step, because optimizers create their state at the first one.
    state = trial_step(experiment.settings.training.make_optimizer, experiment.layout.dtype)
    return _bytes_of(state) // (4 * experiment.layout.dtype.itemsize)


def _bytes_of(state: object) -> int:
    """Counts the bytes of all tensors in nested containers."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return sum(map(_bytes_of, parts))


def _frames(experiment: Experiment, rank: int, machine: int, *, in_place: bool) -> int:
    """Counts payloads of neighbors in this node's memory; those in shared memory are read in place."""
    graph, mapping = experiment.graph.graph, experiment.mapping
    sources = (graph.sources(rank, round) for round in graph.changes.rounds())
    frames = (sum(not in_place or mapping.machine_of(peer) != machine for peer in peers) for peers in sources)
    return FRAMES_PER_SOURCE * max(frames)


class MemoryEstimate:
    """The memory needed and available, for reports when it was not enough."""

    def __init__(self, experiment: Experiment, machine: int, evaluators: int = 0) -> None:
        """Measures before the nodes start; `evaluators`: processes that evaluate in the background."""
        self.needed = 0
        """0 if a scheme or optimizer cannot be built outside a run."""
        # An estimate must not prevent a run that would work.
        with contextlib.suppress(Exception):
            self.needed = bytes_needed(experiment, machine, evaluators)
        self.available = available_bytes()
        self.nodes = len(experiment.mapping.ranks_of(machine))
        self._processes = experiment.processes
        self._killed = times_run_out()

    @property
    def shortage(self) -> str:
        """A line if memory may not be enough; otherwise empty."""
        if self.needed <= WARN_ABOVE * self.available:
            return ""
        nodes = counted(self.nodes, "node")
        return f"memory: {nodes} here {self.figures}; fewer nodes, or a smaller model, would be safe"

    @property
    def figures(self) -> str:
        """Both numbers as text."""
        needed, available = readable_bytes(self.needed), readable_bytes(self.available)
        return f"need about {needed} beside their activations, {available} are available"

    def explain(self, report: Report) -> list[Report]:
        """Returns the report, with the numbers if memory ran out."""
        if isinstance(report, Failed) and report.out_of_memory:
            return [Failed(report.rank, f"{report.error}; all nodes here {self.figures}", out_of_memory=True)]
        # The kernel's kill looks like any other; only the counter of such kills tells them apart.
        if isinstance(report, Exited) and report.status == SIGKILL_STATUS:
            before, self._killed = self._killed, times_run_out()
            if self._killed > before:
                why = f"killed by the kernel, which had run out of memory; all nodes here {self.figures}"
                ranks = self._processes[report.process].ranks
                return [*(Failed(rank, why, out_of_memory=True) for rank in ranks), report]
        return [report]


def available_bytes() -> int:
    """Returns the bytes that can be used without swapping, within the limits of control groups."""
    free = (_field(Path("/proc/meminfo"), "MemAvailable:") or 0) * 1024
    return max(0, int(min(free, room("memory.max", "memory.current"))))


def times_run_out() -> int:
    """Returns the number of kills for lack of memory in this control group.

    Without counters of groups: in the whole system.
    """
    paths = (control_group() / "memory.events", Path("/proc/vmstat"))
    counts = [_field(path, "oom_kill") for path in paths]
    return next((count for count in counts if count is not None), 0)


def _field(path: Path, name: str) -> int | None:
    """Returns the number after a name at the start of a line; None if there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)
