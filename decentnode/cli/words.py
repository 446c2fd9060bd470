"""Words that commands share: arguments with their placeholders, and the examples that `--help` ends with."""

from pathlib import Path
from typing import Annotated

import typer


def complete_config(typed: str) -> list[str]:
    """Returns shipped configurations, and files and folders here, that begin with what was typed."""
    from decentnode.config.shipped import config_names

    here = [f"{path}/" if path.is_dir() else str(path) for path in Path().glob(f"{typed}*")]
    return [name for name in config_names() if name.startswith(typed)] + [
        path for path in sorted(here) if path.endswith(("/", ".yaml", ".yml"))
    ]


ConfigPath = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="The experiment: a YAML file, or a name from `decentnode list configs`.",
        autocompletion=complete_config,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Change values of the file: training.optimizer.lr=0.05"),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="The directory of a run, on this machine: runs/quickstart-...")
]

WithItsCode = Annotated[
    bool,
    typer.Option("--with-its-code", help="Run the copies of plug-ins in the run, if you trust who made it."),
]

EXAMPLES = {
    "run": (
        "decentnode run quickstart",
        "decentnode run mine.yaml rounds=5 training.optimizer.lr=0.05 communication=inproc",
    ),
    "resume": ("decentnode resume runs/mine", "decentnode resume runs/mine rounds=80"),
    "sweep": (
        "decentnode sweep studies/quick --plan",
        "decentnode sweep studies/quick seeds=3 jobs=1",
        "decentnode sweep study.yaml --part 1/4",
    ),
    "validate": (
        "decentnode validate quickstart",
        "decentnode validate mine.yaml --resolved",
        "decentnode validate choco sharing.gamma=0.4 --no-load",
    ),
    "calibrate": (
        "decentnode calibrate quickstart",
        "decentnode calibrate mine.yaml training.threads=1 --steps 300 > pace.yaml",
        "decentnode calibrate simulated --json",
    ),
    "keys": ("decentnode keys mine.yaml", "decentnode keys mine.yaml --out keys --force"),
    "graph": (
        "decentnode graph torus rows=4 columns=4",
        "decentnode graph ring_16.edges --draw ring.svg",
        "decentnode graph quickstart --draw labels.png --color label",
        "decentnode graph simulated --network --draw network.png",
    ),
    "peer-sampler": ("decentnode peer-sampler peer_sampler graph.address=127.0.0.1",),
    "privacy": (
        "decentnode privacy dp_sgd",
        "decentnode privacy muffliato --colluders 3,5 --draw pairs.svg",
    ),
    "attack": ("decentnode attack runs/attacks",),
    "partition": (
        "decentnode partition quickstart",
        "decentnode partition quickstart dataset.partition.alpha=0.1 --draw labels.svg",
    ),
    "tune": ("decentnode tune choco", "decentnode tune choco graph=ring_16.edges"),
    "list": (
        "decentnode list configs",
        "decentnode list sharing",
        "decentnode list sharing choco",
        "decentnode list transform --options",
    ),
    "new": ("decentnode new mixing", "decentnode new mixing --with scheme,dataset,model,graph"),
    "show": ("decentnode show quickstart > mine.yaml", "decentnode show ring_16.edges > ring.edges"),
    "verify": ("decentnode verify runs/mine",),
    "plot": ("decentnode plot runs/mine", "decentnode plot runs/a runs/b --out pictures"),
    "compare": (
        "decentnode compare runs/a runs/b",
        "decentnode compare runs/quick --target 90 --no-draw",
    ),
    "report": ("decentnode report runs/quick", "decentnode report runs/quick --paper paper --columns 2"),
    "frontier": ("decentnode frontier studies/privacy seeds=1", "decentnode frontier runs/privacy"),
    "watch": ("decentnode watch runs/quick --port 8000",),
    "export": (
        "decentnode export runs/mine",
        "decentnode export runs/mine --format decentralizepy --out exported",
        "decentnode export runs/adapters --merged --out weights.safetensors",
    ),
    "download": (
        "decentnode download cifar10",
        "decentnode download idx variant=kmnist --to data",
    ),
    "convert": (
        "decentnode convert king matrix --nodes 64 --out king",
        "decentnode convert fedscale-availability client_behave_trace --nodes 64 --hours 48",
    ),
    "status": ("decentnode status runs/mine",),
    "restart": ("decentnode restart runs/mine 3",),
    "bench": ("decentnode bench", "decentnode bench mix --help"),
    "doctor": ("decentnode doctor", "decentnode doctor mine.yaml", "decentnode doctor --limits"),
    "schema": ("decentnode schema > decentnode.schema.json",),
    "import": ("decentnode import config.ini graph=ring_16.edges --out mine.yaml",),
}
"""Command lines by the command that they show."""


def examples(command: str) -> str:
    """Returns the lines below the options of a command's help."""
    title = "Examples:" if len(EXAMPLES[command]) > 1 else "Example:"
    return "\n\n".join([title, *EXAMPLES[command]])
