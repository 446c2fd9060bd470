"""Compiles `decentnode/sharing/blocks/weighted_sum.c`, which the package works without.

    python eval/build_native.py     # in a checkout; `pip install` does it, too

The build of the wheel calls it (pyproject.toml). Where there is a C compiler the wheel has the library, and
the platform in its name. Else, or with DECENTNODE_PURE=1, it is one for all platforms, and torch computes.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "decentnode" / "sharing" / "blocks" / "weighted_sum.c"
LIBRARY = SOURCE.with_name("libweighted_sum.so")
"""Named by convention with "lib": Python would take `weighted_sum.so` for a module."""
FLAGS = ("-O3", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Werror")
LIMIT = 120.0
"""Seconds of the compiler, at most."""


def compile_native(library: Path) -> str:
    """Compiles the library into this file, at once or not at all; returns why not, empty if it did."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler or not sys.platform.startswith("linux"):
        return "no C compiler" if not compiler else f"not on {sys.platform}"
    try:
        with tempfile.TemporaryDirectory(dir=library.parent, prefix=".native-") as folder:
            made = Path(folder, library.name)
            subprocess.run(
                [*compiler.split(), *FLAGS, "-o", str(made), str(SOURCE)],
                check=True, capture_output=True, text=True, timeout=LIMIT,
            )  # fmt: skip
            made.replace(library)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return f"the C compiler failed: {said.strip().splitlines()[0]}"
    return ""


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from packaging.tags import sys_tags
except ImportError:
    BuildHookInterface = None

if BuildHookInterface:

    class NativeBuildHook(BuildHookInterface):
        """Puts the compiled library into the wheel, or beside its source in an editable installation."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compiles; without a compiler the wheel has no library."""
            reason = "DECENTNODE_PURE" if os.environ.get("DECENTNODE_PURE") else compile_native(LIBRARY)
            if reason:
                self.app.display_warning(f"without the compiled sum ({reason}); torch computes it")
                if version == "editable":
                    LIBRARY.unlink(missing_ok=True)
                return
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{next(sys_tags()).platform}"
            build_data["artifacts"].append(f"/{LIBRARY.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(compile_native(LIBRARY) or None)
