"""Checks of what belongs to one time model alone, and of the speeds of nodes."""

from collections.abc import Callable, Iterator, Sequence

from decentnode.communication.base import Communication
from decentnode.config.settings import TimeModelSettings
from decentnode.core.registry import SHARINGS, name_of
from decentnode.errors import BadInput, Defect
from decentnode.graph.base import Graph
from decentnode.mapping.base import Mapping
from decentnode.sharing.base import SharingBase
from decentnode.training.gradient_sync import GradientSync
from decentnode.training.settings import ONE_OF_BOTH, TrainingSettings


def _paces(training: TrainingSettings, mapping: Mapping, rounds: int) -> Iterator[Defect]:
    if (pace := training.slowed) is None:
        return
    machines, nodes = len(mapping.machines), mapping.num_nodes
    for key, value, item in (("slowdown", pace.slowdown, "number"), ("device", pace.device, "class")):
        if isinstance(value, tuple) and len(value) not in (machines, nodes):
            what = f"must have one {item} for each of the {nodes} ranks or {machines} machines"
            yield Defect(("training", "pace", key), f"{what}, not {len(value)}")
    try:
        pace.check(nodes, rounds)
    except BadInput as error:
        yield from error.defects


def _time_model(time_model: TimeModelSettings, sharing: SharingBase) -> Iterator[Defect]:
    """Yields defects of a scheme, and of keys, that belong to the other time model."""
    name, key = name_of(sharing), ("time_model",)
    if time_model.is_asynchronous != sharing.asynchronous:
        known = [n for n, cls in SHARINGS.classes().items() if getattr(cls, "asynchronous", False)]
        what = f"{name} needs time_model: asynchronous; with rounds, use a scheme such as gossip"
        if time_model.is_asynchronous:
            what = f"{name} exchanges in rounds, and time_model asynchronous has none; use {', '.join(known)}"
        yield Defect(("sharing",), what)
    if time_model.schedule is not None and not time_model.is_asynchronous:
        what = "rounds have no schedule: every run is the same; leave it out, or set name: asynchronous"
        yield Defect((*key, "schedule"), what)
    if (time_model.schedule == "replay") != (time_model.schedule_path is not None):
        what = "is the recorded run of schedule: replay; give both, or neither"
        yield Defect((*key, "schedule_path"), what)


def _steps_given(training: TrainingSettings, time_model: TimeModelSettings) -> Iterator[Defect]:
    """Checks limits of steps: in a window a node makes as many as fit, unless a number limits them."""
    is_given = (training.steps_per_round, training.epochs_per_round) != (None, None)
    if not is_given and not time_model.is_asynchronous and training.loop is None:
        yield Defect(("training",), ONE_OF_BOTH)


def _asynchronous(
    time_model: TimeModelSettings, graph: Graph, gradient_sync: GradientSync,
    communication: Communication, overlap: bool, mix_buffers: bool,
) -> Iterator[Defect]:  # fmt: skip
    """Yields settings that have no meaning without rounds."""
    if not time_model.is_asynchronous:
        return
    if not communication.plan.has_messages:
        what = f"{name_of(communication)} carries no single messages, as time_model asynchronous needs them"
        yield Defect(("communication",), f"{what}; use zeromq or inproc")
    if overlap:
        what = "time_model asynchronous always exchanges while nodes train; leave it out"
        yield Defect(("communication", "overlap"), what)
    if gradient_sync.one_model:
        what = f"{name_of(gradient_sync)} makes all steps together; use time_model: synchronous"
        yield Defect(("training", "name"), what)
    # A server with all clients in every round has no rests.
    if graph.has_rests and not graph.static:
        what = f"{name_of(graph)} has rounds of rest, and time_model asynchronous has no rounds"
        remedy = (
            "let all clients take part" if graph.servers else "give slow nodes a slowdown (training.pace)"
        )
        yield Defect(("graph",), f"{what}; {remedy}")
    if graph.needs_service:
        what = f"{name_of(graph)} answers for rounds, and time_model asynchronous has none"
        yield Defect(("graph",), f"{what}; use epidemic_local")
    if graph.is_negotiated:
        what = f"nodes agree on the edges of {name_of(graph)} in rounds, and time_model asynchronous has none"
        yield Defect(("graph",), f"{what}; use epidemic_local")
    if mix_buffers:
        what = "variances could become negative where differences of other times are added; leave it out"
        yield Defect(("training", "mix_buffers"), what)


def _not_in_windows(
    time_model: TimeModelSettings, training: TrainingSettings,
    adversaries: Sequence[object],
) -> Iterator[Defect]:  # fmt: skip
    """Yields settings that count steps or act in rounds."""
    if not time_model.is_asynchronous:
        return
    if training.privacy is not None:
        what = (
            "the steps of a window are not known before it, and each one spends; use time_model: synchronous"
        )
        yield Defect(("training", "privacy"), what)
    if adversaries:
        what = "adversaries act in rounds, and time_model asynchronous has none; leave it out"
        yield Defect(("adversaries",), what)


TIME_CHECKS: tuple[Callable[..., Iterator[Defect]], ...] = (
    _paces, _time_model, _steps_given, _asynchronous, _not_in_windows,
)  # fmt: skip
