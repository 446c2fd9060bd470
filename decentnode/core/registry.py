"""Plug-ins by name: one registry per kind, and `module:Class` for code outside this package.

A plug-in is a dataclass: its fields are its YAML options, and the first line of its docstring describes it.
A decorator registers it, `@SHARING.register("gossip")`, when its package is imported on first use.
"""

import contextlib
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache
from inspect import isfunction
from pathlib import Path
from typing import TypeVar, cast

from decentnode.core.packages import OWN, is_loading, load_plugins, package_of
from decentnode.core.text import quoted
from decentnode.errors import UnknownPlugin

T = TypeVar("T", bound=type)

PASSED = "object"
"""Stands for the module in the name of a plug-in that only Python can pass: `object:Class`."""
EXTRA_OF = {"torchmetrics": "metrics"}
"""The extra that installs a package whose classes may be named."""
MOST_LETTERS = 220
"""Letters of the names in a message, at most; a message is one line."""
COPIES = "code"
"""The folder of a run with copies of its plug-ins' files, in a folder for each version."""
_only_reads = ContextVar("only_reads", default=False)
_preferred: list[Path] = []
"""Folders whose modules come before all others of the same name (`import_from`)."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns the known word that resembles `word` most, or an empty string."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), "")


def guess(word: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the known word nearest to `word`, or an empty string."""
    near = nearest(word, known)
    return f"; did you mean '{near}'?" if near else ""


