"""The settings of a run whose loops, models and samples are those of scripts."""

from pathlib import Path
from typing import Any

from decentnode.communication.launcher_link.attachment import AttachRequest
from decentnode.config import extends
from decentnode.config import loader as config
from decentnode.config.python_source import apply_arguments, document_of
from decentnode.config.settings import STAND_INS, Settings
from decentnode.config.shipped import find_config
from decentnode.config.type_check import parameters_of
from decentnode.config.yaml_source import Document
from decentnode.core.registry import GRAPHS
from decentnode.errors import BadInput
from decentnode.options import ENDLESS

OF_THE_LOOP = ("dataset", "model", "task", "evaluation")
"""Sections about what a script has itself."""
PLANES = "decentnode.graph.shard_planes:ShardPlanes"
OF_ROUNDS = ("steps_per_round", "train_every", "mix_buffers", "pace")
"""Keys of `training` that are about rounds."""


def settings_of(request: AttachRequest, mapping: dict[str, Any]) -> tuple[Settings, str]:
    """Returns the settings of a run, and a line about what is ignored; raises BadInput.

    `mapping`: the machines and their nodes.
    """
    document = _document(request)
    given: dict[str, Any] = document.value
    partition, dataset = given.pop("partition", None), given.get("dataset")
    if partition is None and isinstance(dataset, dict):
        partition = dataset.get("partition")
    evaluation = given.get("evaluation")
    pictures = {k: v for k, v in evaluation.items() if k == "figures"} if isinstance(evaluation, dict) else {}
    if evaluation == pictures:
        given.pop("evaluation", None)
    ignored = [section for section in OF_THE_LOOP if given.get(section) is not None]
    training = given.get("training")
    training = dict(training) if isinstance(training, dict) else {}
    ignored += [f"training.{key}" for key in training if key not in OF_ROUNDS]
    if given.get("mapping") is None:
        given["mapping"] = mapping
    model = request.model
    given.setdefault("name", request.script)
    given.setdefault("rounds", ENDLESS)
    given["dataset"] = {
        "name": f"{STAND_INS}:LoopSamples", "nodes": request.size, "partition": {"name": "iid"}
    }  # fmt: skip
    given["model"] = {
        "name": f"{STAND_INS}:LoopModel", "parameters": model.parameters, "buffers": model.buffers,
        "complex": model.complex, "digest": model.digest,
    }  # fmt: skip
    given["task"] = "classification"
    kept = {key: training[key] for key in OF_ROUNDS if key in training}
    optimizer = request.optimizer or {"name": "SGD"}
    time_model = given.get("time_model")
    kind = time_model.get("name") if isinstance(time_model, dict) else time_model
    # A window has as many steps as fit.
    steps = {} if kind == "asynchronous" else {"steps_per_round": 1}
    given["training"] = {
        **steps, **kept, "optimizer": optimizer, "dtype": model.dtype, "execution": "alone",
    }  # fmt: skip
    given["evaluation"] = {"every": 0, "final": False, "average_model": False, **pictures}
    if partition is not None:
        given["dataset"]["loop_partition"] = partition
    _sized(given, request.size // model.shards)
    if model.shards > 1:
        given["graph"] = {"name": PLANES, "graph": given["graph"], "shards": model.shards}
    settings = config.understand(document)
    if model.shards > 1:
        _check_shards(settings)
    graph = settings.graph.make()
    if graph.num_nodes != request.size:
        raise BadInput(f"graph: has {graph.num_nodes} nodes; {request.size} ranks were started")
    if graph.servers:
        ranks = [rank for rank in range(request.size) if rank not in graph.servers]
        given["dataset"]["partition"]["ranks"] = ranks
        settings = config.understand(document)
    plan, name = settings.communication.make().plan, settings.communication.name
    if plan.has_virtual_time:
        raise BadInput(
            f"communication: {name} has virtual time, and ranks of scripts wait; use inproc or zeromq"
        )
    if plan.one_machine and len(request.ranks) < request.size:
        raise BadInput(f"communication: {name} has all ranks in one process; use zeromq for several")
    line = f"the script decides these, so the configuration's are ignored: {', '.join(ignored)}"
    return settings, line if ignored else ""


def _check_shards(settings: Settings) -> None:
    """Raises BadInput where shards of a model would not mix as the whole model does."""
    scheme = settings.sharing.make()
    what = "the model is sharded, and each shard mixes by itself"
    if not scheme.promises.by_coordinate:
        raise BadInput(
            f"sharing: {what}; {settings.sharing.name} needs the whole model: use gossip, or choco"
        )
    for plugin in settings.sharing.transforms:
        if not plugin.make().by_coordinate:
            raise BadInput(
                f"sharing.transforms: {what}; {plugin.name} needs the whole: use cast, or random_k"
            )


def _document(request: AttachRequest) -> Document:
    folder = Path(request.folder)
    if request.config is None:
        document = document_of(request.values)
    else:
        path = folder / request.config
        shipped = find_config(request.config)
        document = extends.read(path if path.is_file() or shipped is None else shipped)
        apply_arguments(document, request.values)
    return document


def _sized(given: dict[str, Any], size: int) -> None:
    """Gives a graph family the number of ranks, where nothing else says it."""
    graph = given.get("graph", "ring")
    graph = {"name": graph} if isinstance(graph, str) else graph
    if isinstance(graph, dict):
        cls = GRAPHS.classes().get(str(graph.get("name")))
        if cls is not None and "nodes" in parameters_of(cls):
            graph = {"nodes": size, **graph}
    given["graph"] = graph
