"""The arguments of decentralizepy's drivers, and its list of the machines' addresses."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from decentnode.config.yaml_source import SourceLocation
from decentnode.core.registry import near_file
from decentnode.core.text import quoted
from decentnode.errors import BadInput, ConfigError, Defect
from decentnode.graph.base import GRAPH_FILE
from decentnode.interop.conversion import OWN, Conversion
from decentnode.interop.decentralizepy_keys import FLAGS

HERE = "127.0.0.1"


@dataclass
class Arguments:
    """The command line of a driver of decentralizepy; None and empty: not given."""

    iterations: int | None = None
    graph: Path | None = None
    graph_type: str | None = None
    test_after: int = 5
    ip: Path | None = None
    machines: int | None = None
    processes: tuple[int, ...] = ()
    """The number of processes on each machine; a single number is for all."""
    machine_id: int | None = None
    log_dir: str | None = None
    weights_store_dir: str | None = None
    others: Mapping[str, object] = field(default_factory=dict)
    """Flags without a counterpart by their short names."""

    @property
    def nodes(self) -> int:
        """The number of nodes on all machines; 0 if unknown."""
        return sum(self.processes) * (self.machines or 1 if len(self.processes) == 1 else 1)

    @property
    def servers(self) -> int:
        """Returns 1 for a driver that starts a server beside the nodes: only there clients have a rate."""
        return int("-wr" in self.others)


def processes(text: str) -> tuple[int, ...]:
    """Parses `16` or `16,8`: the processes of each machine, empty if not given; raises BadInput."""
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() and 0 < int(word[:9]) == int(word) for word in words):
        raise BadInput(f"--procs-per-machine: numbers of processes, such as 16 or 16,8, not {quoted(text)}")
    return tuple(map(int, words))


def add(conversion: Conversion, arguments: Arguments) -> None:
    """Adds what the arguments say to a conversion; its defects, too."""
    if arguments.iterations is None and not conversion.replaces("rounds"):
        conversion.report(1, Defect(("rounds",), f"in {OWN} an argument of the driver; add --iterations N"))
    conversion.set_argument(arguments.iterations, "rounds")
    conversion.set_argument(arguments.test_after, "evaluation", "every")
    conversion.set_argument(arguments.machine_id, "machine")
    conversion.set_argument(arguments.log_dir, "run_dir")
    conversion.set_argument(None if arguments.weights_store_dir is None else {}, "records", "models")
    _add_graph(conversion, arguments)
    _add_machines(conversion, arguments)
    for flag, value in arguments.others.items():
        conversion.missing.append(f"{flag} {value}: no equivalent, because {FLAGS[flag].reason}")
        conversion.missing_keys.append(flag)


def _add_graph(conversion: Conversion, arguments: Arguments) -> None:
    if arguments.servers and not conversion.replaces("graph"):
        rate, nodes = arguments.others["-wr"], arguments.nodes + 1 if arguments.nodes else "N"
        what = f"-wr {rate} is of a driver with a server, which is a graph here; add the words"
        words = (
            f"'graph={{name: federated, nodes: {nodes}, rate: {rate}}}' sharing=fed_avg (for STC: fed_stc)"
        )
        conversion.report(1, Defect(("graph",), f"{what} {words}"))
    elif arguments.graph is None:
        if not conversion.replaces("graph") and "graph" not in conversion.document.value:
            conversion.report(1, Defect(("graph",), f"in {OWN} an argument of the driver; add --graph FILE"))
    elif arguments.graph_type is None and re.fullmatch(GRAPH_FILE, str(arguments.graph)):
        conversion.set_argument(str(arguments.graph), "graph")
        conversion.resolve(("graph",))
    else:
        conversion.set_argument("file", "graph", "name")
        conversion.set_argument(str(arguments.graph), "graph", "path")
        conversion.set_argument(arguments.graph_type, "graph", "type")
        conversion.resolve(("graph", "path"))


def _add_machines(conversion: Conversion, arguments: Arguments) -> None:
    named = conversion.section("COMMUNICATION").get("addresses_filepath")
    if arguments.ip is None and (arguments.machines or 1) == 1:
        if named is not None:
            conversion.note(named, "all nodes run on this machine; for others add --ip, -ms and -ps")
        if arguments.processes:
            conversion.set_argument(
                {"machines": [{"address": HERE, "nodes": arguments.nodes + arguments.servers}]}, "mapping"
            )
        return
    file = arguments.ip or (conversion.ini.path.parent / named.text if named is not None else None)
    if file is None:
        conversion.report(
            1, Defect(("mapping",), "the addresses of the machines are not named; add --ip FILE.json")
        )
        return
    addresses = read_addresses(file)
    count = arguments.machines or len(addresses)
    nodes = arguments.processes * count if len(arguments.processes) == 1 else arguments.processes
    if count > len(addresses):
        raise ConfigError(f"{file}: has {len(addresses)} addresses for {count} machines; add the others")
    if len(nodes) != count:
        what = f"one number, or one for each of the {count} machines, not {len(nodes)}"
        raise BadInput(f"--procs-per-machine: must be {what}")
    nodes = (nodes[0] + arguments.servers, *nodes[1:])
    machines = [{"address": a, "nodes": n} for a, n in zip(addresses, nodes, strict=False)]
    conversion.document.bases.append(str(file))
    conversion.put(("mapping",), {"machines": machines}, SourceLocation(1, file=str(file)))


def read_addresses(path: Path) -> list[str]:
    """Returns the addresses in a file {"0": "10.0.0.1", ...}, in the machines' order; raises ConfigError."""
    try:
        found = json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{near_file(str(path))}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if (
        not isinstance(found, dict)
        or not found
        or not all(isinstance(value, str) for value in found.values())
    ):
        example = '{"0": "10.0.0.1", "1": "10.0.0.2"}'
        raise ConfigError(f"{path}: must be the addresses by machine id, such as {example}")
    if set(found) != set(map(str, range(len(found)))):
        given = quoted(", ".join(found))
        raise ConfigError(f"{path}: the machine ids must be 0..{len(found) - 1}, not {given}")
    return [found[str(machine)] for machine in range(len(found))]
