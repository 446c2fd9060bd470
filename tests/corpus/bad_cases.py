"""All cases of bad input, from the tables."""

import shlex
from collections.abc import Iterator, Sequence

from tests.corpus.bad_configs import BYTES, EDITS, EXTENDED, LOADED, OVERRIDES, UNREADABLE
from tests.corpus.bad_files import (
    BESIDE_A_ROW,
    CIFAR,
    GRAPHS,
    IDX,
    KEYS,
    NO_TEXT,
    ROW,
    ROWS,
    RUNS,
    TRACES,
    WEIGHTS,
)  # fmt: skip
from tests.corpus.bad_imports import FILES, FLAGS, IMPORT_WORDS, INI_BYTES, INI_EDITS, PLAIN
from tests.corpus.bad_plugins import CODE, DATA, DATASETS, PLUGINS
from tests.corpus.bad_words import WORDS
from tests.corpus.case import BASE, ROOT, Case, edited
from tests.corpus.formats import CIFAR_DEFECTS, IDX_DEFECTS, KEY_DEFECTS, cifar_files, idx_files, key_files
from tests.corpus.table import Row, rows

CONFIG = "x.yaml"
VALIDATE = ("validate", CONFIG)


def bad_cases() -> list[Case]:
    """Every case; names are unique."""
    configured = [*_configurations(), *_graphs(), *_datasets(), *_plugins()]
    return [*configured, *_runs(), *_keys(), *_words(), *_imports()]


def _configurations() -> Iterator[Case]:
    for row in rows(EDITS):
        yield _edit("config", row, words=(*VALIDATE, "--no-load"))
    for row in rows(LOADED):
        yield _edit("loaded", row)
    for row in rows(UNREADABLE):
        yield Case(f"unreadable, {row.id}", VALIDATE, _of_config(row.lines), {CONFIG: row.new})
    for row in rows(EXTENDED):
        base = edited(*row.old.split(" -> "))
        files = {CONFIG: f"extends: base/base.yaml\n{row.new}\n", "base/base.yaml": base}
        yield Case(f"extends, {row.id}, {row.old}", (*VALIDATE, "--no-load"), row.lines, files)
    for content, line in BYTES.items():
        yield Case(f"unreadable, {content[:40]!r}", VALIDATE, [f"{CONFIG}:{line}"], {CONFIG: content})
    for row in rows(OVERRIDES):
        words = (*VALIDATE, "--no-load", *shlex.split(row.new))
        # Defects that the file has only beside the override are named with their line of the file.
        elsewhere = (f"{CONFIG}:1", "decentnode: ")
        wanted = [line if line.startswith(elsewhere) else f"command line: {line}" for line in row.lines]
        yield Case(f"override, {row.id}", words, wanted, {CONFIG: BASE})


def _edit(kind: str, row: Row, *, words: Sequence[str] = VALIDATE, **files: str) -> Case:
    """A configuration that differs from BASE in one thing, beside modules."""
    modules = {f"{name}.py": content for name, content in files.items()}
    return Case(
        f"{kind}, {row.id}", words, _of_config(row.lines), {CONFIG: edited(row.old, row.new), **modules}
    )


def _of_config(lines: list[str]) -> list[str]:
    """Returns the lines with the name of the configuration in front of those that begin with a number."""
    return [f"{CONFIG}:{line}" if line[0].isdigit() else line for line in lines]


def _graphs() -> Iterator[Case]:
    for row in rows(GRAPHS):
        name, _, content = row.new.partition(" ")
        yield Case(
            f"graph {name}", ("graph", f"./{name}"), _prefixed(f"./{name}", row.lines), {name: content}
        )
    for name, damaged in NO_TEXT.items():
        line = f"./{name}: is not a text file; expected numbers in UTF-8"
        yield Case(f"graph {name}", ("graph", f"./{name}"), [line], {name: damaged})
    for row in rows(TRACES):
        name, _, content = row.new.partition(" ")
        graph = {
            "contacts": ("contact_trace", "path=contacts"),
            "awake": ("availability_trace", "path=ring.edges", "trace_path=awake"),
        }[name]
        lines = _prefixed(name, row.lines)
        yield Case(f"trace, {row.id}", ("graph", *graph, "seconds_per_round=1"), lines, {name: content})
    for row in rows(WEIGHTS):
        name, _, content = row.new.partition(" ")
        words = ("graph", "ring.edges", "--weights", name)
        yield Case(f"weights {name}", words, _prefixed(name, row.lines), {name: content})


