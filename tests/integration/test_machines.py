"""Several machines: network namespaces with addresses of their own, and loopback addresses."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.running import QUICKSTART, Run, alive, run_command, wait_until

NAMESPACES = ["decentnode-a", "decentnode-b", "decentnode-c"]
ADDRESSES = ["10.77.31.1", "10.77.31.2", "10.77.31.3"]
BRIDGE = "decentnode-br"
SEVEN = "graph={name: ring, nodes: 7}"
COUNTS = [3, 2, 2]
LIMITS = {"refusal": 1.0}
"""For how long those are told that a start was refused who come later."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def remove_network() -> None:
    for name in NAMESPACES:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)


@pytest.fixture(scope="module")
def network():
    """Three hosts on one switch."""
    try:
        remove_network()
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        for name, address in zip(NAMESPACES, ADDRESSES, strict=True):
            end = f"dn-{name[-1]}"
            ip("netns", "add", name)
            ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", end, "master", BRIDGE, "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        remove_network()
        pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}")
    yield
    remove_network()


def machines(addresses: list[str], counts: list[int]) -> str:
    listed = ", ".join(f"{{address: '{a}', nodes: {n}}}" for a, n in zip(addresses, counts, strict=True))
    return f"mapping.machines=[{listed}]"


def start(tmp_path, overrides, which=(0, 1, 2), keys=None, limits=LIMITS) -> list[Run]:
    """Runs on these machines, with the key folders of `keys` or with plain links."""
    everywhere = [machines(ADDRESSES, COUNTS), SEVEN, *overrides]
    return [
        Run(
            tmp_path / f"machine{i}",
            [*everywhere, f"security={{keys: {keys[i]}}}" if keys else "security=none"],
            namespace=NAMESPACES[i],
            limits=limits,
        )
        for i in which
    ]


def deal_keys(tmp_path, mapping: str, graph: str = SEVEN) -> list[Path]:
    """A folder for each machine, with its own secret and the list of all, as `decentnode keys` says."""
    made = tmp_path / "made"
    words = ["keys", str(QUICKSTART), mapping, graph, "--out", str(made)]
    assert run_command(tmp_path / "keys.out", *words) == 0
    folders = []
    for secret in sorted(made.glob("*.secret")):
        folders.append(tmp_path / f"keys of {secret.stem}")
        folders[-1].mkdir(mode=0o700)
        for file in (secret, made / "machines.json"):
            shutil.copy(file, folders[-1])
    return folders


def test_three_machines_with_keys_train_together(network, tmp_path):
    """Each machine finds its own place, and ends with everything; models as on one machine."""
    runs = start(tmp_path, ["rounds=20"], keys=deal_keys(tmp_path, machines(ADDRESSES, COUNTS)))
    assert [run.wait() for run in runs] == [0, 0, 0], runs[0].text + runs[1].text
    summary = runs[0].summary
    assert [run.summary["finished_nodes"] for run in runs] == [7, 7, 7]
    assert len({run.summary["model_hash"] for run in runs}) == 1
    assert summary["consensus_distance"] > 0 and summary["average_model"]["accuracy"] > 0.9
    assert len({run.summary["run_id"] for run in runs}) == 1
    assert [len(list((run.run_dir / "records").iterdir())) for run in runs] == COUNTS
    alone = Run(tmp_path / "alone", [SEVEN, "rounds=20"])
    assert alone.wait() == 0
    assert summary["model_hash"] == alone.summary["model_hash"]
    assert summary["bytes_sent"] == alone.summary["bytes_sent"]
    assert summary["consensus_distance"] == pytest.approx(alone.summary["consensus_distance"], rel=1e-6)


def test_a_lost_machine_does_not_stop_the_others(network, tmp_path):
    """Machine 0's launcher is killed with all its nodes; the other machines finish and say so."""
    overrides = ["rounds=40", "failures.grace=0.5", "sharing=faulty:Paced"]
    runs = start(tmp_path, overrides, limits={"machine_silent": 3.0})
    runs[0].wait_for_round(5)
    tree = runs[0].tree()
    runs[0].process.kill()
    assert [run.wait() for run in runs[1:]] == [3, 3], runs[1].text
    wait_until(lambda: not any(map(alive, tree)), 30)
    assert [run.summary["finished_nodes"] for run in runs[1:]] == [4, 4]