def letters(name: str) -> str:
    """Returns a name without case, underscores and other signs: `TopK` and `top_k` are one name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def edits(a: str, b: str) -> int:
    """The fewest letters to insert, remove, replace or swap with the next one that make a word the other."""
    rows: list[list[int]] = [[*range(len(b) + 1)]]
    for i, x in enumerate(a):
        row: list[int] = [i + 1]
        for j, y in enumerate(b):
            row.append(min(rows[-1][j + 1] + 1, row[j] + 1, rows[-1][j] + (x != y)))
            if i and j and (x, a[i - 1]) == (b[j - 1], y):
                row[-1] = min(row[-1], rows[-2][j - 1] + 1)
        rows.append(row)
    return rows[-1][-1]


def is_misspelt(word: str, name: str) -> bool:
    """Whether a word is a name with a typing error, and not the name of something else, both as `letters`.

    Names that differ in a number (resnet20), or of which one continues the other (fed_median, one_peer), are
    those of different things, and so are short names that differ in a letter (Adan). At the end one letter
    may be missing, repeated, or an s too many.
    """
    if re.findall(r"\d+", word) != re.findall(r"\d+", name):
        return False
    shorter, longer = sorted((word, name), key=len)
    if longer.startswith(shorter) or longer.endswith(shorter):
        return name[:-1] == word or word in (name, name + name[-1:], name + "s")
    if len(name) < 6 and len(word) == len(name) and sorted(word) != sorted(name):
        return False
    return edits(word, name) <= 1 + (len(name) >= 12)


def near_file(path: str) -> str:
    """Makes a `guess` among the files beside a missing path, whatever their suffixes."""
    missing = Path(path)
    try:
        if missing.exists() or not missing.parent.is_dir():
            return ""
        files = list(missing.parent.iterdir())
    except OSError:  # a name that is too long, or a folder without permission
        return ""
    neighbors = sorted(files, key=lambda file: (file.suffix == missing.suffix, file.name))
    names = {file.stem: file.name for file in neighbors}
    near = nearest(missing.stem, names)
    return f"; did you mean '{names[near]}'?" if near else ""


class Registry:
    """The plug-ins of one kind, which derive from one of the classes `bases` (`module:Class`).

    `home` is imported on first use, so that its plug-ins register. `functions`: `module:function` may name a
    function that returns an instance, too. `endings`: what classes elsewhere end in beside the kind.
    `key`: the one in YAML that names a plug-in, beside its options.
    """

    def __init__(
        self, kind: str, home: str, *bases: str, functions: bool = False, endings: Iterable[str] = (),
        key: str = "name", given: int = 0, options: str = "",
    ) -> None:  # fmt: skip
        """`given`: how many arguments of a function are no options, because who calls it gives them.

        `options`: the class whose fields are options of what is no class of ours, too (`module:Class`), by
        default that of the first base.
        """
        self.options = options or next(iter(bases), "")
        self.kind = kind
        self.given = given
        self.key = key
        self.functions = functions
        self._endings = kind, *endings
        self._synonyms: dict[str, tuple[str, str]] = {}
        """By the letters of a name elsewhere: the name here, and the options that make it so."""
        self._home = home
        self.base_names = bases
        self._classes: dict[str, type] = {}
        self._rivals: dict[str, list[type]] = {}
        """By name the classes of packages that came second."""

    @property
    def bases(self) -> tuple[type, ...]:
        """The classes from one of which every plug-in of this kind derives."""
        return tuple(map(import_class, self.base_names))

    def register(self, name: str, *synonyms: str, **with_options: str) -> Callable[[T], T]:
        """Makes the decorated class available in YAML as `name`.

        `synonyms`: its names elsewhere, for hints; YAML takes none of them. `with_options`: further ones,
        each with the option that makes the class the same, such as `fp16="dtype: fp16"`.
        """
        self.explain(name, **dict.fromkeys(synonyms, ""), **with_options)

        def add(cls: T) -> T:
            first = self._classes.setdefault(name, cls)
            if first is not cls and (package_of(cls) or (is_loading() and is_foreign(cls))):
                self._rivals.setdefault(name, []).append(cls)
                return cls
            if first is not cls:
                if package_of(first) is None:
                    raise ValueError(f"two {self.kind} plug-ins are named '{name}'")
                # What packages add takes no name away, whatever is imported first.
                self._classes[name] = cls
                self._rivals.setdefault(name, []).append(first)
            cls.registered_name = name  # type: ignore[attr-defined]
            return cls

        return add

    def explain(self, name: str, **synonyms: str) -> None:
        """Makes hints lead to a class from its names elsewhere, each with the option that it needs, or ''."""
        for synonym, option in synonyms.items():
            known, _ = self._synonyms.setdefault(letters(synonym), (name, option))
            if known != name:
                raise ValueError(f"'{synonym}' stands for two {self.kind} plug-ins, '{known}' and '{name}'")

    def classes(self) -> dict[str, type]:
        """Returns all registered classes by name, sorted."""
        importlib.import_module(self._home)
        return dict(sorted(self._classes.items()))

    @property
    def names(self) -> str:
        """All names for a message; of many the first, and the command that lists the others."""
        text = ", ".join(self.classes()) or "module:function"
        if len(text) <= MOST_LETTERS:
            return text
        return f"{text[:MOST_LETTERS].rpartition(',')[0]}, ...; all: decentnode list {self.kind}"

    def find(self, name: str, *folders: Path) -> type:
        """Returns the class called `name`, or the one at `module:Class`; raises UnknownPlugin.

        `folders`: where its module may be, if it is not installed. Packages with plug-ins are loaded where
        nothing else has that name, but never in order to read a run.
        """
        if ":" in name and _only_reads.get():
            raise UnknownPlugin(f"{quoted(name)} is a plug-in of that run, whose code is not run to read it")
        if ":" in name:
            import_from(*folders)
            return import_class(name, self.functions, folders)
        problems: Sequence[str] = ()
        if name not in self.classes():
            problems = load_plugins(only_own=_only_reads.get())
            if _only_reads.get():
                problems = (f"only {OWN}'s own are known here, as no other code is run to read a run",)
        if clash := self.clashes().get(name):
            raise UnknownPlugin(clash)
        if name not in (known := self.classes()):
            text = f"unknown {self.kind} {quoted(name)}{self.hint(name)} (known: {self.names})"
            raise UnknownPlugin("; ".join((text, *problems)))
        return known[name]

    def clashes(self) -> dict[str, str]:
        """By name a line about two classes of packages that have it; decentnode's own comes first."""
        lines = {}
        for name, rivals in self._rivals.items():
            several = (self._classes[name], *rivals)
            if package_of(several[0]) is not None:
                places = (f"{package_of(cls)} ({cls.__module__}:{cls.__qualname__})" for cls in several)
                text = f"several packages have a {self.kind} '{name}': {', '.join(places)}"
                lines[name] = f"{text}; name one as module:Class, or remove the others"
        return lines

    def hint(self, name: str) -> str:
        """Returns `; did you mean 'x'?` for what an unknown name means elsewhere, or with a typing error.

        Empty where nothing fits: a hint that leads to another algorithm is worse than none.
        """
        names, word = {letters(known): known for known in self.classes()}, letters(name)
        stems = [word, *(word.removesuffix(end) for end in self._endings if word.endswith(end))]
        for form in (form for stem in stems for form in (stem, *(stem + end for end in self._endings))):
            meant, option = (names[form], "") if form in names else self._synonyms.get(form, ("", ""))
            if meant:
                return f"; did you mean '{meant}'{f' with {option}' if option else ''}?"
        misspelt = [known for known in names if is_misspelt(word, known)]
        near = min(misspelt, key=lambda known: edits(word, known), default="")
        return f"; did you mean '{names[near]}'?" if near else ""


