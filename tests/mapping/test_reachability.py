"""Why a machine is not reached: every cause in words of its own."""

import socket
import subprocess
import sys

import pytest

from decentnode.mapping.base import Linear, Machine
from decentnode.mapping.reachability import REFUSED, SILENT, UNKNOWN, why_unreachable
from tests.support.launchers import LauncherThreads
from tests.support.processes import free_ports

SPACE = "decentnode-reach"
PROBE = """
import sys
from decentnode.mapping.reachability import why_unreachable
print(why_unreachable(sys.argv[1], 9, 1.0))
"""


@pytest.fixture
def lonely():
    """A network namespace with a link that leads nowhere, and without IPv6."""
    commands = [
        ["netns", "add", SPACE],
        ["-n", SPACE, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"],
        ["-n", SPACE, "address", "add", "10.77.41.1/24", "dev", "eth0"],
        ["-n", SPACE, "link", "set", "eth0", "up"],
        ["-n", SPACE, "link", "set", "eth1", "up"],
        ["-n", SPACE, "link", "set", "lo", "up"],
    ]
    try:
        for words in commands:
            subprocess.run(["ip", *words], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    else:
        yield SPACE
    finally:
        subprocess.run(["ip", "netns", "del", SPACE], capture_output=True, check=False)


def test_each_cause_has_words_of_its_own(lonely):
    def why(address):
        words = ["ip", "netns", "exec", lonely, sys.executable, "-c", PROBE, address]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    assert why("10.77.42.1") == "there is no way to it from here over IPv4: Network is unreachable"
    assert why("fd00:77::1").startswith("there is no way to it from here over IPv6: ")
    # A neighbor that is not there: nobody answers for its address.
    assert why("10.77.41.2") in (SILENT, "there is no way to it from here over IPv4: No route to host")
    assert why("127.0.0.1") == REFUSED
    assert why("nowhere.invalid") == UNKNOWN


def test_a_port_that_opens_late_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert why_unreachable("127.0.0.1", server.getsockname()[1], 1.0) == ""


def test_the_rendezvous_says_why_a_machine_is_not_reached():
    """Machine 1 looks for machine 0, which in another run looks for it."""
    named, other = Machine("nowhere.invalid", 2), Machine("127.0.0.2", 2)
    errors = []
    for machine, machines in ((1, (named, other)), (0, (Machine("127.0.0.1", 2), named, other))):
        with LauncherThreads(3) as launchers:
            launchers.mapping = Linear(machines, free_ports(1))
            errors.append(str(launchers.start(machine, 0.2).exception(30.0)))
    assert errors[0].startswith("timed out after 0 s waiting for machine 0 (nowhere.invalid, ranks 0-1) at ")
    assert errors[0].endswith(UNKNOWN)
    missing = "machine 1 (nowhere.invalid, ranks 2-3); machine 2 (127.0.0.2, ranks 4-5)"
    assert errors[1] == f"timed out after 0 s waiting for {missing}; machine 1: {UNKNOWN}"


def test_what_listens_there_may_be_no_launcher():
    with LauncherThreads(2) as launchers, socket.create_server(("127.0.0.1", 0)) as other:
        launchers.mapping = Linear(launchers.mapping.machines, other.getsockname()[1])
        error = launchers.start(1, 0.3).exception(20.0)
    assert "what listens there does not answer: another program, or a run with other links" in str(error)


def test_a_long_wait_says_for_which_machine(monkeypatch, capsys):
    monkeypatch.setattr("decentnode.core.timeouts.Timeouts.rendezvous_notice", 0.2)
    with LauncherThreads(2) as launchers:
        launchers.start(1, 4.0).exception(20.0)
    line, *others = capsys.readouterr().out.splitlines()
    assert line.startswith("waiting for machine 0 (127.0.0.1, ranks 0-1) at tcp://127.0.0.1:")
    assert REFUSED in line and line.endswith("s more") and not others
