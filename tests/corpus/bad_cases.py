"""All cases of bad input, from the tables."""

from collections.abc import Iterator

from tests.corpus.bad_configs import EDITS, LOADED, OVERRIDES, UNREADABLE
from tests.corpus.bad_files import CIFAR, GRAPHS, IDX, KEYS, RUNS, WEIGHTS
from tests.corpus.bad_plugins import CODE, DATA, DATASETS, PLUGINS
from tests.corpus.bad_words import WORDS
from tests.corpus.case import BASE, Case, edited
from tests.corpus.formats import CIFAR_DEFECTS, IDX_DEFECTS, KEY_DEFECTS, cifar_files, idx_files, key_files

CONFIG = "x.yaml"


def bad_cases() -> list[Case]:
    """Every case; names are unique."""
    return [*_configurations(), *_graphs(), *_datasets(), *_plugins(), *_runs(), *_keys(), *_words()]


def _configurations() -> Iterator[Case]:
    validate = ("validate", CONFIG, "--no-load")
    for id, (old, new, lines) in EDITS.items():
        yield Case(f"config, {id}", validate, _prefixed(CONFIG, lines), {CONFIG: edited(old, new)})
    for id, (old, new, lines) in LOADED.items():
        yield Case(f"loaded, {id}", validate[:2], _prefixed(CONFIG, lines), {CONFIG: edited(old, new)})
    for id, (content, lines) in UNREADABLE.items():
        yield Case(f"unreadable, {id}", validate[:2], lines, {CONFIG: content})
    for id, (words, lines) in OVERRIDES.items():
        yield Case(f"override, {id}", (*validate, *words), lines, {CONFIG: BASE})


def _graphs() -> Iterator[Case]:
    for name, (content, lines) in GRAPHS.items():
        yield Case(f"graph {name}", ("graph", f"./{name}"), _prefixed(f"./{name}", lines), {name: content})
    for name, (text, lines) in WEIGHTS.items():
        words = ("graph", "ring.edges", "--weights", name)
        yield Case(f"weights {name}", words, _prefixed(name, lines), {name: text})


def _datasets() -> Iterator[Case]:
    for kind, lines, defects, files in (
        ("idx, variant: mnist", IDX, IDX_DEFECTS, idx_files),
        ("cifar10", CIFAR, CIFAR_DEFECTS, cifar_files),
    ):
        config = edited("name: digits", f"name: {kind}, path: set")
        for id, (damaged, content) in defects.items():
            written = {f"set/{name}": c for name, c in files(damaged, content).items()}
            wanted = _prefixed("x.yaml:8 dataset", lines[id])
            yield Case(
                f"{kind.split(',')[0]}, {id}", ("validate", CONFIG), wanted, {**written, CONFIG: config}
            )


def _plugins() -> Iterator[Case]:
    for id, (old, new, lines) in DATASETS.items():
        files = {CONFIG: edited(old, new), "corpus_data.py": DATA}
        yield Case(f"own data, {id}", ("validate", CONFIG), _prefixed(CONFIG, lines), files)
    for id, (old, new, lines) in PLUGINS.items():
        files = {CONFIG: edited(old, new), "corpus_code.py": CODE}
        wanted = [f"{CONFIG}:{line}" if line[0].isdigit() else line for line in lines]
        yield Case(f"own code, {id}", ("validate", CONFIG), wanted, files)


def _runs() -> Iterator[Case]:
    for id, (files, lines) in RUNS.items():
        yield Case(f"run, {id}", ("plot", "run"), lines, {f"run/{name}": c for name, c in files.items()})


GUARDED = (
    "run", CONFIG, "machine=0", "security={keys: keys}",
    "mapping={machines: [{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]}",
)  # fmt: skip


def _keys() -> Iterator[Case]:
    for id, (damaged, change) in KEY_DEFECTS.items():
        content, modes = key_files(damaged, change)
        files: dict[str, str | bytes] = {f"keys/{name}": text for name, text in content.items()}
        modes = {f"keys/{name}": mode for name, mode in modes.items()}
        yield Case(f"keys, {id}", GUARDED, KEYS[id], {**files, CONFIG: BASE}, modes)


def _words() -> Iterator[Case]:
    for id, (words, lines) in WORDS.items():
        yield Case(f"words, {id}", words, lines, {CONFIG: BASE})


def _prefixed(prefix: str, lines: list[str]) -> list[str]:
    return [line if line == "..." else prefix + (line if line[:1] in ":. " else f":{line}") for line in lines]
