"""The live page of a study: what it serves, to whom, and when it is a newer one."""

import os
import subprocess
import urllib.request
from math import inf

from starlette.testclient import TestClient

from decentnode.studies import watch
from decentnode.studies.watch import LivePage, application, is_local
from tests.integration.spawner import ROOT, Spawner
from tests.results.test_study import make_run

LIMIT = 60.0


def test_a_page_has_a_newer_version_when_a_run_has_gone_on(tmp_path, monkeypatch):
    run = make_run(tmp_path / "a", [(0.5, 0.5)], done=False)
    client = TestClient(application(LivePage([tmp_path]), "", ["testserver"]))
    page, first = client.get("/"), client.get("/version").text
    assert page.status_code == 200 and "data-live" in page.text and "incomplete" in page.text
    assert page.headers["cache-control"] == "no-store"
    with (run / "evaluations.jsonl").open("a") as file:
        file.write(
            '{"round": 19, "seconds": 2.0, "metrics": {"accuracy": {"0": 0.75, "1": 0.75}, '
            '"loss": {"0": 0.5, "1": 0.5}}, "train_loss": {}, "bytes_sent": {"0": 9, "1": 9}}\n'
        )
    assert client.get("/version").text == first, "not read again within two seconds"
    monkeypatch.setattr(watch, "READ_INTERVAL", 0.0)
    monkeypatch.setattr(watch, "WORK_SHARE", inf)
    assert client.get("/version").text != first and "75.0" in client.get("/").text
    assert client.post("/").status_code == 405
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400


def test_other_addresses_need_the_token(tmp_path):
    make_run(tmp_path / "a", [(0.5, 0.5)])
    app = application(LivePage([tmp_path]), "secret", [])
    assert TestClient(app).get("/").status_code == 403
    assert TestClient(app).get("/version?token=other").status_code == 403
    client = TestClient(app)
    assert client.get("/?token=secret").status_code == 200
    assert client.get("/version").status_code == 200, "the browser keeps it as a cookie"
    assert [is_local(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "host")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_the_command_serves_and_ends_on_ctrl_c(tmp_path, call):
    make_run(tmp_path / "a", [(0.5, 0.5)])
    python = Spawner.of_this_process().python()
    command = [python, "-m", "decentnode", "watch", str(tmp_path), "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().split()[0]
        # Whoever sees the address can open it.
        page = urllib.request.urlopen(address, timeout=LIMIT).read().decode()
        assert "<h1>" in page
        code, _, line = call("watch", tmp_path, "--port", address.rsplit(":", 1)[1].strip("/"))
        assert code == 2 and "Address already in use; choose another with --port" in line
        server.send_signal(2)
        assert server.wait(LIMIT) in (0, 130)
