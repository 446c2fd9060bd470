"""The source files of plug-ins named `module:Class`, and of the local modules that they import.

Two machines, or two starts of a run, must use the same code under the same name.
"""

import ast
import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path

import torch

from decentnode.config.loader import packages_of
from decentnode.config.plugin import all_plugins
from decentnode.config.settings import Settings
from decentnode.core.atomic_files import write_durably
from decentnode.core.text import printable
from decentnode.core.timeouts import Timeouts
from decentnode.formats.reader import CodeVersion
from decentnode.node.environment import environment

INSTALLED = {"site-packages", "dist-packages", f"python{sys.version_info[0]}.{sys.version_info[1]}"}
"""Folders of installed modules, whose imports are not followed."""
PACKAGE = Path(__file__).parents[1]
NOT_IN_A_RUN = {"cli", "parallel", "results", "studies", "testing"}
"""Folders of this package whose code changes no number of a run."""
HASH_LETTERS = 12
MOST_NAMED = 3


class PluginSources:
    """The source files of a configuration's plug-ins, read once."""

    def __init__(self, settings: Settings) -> None:
        """Reads the files; their modules were imported when the settings were checked."""
        self._paths: dict[str, Path] = {}
        self._environment = environment(settings.device)
        # Writers change no number of a run, so a resume may have others.
        settings = replace(settings, records=replace(settings.records, writers=()))
        for module in dict.fromkeys(named_modules(settings)):
            if module.startswith("decentnode."):
                continue
            self._paths |= files_of(module)
        self.packages = packages_of(settings)
        """Name and version of the installed packages that have plug-ins of the run."""
        # Read once: hash and copy agree even if a file is edited later.
        self._contents = {name: path.read_bytes() for name, path in sorted(self._paths.items())}

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Returns SHA-256 by file name, relative to the folder where Python found the plug-in."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self._contents.items()}

    @property
    def parts(self) -> dict[str, str]:
        """What must be the same on all machines and in all starts of the run (`CodeVersion.parts`)."""
        return CodeVersion(0, "", self.hashes, packages=self.packages).parts

    @cached_property
    def version(self) -> CodeVersion:
        """The version that is recorded with a run."""
        listed = "".join(f"{name}:{digest}\n" for name, digest in {**self.hashes, **self.packages}.items())
        commit, dirty = git_state(list(self._paths.values()))
        digest = hashlib.sha256(listed.encode()).hexdigest()
        return CodeVersion(
            0, digest, self.hashes, commit, dirty, package=package_digest(), packages=self.packages,
            environment=self._environment,
        )  # fmt: skip

    def save(self, run_dir: Path) -> None:
        """Copies each file into the run directory; raises OSError."""
        for name, content in self._contents.items():
            path = self.version.folder(run_dir) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, [content])


@cache
def package_digest() -> str:
    """A hash of this package's own source files, and of the version of torch."""
    state = hashlib.sha256(torch.__version__.encode())
    for name, content in _package_files():
        state.update(f"{name}:{len(content)}\n".encode())
        state.update(content)
    return state.hexdigest()


@cache
def package_hashes() -> dict[str, str]:
    """The first letters of the SHA-256 of each of this package's own source files that a run uses."""
    return {
        f"{PACKAGE.name}/{name}": hashlib.sha256(content).hexdigest()[:HASH_LETTERS]
        for name, content in _package_files()
    }


def _package_files() -> Iterator[tuple[str, bytes]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        if name.parts[0] not in NOT_IN_A_RUN:
            yield name.as_posix(), path.read_bytes()


def difference(local_hashes: Mapping[str, str], other_hashes: Mapping[str, str]) -> str:
    """Names of the files that differ or exist on one side only, as text; empty if there are none."""
    names = sorted(
        name for name in {*local_hashes, *other_hashes} if local_hashes.get(name) != other_hashes.get(name)
    )
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(printable(name[:100]) for name in names[:MOST_NAMED]) + more


def changes(version: CodeVersion, later_version: CodeVersion) -> str:
    """What a later version of a run's code has otherwise, as text; empty where nothing differs."""
    later = later_version.environment
    others = {name: was for name, was in version.environment.items() if later.get(name, was) != was}
    parts = [difference(version.parts, later_version.parts)]
    # The hash covers torch, too.
    if version.package != later_version.package and not {"decentnode", "torch"} & others.keys():
        parts.append("decentnode itself")
    parts += [f"{name} {later[name]} (was {was})" for name, was in others.items()]
    return ", ".join(filter(None, parts))


def named_modules(settings: Settings) -> Iterator[str]:
    """The modules of all classes that the settings name as `module:Class`."""
    return (plugin.name.partition(":")[0] for plugin in all_plugins(settings) if ":" in plugin.name)


def files_of(module: str) -> dict[str, Path]:
    """The file of an imported module and of the modules below its folder that it imports, by name.

    Imports inside functions count, too. Modules that are installed, or of this package, are not followed.
    """
    origin = getattr(sys.modules.get(module), "__file__", None)
    if origin is None:
        return {}
    file = Path(origin).absolute()
    start = file.parent if file.stem == "__init__" else file
    root = start.parents[module.count(".")]
    file_of, waiting = {module: file}, [] if INSTALLED & {*root.parts} else [module]
    while waiting:
        name = waiting.pop()
        for imported in _imports(file_of[name], name):
            path = _file_below(root, imported) if imported not in file_of else None
            if path is not None:
                file_of[imported] = path
                waiting.append(imported)
    return {path.relative_to(root).as_posix(): path for path in file_of.values()}


def _imports(file: Path, module: str) -> Iterator[str]:
    """Names of all modules that a file may import, with their parent packages."""
    yield from accumulate(module.split("."), "{}.{}".format)
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # not Python, or never imported
        return
    package = module if file.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # more dots than packages: the import would fail
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            # Python runs every parent package on the way to a module.
            yield from accumulate(name.split("."), "{}.{}".format)


def _file_below(root: Path, module: str) -> Path | None:
    """The file of a module below a folder; None if there is none, or it belongs to this package."""
    if module.partition(".")[0] == "decentnode":
        return None
    place = root.joinpath(*module.split("."))
    candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((path for path in candidates if path.is_file()), None)


def git_state(files: Sequence[Path]) -> tuple[str | None, bool | None]:
    """The checked-out commit at the first file's folder, and whether any file differs from it.

    None for each without git or a repository.
    """
    if not files:
        return None, None
    commit = _git(files[0].parent, "rev-parse", "HEAD")
    changed = _git(files[0].parent, "status", "--porcelain", "--ignored", "--", *map(str, files))
    return commit, None if commit is None or changed is None else bool(changed)


def _git(folder: Path, *words: str) -> str | None:
    # Without locks: another git command of the user may run in the same repository.
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    stdin, most = subprocess.DEVNULL, Timeouts.git
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=most, stdin=stdin, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
