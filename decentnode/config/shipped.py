"""The files that decentnode ships beside its code: configurations, graphs, and templates of `decentnode new`.

Configurations and graphs have names that work in any folder: `quickstart`, `studies/quick`, `ring_16.edges`.
In a checkout, also one that is installed as editable, the files are in its own folders. A wheel has
these folders in `decentnode/shipped/` (pyproject.toml).
"""

import re
from pathlib import Path

from decentnode.core.registry import nearest

PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = PACKAGE / "shipped" if (PACKAGE / "shipped").is_dir() else PACKAGE.parent
CONFIGS, GRAPHS, TEMPLATES = (FOLDER / name for name in ("configs", "graphs", "eval/templates"))
_SUFFIX = ".yaml"
_PATH = re.compile(r"[\w./-]+\.(?:yaml|edges|adj)\b")


def config_names() -> list[str]:
    """Returns the names of all shipped configurations, those of the top folder first."""
    paths = [path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.rglob(f"*{_SUFFIX}")]
    return [str(path) for path in sorted(paths, key=lambda path: (len(path.parts) > 1, path))]


def find_config(name: str | Path) -> Path | None:
    """Returns the shipped configuration of that name, with or without `.yaml`; None if there is none."""
    text = str(name).removesuffix(_SUFFIX)
    return CONFIGS / f"{text}{_SUFFIX}" if text in config_names() else None


def find_graph(name: str | Path) -> Path | None:
    """Returns the shipped graph file of that name, such as `ring_16.edges`; None if there is none."""
    return next((path for path in GRAPHS.glob("*.*") if path.name == str(name)), None)


def config_path(given: str | Path) -> Path:
    """Returns the file that a command or a call means by `given`: a path, or a shipped configuration's name.

    A file of the caller goes first: `quickstart` also means `quickstart.yaml` in the current folder. Where
    there is no file at all, `given` itself is returned, for the error of whoever opens it.
    """
    path = Path(given)
    try:
        if path.exists() and not path.is_dir():
            return path
        shipped = find_config(path)
        own = Path(f"{given}{_SUFFIX}")
        return own if shipped and own.is_file() else shipped or path
    except OSError:  # a name that is too long, or a loop of links
        return path


def near_config(given: str, folder: Path = Path()) -> str:
    """Returns the end of the message about a missing file that may be meant as a name; else nothing.

    It guesses among the shipped configurations, and the files beside the missing one; `given` is relative to
    `folder`.
    """
    path, names = Path(given), config_names()
    if path.suffix or path.parent not in {Path(name).parent for name in names}:
        return ""
    files = sorted((folder / path.parent).glob("*"), key=lambda file: (file.suffix == _SUFFIX, file.name))
    own = {file.stem: file.name for file in files}
    meant = {Path(name).name: name for name in reversed(names)} | {name: name for name in names} | own
    near = meant.get(nearest(given, meant), "")
    if near in own.values():
        return f"; did you mean '{near}'?"
    all_names = "decentnode list configs shows those that ship"
    return f"; did you mean '{near}'? {all_names}" if near else f"; {all_names}"


def description(config: Path) -> str:
    """Returns the first sentence of the comment that a configuration begins with; empty without one."""
    comment: list[str] = []
    for line in config.read_text().splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    return re.split(r"(?<=\.) (?=[A-Z0-9`])", " ".join(comment))[0]


def portable_text(config: Path) -> str:
    """Returns the text of a shipped configuration, in which paths of shipped files are names.

    So a copy of it means the same in another folder.
    """

    def named(match: re.Match[str]) -> str:
        path = (config.parent / match[0]).resolve()
        if not path.is_file():
            return match[0]
        if path.is_relative_to(CONFIGS):
            return str(path.relative_to(CONFIGS).with_suffix(""))
        return path.name if path.parent == GRAPHS else match[0]

    return _PATH.sub(named, config.read_text())
