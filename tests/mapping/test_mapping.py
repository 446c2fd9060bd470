"""Ranks on machines, and how a machine finds itself in the list."""

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decentnode.communication.base import ProcessDirectory
from decentnode.config.link_security import needs_keys, ports_needed
from decentnode.config.loader import load
from decentnode.errors import ConfigError, MappingError
from decentnode.launcher.cluster.rendezvous import Rendezvous
from decentnode.mapping import base as mapping
from decentnode.mapping.base import (
    Linear,
    Machine,
    check_address,
    is_own_address,
    resolve_names,
    tcp_endpoint,
)
from decentnode.node.experiment import Experiment
from tests.integration.running import QUICKSTART

counts = st.lists(st.integers(1, 9), min_size=1, max_size=9)


def linear(*nodes: int) -> Linear:
    return Linear(tuple(Machine(f"10.0.0.{index + 1}", count) for index, count in enumerate(nodes)))


def known(*own: str, **names: str):
    """A host with these addresses, in a network where the names are known."""
    return own.__contains__, lambda wanted: {
        name: [names[name]] if name in names else [name] if name[0].isdigit() else [] for name in wanted
    }


# The bijection -----------------------------------------------------------------------------------------


@given(counts)
def test_ranks_and_places_are_a_bijection(nodes) -> None:
    machines = linear(*nodes)
    places = [(m, k) for m, count in enumerate(nodes) for k in range(count)]
    assert machines.num_nodes == len(places)
    assert [(machines.machine_of(rank), machines.local_rank(rank)) for rank in range(len(places))] == places
    assert [machines.rank(*place) for place in places] == list(range(len(places)))
    assert [rank for m in range(len(nodes)) for rank in machines.ranks_of(m)] == list(range(len(places)))


@pytest.mark.parametrize("rank", [-1, 5])
def test_rank_that_is_nowhere(rank) -> None:
    with pytest.raises(IndexError, match=rf"^rank {rank} is outside 0\.\.4$"):
        linear(2, 3).machine_of(rank)


# Which machine is this? --------------------------------------------------------------------------------


def test_machine_finds_itself_by_address_or_name() -> None:
    machines = Linear((Machine("10.0.0.1", 1), Machine("node2", 1), Machine("fd00::3", 1)))
    names = {"node2": "10.0.0.2", "fd00::3": "fd00::3"}
    assert [machines.find_machine(*known(ip, **names)) for ip in ("10.0.0.1", "10.0.0.2", "fd00::3")] == [
        0,
        1,
        2,
    ]


def test_one_machine_with_a_loopback_address_asks_nobody() -> None:
    def nobody(*_: object) -> None:
        raise AssertionError("asked")

    for address in ("127.0.0.1", "::1", "localhost", "127.3.2.1"):
        assert Linear((Machine(address, 4),)).find_machine(nobody, nobody) == 0


def test_one_machine_with_another_address_must_be_this_one() -> None:
    assert linear(4).find_machine(*known("10.0.0.1")) == 0
    with pytest.raises(MappingError):
        linear(4).find_machine(*known("10.0.0.9"))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ([], "mapping: no machine has an address of this host (0: 10.0.0.1, 1: node2 (10.0.0.2)); "
             "correct it, or add machine=K"),
        (["10.0.0.1", "10.0.0.2"], "mapping: several machines have an address of this host "
                                   "(0: 10.0.0.1, 1: node2 (10.0.0.2)); name one: machine=K"),
    ],
)  # fmt: skip
def test_not_exactly_one_machine_is_this_host(own, message) -> None:
    machines = Linear((Machine("10.0.0.1", 1), Machine("node2", 1)))
    with pytest.raises(MappingError) as error:
        machines.find_machine(*known(*own, node2="10.0.0.2"))
    assert error.value.lines == (message,)


def test_every_name_that_nobody_knows_is_named() -> None:
    machines = Linear((Machine("here", 1), Machine("10.0.0.1", 1), Machine("there", 1)))
    with pytest.raises(MappingError) as error:
        machines.find_machine(*known("10.0.0.1"))
    assert error.value.lines == tuple(
        f"mapping.machines[{index}].address: no address is known for the name '{name}'; "
        "correct it, or give an IP address"
        for index, name in ((0, "here"), (2, "there"))
    )


