"""Taste is enforced by tests, not by memory: the house rules, held over the source itself."""

import ast
import gc
import inspect
import os
import re
import subprocess
import sys
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
from decentnode.core.hooks import found
from decentnode.core.registry import REGISTRIES
from decentnode.core.timeouts import Timeouts
from eval import lines_of_code

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = sorted((ROOT / "decentnode").rglob("*.py"))
SOURCES = [*PACKAGE, *sorted((ROOT / "eval").rglob("*.py")), ROOT / "generate_graph.py"]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

BANNED_WORDS = {"utils", "util", "helpers", "helper", "manager", "common"}
BANNED_NAMES = {"data", "info"}
BANNED_VERBS = {"handle", "process"}
NAMED_ALIKE = {"Chain", "DecentralizedDataParallel", "Quadratic", "Uniform"}
"""Classes of two kinds with the name that the literature, or a predecessor, gives both."""
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
RESTRICTED_UNPICKLER = "decentnode/interop/pickles.py"
"""It subclasses `pickle.Unpickler`, and answers every name itself."""
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
    calls = [f"{place(p, n)} {called(n)}" for p, n in nodes(PACKAGE, ast.Call) if called(n) in WALL_CLOCK]
    assert calls == []
    assert [p.name for p, n in nodes(PACKAGE, ast.Call) if called(n) == "time.strftime"] == [
        "run_directory.py"
    ]


def is_restricted(call: ast.Call) -> bool:
    """Whether it is torch.load, limited to tensors."""
    limits = [ast.unparse(word.value) for word in call.keywords if word.arg == "weights_only"]
    return called(call) == "torch.load" and limits == ["True"]


def test_nothing_reads_bytes_as_code():
    calls = [
        f"{place(p, n)} {called(n)}"
        for p, n in nodes(SOURCES, ast.Call)
        if called(n) in BANNED_CALLS and not is_restricted(n)
    ]
    calls += [
        f"{place(p, n)} shell=True"
        for p, n in nodes(SOURCES, ast.Call)
        if any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in n.keywords)
    ]
    calls += [
        f"{place(p, n)} {name}"
        for p, n, name in imports(SOURCES)
        if name.split(".")[0] in BANNED_MODULES and p != ROOT / RESTRICTED_UNPICKLER
    ]
    assert calls == []
    used = re.findall(r"pickle\.(\w+)", (ROOT / RESTRICTED_UNPICKLER).read_text())
    assert set(used) == {"Unpickler", "UnpicklingError"}


def test_matplotlib_is_imported_in_figures_alone():
    users = {path.name for path, _, name in imports(PACKAGE) if name.split(".")[0] == "matplotlib"}
    figures = {f"plots{name}.py" for name in ("", "_graph", "_network", "_privacy", "_study")}
    assert users == {*figures, "style.py", "pictures.py"}


def test_in_the_core_only_readers_of_datasets_import_libraries_for_tables_and_images():
    libraries = {"matplotlib", "pandas", "scipy", "pyarrow", "PIL"}
    users = {
        package(module_name(path)) for path, _, name in imports(PACKAGE) if name.split(".")[0] in libraries
    }
    assert users & LAYERS["core"].keys() == {"datasets"}


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
    found = [f"{path.relative_to(ROOT)}" for path in SOURCES if BANNED_WORDS & set(words(path.stem))]
    assert found == ["decentnode/decent_dp/utils.py"]  # a module of Decent-DP


def test_classes_have_names_of_their_own_in_the_terms_of_the_glossary():
    classes = Counter(node.name for _, node in nodes(PACKAGE, ast.ClassDef))
    assert {name for name, count in classes.items() if count > 1} == NAMED_ALIKE


