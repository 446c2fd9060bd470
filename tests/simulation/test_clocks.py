"""Which time is real: everything that a node does reads its clock, and the exceptions have reasons."""

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "decentnode"
FOLDERS = ("node", "communication", "training", "sharing", "graph", "formats")
REAL_TIME = re.compile(
    r"time\.monotonic|time\.time\b|time\.sleep|perf_counter|asyncio\.sleep|loop\.time|AwakeClock\(|\bClock\(\)"
)
PROCESSES = "processes and sockets, which no simulation has"
DEFAULT = "the clock where none is given; a node gives its own"
REAL = {
    "communication/exchange/mailbox.py": DEFAULT,
    "communication/interceptor.py": PROCESSES,
    "communication/launcher_link/heartbeats.py": "heartbeats: the watchdog looks at processes",
    "communication/launcher_link/reports.py": "room in a pipe to the launcher",
    "communication/launcher_link/snapshots.py": "the observer, by `Clock.wait_outside`",
    "communication/launcher_link/attachment.py": "a script and its launcher, before the start",
    "communication/peer_sampling/client.py": "the service, by `Clock.wait_outside`",
    "communication/peer_sampling/service.py": "a process of its own",
    "communication/peers/peers.py": DEFAULT,
    "communication/peers/rejoin.py": PROCESSES,
    "communication/security/": PROCESSES,
    "communication/shared_memory/": PROCESSES,
    "communication/torch_distributed/": PROCESSES,
    "communication/zeromq/": PROCESSES,
    "communication/zmq_poll.py": PROCESSES,
    "node/asynchronous/schedule.py": "a replay in real time: a suspension of this process is no silence",
    "node/checkpoint/checkpoint_file.py": "how long a file waits for other nodes of its process",
    "node/checkpoint/node_checkpoints.py": "the start of the run in real seconds, beside virtual ones",
    "node/calibration.py": "measures real steps",
    "node/child_answers.py": "a child process before the start",
    "node/faults/": "faults on processes and their messages",
    "node/host_process.py": "where the clock of a process is made",
    "node/recording/transcripts.py": "how often a file is written",
    "node/execution/workers.py": PROCESSES,
    "node/round_scheduler.py": "the launcher's decision, by `Clock.wait_outside`",
    "formats/records.py": "`wall_seconds` beside the virtual ones; how often the kernel is asked for memory",
}


def test_only_a_short_list_of_files_reads_real_time():
    found = {
        str(path.relative_to(PACKAGE))
        for folder in FOLDERS
        for path in (PACKAGE / folder).rglob("*.py")
        if REAL_TIME.search(path.read_text("utf-8"))
    }
    exception = {file: next((key for key in REAL if file.startswith(key)), None) for file in found}
    assert {file for file, key in exception.items() if key is None} == set()
    assert set(REAL) - set(exception.values()) == set(), "no exception without a use"
