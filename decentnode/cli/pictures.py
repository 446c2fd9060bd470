"""The pictures of `--draw`, which a layer around the core draws: it registers how for the hook `pictures`."""

from collections.abc import Callable
from pathlib import Path

from decentnode.core.hooks import found
from decentnode.errors import BadInput

PICTURES = (".png", ".svg", ".pdf")


def drawing_function(kind: str, path: Path) -> Callable[..., None]:
    """Returns what draws a kind of picture; raises BadInput where it cannot be drawn at this path."""
    check_picture(path)
    draw: Callable[..., None] = found("pictures")[kind]
    return draw


def check_picture(path: Path, option: str = "--draw") -> None:
    """Raises BadInput unless the ending of the path, given by an option, is that of a picture."""
    if path.suffix.lower() not in PICTURES:
        raise BadInput(f"{option}: {path}: must end in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
