"""What a run has of its machine that may round numbers differently elsewhere."""

import platform
import re
from functools import cache
from pathlib import Path

import torch

from decentnode.config.checks.execution import computes_on_gpu
from decentnode.core.version import __version__


@cache
def environment(device: str) -> dict[str, str]:
    """Returns versions, the processor and, where it computes there, the GPU; starts no CUDA.

    `device`: that of the settings.
    """
    found = {
        "decentnode": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "processor": _first("/proc", "cpuinfo", r"model name\s*: (.+)") or platform.machine(),
    }
    if computes_on_gpu(device):
        found["gpu"] = _first("/proc/driver/nvidia/gpus", "*/information", r"Model:\s*(.+)") or "unknown"
    return found


def _first(folder: str, files: str, pattern: str) -> str:
    """Returns what a pattern finds first in files of the kernel; empty where there is nothing."""
    for path in sorted(Path(folder).glob(files)):
        if match := re.search(pattern, path.read_text()):
            return match[1].strip()
    return ""
