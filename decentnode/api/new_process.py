"""The work of a command in a new Python; the arguments are descriptors: request, answer, progress, output."""

import os
import sys

import msgspec

from decentnode.api.work import CommandRequest, work_on
from decentnode.launcher.processes.launcher_process import RunProgress


def main() -> int:
    """Does the work; returns the exit code."""
    request_fd, answer_fd, progress_fd, *output = map(int, sys.argv[1:])
    with os.fdopen(request_fd, "rb") as file:
        request = msgspec.json.decode(file.read(), type=CommandRequest)
    return work_on(request, answer_fd, RunProgress(progress_fd), output[0] if output else None)


if __name__ == "__main__":
    sys.exit(main())