def test_no_callable_is_assigned_to_another_object():
    """A callback is an argument of the constructor, so that a reader finds who is called."""
    sought = set()
    for path in PACKAGE:
        functions = [node for node in walked(path) if isinstance(node, FUNCTIONS)]
        methods = {node.name for node in functions if not node.decorator_list}
        for node in walked(path):
            if isinstance(node, ast.Assign) and is_callable(node.value, methods):
                sought |= {(path, ast.unparse(target)) for target in node.targets if is_foreign(target)}
    names = {f"{path.relative_to(ROOT / 'decentnode')}: {target}" for path, target in sought}
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
    imports_of: dict[str, set[str]] = {name: set() for name in modules}
    for path, node in nodes(PACKAGE, ast.Import, ast.ImportFrom):
        names = imported(node)
        # `from package import module` needs nothing that the package itself defines.
        needs_package = isinstance(node, ast.Import) or not modules.issuperset(names[1:])
        imports_of[module_name(path)] |= modules & set(names if needs_package else names[1:])
    return imports_of


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
LAYERS: dict[str, dict[str, set[str]]] = {
    "core": {
        "errors": set(),
        "options": set(),
        "core": {"errors"},
        "graph": GROUND,
        "transforms": GROUND,
        "models": GROUND,
        "datasets": GROUND,
        "mapping": GROUND,
        "simulation": GROUND,
        "formats": GROUND,
        "training": GROUND | {"models", "datasets", "simulation"},
        "sharing": GROUND | {"graph", "transforms"},
        "communication": GROUND | {"mapping", "simulation"},
        "config": GROUND | RESEARCH,
        "testing": GROUND | {"sharing", "graph", "transforms"},
        "node": GROUND | RESEARCH | {"config", "formats", "simulation"},
        "launcher": GROUND
        | {"node", "config", "communication", "mapping", "formats", "training", "datasets", "graph"},
        "cli": GROUND | RESEARCH | {"config", "node", "formats", "launcher"},
        "api": GROUND | {"config", "launcher", "mapping", "node", "formats"},
    },
    "around a run": {
        "results": GROUND
        | {"config", "models", "communication", "graph", "formats", "launcher", "cli", "api"},
        "parallel": GROUND
        | {"launcher", "node", "training", "config", "formats", "communication", "mapping"}
        | {"sharing", "graph", "models", "datasets"},
        "decent_dp": GROUND | {"parallel", "training", "graph"},
        "attacks": GROUND
        | {"sharing", "transforms", "graph", "training", "models", "datasets", "config", "node", "launcher"}
        | {"cli", "formats", "results"},
        "interop": GROUND
        | {"config", "graph", "models", "datasets", "node", "launcher", "cli", "formats", "results"},
        "studies": GROUND
        | {"config", "graph", "mapping", "node", "launcher", "cli", "api", "formats", "results", "attacks"},
    },
    "contrib": {"contrib": GROUND | {"models"}},
}
"""Which packages each package of a layer may import, lazy and type-only imports included.

The core imports nothing of the other layers (docs/architecture.md).
"""
MAY_IMPORT = {name: allowed for layer in LAYERS.values() for name, allowed in layer.items()}
NAMES_OTHER_LAYERS = {"core/hooks.py", "core/packages.py", "core/registry.py"}
"""The modules of the core in which names of modules of other layers may stand, as texts."""


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


def test_the_core_needs_nothing_of_the_layers_around_it():
    """It finds them by hooks and by the homes of registries and the table of contrib, which are texts."""
    core = set(LAYERS["core"])
    assert [name for name in core if not LAYERS["core"][name] <= core] == []
    others = re.compile(rf"decentnode[./]({'|'.join(MAY_IMPORT.keys() - core)})\b")
    names = {
        f"{path.relative_to(ROOT / 'decentnode')}"
        for path, node in nodes(PACKAGE, ast.Constant)
        if package(f"{module_name(path)}.") in core and others.search(str(node.value))
    }
    assert names == NAMES_OTHER_LAYERS


def test_lines_are_counted_by_the_same_layers():
    assert set(lines_of_code.LAYERS) == LAYERS.keys()
    for layer, packages in LAYERS.items():
        assert {lines_of_code.layer_of(f"decentnode/{name}") for name in packages} <= {layer}


