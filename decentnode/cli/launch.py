"""The command `launch`: a script with a loop of its own, once for each node of this machine."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decentnode.cli.words import complete_config, import_torch
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, DecentnodeError

if TYPE_CHECKING:
    from decentnode.launcher.own_loop.script_server import ScriptServer

LAST_LINES = 20
"""Lines that are shown of the output of a script that has failed before the run."""


def launch(
    script: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT", help="A script that calls decentnode.join, and its arguments."),
    ],
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", "-n", min=1, help="How many on this machine; else as --config says."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A configuration for joins that name none.", autocompletion=complete_config
        ),
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change values of the file.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module.")] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The directory of a run that its checkpoints continue.")
    ] = None,
    or_resume: Annotated[
        bool,
        typer.Option("--continue", help="Resume the run if this command has begun it (needs a run_dir)."),
    ] = False,
    start_deadline: Annotated[
        float, typer.Option(help="Seconds until the first script has to join.")
    ] = 120.0,
) -> None:
    """Start a training script once for each node of this machine, with all that `run` has around nodes."""
    import_torch()
    from decentnode.communication.base import folder_for_sockets
    from decentnode.communication.launcher_link import attachment
    from decentnode.core.process_setup import exit_by_signals
    from decentnode.core.streams import explain
    from decentnode.launcher.cluster.scheduler import part_of
    from decentnode.launcher.own_loop.script_server import ScriptServer
    from decentnode.launcher.own_loop.start import (
        end_of_scripts,
        script_command,
        serve_scripts,
        starter,
    )
    from decentnode.mapping.job import job_of_one_task

    if resume is not None and or_resume:
        raise BadInput("--continue finds the run by run_dir, --resume names it; leave one out")
    if not module and not Path(script[0]).is_file():
        raise BadInput(f"{script[0]}: no such file; launch starts a Python script, or a module with -m")
    if resume is not None:
        resume = part_of(resume, job_of_one_task(), [value for value in values or () if "=" in value])
    mapping, first_rank, local_size, size = _machines(config, nodes, values or (), resume)
    folder = Path(tempfile.mkdtemp(prefix="decentnode-", dir=folder_for_sockets()))
    more = {"DECENTNODE_VALUES": json.dumps(_parsed(values or ()))}
    if config is not None:
        more["DECENTNODE_CONFIG"] = str(config)
    socket_path = folder / "launcher"
    server = None
    exit_by_signals()
    try:
        start = starter(
            script_command(["-m", *script] if module else script), socket_path,
            logs=lambda local_rank: folder / f"{local_rank}.log",
            first_rank=first_rank, size=size, local_size=local_size, more=more,
        )  # fmt: skip
        server = ScriptServer(attachment.listen(socket_path), local_size, start)
        try:
            code = serve_scripts(server, mapping, start_deadline, resume=resume, or_resume=or_resume)
        except DecentnodeError as error:
            if not isinstance(error, BadInput):
                _show_end(folder, server)
            code = explain(error)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait_for_scripts(Timeouts.script_end)
            server.kill_scripts()
        code = end_of_scripts(server, code)
    finally:
        if server is not None:
            # By a signal, or an error of the launcher: nobody is left whom they could train with.
            server.kill_scripts()
        shutil.rmtree(folder, ignore_errors=True)
    raise typer.Exit(int(code))


def _machines(
    config: Path | None, nodes: int | None, values: Sequence[str], resume: Path | None
) -> tuple[dict[str, Any], int, int, int]:
    """Returns the mapping, the first rank of this machine, how many it has, and how many there are."""
    from decentnode.config import extends
    from decentnode.config.loader import load_plugin
    from decentnode.config.shipped import find_config
    from decentnode.core.registry import GRAPHS, MAPPINGS
    from decentnode.mapping.job import job_of_one_task

    path = None
    if config is not None:
        path = config if config.is_file() else find_config(config)
        if path is None:
            raise BadInput(f"{config}: no such configuration; see `decentnode list configs`")
    if config is None and nodes is None and resume is not None and (resume / "config.yaml").is_file():
        # A resumed run keeps its machines.
        path = resume / "config.yaml"
    machine = next((int(value[8:]) for value in values if value.startswith("machine=")), None)
    if path is not None and extends.read(path).value.get("mapping") is not None:
        mapping = load_plugin(path, "mapping", MAPPINGS, "linear").make()
        index = machine
        if index is None:
            index = 0 if len(mapping.machines) == 1 else mapping.find_machine()
        local = mapping.machines[index].nodes
        if nodes is not None and nodes != local:
            raise BadInput(f"--nodes {nodes}: {path} has {local} nodes on this machine; leave it out")
        listed = [{"address": one.address, "nodes": one.nodes} for one in mapping.machines]
        whole = {"name": "linear", "machines": listed, "rendezvous_port": mapping.rendezvous_port}
        return whole, mapping.ranks_of(index)[0], local, mapping.num_nodes
    if nodes is None and path is not None:
        nodes = load_plugin(path, "graph", GRAPHS).make().num_nodes
    if nodes is None:
        raise BadInput("launch: say how many nodes this machine has (--nodes), or name a --config")
    job = job_of_one_task()
    if job is not None and len(job.processes) > 1:
        mapping = {"name": "environment", "nodes_per_machine": nodes}
        return mapping, job.machine * nodes, nodes, nodes * len(job.processes)
    machines = [{"address": "127.0.0.1", "nodes": nodes}]
    return {"name": "linear", "machines": machines}, 0, nodes, nodes


def _parsed(values: Sequence[str]) -> dict[str, Any]:
    """Returns the values of --set by dotted key."""
    import yaml

    parsed: dict[str, Any] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(f"--set {text}: must be KEY=VALUE, such as checkpoint.every=10")
        parsed[key] = yaml.safe_load(value)
    return parsed


def _show_end(folder: Path, server: "ScriptServer") -> None:
    """Shows what a script has written last, which no run's directory has: of one that has failed, if any."""
    scripts = server.scripts.values()
    failed = [script.local_rank for script in scripts if script.process and script.process.poll()]
    for rank in [*failed, *(script.local_rank for script in scripts)]:
        log = folder / f"{rank}.log"
        if log.is_file() and (lines := log.read_text(errors="replace").splitlines()):
            print(f"--- local rank {rank}", *lines[-LAST_LINES:], sep="\n", file=sys.stderr)
            return
