"""`decentnode import`: a configuration of decentralizepy and its driver's arguments as one of ours."""

import copy
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decentnode.core.streams import print_line, print_lines
from decentnode.core.text import counted, printable
from decentnode.errors import BadInput

if TYPE_CHECKING:
    from decentnode.interop.conversion import Conversion
    from decentnode.interop.driver_arguments import Arguments


def import_config(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.ini", help="The configuration of decentralizepy.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Change values of the result: dataset=digits"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the result goes; default: standard output.")] = None,
    iterations: Annotated[int | None, typer.Option("--iterations", "-is", help="Rounds.")] = None,
    graph: Annotated[Path | None, typer.Option("--graph", "-gf", help="The graph file.")] = None,
    graph_type: Annotated[
        str | None, typer.Option("--graph-type", "-gt", help="edges or adjacency; default: by the file.")
    ] = None,
    test_after: Annotated[int, typer.Option("--test-after", "-ta", help="Rounds between evaluations.")] = 5,
    ip: Annotated[Path | None, typer.Option("--ip", help="Addresses of the machines, in JSON.")] = None,
    machines: Annotated[int | None, typer.Option("--machines", "-ms", help="How many of them.")] = None,
    procs: Annotated[
        str, typer.Option("--procs-per-machine", "-ps", help="Nodes of each machine: 16, or 16,8.")
    ] = "",
    machine_id: Annotated[int | None, typer.Option("--machine-id", "-mid", help="This machine.")] = None,
    log_dir: Annotated[str | None, typer.Option("--log-dir", "-ld", help="Where results go.")] = None,
    weights_store_dir: Annotated[
        str | None,
        typer.Option("--weights-store-dir", "-wsd", help="Keep the last models, with the results."),
    ] = None,
    tea: Annotated[str | None, typer.Option("-tea", hidden=True)] = None,
    ro: Annotated[str | None, typer.Option("-ro", hidden=True)] = None,
    ll: Annotated[str | None, typer.Option("-ll", hidden=True)] = None,
    sm: Annotated[str | None, typer.Option("-sm", hidden=True)] = None,
    sr: Annotated[str | None, typer.Option("-sr", hidden=True)] = None,
    wr: Annotated[str | None, typer.Option("-wr", hidden=True)] = None,
) -> None:
    """Convert a configuration of decentralizepy; the flags of its drivers are taken as they are."""
    from decentnode.interop.driver_arguments import Arguments, processes

    others = {"-tea": tea, "-ro": ro, "-ll": ll, "-sm": sm, "-sr": sr, "-wr": wr}
    arguments = Arguments(
        iterations=iterations,
        graph=graph,
        graph_type=graph_type,
        test_after=test_after,
        ip=ip,
        machines=machines,
        processes=processes(procs),
        machine_id=machine_id,
        log_dir=log_dir,
        weights_store_dir=weights_store_dir,
        others={flag: value for flag, value in others.items() if value is not None},
    )
    made, text = converted(config, arguments, overrides or (), out)
    if out is None:
        print_lines(text.splitlines())
    else:
        write(text, out)
    for line in summary(made, config):
        print(line, file=sys.stderr)


def converted(
    config: Path, arguments: "Arguments", overrides: Sequence[str], out: Path | None
) -> "tuple[Conversion, str]":
    """A conversion and its text, which our loader accepts; errors have the lines of the INI file."""
    from decentnode.config import overrides as command_line
    from decentnode.config import yaml_source
    from decentnode.config.error_locations import plugin_errors_as_bad_input
    from decentnode.config.loader import understand
    from decentnode.config.sections import SECTIONS
    from decentnode.interop.decentralizepy import convert

    made = convert(config, arguments, [override.partition("=")[0] for override in overrides])
    for override in overrides:
        command_line.apply(made.document, override)
    values = copy.deepcopy(made.document.value)
    with plugin_errors_as_bad_input():
        understand(made.document)
    folder = (out.parent if out is not None else Path()).resolve()
    for key, path in made.paths.items():
        write_relative(values, key, path, folder)
    ordered = {name: values[name] for name in SECTIONS if name in values}
    return made, "\n".join([*comments(made, config), yaml_source.dump(ordered)])


def write_relative(values: dict[str, Any], key: Sequence[str | int], path: Path, folder: Path) -> None:
    """Writes a path that was relative as one that starts at `folder`, unless an override changed it."""
    from decentnode.config.plugin_parser import GRAPH_FILE

    container: Any = values
    for part in key[:-1]:
        container = container.get(part) if isinstance(container, dict) else None
    if isinstance(container, dict) and container.get(key[-1]) == str(path):
        text = os.path.relpath(path, folder)
        is_named = list(key) != ["graph"] or re.fullmatch(GRAPH_FILE, text)
        container[key[-1]] = text if is_named else f"./{text}"


def comments(conversion: "Conversion", config: Path) -> list[str]:
    """The comment lines of the result: its source, and what is missing or different in it."""
    lines = [f"From {config.name} of decentralizepy, by decentnode import."]
    for head, texts in (
        ("Without a counterpart:", conversion.missing),
        ("Not quite the same:", conversion.notes),
    ):
        lines += [head, *(f"  {line}" for line in texts)] if texts else []
    return [f"# {printable(line)}" for line in lines]


def write(text: str, out: Path) -> None:
    """Writes the result to a new file; raises BadInput."""
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise BadInput(f"{out}: exists; remove it, or name another file") from error
    except OSError as error:
        raise BadInput(f"{out}: cannot be written: {error.strerror}") from error
    print_line(f"{out}")


def summary(conversion: "Conversion", config: Path) -> list[str]:
    """What a person has to look at, one line each."""
    lines = []
    if keys := conversion.missing_keys:
        lines.append(f"{config}: {counted(len(keys), 'key')} without a counterpart: {', '.join(keys)}")
    if conversion.notes:
        count = counted(len(conversion.notes), "key")
        lines.append(
            f"{config}: {count} not quite the same here; the comments of the result say what differs"
        )
    return lines