def test_all_that_layers_register_is_there():
    commands, *hooks = ({*found(hook)} for hook in ("commands", "run", "pictures", "work"))
    assert commands == {"results", "studies", "attacks", "interop"}
    assert all(hooks)


def test_the_packages_are_those_of_the_table():
    modules = {path.stem for path in (ROOT / "decentnode").glob("[!_]*.py")}
    modules |= {path.parent.name for path in (ROOT / "decentnode").glob("*/__init__.py")}
    assert modules == set(MAY_IMPORT)


def drawn_imports() -> tuple[dict[str, int], dict[str, set[str]]]:
    """The floor of each package in the drawing of docs/architecture.md, and what it may import there."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    drawing = text.split("### Who may import whom")[1].split("```")[1]
    floors: dict[str, int] = {}
    imports: dict[str, str] = {}
    floor = 0
    for line in drawing.splitlines()[2:]:
        if line.startswith("-"):
            continue
        floor = int(line[:5]) if line[:5].strip().isdigit() else floor
        names = line[5:].split()
        if floor == 2:
            imports |= dict.fromkeys(line[5:].split(":")[0].split(), "")
        elif floor == 0:
            imports |= dict.fromkeys(names, "")
        elif names:
            imports[names[0]] = line[5:].split(maxsplit=1)[1]
        floors |= dict.fromkeys(imports.keys() - floors.keys(), floor)
    return floors, {name: imported_by(text, floors) for name, text in imports.items()}


def imported_by(text: str, floors: dict[str, int]) -> set[str]:
    """The packages of a text such as `node, floors 2 to 4, but not simulation`."""
    named, _, excluded = text.partition("but not")
    packages = set(re.findall(r"[a-z_]+", re.sub(r"floors \d to \d", "", named)))
    for lowest, highest in re.findall(r"floors (\d) to (\d)", named):
        packages |= {name for name, floor in floors.items() if int(lowest) <= floor <= int(highest)}
    return packages - set(re.findall(r"[a-z_]+", excluded))


def test_the_drawing_shows_the_layers():
    text = (ROOT / "docs" / "architecture.md").read_text().split("### Who may import whom")[1].split("```")[1]
    _, *parts = re.split(r"^--- (.+?) -+$", text, flags=re.MULTILINE)
    drawn = dict(zip(parts[::2], parts[1::2], strict=True))
    for layer, packages in LAYERS.items():
        names = set(re.findall(r"^[ \d]{7}([a-z_]+) ", drawn.get(layer, ""), re.MULTILINE))
        assert names <= packages.keys()
        assert not packages or names


def test_the_drawing_of_the_packages_is_the_table():
    floors, imports = drawn_imports()
    assert {name: drawn | GROUND for name, drawn in imports.items() if floors[name] > 1} == {
        name: allowed | GROUND for name, allowed in MAY_IMPORT.items() if floors[name] > 1
    }
    assert [n for n, allowed in MAY_IMPORT.items() for a in allowed if floors[a] >= floors[n]] == []


CORE = {
    "atomic_files", "byte_counters", "clock", "control_groups", "hooks", "line_file", "packages",
    "pair_keys",  # for schemes and private steps, which import nothing else that both may
    "payload", "polling", "process_setup", "registry", "rng", "state", "streams", "text", "timeouts",
    "vector", "version",
}  # fmt: skip
"""What belongs to no other package; nothing is added here."""


def test_the_ground_is_a_closed_list():
    assert {path.stem for path in (ROOT / "decentnode" / "core").glob("[!_]*.py")} == CORE


def test_no_modules_import_each_other_in_a_circle():
    graph = nx.DiGraph((module, name) for module, names in direct_imports().items() for name in names)
    circles = [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    assert circles == []


SUB_PACKAGES: dict[str, dict[str, set[str]]] = {
    "communication": {
        "arena": set(),
        "exchange": set(),
        "huge_pages": set(),
        "interceptor": set(),
        "launcher_link": set(),
        "wire": set(),
        "zmq_poll": set(),
        "security": {"zmq_poll"},
        "peers": {"exchange", "wire"},
        "base": {"arena", "exchange", "huge_pages", "interceptor", "launcher_link", "security"},
        "peer_sampling": {"security", "zmq_poll"},
        "shared_memory": {"base", "exchange", "wire", "zmq_poll"},
        "device": {"base", "exchange", "launcher_link", "shared_memory"},
        "routes": {"base", "device", "exchange", "peers"},
        "inproc": {"base", "exchange", "peers", "routes"},
        "simulated_links": {"base", "exchange", "inproc", "peers", "routes", "simulated_processes", "wire"},
        "simulated_processes": {"base", "exchange", "peers", "routes", "shared_memory", "wire"},
        "simulated": {"base", "peers", "simulated_links", "simulated_processes"},
        "zeromq": {
            "base", "exchange", "inproc", "interceptor", "peers", "routes", "security", "shared_memory",
            "wire", "zmq_poll",
        },
        "torch_distributed": {"base", "exchange", "huge_pages", "peers", "routes", "wire", "zeromq"},
    },
    "launcher": {
        "processes": set(),
        "state": set(),
        "dataset_cache": set(),
        "run_costs": set(),
        "preflight": set(),
        "extension": {"state"},
        "peer_service": {"preflight", "processes"},
        "cluster": {"preflight", "processes", "state"},
        "early_end": {"cluster", "preflight", "state"},
        "monitoring": {"state"},
        "observer": {"processes", "state"},
        "recovery": {"processes", "state"},
        "report": {"processes", "state"},
        "launcher": {
            "cluster", "extension", "monitoring", "observer", "peer_service", "preflight", "processes",
            "recovery", "report", "state",
        },
        "start": {"cluster", "early_end", "launcher", "preflight", "recovery", "report", "state"},
        "repeat": {"recovery", "report", "start"},
        "own_loop": {
            "cluster", "early_end", "launcher", "preflight", "processes", "recovery", "report", "state",
        },
    },
}  # fmt: skip
"""Which parts of a package each of its parts may import: sub-packages, and the modules beside them."""


def sub_package(package: str, module: str) -> str:
    """The part of a package that a module belongs to; empty: of another package, or the package itself."""
    return module.removeprefix(f"decentnode.{package}.").split(".")[0] if module in inside_of(package) else ""


@cache
def inside_of(package: str) -> frozenset[str]:
    return frozenset(m for m in direct_imports() if m.startswith(f"decentnode.{package}."))


def imports_between_parts(package: str) -> set[tuple[str, str]]:
    return {
        (sub_package(package, module), sub_package(package, name))
        for module in inside_of(package)
        for name in direct_imports()[module]
        if sub_package(package, name) not in ("", sub_package(package, module))
    }


@pytest.mark.parametrize(("package", "table"), SUB_PACKAGES.items(), ids=SUB_PACKAGES)
def test_parts_of_a_package_import_what_they_may_and_never_in_a_circle(package, table):
    assert {sub_package(package, module) for module in inside_of(package)} == set(table)
    allowed = {(part, other) for part, others in table.items() for other in others}
    assert imports_between_parts(package) == allowed
    circles = [sorted(c) for c in nx.strongly_connected_components(nx.DiGraph(allowed)) if len(c) > 1]
    assert circles == []


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


ASKED_BY_CLASS = {
    # Studies of what one scheme shows, and the theorem of its paper.
    "attacks/active/weight_claim.py": {"PushSum"},
    "attacks/passive/reconstruction.py": {
        "MultiGossip",
        "Muffliato",
        "Relayed",
        "SecureAggregation",
        "Shatter",
        "ZipDl",
    },
    "attacks/passive/replay.py": {"Relayed", "Shatter"},
    "attacks/passive/scene.py": {"DpSgd"},
    "attacks/passive/sight.py": {"Choco", "Muffliato", "SecureAggregation", "ZipDl"},
    "node/privacy/network_accountant.py": {"DpSgd", "Muffliato"},
    # Schemes that are made for one graph, and what one transform alone may do.
    "sharing/blocks/stability.py": {"Cast"},
    "sharing/mosaic.py": {"MosaicGraph"},
    "sharing/overlays/flipper.py": {"Flipper"},
    "sharing/overlays/similarity.py": {"Similarity"},
    "sharing/shatter.py": {"Relayed"},
    "launcher/cluster/scheduler.py": {"Open"},
    # Commands about one plug-in, and tests of the state of some.
    "cli/network.py": {"Simulated"},
    "testing/invariants.py": {"Choco", "DeepSqueeze", "ErrorFeedback", "PushSum"},
}
"""Files that ask for the class of a plug-in of another package, with the classes."""


def test_nothing_asks_for_the_class_of_a_plugin_but_for_its_promises():
    """Only the package of a kind knows its classes; others read what a plug-in declares."""
    packages: dict[str, set[str]] = {}
    for _, _, cls in PLUGINS:
        packages.setdefault(cls.__name__, set()).add(package(cls.__module__))
    asked: dict[str, set[str]] = {}
    for path, node in nodes(PACKAGE, ast.Call):
        if called(node) in ("isinstance", "issubclass"):
            file = path.relative_to(ROOT / "decentnode")
            named = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            own = {name for name, homes in packages.items() if file.parts[0] in homes}
            if foreign := named & packages.keys() - own:
                asked.setdefault(file.as_posix(), set()).update(foreign)
    assert asked == ASKED_BY_CLASS


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
    "communication/zeromq/routes.py": "bytes per second",
    "core/text.py": "a unit",
    "launcher/monitoring/memory_estimate.py": "a share of the memory",
    "launcher/monitoring/watchdog.py": "a factor on CHECK_INTERVAL",
    "launcher/report/live_view.py": "the window of a mean rate; nothing waits",
    "node/calibration.py": "a standard deviation",
    "node/dry_round.py": "a learning rate",
    "node/execution/batched_steps.py": "a bound on norms",
    "results/curves.py": "a bound on values that files may hold",
    "results/figures/plots.py": "shares of a drawing",
    "results/figures/plots_graph.py": "shares of a drawing",
    "results/figures/plots_network.py": "inches of a drawing",
    "results/figures/plots_privacy.py": "inches of a drawing",
    "results/figures/style.py": "inches of a drawing",
    "results/figures/plots_study.py": "shares of a drawing",
    "node/privacy/network_accountant.py": "a probability and a number of multiplications",
    "studies/watch.py": "a share of the time",
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
    offenders = {
        f"{path.relative_to(ROOT / 'decentnode')}": f"{name}, line {node.lineno}"
        for path in paths
        for node, name, value in constants(path)
        if is_limit(name, value)
    }
    assert {place: name for place, name in offenders.items() if place not in NOT_LIMITS} == {}
    assert offenders.keys() == NOT_LIMITS.keys()


def test_no_parameter_reads_a_limit_when_it_is_defined():
    """It would keep that value where the limit is set to another one later."""
    wrong = [
        f"{place(path, node)} {ast.unparse(default)}"
        for path, node in nodes(PACKAGE, *FUNCTIONS)
        for default in [*node.args.defaults, *node.args.kw_defaults]
        if default is not None and ast.unparse(default).startswith("Timeouts.")
    ]
    assert wrong == []


def test_the_docs_list_every_limit_that_a_configuration_changes():
    defaults, others = FailureSettings().timeouts, Timeouts(1.0, 0.5, 2.0, 3.0)
    pairs = zip(limits(defaults), limits(others), strict=True)
    rows = [
        f"| `{limit.name}` | {limit.seconds:g} | `{limit.formula}` | {limit.bounds} |"
        for limit, other in pairs
        if limit.seconds != other.seconds
    ]
    assert "\n".join(rows) in (ROOT / "docs" / "reliability_limits.md").read_text()


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
