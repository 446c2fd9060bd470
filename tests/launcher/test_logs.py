"""The output of host processes."""

import os
import sys

from decentnode.core.streams import redirect_output


def in_a_child(path, work):
    """The exit status of a forked process whose output goes to `path`."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            redirect_output(path)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_what_is_printed_is_appended_at_once(tmp_path):
    path = tmp_path / "log"
    path.write_text("before\n")

    def work():
        print("one")
        print("two", file=sys.stderr)
        os.write(2, b"three\n")
        print("four", flush=True)

    assert in_a_child(path, work) == 0
    assert path.read_text() == "before\none\ntwo\nthree\nfour\n"


def test_a_full_disk_ends_nobody(tmp_path):
    def work():
        for _ in range(3):
            print("x" * 20_000, flush=True)
            print("y", file=sys.stderr)
        sys.stdout.flush()

    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    assert in_a_child(full, work) == 0
    assert in_a_child(tmp_path / "no" / "log", work) == 0
