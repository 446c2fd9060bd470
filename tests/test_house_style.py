"""Taste is enforced by tests, not by memory: the house rules, held over the source itself."""

import ast
import gc
import inspect
import os
import re
import statistics
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

import networkx as nx
import pytest

from decentnode import errors
from decentnode.cli.doctor import limits
from decentnode.config.settings import FailureSettings
from decentnode.core.registry import REGISTRIES
from decentnode.core.timeouts import Timeouts

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = sorted((ROOT / "decentnode").rglob("*.py"))
SOURCES = [*PACKAGE, *sorted((ROOT / "eval").rglob("*.py")), ROOT / "generate_graph.py"]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

MOST_LINES = 60
MOST_MEDIAN_LINES = 10
MOST_FILE_LINES = 500
MOST_PARAMETERS = 7
BANNED_WORDS = {"utils", "util", "helpers", "helper", "manager", "common"}
BANNED_NAMES = {"data", "info"}
BANNED_VERBS = {"handle", "process"}
FORMER_NAMES = """
    Adaptation Announced Arrived Assembly Backward BadTree Beacon Beacons Bell CameBack Carried
    Chooser Companion Conserving Continuity Copies Coupling Courier Course DataParallel Departures
    Edges Engine Errands Exchanger Exchanges Facts FaultyBeacon FaultySieve Formation Gatekeeper
    GradientTie Handle Homecoming Inflow Inheritance Introductions Job Joining Journal Latecomers
    Ledger Lineage Links Listed Listener Lookout Meeting MemoryAccount Mixture Nemesis OnDevice
    OtherMachines Outbox Overlapped Packer Parked Patience PeerAway PeerSegments PluginReader
    Probation Quorum Reception Relay Resumption Retention Ringer RollCall Roster Said Seat Settled
    Sieve Sighting Signs Sockets Stamp StopAsked Stopping Surroundings Swap Tie Unfit Unpacker
    Unread Vigil Waits Whereabouts Workshop
"""
"""Classes that have the field's standard terms now (docs/glossary.md)."""
NAMED_ALIKE = {"Chain", "Quadratic", "Uniform"}
"""Plug-ins of two kinds with the name that the literature gives both."""
FORMER_PHRASES = re.compile(
    r"\b(goes on without|gets? on\b|(?:has|have|had) (?:not )?got on|gives? up|gave up|given up|comes? back|"
    r"came back|anew|on purpose|whoever|whomever|somebody|fell silent|heard again|without a word|"
    r"latecomers?|what the models are together|let go|is to be|are to be)\b",
    re.IGNORECASE,
)
"""What docs/glossary.md has plain words for."""
MOST_METHODS, MOST_ATTRIBUTES, MOST_CLASS_LINES = 20, 15, 250
LARGE_CLASSES = {
    "Mailbox": (43, 17, 400, "all exchanges of a node"),
    "Peer": (
        15,
        18,
        155,
        "the one record of a peer: any part of it elsewhere would have to agree with its state",
    ),
    "IoThread": (47, 22, 410, "owns every socket of a process; split with the peers' state machine"),
    "PeerLinks": (30, 16, 260, "as IoThread"),
    "ZeroMQEndpoint": (26, 19, 265, "as IoThread"),
    "GroupEndpoint": (24, 15, 230, "the same over a process group"),
    "Launcher": (22, 38, 395, "owns every part of a launcher, from the fork to the summary"),
    "Watchdog": (26, 17, 270, "all that is judged from heartbeats"),
    "ModelObserver": (24, 17, 240, "every step of an observation, on machine 0 and on the others"),
    "Rendezvous": (25, 19, 330, "the start and late joins, on machine 0 and on the others"),
    "RoundExchange": (14, 24, 190, "split with the peers' state machine"),
    "DecentralizedDataParallel": (30, 10, 320, "its public methods are those of torch's DDP"),
    "SharingBase": (26, 10, 245, "the seam: one method for each question of a run, most with an answer"),
    "Overlay": (22, 7, 120, "asks the scheme inside what a run asks Sharing"),
    "Timeouts": (23, 4, 260, "every limit of a run in one place"),
    "Chain": (21, 8, 180, "the questions of Sharing, asked of all transforms"),
    "ServerSharing": (26, 9, 220, "the seam of schemes with a server: up, the step, down, a standby"),
    "Settings": (1, 31, 62, "one attribute for each key of a configuration"),
    "Training": (22, 15, 260, "local steps, all of a round and one at a time"),
    "TrainingSettings": (10, 19, 190, "one attribute for each key of `training`"),
    "RoundRecord": (0, 24, 36, "one attribute for each field of a line"),
    "Lockstep": (10, 19, 150, "options and results of the tests' driver"),
}
"""Methods, attributes and lines that a class may have instead, and why it is no smaller."""
MOST_MODULES = 13
LARGE_FOLDERS = {("core",): 15, ("cli",): 20} | dict.fromkeys(
    [("sharing",), ("transforms",), ("graph",), ("models",), ("datasets",)], 99
)
"""A closed list, one module for each command, and folders of plug-ins."""
MOST_IMPORTS = 15
MANY_IMPORTS = {"launcher.launcher": 36, "node.experiment": 38, "cli.app": 30, "node.host_process": 23} | {
    "communication.zeromq.io_thread": 16, "config.loader": 16, "node.dry_round": 17, "node.node": 17,
    "parallel.module": 16,
    "communication.zeromq.endpoint": 16, "config.consistency": 16,
    "cli.graph": 19, "attacks.passive.inversion": 16, "launcher.recovery.resume": 16,
}  # fmt: skip
"""Modules that put everything together."""
WALL_CLOCK = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.gmtime",
    "datetime.now",
    "datetime.datetime.now",
}
"""A machine's wall clock jumps: nothing may wait for it or measure by it."""
BANNED_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal"}
BANNED_CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system"}


