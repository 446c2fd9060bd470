"""Paths as people write them: with `~`, `~user`, `$NAME` and `${NAME}`, as a shell expands them."""

import os
import re
from pathlib import Path

VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def expanded(text: str | Path) -> Path:
    """Returns the path with home directories and variables filled in; raises ValueError with the reason.

    A file whose name has such a `$` is found, too.
    """
    path = Path(text)
    if "$" in str(path) and not os.path.lexists(path):
        names = [plain or braced for plain, braced in VARIABLE.findall(str(path))]
        if missing := [name for name in names if not os.environ.get(name)]:
            raise ValueError(f"the variable {missing[0]} is not set")
        path = Path(os.path.expandvars(path))
    try:
        return path.expanduser()
    except RuntimeError as error:
        is_own = path.parts[0] == "~"
        raise ValueError("the home directory is not known" if is_own else "there is no such user") from error