def test_a_missing_machine_is_named(network, tmp_path):
    runs = start(tmp_path, ["failures.start_deadline=3"], which=(0, 2))
    assert [run.wait(30) for run in runs] == [4, 4]
    for run in runs:
        assert "machine 1 (10.77.31.2, ranks 3-4)" in run.text
        assert "Traceback" not in run.text


def test_machines_with_different_configurations_refuse_to_start(network, tmp_path):
    runs = start(tmp_path, [], which=(0, 1))
    third = start(tmp_path, ["training.batch_size=8"], which=(2,))
    assert [run.wait(30) for run in [*runs, *third]] == [4, 4, 4]
    for run in [*runs, *third]:
        assert "machine 2 (10.77.31.3, ranks 5-6) has another configuration or graph" in run.text
        assert run.text.count("\n") == 2
        assert "\n  training.batch_size: 8; machine 0: 16\n" in run.text


@pytest.mark.parametrize("what", ["a mistake", "a signal"])
def test_machines_of_a_store_that_learn_their_addresses(network, what, tmp_path):
    """Machine 2 comes never; machine 1 ends while machine 0 waits for its address."""
    environment = {"DECENTNODE_MACHINES": "3", "DECENTNODE_RENDEZVOUS": f"{ADDRESSES[0]}:31560"}
    words = ["mapping=null", "graph={name: ring, nodes: 3}", "security=none"]
    runs = [
        Run(
            tmp_path / f"machine{m}",
            [*words, *(["roudns=5"] if m and what == "a mistake" else [])],
            environment=environment | {"DECENTNODE_MACHINE": str(m)},
            namespace=NAMESPACES[m],
            limits={"early_end": 3.0},
        )
        for m in range(2)
    ]
    if what == "a signal":
        # That of machine 0 with machine 1, whose address is hexadecimal here.
        table = ["ip", "netns", "exec", NAMESPACES[0], "cat", "/proc/net/tcp", "/proc/net/tcp6"]
        wait_until(lambda: b"021F4D0A" in subprocess.run(table, capture_output=True).stdout, 30)
        # The first connection only shows that the store is there.
        time.sleep(3.0)
        os.kill(runs[1].process.pid, signal.SIGTERM)
    codes = [2, 2] if what == "a mistake" else [4, 143]
    assert [run.wait(30) for run in runs] == codes, runs[0].story
    why = "command line: roudns: unknown key" if what == "a mistake" else "it was stopped"
    assert f"machine 1 has ended before the run began: {why}" in runs[0].text


LOOPBACK = machines(["127.0.0.1", "127.0.0.2"], [2, 2])
FOUR = "graph={name: ring, nodes: 4}"


def start_on_loopback(tmp_path, port: int, *overrides: list[str]) -> list[Run]:
    """Machines 0, 1, ... with these overrides each."""
    ports = [f"mapping.rendezvous_port={port}", f"communication={{name: zeromq, base_port: {port + 10}}}"]
    return [
        Run(tmp_path / f"machine{i}", [LOOPBACK, FOUR, *ports, f"machine={i}", *overrides], limits=LIMITS)
        for i, overrides in enumerate(overrides)
    ]


def test_two_machines_on_loopback_with_keys_and_without(tmp_path):
    """On loopback keys may be left out; with them the links are guarded and the models the same."""
    keys = deal_keys(tmp_path, LOOPBACK, FOUR)
    (tmp_path / "plain").mkdir()
    runs = start_on_loopback(tmp_path, 30120, *(["rounds=10", f"security={{keys: {k}}}"] for k in keys))
    runs += start_on_loopback(tmp_path / "plain", 30100, ["rounds=10"], ["rounds=10"])
    assert [run.wait() for run in runs] == [0, 0, 0, 0], runs[0].text
    assert runs[0].summary["finished_nodes"] == runs[2].summary["finished_nodes"] == 4
    assert runs[0].summary["model_hash"] == runs[2].summary["model_hash"]
    assert [run.summary["refused_messages"] for run in runs] == [{}] * len(runs), "nobody did anything wrong"
    assert not any(run.leftovers() for run in runs)