@cache
def tree(path: Path) -> ast.Module:
    # A tree is all new objects and no garbage; to collect meanwhile takes as long as to parse.
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@cache
def walked(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


def nodes(paths, *kinds) -> Iterator[tuple[Path, ast.AST]]:
    return ((path, node) for path in paths for node in walked(path) if isinstance(node, kinds))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def length(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1


def test_functions_are_short():
    lengths = [length(node) for _, node in nodes(SOURCES, *FUNCTIONS)]
    long = [f"{place(p, n)} {n.name}" for p, n in nodes(SOURCES, *FUNCTIONS) if length(n) > MOST_LINES]
    assert long == []
    assert statistics.median(lengths) <= MOST_MEDIAN_LINES


def test_files_are_short():
    counts = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {path: count for path, count in counts.items() if count > MOST_FILE_LINES} == {}


def test_constructors_take_few_parameters():
    wide = [
        place(path, node)
        for path, node in nodes(PACKAGE, ast.FunctionDef)
        if node.name == "__init__" and len(node.args.args) + len(node.args.kwonlyargs) - 1 > MOST_PARAMETERS
    ]
    assert wide == []


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Full names of what an import statement may load."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]


def imports(paths) -> Iterator[tuple[Path, ast.AST, str]]:
    for path, node in nodes(paths, ast.Import, ast.ImportFrom):
        for name in imported(node):
            yield path, node, name


def test_nothing_reads_the_wall_clock():
    """Names of run directories aside, which `time.strftime` makes."""
    found = [f"{place(p, n)} {called(n)}" for p, n in nodes(PACKAGE, ast.Call) if called(n) in WALL_CLOCK]
    assert found == []
    assert [p.name for p, n in nodes(PACKAGE, ast.Call) if called(n) == "time.strftime"] == ["summary.py"]


def is_restricted(call: ast.Call) -> bool:
    """Whether it is torch.load, limited to tensors."""
    limits = [ast.unparse(word.value) for word in call.keywords if word.arg == "weights_only"]
    return called(call) == "torch.load" and limits == ["True"]


def test_nothing_reads_bytes_as_code():
    found = [
        f"{place(p, n)} {called(n)}"
        for p, n in nodes(SOURCES, ast.Call)
        if called(n) in BANNED_CALLS and not is_restricted(n)
    ]
    found += [
        f"{place(p, n)} shell=True"
        for p, n in nodes(SOURCES, ast.Call)
        if any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in n.keywords)
    ]
    found += [
        f"{place(p, n)} {name}" for p, n, name in imports(SOURCES) if name.split(".")[0] in BANNED_MODULES
    ]
    assert found == []


def test_matplotlib_is_imported_in_figures_alone():
    users = {path.name for path, _, name in imports(PACKAGE) if name.split(".")[0] == "matplotlib"}
    assert users == {"plots.py", "plots_graph.py", "plots_privacy.py", "paper.py"}


def defined(node: ast.AST) -> str:
    """The name that a node gives to something of ours, if any."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


def words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)]


def is_banned(node: ast.AST) -> bool:
    name = defined(node)
    acts = isinstance(node, FUNCTIONS) and not any("property" in ast.unparse(d) for d in node.decorator_list)
    verb = acts and words(name)[:1] and words(name)[0] in BANNED_VERBS
    return bool(BANNED_WORDS & set(words(name)) or name in BANNED_NAMES or verb)


def test_names_say_what_a_thing_is():
    named = nodes(SOURCES, *FUNCTIONS, ast.ClassDef, ast.Name, ast.arg)
    assert [f"{place(path, node)} {defined(node)}" for path, node in named if is_banned(node)] == []
    assert [str(path) for path in SOURCES if BANNED_WORDS & set(words(path.stem))] == []


def test_classes_have_names_of_their_own_in_the_terms_of_the_glossary():
    classes = Counter(node.name for _, node in nodes(PACKAGE, ast.ClassDef))
    assert {name for name, count in classes.items() if count > 1} == NAMED_ALIKE
    assert classes.keys() & set(FORMER_NAMES.split()) == set()


def text_of(path: Path) -> Iterator[str]:
    """What people read of a file: its prose, or its docstrings and messages."""
    if path.suffix == ".md":
        yield path.read_text()
        return
    for _, node in nodes([path], ast.Constant):
        if isinstance(node.value, str):
            yield node.value


def test_what_people_read_has_none_of_the_former_phrases():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in [*PACKAGE, *pages]
        if path.name != "glossary.md"
        for text in text_of(path)
        for match in FORMER_PHRASES.finditer(text)
    ]
    assert found == []


MOST_WORDS = 28
NO_PROSE = re.compile(r"```.*?```|^[|#].*?$", re.DOTALL | re.MULTILINE)


def sentence_lengths(text: str) -> list[int]:
    """Words of each sentence; headings, tables and code have none, and each item of a list begins one."""
    prose = re.sub(r"^\s*([-*]|\d+\.) ", "\n\n", NO_PROSE.sub("", text), flags=re.MULTILINE)
    sentences = re.split(r"\n\s*\n|(?<=[.:;!?])\s", prose)
    return [count for sentence in sentences if (count := len(sentence.split())) > 2]


def test_sentences_of_the_pages_are_short():
    long = {}
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        lengths = sorted(sentence_lengths(page.read_text()))
        if lengths and lengths[int(0.9 * len(lengths))] > MOST_WORDS:
            long[str(page.relative_to(ROOT))] = lengths[int(0.9 * len(lengths))]
    assert long == {}


def comment_and_code_lines(path: Path) -> tuple[set[int], set[int]]:
    comments, code = set(), set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                if not token.string.startswith(("# fmt", "# noqa", "# type")):
                    comments.add(token.start[0])
            elif token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER):
                code.add(token.start[0])
    return comments, code


@pytest.mark.parametrize("folder", ["communication", "node", "launcher"])
def test_protocols_say_why(folder):
    """One line of comment for twenty of code; docstrings count as neither."""
    lines = [comment_and_code_lines(path) for path in (ROOT / "decentnode" / folder).rglob("*.py")]
    comments, code = (sum(len(one[i]) for one in lines) for i in (0, 1))
    assert comments >= 0.05 * code


def attributes(node: ast.ClassDef) -> set[str]:
    """Names that are assigned to `self`, and fields."""
    fields = {
        x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and "ClassVar" not in ast.unparse(x)
    }
    stored = (x for x in ast.walk(node) if isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Store))
    return fields | {x.attr for x in stored if ast.unparse(x.value) == "self"}


def test_classes_are_of_a_size_that_a_reader_can_hold():
    large = []
    for path, node in nodes(PACKAGE, ast.ClassDef):
        limits = LARGE_CLASSES.get(node.name, (MOST_METHODS, MOST_ATTRIBUTES, MOST_CLASS_LINES))
        methods = sum(isinstance(x, FUNCTIONS) for x in node.body)
        sizes = (methods, len(attributes(node)), length(node))
        if any(size > limit for size, limit in zip(sizes, limits, strict=False)):
            large.append(f"{place(path, node)} {node.name}: {sizes}")
    assert large == []


def test_folders_and_imports_are_few():
    folders = Counter(path.parent for path in PACKAGE if path.name != "__init__.py")
    full = {
        str(folder.relative_to(ROOT)): count
        for folder, count in folders.items()
        if count > LARGE_FOLDERS.get(folder.relative_to(ROOT).parts[1:2], MOST_MODULES)
    }
    assert full == {}
    depths = {len(path.relative_to(ROOT / "decentnode").parts) for path in PACKAGE}
    assert max(depths) <= 3
    wide = {
        module: len(names)
        for module, names in direct_imports().items()
        if module_path(module).name != "__init__.py"
        if len(names) > MANY_IMPORTS.get(module.removeprefix("decentnode."), MOST_IMPORTS)
    }
    assert wide == {}


FEWEST_MODULE_LINES = 70
SMALL_MODULES = {
    "cli.exit": "what every command ends with",
    "cli.keys": "a command",
    "communication.exchange.early_messages": "a part of Mailbox, which is large",
    "communication.exchange.send_window": "a part of Mailbox, which is large",
    "communication.security.signatures": "the only user of Ed25519",
    "communication.zeromq.hello_barrier": "a part of IoThread, which is large",
    "communication.zeromq.link_budget": "a part of PeerLinks, which is large",
    "config.removed": "a table",
    "datasets.byte_pairs": "the only user of tokenizers",
    "launcher.run_costs": "needs training, which studies may not import",
    "models.pretrained": "reads files, which the seam of models does not",
    "results.figures.png": "the only writer of that format without matplotlib",
    "sharing.blocks.secret_sharing": "the mathematics of a field",
    "studies.report.command": "a command",
    "studies.sweep.slurm": "the script for a cluster",
}


def test_small_modules_have_a_reason():
    """A module of a few lines with one importer would rather be part of it; plug-ins have their own files."""
    importers: dict[str, set[str]] = {}
    for module, names in direct_imports().items():
        for name in names - {module}:
            importers.setdefault(name, set()).add(module)
    small = {
        module.removeprefix("decentnode.")
        for module, users in importers.items()
        if len(users) == 1 and not any(f"{module}.".startswith(f"{user}.") for user in users)
        if (path := module_path(module)).name != "__init__.py"
        if len(path.read_text().splitlines()) < FEWEST_MODULE_LINES
    }
    assert small == SMALL_MODULES.keys()


def test_no_callable_is_assigned_to_another_object():
    """A callback is an argument of the constructor, so that a reader finds who is called."""
    found = set()
    for path in PACKAGE:
        functions = [node for node in walked(path) if isinstance(node, FUNCTIONS)]
        methods = {node.name for node in functions if not node.decorator_list}
        for node in walked(path):
            if isinstance(node, ast.Assign) and is_callable(node.value, methods):
                found |= {(path, ast.unparse(target)) for target in node.targets if is_foreign(target)}
    names = {f"{path.relative_to(ROOT / 'decentnode')}: {target}" for path, target in found}
    assert names == set()


def is_callable(value: ast.expr, methods: set[str]) -> bool:
    if isinstance(value, ast.Call):
        return called(value) in ("partial", "functools.partial")
    is_own_method = isinstance(value, ast.Attribute) and ast.unparse(value.value) == "self"
    return isinstance(value, ast.Lambda) or (is_own_method and value.attr in methods)


def is_foreign(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self"


# Layers: who may import whom, directly or through others.


@cache
def module_path(module: str) -> Path:
    return next(path for path in PACKAGE if module_name(path) == module)


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def direct_imports() -> dict[str, set[str]]:
    modules = {module_name(path) for path in PACKAGE}
    found: dict[str, set[str]] = {name: set() for name in modules}
    for path, node in nodes(PACKAGE, ast.Import, ast.ImportFrom):
        names = imported(node)
        # `from package import module` needs nothing that the package itself defines.
        needs_package = isinstance(node, ast.Import) or not modules.issuperset(names[1:])
        found[module_name(path)] |= modules & set(names if needs_package else names[1:])
    return found


def reachable(start: str) -> set[str]:
    seen, waiting = set(), [start]
    while waiting:
        for name in direct_imports()[waiting.pop()] - seen - {"decentnode"}:
            seen.add(name)
            waiting.append(name)
    return seen


def inside(*packages: str) -> list[str]:
    return [m for m in direct_imports() if any(m == p or m.startswith(p + ".") for p in packages)]


GROUND = {"core", "errors", "options"}
RESEARCH = {"graph", "transforms", "models", "datasets", "sharing", "training", "mapping", "communication"}
MAY_IMPORT = {
    "errors": set(),
    "options": set(),
    "core": {"errors"},
    "graph": GROUND,
    "transforms": GROUND,
    "models": GROUND,
    "datasets": GROUND,
    "training": GROUND | {"models", "datasets"},
    "results": {"core", "errors"},
    "sharing": GROUND | {"graph", "transforms"},
    "attacks": GROUND | {"sharing", "transforms", "graph", "training", "models", "datasets", "results"},
    "mapping": GROUND,
    "communication": GROUND | {"mapping"},
    "config": GROUND | RESEARCH,
    "node": GROUND | RESEARCH | {"config", "results"},
    "parallel": GROUND | {"config", "communication", "mapping", "sharing", "graph"},
    "launcher": GROUND
    | {"node", "config", "communication", "mapping", "results", "training", "datasets", "graph"}
    | {"attacks", "sharing"},
    "studies": GROUND | {"results", "launcher", "node", "config", "graph"},
    "testing": GROUND | RESEARCH | {"config", "node", "parallel", "results"},
    "cli": GROUND | RESEARCH | {"config", "node", "parallel", "results", "launcher", "studies", "attacks"},
}
"""Which packages each package may import, lazy and type-only imports included (docs/architecture.md)."""


def package(module: str) -> str:
    return module.split(".")[1]


def test_packages_import_only_what_they_may():
    wrong = [
        f"{module} imports {name}"
        for module, names in direct_imports().items()
        for name in names
        if module not in ("decentnode", "decentnode.__main__") and name != "decentnode"
        if package(name) not in MAY_IMPORT[package(module)] | {package(module)}
    ]
    assert wrong == []


def test_the_packages_are_those_of_the_table():
    found = {path.stem for path in (ROOT / "decentnode").glob("[!_]*.py")}
    found |= {path.parent.name for path in (ROOT / "decentnode").glob("*/__init__.py")}
    assert found == set(MAY_IMPORT)


CORE = {
    "atomic_files", "byte_counters", "clock", "line_file", "payload", "polling", "process_setup", "registry",
    "rng", "state", "streams", "text", "timeouts", "vector", "version",
}  # fmt: skip
"""What belongs to no other package; nothing is added here."""


def test_the_ground_is_a_closed_list():
    assert {path.stem for path in (ROOT / "decentnode" / "core").glob("[!_]*.py")} == CORE


def test_no_modules_import_each_other_in_a_circle():
    graph = nx.DiGraph((module, name) for module, names in direct_imports().items() for name in names)
    circles = [sorted(found) for found in nx.strongly_connected_components(graph) if len(found) > 1]
    assert circles == []


def test_the_exchange_knows_no_transport():
    """`exchange` needs the ground and the record of a peer; nobody outside `communication` a transport."""
    found = {name for m in inside("decentnode.communication.exchange") for name in direct_imports()[m]}
    allowed = {*inside("decentnode.communication.exchange"), "decentnode.communication.peers.peer"}
    assert {name for name in found if package(name) == "communication"} <= allowed


def test_only_plugin_authors_import_the_testing_package():
    testing = set(inside("decentnode.testing"))
    assert [m for m, used in direct_imports().items() if m not in testing and used & testing] == []


def test_the_package_needs_nothing_of_eval_or_tests():
    assert [place(p, n) for p, n, name in imports(PACKAGE) if name.split(".")[0] in ("eval", "tests")] == []


# Plug-ins.

PLUGINS = [
    (f"{registry.kind} {name}", name, cls)
    for registry in REGISTRIES
    for name, cls in registry.classes().items()
    if cls.__module__.startswith("decentnode.")
]


def test_a_plugin_says_what_it_is_and_whose_idea_it_was():
    """A first line that is a sentence, and a source: who, when."""
    docs = {plugin: inspect.cleandoc(cls.__dict__.get("__doc__") or "") for plugin, _, cls in PLUGINS}
    assert [plugin for plugin, doc in docs.items() if not doc.split("\n", 1)[0].endswith((".", ":"))] == []
    year = re.compile(r"\b(1[89]|20)\d\d\b|RFC \d+")
    assert [plugin for plugin, doc in docs.items() if not year.search(doc)] == []


@cache
def examples() -> str:
    paths = [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "eval").rglob("*.yaml")]
    paths += [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    return "\n".join(path.read_text() for path in paths)


def test_a_plugin_appears_in_a_shipped_configuration_or_a_test():
    named = set(re.findall(r"\w+", examples()))
    assert [plugin for plugin, name, cls in PLUGINS if not {name, cls.__name__} & named] == []


def test_the_tree_of_errors_is_drawn_as_it_is():
    def drawn(cls: type) -> list[str]:
        return [cls.__name__, *(line for child in cls.__subclasses__() for line in drawn(child))]

    ours = [name for name in drawn(errors.DecentnodeError) if hasattr(errors, name)]
    assert re.findall(r"^[│├└─ ]*([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)[1:] == ours


# Time limits.

WAITING = {"cli", "communication", "core", "launcher", "mapping", "node", "parallel", "results", "studies"}
"""Packages where something waits; a module's float constants are seconds there."""
NOT_LIMITS = {
    "results/statistics.py": "a level of confidence",
    "cli/tune.py": "model distances and shares of them",
    "communication/exchange/handle.py": "factors on the usual wait",
    "communication/zeromq/endpoint.py": "bytes per second",
    "core/text.py": "a unit",
    "launcher/memory_estimate.py": "a share of the memory",
    "launcher/monitoring/watchdog.py": "a factor on CHECK_INTERVAL",
    "launcher/report/live_view.py": "the window of a mean rate; nothing waits",
    "node/dry_round.py": "a learning rate",
    "results/figures/curves.py": "a bound on values that files may hold",
    "results/figures/plots.py": "shares of a drawing",
    "results/figures/plots_graph.py": "shares of a drawing",
    "results/figures/plots_privacy.py": "inches of a drawing",
    "node/privacy/network_accountant.py": "a probability and a number of multiplications",
    "studies/report/charts.py": "shares of a drawing",
    "studies/report/paper.py": "shares of a drawing",
    "studies/sweep/admission.py": "shares of memory and processors",
    "studies/sweep/forecast.py": "part of an estimate",
}
"""Modules with one or more other float constants, and what these are."""


def constants(path: Path) -> Iterator[tuple[ast.Assign, str, ast.expr]]:
    """Each module-level name that is assigned an expression of numbers."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign):
            names, values = (getattr(part, "elts", [part]) for part in (node.targets[0], node.value))
            for name, value in zip(names, values, strict=False):
                yield node, ast.unparse(name), value


def is_limit(name: str, value: ast.expr) -> bool:
    numbers = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
    known = all(isinstance(number, int | float) for number in numbers)
    seconds = any(isinstance(number, float) for number in numbers) or re.search(
        r"SECONDS|TIMEOUT|PATIENCE|DEADLINE|GRACE|LINGER|_MS$", name
    )
    return bool(numbers and known and seconds and not name.endswith("_INTERVAL"))


def test_time_limits_stand_in_one_place():
    """All but poll intervals, which stand beside their loop."""
    paths = [path for path in PACKAGE if path.relative_to(ROOT / "decentnode").parts[0] in WAITING]
    found = {
        f"{path.relative_to(ROOT / 'decentnode')}": f"{name}, line {node.lineno}"
        for path in paths
        for node, name, value in constants(path)
        if is_limit(name, value)
    }
    assert {place: name for place, name in found.items() if place not in NOT_LIMITS} == {}
    assert found.keys() == NOT_LIMITS.keys()


def test_the_docs_list_every_limit_that_a_configuration_changes():
    defaults, others = FailureSettings().timeouts, Timeouts(1.0, 0.5, 2.0, 3.0)
    pairs = zip(limits(defaults), limits(others), strict=True)
    rows = [
        f"| `{limit.name}` | {limit.seconds:g} | `{limit.formula}` | {limit.bounds} |"
        for limit, other in pairs
        if limit.seconds != other.seconds
    ]
    assert "\n".join(rows) in (ROOT / "docs" / "reliability.md").read_text()


# Other people's checkers.


def check(*command: str) -> None:
    answer = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_scripts_find_what_they_import_wherever_they_are_started():
    wrong = [
        place(path, node)
        for path, node in nodes(SOURCES, ast.ImportFrom)
        if (node.module or "").split(".")[0] == "eval"
    ]
    assert wrong == []


def test_ruff_finds_nothing():
    check("ruff", "check", "--quiet", ".")


def test_ruff_would_format_nothing():
    check("ruff", "format", "--check", "--quiet", ".")


@pytest.mark.slow
def test_every_function_and_field_is_typed():
    check("mypy")


# The scripts.


@pytest.mark.parametrize("script", ["eval/run.sh", "tests/run.sh", "docs/build.sh", ".ci/run"])
def test_scripts_can_be_started(script):
    assert os.access(ROOT / script, os.X_OK)


def test_pinned_versions_satisfy_the_project():
    """Every direct dependency has one pinned version in constraints.txt, and the pins are in order."""
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    versions = {name.lower(): version for name, version in pins.items()}
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    for requirement in map(Requirement, wanted):
        if requirement.name == "decentnode":  # an extra that includes another
            continue
        assert requirement.specifier.contains(versions[requirement.name.lower()])
    assert versions["torch"] == "2.13.0"
    assert int(versions["rich"].split(".")[0]) < 15
    assert all(a.lower() < b.lower() for a, b in pairwise(pins))
