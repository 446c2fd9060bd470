"""The output of host processes."""

import os
import sys
from functools import partial

from decentnode.core.streams import redirect_output
from tests.support.processes import in_a_child


def test_what_is_printed_is_appended_at_once(tmp_path):
    path = tmp_path / "log"
    path.write_text("before\n")

    def work():
        redirect_output(path)
        print("one")
        print("two", file=sys.stderr)
        os.write(2, b"three\n")
        print("four", flush=True)

    assert in_a_child(work) == 0
    assert path.read_text() == "before\none\ntwo\nthree\nfour\n"


def test_a_full_disk_ends_nobody(tmp_path):
    def work(path):
        redirect_output(path)
        for _ in range(3):
            print("x" * 20_000, flush=True)
            print("y", file=sys.stderr)
        sys.stdout.flush()

    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    assert in_a_child(partial(work, full)) == 0
    assert in_a_child(partial(work, tmp_path / "no" / "log")) == 0
