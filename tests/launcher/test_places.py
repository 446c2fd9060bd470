"""How machines that nobody has listed, or that return elsewhere, find a run and their place in it."""

import threading
from dataclasses import replace

import pytest

from decentnode.communication.security.job_secret import derived_credentials
from decentnode.config import loader
from decentnode.errors import BadInput, MappingError, StartError
from decentnode.launcher.cluster.place import find_place, save_addresses, saved_addresses
from decentnode.launcher.cluster.scheduler import settle
from decentnode.launcher.state.messages import PlaceOffer, PlaceRequest
from decentnode.mapping.open import Open
from tests.integration.running import QUICKSTART
from tests.support.launchers import LauncherThreads
from tests.support.processes import free_ports

SECRET = b"no secret at all, but long enough to be one"


def ask(launchers, asker="a", wanted=-1, machine=None, job="", known=None, keys=None, seconds=3.0):
    """Asks machine 0 for a place, as a machine of this name does."""
    count = len(launchers.mapping.machines)
    request = PlaceRequest(count if machine is None else machine, job, asker, wanted)
    known = {0: launchers.mapping.address(0)} if known is None else known
    return find_place(known, launchers.mapping.rendezvous_port, request, keys, seconds)


@pytest.fixture
def waiting():
    """Machine 0 of four, which waits for the others."""
    with LauncherThreads(4) as launchers:
        stopped = threading.Event()
        future = launchers.start(0, deadline=60.0, is_stopped=stopped.is_set)
        launchers.wait_until_listening()
        yield launchers
        stopped.set()
        with pytest.raises(StartError):
            future.result(20.0)


def test_each_machine_that_asks_before_the_start_has_a_place_of_its_own(waiting):
    first = ask(waiting, "a")
    assert first == PlaceOffer(1, {0: "127.0.0.1"})
    assert ask(waiting, "b").index == 2, "the first one has not joined, but its place is kept"
    assert ask(waiting, "a").index == 1, "another start of the same machine"
    assert ask(waiting, "c", wanted=2).index == 3, "what it wants is kept for another one"
    assert ask(waiting, "d").reason == "all 4 machines are here; start no more than 4"
    waiting.rendezvous_of[0]._places._kept.clear()
    assert ask(waiting, "e", wanted=3).index == 3


def test_no_run_in_progress_is_found_before_the_start(waiting):
    """A machine of a job has its index, and looks for a run that goes on without it."""
    assert ask(waiting, machine=2, seconds=0.5) is None
    assert ask(waiting, job="another job", seconds=0.5) is None
    assert ask(waiting, known={0: "127.0.0.77"}, seconds=30.0) is None, "nothing listens there: no wait"


def test_who_asks_needs_the_secret_of_the_job():
    keys = [derived_credentials(SECRET, machine, 2) for machine in range(2)]
    with LauncherThreads(2, keys=keys) as launchers:
        stopped = threading.Event()
        future = launchers.start(0, deadline=60.0, is_stopped=stopped.is_set)
        launchers.wait_until_listening()
        assert ask(launchers, keys=derived_credentials(SECRET, 2, 2), seconds=30.0).index == 1
        assert ask(launchers, keys=derived_credentials(b"another" + SECRET, 2, 2), seconds=1.0) is None
        stopped.set()
        with pytest.raises(StartError):
            future.result(20.0)


def test_addresses_are_kept_for_a_machine_that_returns(tmp_path):
    assert saved_addresses(tmp_path) == {}
    save_addresses(tmp_path, {0: "10.0.0.1", 11: "fd00::2"})
    assert saved_addresses(tmp_path) == {0: "10.0.0.1", 11: "fd00::2"}
    (tmp_path / "machines.json").write_text("[]")
    assert saved_addresses(tmp_path) == {}


def test_blocks_of_ranks_are_taken_by_arrival():
    mapping = Open(nodes_per_machine=3, rendezvous="127.0.0.1:4000", nodes=7)
    assert [machine.nodes for machine in mapping.machines] == [3, 3, 1]
    assert [mapping.address(machine) for machine in range(3)] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert [*mapping.ranks_of(2)] == [6] and mapping.rendezvous_port == 4000
    assert Open(nodes_per_machine=3, rendezvous="node7", nodes=7).address(1) == "machine-1.invalid"


def settings(*more, mapping="{name: open, nodes_per_machine: 2, rendezvous: '127.0.0.1:PORT'}"):
    ring = ["graph=ring", "graph.nodes=6", "failures.start_deadline=1", "run_dir=nowhere"]
    return loader.load(QUICKSTART, [*ring, f"mapping={mapping.replace('PORT', str(free_ports(1)))}", *more])


def test_the_first_machine_of_one_host_is_the_one_that_comes_first():
    found, job = settle(settings(), or_resume=True)
    assert found.machine == 0 and found.run_dir == "nowhere/machine-0"
    assert [machine.nodes for machine in found.mapping.make().machines] == [2, 2, 2]
    assert job.startswith("open run of 127.0.0.1:")


def test_a_place_that_cannot_be_had_is_one_line(monkeypatch):
    with pytest.raises(
        StartError, match=r"^no run was found at 127.0.0.1, port \d+, within \d s: the machine"
    ):
        settle(settings("machine=1"), or_resume=True)
    with pytest.raises(StartError, match=r"^nowhere.invalid: .*\(key mapping.rendezvous\)$"):
        settle(settings(mapping="{name: open, nodes_per_machine: 2, rendezvous: nowhere.invalid}"), True)
    with pytest.raises(BadInput, match="--continue: nothing names the run"):
        settle(replace(settings(), run_dir=None), or_resume=True)
    monkeypatch.delenv("DECENTNODE_RENDEZVOUS", raising=False)
    with pytest.raises((MappingError, BadInput), match="is not set, nor DECENTNODE_RENDEZVOUS"):
        settings(mapping="{name: open, nodes_per_machine: 2}")
    with pytest.raises((MappingError, BadInput), match="must be host:port of machine 0"):
        settings(mapping="{name: open, nodes_per_machine: 2, rendezvous: 'a:99999'}")