def test_a_loopback_address_among_those_of_other_hosts_is_refused() -> None:
    """Also where this host knows its own name as one (Debian); not where all machines are one host."""
    known = {"a": ["127.0.1.1"], "b": ["10.0.0.2"], "both": ["127.0.1.1", "10.0.0.3"], "nowhere": []}

    def check(*addresses: str) -> None:
        machines = tuple(Machine(address, 1) for address in addresses)
        Linear(machines).check_reachable(lambda names: {name: known.get(name, [name]) for name in names})

    for good in (["a", "127.0.0.1", "::1"], ["b", "both"], ["a", "nowhere"], ["127.0.0.1"]):
        check(*good)
    with pytest.raises(MappingError) as error:
        check("a", "b", "::1")
    remedy = "which machine 1 (b) cannot reach; give one that it can (`hostname -I` shows them)"
    assert error.value.lines == tuple(
        f"mapping: machine {machine} has a loopback address, {address}, {remedy}"
        for machine, address in ((0, "a (127.0.1.1)"), (2, "::1"))
    )


def test_a_machine_behind_nat_binds_where_it_listens_and_others_use_its_address() -> None:
    first, second = (
        "{address: 203.0.113.7, nodes: 2, listen: 0.0.0.0}",
        "{address: 203.0.113.8, nodes: 2, listen: 10.0.0.5}",
    )
    machines = f"[{first}, {second}]"
    text = (
        "graph={name: ring, nodes: 4}",
        f"mapping={{machines: {machines}}}",
        "communication={name: zeromq, local: tcp}",
    )
    settings = load(QUICKSTART, text)
    hosts = settings.mapping.make()
    assert hosts.find_machine(*known("0.0.0.0", "10.0.0.5")) == 1
    assert {ports.address for ports in ports_needed(settings, 0)} == {"0.0.0.0"}
    assert {ports.address for ports in ports_needed(settings, 1)} == {"10.0.0.5"}
    assert needs_keys(settings)
    processes, zeromq = Experiment.from_settings(settings).processes, settings.communication.make()
    reached = [zeromq.tcp_endpoint(ProcessDirectory(processes, machine, ""), 0) for machine in (0, 1, 2)]
    assert reached == ["tcp://127.0.0.1:29600"] * 2 + ["tcp://203.0.113.7:29600"]
    assert processes[0].bound == "0.0.0.0"
    assert [Rendezvous(hosts, 0, None).endpoint(machine) for machine in (0, 1)] == [
        "tcp://203.0.113.7:29500", "tcp://203.0.113.8:29500",
    ]  # fmt: skip
    # Loopback for the others, but the whole network can connect.
    alone = "mapping={machines: [{address: 127.0.0.1, nodes: 4, listen: 0.0.0.0}]}"
    assert needs_keys(load(QUICKSTART, [text[0], alone, text[2]]))
    with pytest.raises(ConfigError, match=r"machines\[0\].listen: gloo and NCCL bind the addresses"):
        load(QUICKSTART, [*text[:2], "communication={name: torch_distributed, trusted_network: true}"])


def test_own_addresses_are_those_that_can_be_bound() -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.1")  # a documentation address (RFC 5737), nobody's
    assert not is_own_address("2001:db8::1")


def test_localhost_is_resolved() -> None:
    assert "127.0.0.1" in resolve_names(["localhost"])["localhost"]
    assert resolve_names(["10.0.0.1", "::1"]) == {"10.0.0.1": ["10.0.0.1"], "::1": ["::1"]}


def test_a_resolver_that_hangs_or_fails_costs_its_limit_at_most(monkeypatch) -> None:
    """Were the slow one waited for, it would have an address."""
    answered = threading.Event()

    def resolve_slowly(name: str, *_: object, **__: object) -> list[tuple]:
        if name == "slow":
            answered.wait(60)
        if name == "wrong":
            raise socket.gaierror("nobody")
        return [(2, 2, 0, "", ("10.0.0.7", 0))] * 2

    monkeypatch.setattr(mapping.socket, "getaddrinfo", resolve_slowly)
    addresses = resolve_names(["slow", "fast", "wrong"], seconds=1.0)
    answered.set()
    assert addresses == {"slow": [], "fast": ["10.0.0.7"], "wrong": []}


# Addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "127.0.0.1", "fd00::1", "::1", "fe80::1%eth0", "node1", "gpu-3.cluster.example.", "node_1"],
)  # fmt: skip
def test_address(address) -> None:
    assert check_address(address) == address


def test_tcp_endpoint() -> None:
    assert tcp_endpoint("10.0.0.1", 29600) == "tcp://10.0.0.1:29600"
    assert tcp_endpoint("fd00::1", 29600) == "tcp://[fd00::1]:29600"