def name_of(plugin: object) -> str:
    """Returns a plug-in's name in YAML; the name of its class if it comes from outside."""
    cls = type(plugin)
    # Not an inherited name: a plug-in from outside may derive from a registered one.
    named = vars(cls) | getattr(plugin, "__dict__", {})
    return str(named.get("registered_name", cls.__name__))


def is_foreign(cls: type) -> bool:
    """Whether a class comes from outside this package."""
    return cls.__module__.partition(".")[0] != OWN


def is_third_party(plugin: object) -> bool:
    """Whether its class comes from outside this package."""
    return is_foreign(type(plugin))


@contextlib.contextmanager
def reading_only() -> Iterator[None]:
    """Refuses all plug-ins named `module:Class` in a block, because who made a run may have written them."""
    token = _only_reads.set(True)
    try:
        yield
    finally:
        _only_reads.reset(token)


def import_class(path: str, functions: bool = False, folders: Sequence[Path] = ()) -> type:
    """Returns the class at `module:Class`; raises UnknownPlugin if the module or the class is missing.

    With `functions` also a function, which then stands for the class of what it returns. `folders`: those of
    runs among them may have a copy of the module, which the error names.
    """
    module_name, _, class_name = path.partition(":")
    if module_name == PASSED:
        raise UnknownPlugin(
            f"{quoted(path)} was passed as an object from Python, and no file has it; pass it again "
            "(decentnode.resume, decentnode.repeat), or move it to a module and name it as module:Class"
        )
    if not (module_name and class_name) or module_name.startswith("."):
        raise UnknownPlugin(f"{quoted(path)} names no class; write module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise UnknownPlugin(f"cannot import '{path}': {error}") from error
        if extra := EXTRA_OF.get(module_name.partition(".")[0]):
            install = f"run: pip install '{OWN}[{extra}]'"
            raise UnknownPlugin(f"cannot import '{path}': {error}; {install}") from error
        copies = [
            copy
            for folder in folders
            for copy in (folder / COPIES).glob("*")
            if any(map(Path.is_file, _files_for(copy, module_name)))
        ]
        where = f" in {Path.cwd()}, beside the configuration, or installed"
        if copies:
            newest = max(copies, key=lambda copy: copy.stat().st_mtime)
            where = (
                f" beside this run, but {newest} has a copy; resume, repeat and attack run that code with "
                f"--with-its-code, other commands with PYTHONPATH={newest}"
            )
        raise UnknownPlugin(f"cannot import '{path}': {error}{where}") from error
    except (Exception, SystemExit) as error:  # any error of the module itself
        problem = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise UnknownPlugin(f"cannot import '{path}': {problem}") from error
    _refuse_shadowed(path, folders)
    plugin = getattr(module, class_name, None)
    if not (isinstance(plugin, type) or (functions and isfunction(plugin))):
        raise UnknownPlugin(f"module '{module_name}' has no class '{class_name}'")
    return cast(type, plugin)


def class_named(module_name: str, path: str) -> object:
    """Returns what an imported module has at a path such as `Class` or `Class.Inner`; None if nothing."""
    found: object = sys.modules.get(module_name)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def import_from(*folders: Path, first: bool = False) -> None:
    """Makes modules in these folders importable, after all installed ones, or before them if `first`."""
    for folder in folders:
        if first:
            sys.path.insert(0, str(folder))
            _preferred.insert(0, folder)
        elif str(folder) not in sys.path:
            sys.path.append(str(folder))


def _files_for(folder: Path, module_name: str) -> tuple[Path, Path]:
    """Returns the files in a folder from which Python would import a module."""
    place = folder.joinpath(*module_name.split("."))
    return place / "__init__.py", place.with_name(f"{place.name}.py")


def _refuse_shadowed(path: str, folders: Iterable[Path]) -> None:
    """Raises UnknownPlugin where Python has imported another module than that in the first of the folders."""
    module_name = path.partition(":")[0]
    places = [*(folder for folder in _preferred if str(folder) in sys.path), *folders]
    # Packages of the same name often begin with the same empty file, so the module itself is compared, too.
    for name in dict.fromkeys((module_name.partition(".")[0], module_name)):
        own = next((f for place in places for f in _files_for(place, name) if f.is_file()), None)
        imported = getattr(sys.modules.get(name), "__file__", None)
        if own is not None and not (imported and _is_copy(Path(imported), own)):
            raise UnknownPlugin(
                f"'{path}': {own} is not what Python imports by that name, but "
                f"{imported or 'a module of its own'}; give the file another name"
            )


def _is_copy(file: Path, other_file: Path) -> bool:
    """Whether two files have the same content; one in an archive counts as another."""
    return file.is_file() and file.read_bytes() == other_file.read_bytes()


GRAPHS = Registry("graph", "decentnode.graph", "decentnode.graph.base:Graph", endings=("topology",))
MAPPINGS = Registry("mapping", "decentnode.mapping.open", "decentnode.mapping.base:Mapping")
MIXINGS = Registry("weights", "decentnode.graph.mixing", "decentnode.graph.mixing:Mixing")
SHARINGS = Registry(
    "sharing",
    "decentnode.sharing",
    "decentnode.sharing.base:Sharing",
    "decentnode.sharing.asynchronous.base:AsyncSharing",
)
TRANSFORMS = Registry(
    "transform",
    "decentnode.transforms",
    "decentnode.transforms.base:Transform",
    endings=("compressor", "compression"),
)
COMMUNICATIONS = Registry(
    "communication", "decentnode.communication", "decentnode.communication.base:Communication"
)
MODELS = Registry(
    "model",
    "decentnode.models",
    "decentnode.models.base:Model",
    "torch.nn.modules.module:Module",
    functions=True,
)
DATASETS = Registry(
    "dataset",
    "decentnode.datasets",
    "decentnode.datasets.base:Dataset",
    "torch.utils.data.dataset:Dataset",
    functions=True,
    options="decentnode.datasets.from_python:FromPython",
)
PARTITIONS = Registry(
    "partition", "decentnode.datasets", "decentnode.datasets.partition:Partition", endings=("partitioner",)
)
SKEWS = Registry("skew", "decentnode.datasets", "decentnode.datasets.skew:Skew")
TASKS = Registry("task", "decentnode.training.tasks", "decentnode.training.tasks.base:Task")
METRICS = Registry(
    "metric", "decentnode.training.metrics", "decentnode.training.metrics.base:Measure",
    "torch.nn.modules.module:Module", functions=True, endings=("score",), given=2,
)  # fmt: skip
"""A class as of torchmetrics is a module, which is looked at without an import of torchmetrics."""
AUGMENTATIONS = Registry(
    "augmentation", "decentnode.training.augmentation", "decentnode.training.augmentation.base:Augmentation"
)
PRIVACIES = Registry("privacy", "decentnode.training.privacy", "decentnode.training.privacy.base:Privacy")
CORRELATIONS = Registry(
    "correlation", "decentnode.training.privacy", "decentnode.training.privacy.correlation:Correlation"
)
TRAININGS = Registry(
    "training", "decentnode.node.ddp_baseline", "decentnode.training.gradient_sync:GradientSync"
)
FAULTS = Registry("fault", "decentnode.node.faults", "decentnode.node.faults.base:Fault")
ATTACKS = Registry("attack", "decentnode.attacks.plugins", "decentnode.attacks.base:Adversary")
WRITERS = Registry("writer", "decentnode.results.writers", "decentnode.results.writers.base:Writer")
EXECUTORS = Registry("executor", "decentnode.studies.executors", "decentnode.studies.executors.base:Executor")
DISTRIBUTIONS = Registry(
    "distribution", "decentnode.simulation.quantities", "decentnode.simulation.quantities:Distribution",
    key="distribution",
)  # fmt: skip
SLOWDOWNS = Registry(
    "slowdown", "decentnode.training.pace", "decentnode.training.pace:Slowdown", key="distribution"
)
AFTER_ROUND = Registry("after_round", "decentnode.errors", functions=True, given=2)
"""Functions of users alone, which are called with a round and its metrics."""
LOOPS = Registry("loop", "decentnode.errors", functions=True, given=1)
"""Functions of users alone, which are called with a node."""
REGISTRIES = (
    GRAPHS, MAPPINGS, MIXINGS, SHARINGS, TRANSFORMS, COMMUNICATIONS, MODELS, DATASETS, PARTITIONS, SKEWS,
    TASKS, METRICS, AUGMENTATIONS, PRIVACIES, CORRELATIONS, TRAININGS, FAULTS, ATTACKS, WRITERS, EXECUTORS,
    DISTRIBUTIONS, SLOWDOWNS,
)  # fmt: skip


def loaded_plugins() -> tuple[str, ...]:
    """Loads all packages with plug-ins; returns a line for each that fails, and for each name of several."""
    problems = load_plugins()
    return (*problems, *(line for registry in REGISTRIES for line in registry.clashes().values()))


def registry_of(cls: object) -> Registry | None:
    """Returns the registry of a plug-in's class, or of the base of a kind; None for any other object."""
    return _registry_of(cls) if isinstance(cls, type) else None


@cache
def _registry_of(cls: type) -> Registry | None:
    names = {f"{base.__module__}:{base.__qualname__}" for base in cls.__mro__}
    return next((registry for registry in REGISTRIES if not names.isdisjoint(registry.base_names)), None)