def _datasets() -> Iterator[Case]:
    for kind, table, defects, files in (
        ("idx, variant: mnist", IDX, IDX_DEFECTS, idx_files),
        ("cifar10", CIFAR, CIFAR_DEFECTS, cifar_files),
    ):
        config = edited("name: digits", f"name: {kind}, path: set")
        lines = {row.new: row.lines for row in rows(table)}
        for id, (damaged, content) in defects.items():
            written = {f"set/{name}": c for name, c in files(damaged, content).items()}
            wanted = [f"{CONFIG}:8 {line}" for line in lines[id]]
            yield Case(f"{kind.split(',')[0]}, {id}", VALIDATE, wanted, {**written, CONFIG: config})


def _plugins() -> Iterator[Case]:
    for row in rows(DATASETS):
        yield _edit("own data", row, corpus_data=DATA)
    for row in rows(PLUGINS):
        yield _edit("own code", row, corpus_code=CODE)


def _runs() -> Iterator[Case]:
    for table, files in ((RUNS, {}), (BESIDE_A_ROW, {"run/evaluations.jsonl": ROW})):
        for row in rows(table):
            name, _, content = row.new.partition(" ")
            written = {**files, f"run/{name}": content.replace("{row}", ROW)}
            yield Case(f"run, {row.id}", ("plot", "run"), row.lines, written)
    for row in rows(ROWS):
        assert row.old in ROW, row.old
        written = {"run/evaluations.jsonl": ROW.replace(row.old, row.new, 1)}
        yield Case(f"run, {row.id}", ("plot", "run"), row.lines, written)
    line = "run/evaluations.jsonl:{}: not written by this version of decentnode: JSON is malformed: "
    lines = [line.format(number) + "invalid character (byte 0)" for number in (1, 2)]
    picture = {"run/evaluations.jsonl": b"\x89PNG\n\xff\n"}
    yield Case("run, a picture", ("plot", "run"), lines, picture)


GUARDED = (
    "run", CONFIG, "machine=0", "security={keys: keys}",
    "mapping={machines: [{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]}",
)  # fmt: skip


def _keys() -> Iterator[Case]:
    lines = {row.new: row.lines for row in rows(KEYS)}
    for id, (damaged, change) in KEY_DEFECTS.items():
        content, modes = key_files(damaged, change)
        files: dict[str, str | bytes] = {f"keys/{name}": text for name, text in content.items()}
        modes = {f"keys/{name}": mode for name, mode in modes.items()}
        yield Case(f"keys, {id}", GUARDED, lines[id], {**files, CONFIG: BASE}, modes)


def _words() -> Iterator[Case]:
    for row in rows(WORDS):
        yield Case(f"words, {row.id}", shlex.split(row.new), row.lines, {CONFIG: BASE})


def _imports() -> Iterator[Case]:
    graph = {"regular_16.edges": (ROOT / "graphs" / "regular_16_4.edges").read_text()}
    words = ("import", "config.ini")
    for row in rows(INI_EDITS):
        assert row.old in PLAIN, row.old
        lines = [f"config.ini:{line}" for line in row.lines]
        files = {**graph, "config.ini": PLAIN.replace(row.old, row.new, 1)}
        yield Case(f"import, {row.id}", (*words, *FLAGS), lines, files)
    for content, lines in INI_BYTES.items():
        yield Case(f"import, {content[:40]!r}", (*words, *FLAGS), lines, {**graph, "config.ini": content})
    for row in rows(IMPORT_WORDS):
        more = shlex.split(row.new.replace("{flags}", " ".join(FLAGS)))
        yield Case(f"import, {row.id}", (*words, *more), row.lines, {**graph, **FILES, "config.ini": PLAIN})


def _prefixed(prefix: str, lines: list[str]) -> list[str]:
    return [line if line == "..." else prefix + (line if line[:1] == ":" else f":{line}") for line in lines]
