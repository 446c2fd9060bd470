"""The source files of plug-ins named `module:Class`, and of what these import beside them.

Two machines, or two starts of a run, must mean the same code by the same name.
"""

import ast
import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from decentnode.config.settings import Plugin, Settings
from decentnode.core.atomic_files import write_durably
from decentnode.core.text import printable
from decentnode.results.reader import CodeVersion

FOLDER = "code"
"""Of a run directory."""
INSTALLED = {"site-packages", "dist-packages", f"python{sys.version_info[0]}.{sys.version_info[1]}"}
"""Folders of modules that are not followed to what they import."""
GIT_SECONDS = 5.0
HASH_LETTERS = 12
MOST_NAMED = 3


class PluginSources:
    """What the plug-ins of a configuration are made of, as it was read once."""

    def __init__(self, settings: Settings) -> None:
        """Reads the files; their modules have been imported, as the settings were checked."""
        self._paths: dict[str, Path] = {}
        for module in dict.fromkeys(named_modules(settings)):
            self._paths |= files_of(module)
        self._contents = {name: path.read_bytes() for name, path in sorted(self._paths.items())}

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 by file, whose name is that below the folder where Python found the plug-in."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self._contents.items()}

    @cached_property
    def version(self) -> CodeVersion:
        """What is recorded of them with a run."""
        listed = "".join(f"{name}:{digest}\n" for name, digest in self.hashes.items())
        commit, dirty = git_state(list(self._paths.values()))
        return CodeVersion(0, hashlib.sha256(listed.encode()).hexdigest(), self.hashes, commit, dirty)

    def save(self, run_dir: Path) -> None:
        """Writes a copy of each file below the run directory; raises OSError."""
        for name, content in self._contents.items():
            path = folder_of(self.version, run_dir) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, [content])


def folder_of(version: CodeVersion, run_dir: Path) -> Path:
    """Where a run has its copy of that code."""
    return run_dir / FOLDER / version.digest[:HASH_LETTERS]


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """The files whose hashes are not the same, or that one has alone, in words; empty when there are none."""
    names = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(printable(name[:100]) for name in names[:MOST_NAMED]) + more


def named_modules(value: Any) -> Iterator[str]:
    """The modules of all classes that are named `module:Class` anywhere in the settings."""
    if isinstance(value, Plugin) and ":" in value.name:
        yield value.name.partition(":")[0]
    inner: Iterable[Any] = ()
    if is_dataclass(value) and not isinstance(value, type):
        inner = (getattr(value, field.name) for field in fields(value))
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    for part in inner:
        yield from named_modules(part)


def files_of(module: str) -> dict[str, Path]:
    """The file of an imported module, and those below the same folder that it imports, by name.

    Imports inside functions count, too. A module that is installed, or of this package, is not followed.
    """
    origin = getattr(sys.modules.get(module), "__file__", None)
    if origin is None:
        return {}
    file = Path(origin).absolute()
    start = file.parent if file.stem == "__init__" else file
    root = start.parents[module.count(".")]
    found, waiting = {module: file}, [] if INSTALLED & {*root.parts} else [module]
    while waiting:
        name = waiting.pop()
        for imported in _imports(found[name], name):
            path = _beside(root, imported) if imported not in found else None
            if path is not None:
                found[imported] = path
                waiting.append(imported)
    return {path.relative_to(root).as_posix(): path for path in found.values()}


def _imports(file: Path, module: str) -> Iterator[str]:
    """Names of all modules that a file may import, with the packages that they are in."""
    yield from accumulate(module.split("."), "{}.{}".format)
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # it is no Python, or never imported
        return
    package = module if file.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        for name in _named_in(node, package):
            yield from accumulate(name.split("."), "{}.{}".format)


def _named_in(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    try:
        base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:  # more dots than packages: it would fail
        return []
    return [base, *(f"{base}.{alias.name}" for alias in node.names)]


def _beside(root: Path, module: str) -> Path | None:
    """The file of a module below a folder; None when there is none, or it is one of this package."""
    if module.partition(".")[0] == "decentnode":
        return None
    place = root.joinpath(*module.split("."))
    candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((path for path in candidates if path.is_file()), None)


def git_state(files: Sequence[Path]) -> tuple[str | None, bool | None]:
    """The commit that is checked out where the first file lies, and whether any of them differs from it.

    None for each where there is no git, or no repository.
    """
    if not files:
        return None, None
    commit = _git(files[0].parent, "rev-parse", "HEAD")
    changed = _git(files[0].parent, "status", "--porcelain", "--ignored", "--", *map(str, files))
    return commit, None if commit is None or changed is None else bool(changed)


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    given, most = subprocess.DEVNULL, GIT_SECONDS
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=most, stdin=given, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
