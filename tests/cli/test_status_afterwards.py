"""What `decentnode status` shows of a run that has no launcher, from its events."""

import json

import pytest

from decentnode.cli.status import report

LOST = (9.0, "lost", "rank 2 is lost", 2)
STARTED, ENDED = (2.0, "started", "", None), (12.0, "ended", "how", None)
MEMORY, NEWER = (1.0, "memory", "little memory", None), (3.0, "lost", "rank 1 is lost", 1)


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        ([STARTED, LOST], ["rank 2"]),
        ([STARTED, LOST, ENDED], ["rank 2"]),
        # Of an earlier start, which was killed or has ended.
        ([STARTED, LOST, STARTED], []),
        ([STARTED, LOST, ENDED, MEMORY, STARTED, NEWER], ["little", "rank 1"]),
        ([STARTED, LOST, MEMORY, STARTED, NEWER, ENDED], ["little", "rank 1"]),
        ([STARTED, LOST, ENDED, MEMORY, ENDED], ["little"]),
        ([MEMORY], ["little"]),
    ],
)
def test_events_of_earlier_starts_are_not_those_of_the_run_now(tmp_path, events, shown):
    (tmp_path / "config.yaml").touch()
    fields = ("seconds", "kind", "text", "rank")
    lines = [json.dumps(dict(zip(fields, event, strict=True))) for event in events]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    text = "\n".join(report(tmp_path))
    for words in ("rank 1", "rank 2", "little"):
        assert (words in text) == (words in shown), text
