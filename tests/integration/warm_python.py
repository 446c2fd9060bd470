"""A `python` whose modules, scripts and `-c` the spawner forks: warm_python.py DOOR PYTHON WORD ...

Anything else, such as what comes from the standard input, goes to PYTHON itself. It imports nothing but what
starts in no time. Output is flushed at the end alone, whether or not `-u` is said; `-P` holds without a word.
"""

import json
import os
import signal
import socket
import sys

SECONDS_TO_IMPORT = 100.0


def request(door: str, wish: bytes, fds: list[int]) -> int:
    """The process that was forked. The descriptors: its output, its errors, and a pipe for its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(SECONDS_TO_IMPORT)
        asking.connect(door)
        socket.send_fds(asking, [wish], fds)
        return int(asking.recv(64))


def main() -> None:
    door, python, *words = sys.argv[1:]
    given = words.copy()
    while words[:1] in (["-u"], ["-P"]):
        del words[0]
    if not words or not (words[0] in ("-m", "-c") or words[0].endswith(".py")):
        os.execv(python, [python, *given])
    status, end = os.pipe()
    wish = json.dumps([words, os.path.realpath("."), dict(os.environ), ""]).encode()
    pid = request(door, wish, [1, 2, end])
    os.close(end)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = int(os.read(status, 64) or -signal.SIGKILL)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