def test_machines_without_a_link_stop_and_name_it(network, tmp_path):
    """NAT without forwarding: the rendezvous needs one way alone, the nodes' links both."""
    hidden = "{address: 10.77.31.9, listen: 0.0.0.0, nodes: 2}"
    words = [f"mapping.machines=[{{address: {ADDRESSES[0]}, nodes: 2}}, {hidden}]", FOUR, "security=none"]
    words += ["failures={grace: 0.5, start_deadline: 20}", "rounds=30"]
    runs = [
        Run(
            tmp_path / f"machine{i}",
            [*words, f"machine={i}"],
            namespace=NAMESPACES[i],
            limits=LIMITS | {"connect": 0.5},
        )
        for i in range(2)
    ]
    assert [run.wait(90) for run in runs] == [4, 4], runs[0].story
    why = "error: no link to any other machine: rank "
    assert f"{why}0 never connected to 10.77.31.9:29601 (rank 3); NAT and packet filters" in runs[0].text
    assert f"{why}2 connected to {ADDRESSES[0]}:29601, but nothing ever arrived" in runs[1].text
    assert not any("Traceback" in run.text for run in runs)


SCHEME = """
from decentnode.sharing.gossip import Gossip


class Mine(Gossip):
    beta = {beta}
"""


def test_machines_with_other_code_refuse_to_start_and_name_the_file(tmp_path):
    for machine in range(2):
        folder = tmp_path / str(machine)
        folder.mkdir()
        (folder / "phd.py").write_text(SCHEME.format(beta=machine))
    both = [
        "sharing=phd:Mine", LOOPBACK, FOUR, "mapping.rendezvous_port=30160",
        "communication={name: zeromq, base_port: 30170}",
    ]  # fmt: skip
    runs = [Run(tmp_path / str(machine) / "run", [*both, f"machine={machine}"]) for machine in range(2)]
    assert [run.wait() for run in runs] == [2, 2]
    line = "machine 1 (127.0.0.2, ranks 2-3) has other code than machine 0: phd.py; "
    line += "put the same files on all machines (failures.allow_different_code: true permits others)\n"
    assert [run.text for run in runs] == [line, f"machine 0: {line}"]


def test_a_machine_with_other_keys_is_turned_away(tmp_path):
    """Machine 1 has a list of its own making, on which machine 0 is the real one."""
    real, false = deal_keys(tmp_path, LOOPBACK, FOUR), tmp_path / "false"
    false.mkdir()
    impostor = deal_keys(false, LOOPBACK, FOUR)[1]
    lists = [json.loads((folder / "machines.json").read_text()) for folder in (real[0], impostor)]
    lists[1]["machines"][0] = lists[0]["machines"][0]
    (impostor / "machines.json").write_text(json.dumps(lists[1]))
    timeout = "failures.start_deadline=4"
    runs = start_on_loopback(
        tmp_path, 30140, *([timeout, f"security={{keys: {keys}}}"] for keys in (real[0], impostor))
    )
    assert [run.wait() for run in runs] == [4, 2]
    assert "machine 0 has other keys than this machine" in runs[1].text
    assert "connections that were refused: unknown key" in runs[0].text


def test_machines_that_others_can_reach_do_not_start_without_keys(tmp_path):
    """One line, exit code 2, and nothing is left."""
    run = Run(tmp_path / "machine0", [machines(ADDRESSES[:2], [8, 8]), "machine=0"])
    assert run.wait(30) == 2
    assert "security: others on the network could reach this run" in run.text
    assert "decentnode keys CONFIG.yaml, set DECENTNODE_SECRET, or write security: none" in run.text
    assert run.text.count("\n") == 1 and not run.run_dir.exists()
