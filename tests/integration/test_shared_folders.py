"""Machines that share the folder of their run: the folder above theirs stands for the run."""

import shutil
import time

import pytest

import decentnode
from decentnode.results import Run as Results
from decentnode.results.study import read_variants
from tests.integration.running import Run, call, start_command
from tests.integration.test_machines import FOUR, LOOPBACK

WORDS = [LOOPBACK, FOUR, "security=none", "--continue"]


def machines_of(folder, port, *words):
    ports = [f"mapping.rendezvous_port={port}", f"communication={{name: zeromq, base_port: {port + 10}}}"]
    shared = f"run_dir={folder / 'shared'}"
    return [Run(folder / f"m{m}", [*WORDS, *ports, f"machine={m}", shared, *words]) for m in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    runs = machines_of(folder, 31580, "rounds=6", "evaluation.every=3")
    assert [run.wait() for run in runs] == [0, 0], runs[0].story
    return folder / "shared"


def said(*words):
    done = call(*map(str, words))
    return done.returncode, done.stdout + done.stderr


def test_every_reader_takes_the_folder_above_those_of_the_machines(folder):
    first = folder / "machine-0"
    assert [path.name for path in sorted(folder.iterdir())] == ["machine-0", "machine-1"]
    run = Results(folder)
    assert run.directory == first and run.state == "finished" and run.summary["finished_nodes"] == 4
    assert [curves.name for curves in read_variants([folder])] == ["quickstart"]
    assert [one.directory for one in decentnode.Study(folder.parent).runs] == [first]
    for words, shown in (
        (["status", folder], "all 4 nodes finished 6 rounds"),
        (["verify", folder], "all files belong together"),
        (["compare", folder, "--no-draw"], "quickstart"),
        (["report", folder, "--out", folder.parent / "report.html"], "report.html"),
        (["export", folder, "--out", folder.parent / "table"], "table.csv"),
    ):
        code, text = said(*words)
        assert code == 0 and shown in text, text
    code, text = said("attack", folder)
    assert code == 2 and "nobody listens in this run" in text
    code, text = said("restart", folder, 1)
    assert (code == 2 and "not found" in text) or "no launcher answers" in text
    code, text = said("status", folder.parent / "nothing")
    assert (code, text.count("\n")) == (2, 1)


def test_what_one_machine_lacks_is_found_from_above(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "machine-1" / "records" / "00003.jsonl").unlink()
    code, text = said("verify", copy)
    assert code == 2 and "machine-1" in text and "00003" in text


def test_each_machine_resumes_its_part(folder):
    outputs = [folder.parent / f"again{m}.out" for m in range(2)]
    words = ["resume", str(folder), "rounds=8"]
    resumed = [start_command(output, *words, f"machine={m}") for m, output in enumerate(outputs)]
    assert [process.wait(60) for process in resumed] == [0, 0], outputs[0].read_text()
    assert Results(folder).summary["ended_rounds"] == 8


def test_a_machine_alone_on_its_disk_knows_that_the_run_is_over(tmp_path):
    """It ends at once; without a summary, it waits for machine 0."""

    def start(machine, *words):
        ports = ["mapping.rendezvous_port=31620", "communication={name: zeromq, base_port: 31630}"]
        disk = tmp_path / f"disk{machine}"
        return Run(disk, [*WORDS, *ports, f"machine={machine}", "rounds=6", *words])

    runs = [start(m) for m in range(2)]
    assert [run.wait() for run in runs] == [0, 0], runs[0].story
    own = tmp_path / "disk1" / "machine-1"
    again = start(1)
    began = time.monotonic()
    assert again.wait() == 0 and time.monotonic() - began < 10, again.text
    assert again.text == f"{own}: this run has finished all its 6 rounds; nothing is left to do\n"
    (own / "summary.json").unlink()
    alone = start(1, "failures.start_deadline=2")
    assert alone.wait() == 4
    assert "no process listens at this port" in alone.text
