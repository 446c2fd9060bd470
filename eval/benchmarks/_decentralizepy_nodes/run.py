"""Runs nodes of decentralizepy in a process each, as its driver `eval/testing.py` does.

    python eval/benchmarks/_decentralizepy_nodes/run.py CASE

CASE is the JSON of a `Case` of _decentralizepy.py. Prints what each node's process has measured, as JSON.
The nodes, their transport and their sharing are decentralizepy's own; the data set and the model are ours.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

case: dict[str, Any] = json.loads(sys.argv[1])
sys.path.insert(0, str(Path(case["source"]) / "src"))

from decentralizepy.graphs.Graph import Graph  # noqa: E402
from decentralizepy.mappings.Linear import Linear  # noqa: E402
from decentralizepy.node.DPSGDNode import DPSGDNode  # noqa: E402
from task import Task, starts  # noqa: E402
from torch import multiprocessing  # noqa: E402

from decentnode.formats.records import private_megabytes  # noqa: E402

NEVER = 1_000_000_000


def settings(folder: Path) -> dict[str, dict[str, Any]]:
    """The content of its configuration file."""
    optimizer = dict(case["optimizer"])
    return {
        "DATASET": {
            "dataset_package": "task", "dataset_class": "Task", "model_class": "Network",
            "dataset": case["dataset"], "model": case["model"],
        },
        "OPTIMIZER_PARAMS": {
            "optimizer_package": "torch.optim", "optimizer_class": optimizer.pop("name"), **optimizer,
        },
        "TRAIN_PARAMS": {
            "training_package": "decentralizepy.training.Training", "training_class": "Training",
            "rounds": case["steps"], "full_epochs": False, "batch_size": case["batch"], "shuffle": True,
            "loss_package": "torch.nn", "loss_class": "CrossEntropyLoss",
        },
        "COMMUNICATION": {
            "comm_package": "decentralizepy.communication.TCP", "comm_class": "TCP",
            "addresses_filepath": str(folder / "addresses.json"), "offset": case["first_port"] - 1,
        },
        "SHARING": {"sharing_package": "decentralizepy.sharing.Sharing", "sharing_class": "Sharing"},
    }  # fmt: skip


def node(rank: int, folder: Path, mapping: Linear, graph: Graph) -> None:
    """One node; its constructor runs all rounds. Neither evaluates nor plots, and keeps its optimizer."""
    DPSGDNode(
        rank, 0, mapping, graph, settings(folder), case["rounds"], str(folder), str(folder), logging.WARNING,
        NEVER, NEVER, 0,
    )  # fmt: skip
    value = next(Task.network.parameters()).flatten()[0].item()
    measured = {"starts": starts, "private_mb": private_megabytes(), "first_value": value}
    (folder / f"{rank}_measured.json").write_text(json.dumps(measured))


def main() -> None:
    folder = Path(case["folder"])
    graph = Graph()
    graph.read_graph_from_file(str(folder / "graph.edges"), "edges")
    mapping = Linear(1, graph.n_procs)
    (folder / "addresses.json").write_text(json.dumps({"0": "127.0.0.1"}))
    arguments = [(rank, folder, mapping, graph) for rank in range(graph.n_procs)]
    processes = [multiprocessing.Process(target=node, args=words) for words in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if codes := [process.exitcode for process in processes if process.exitcode]:
        logs = "".join(path.read_text() for path in folder.glob("*.log"))
        raise SystemExit(f"{len(codes)} nodes of decentralizepy ended with {set(codes)}:\n{logs}")
    paths = [folder / f"{rank}_measured.json" for rank in range(graph.n_procs)]
    print(json.dumps([json.loads(path.read_text()) for path in paths]))


if __name__ == "__main__":
    main()
