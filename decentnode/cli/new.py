"""`decentnode new`: a folder with an experiment that runs, and own plug-ins for it, from templates."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from decentnode.config.settings import check_name
from decentnode.config.shipped import TEMPLATES
from decentnode.core.registry import guess
from decentnode.errors import BadInput

EXPERIMENT, OWN_PARTS, README, RUN = "experiment.yaml", "own_parts.yaml", "README.md", "run.sh"
FILES = (EXPERIMENT, "graph.edges", RUN, "test_experiment.py", README)
"""The files of every such folder."""
SECTIONS = {"scheme": "sharing", "dataset": "dataset", "model": "model", "graph": "graph"}
"""The parts of one's own, and the section of the configuration that names each."""
_KEY = re.compile(r"^(\w+):", re.MULTILINE)
_OWN_FILE = re.compile(r"(?:test_)?my_(\w+)\.py")


def parts_of(text: str) -> list[str]:
    """Returns the parts that `--with` names, separated by commas; raises BadInput."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if part not in SECTIONS:
            known = f"(known: {', '.join(SECTIONS)})"
            raise BadInput(f"--with: unknown part '{part}'{guess(part, SECTIONS)} {known}")
    return parts


def make_folder(folder: Path, parts: Sequence[str] = ()) -> Iterator[str]:
    """Writes the files of a new experiment; yields what to print. Raises BadInput, before it writes anything.

    A folder that exists and has files in it is refused.
    """
    name = folder.resolve().name
    try:
        check_name(name)
    except ValueError as error:
        raise BadInput(f"{folder}: its last part is the name of the experiment, and {error}") from error
    own = [path.name for path in TEMPLATES.glob("*my_*.py") if _part_of(path.name) in parts]
    content = {file: (TEMPLATES / file).read_text() for file in (*FILES, *sorted(own))}
    content[EXPERIMENT] = _with_parts(content[EXPERIMENT], parts).replace(
        "name: experiment", f"name: {name}", 1
    )
    lines = [line for line in content[README].splitlines() if {*_OWN_FILE.findall(line)} <= {*parts}]
    content[README] = "\n".join([f"# {name}", *lines[1:]]) + "\n"
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            kind = "is not empty" if folder.is_dir() else "is a file"
            raise BadInput(f"{folder}: {kind}; name a folder that does not exist yet")
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in content.items():
            (folder / file).write_text(text)
        (folder / RUN).chmod(0o755)
    except OSError as error:
        raise BadInput(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    yield f"{folder}: {', '.join(content)}"
    yield f"next: cd {shlex.quote(str(folder))} && ./{RUN} rounds=5"


def _part_of(file: str) -> str:
    match = _OWN_FILE.fullmatch(file)
    return match[1] if match else ""


def _with_parts(experiment: str, parts: Sequence[str]) -> str:
    """Returns the configuration with sections of `own_parts.yaml` in the place of those of the same key.

    In both files a blank line ends a section, and its comment is part of it.
    """
    own = (TEMPLATES / OWN_PARTS).read_text().rstrip("\n").split("\n\n")
    own_sections = {key[1]: section for section in own if (key := _KEY.search(section))}
    wanted = {SECTIONS[part] for part in parts}
    return (
        "\n\n".join(
            own_sections[key[1]] if (key := _KEY.search(section)) and key[1] in wanted else section
            for section in experiment.rstrip("\n").split("\n\n")
        )
        + "\n"
    )
