"""Where in a plug-in's own code an error arose."""

import sysconfig
import traceback
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).parent)
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def origin(error: BaseException) -> str:
    """`file:line, in Class.method` of the innermost frame that is neither ours nor of an installed package.

    The innermost of ours where there is no such frame; empty for an error that was not raised.
    """
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(frame, line) for frame, line in frames if not is_foreign(frame)]
    ours = [(frame, line) for frame, line in frames if frame.f_code.co_filename.startswith(PACKAGE)]
    for frame, line in reversed(own or ours):
        return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_qualname}"
    return ""


def is_foreign(frame: FrameType) -> bool:
    """Whether its code is ours or of an installed package."""
    file = frame.f_code.co_filename
    return file.startswith((PACKAGE, *INSTALLED, "<"))


def explained(error: BaseException) -> str:
    """Type, message and origin of an error that nobody expected, in one line."""
    said = (str(error) or "no reason given").splitlines()[0]
    where = origin(error)
    return f"{type(error).__name__}: {said}" + (f" ({where})" if where else "")
