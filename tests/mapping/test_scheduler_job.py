"""What torchrun and srun put into the environment, read; and the machines that follow from it."""

import math
import os
import threading
import time
from pathlib import Path

import pytest

from decentnode.config import loader as config
from decentnode.errors import ConfigError, MappingError, StartError
from decentnode.launcher.cluster.scheduler import idle_notice, settle
from decentnode.launcher.state.run_directory import machine_directory
from decentnode.mapping import environment, stores
from decentnode.mapping import job_store as addresses
from decentnode.mapping.base import Linear
from decentnode.mapping.environment import Environment
from decentnode.mapping.job import (
    SchedulerJob,
    expand_counts,
    expand_hosts,
    find_job,
    find_series,
    job_of_one_task,
    repetition,
    seconds_to_stop,
)
from decentnode.mapping.job_store import agree
from tests.integration.running import QUICKSTART
from tests.support.processes import free_ports
from tests.support.rank_threads import in_threads

TORCHRUN = {
    "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "4", "MASTER_ADDR": "host0", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2", "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2", "SLURM_JOB_NODELIST": "a[1-9]", "SLURM_TASKS_PER_NODE": "4(x9)",
    "SLURM_STEP_NODELIST": "a[1-3]", "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}  # fmt: skip

PLACE = {
    "DECENTNODE_MACHINE": "1", "DECENTNODE_MACHINES": "3", "DECENTNODE_RENDEZVOUS": "host0:29471",
    "DECENTNODE_JOB": "night-7",
}  # fmt: skip


@pytest.fixture
def started(monkeypatch):
    """Sets the environment of a process."""
    for name in {**TORCHRUN, **SRUN, **PLACE}:
        monkeypatch.delenv(name, raising=False)

    def start(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return start


SCONTROL = """#!/bin/sh
case "$1 $2 $3" in
    "show hostnames a[1-3]") printf "a1\\na2\\na3\\n" ;;
    "show hostnames a[1-9]") seq -f a%g 9 ;;
    *) echo "Invalid hostlist: $3" >&2; exit 1 ;;
esac
"""


@pytest.fixture(autouse=True)
def scontrol(tmp_path_factory, monkeypatch):
    """What stands for SLURM's own, in the only folder before the system's."""
    path = tmp_path_factory.mktemp("slurm") / "scontrol"
    path.write_text(SCONTROL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    return path


@pytest.mark.parametrize(
    ("text", "hosts"), [("a", "a"), ("gpu-a.b.org,c-0", "gpu-a.b.org c-0"), ("a[1-3]", "a1 a2 a3")]
)
def test_hosts_are_spelled_out(text, hosts):
    assert expand_hosts(text) == hosts.split()


@pytest.mark.parametrize("text", ["", "a,", ",a", "a[", "a]", "a[x]"])
def test_what_is_no_list_of_hosts_is_refused(text):
    with pytest.raises(MappingError, match=r"is no list of hosts, such as|failed: Invalid hostlist: a"):
        expand_hosts(text)


def test_lists_with_ranges_need_scontrol_and_others_do_not(scontrol, monkeypatch):
    scontrol.unlink()
    # A Slurm may be installed here.
    monkeypatch.setenv("PATH", str(scontrol.parent))
    assert expand_hosts("a,b") == ["a", "b"]
    # A folder of PATH may be closed to an ordinary user.
    reason = "No such file|Permission denied"
    refused = rf"^`scontrol show hostnames 'b\[1-2\]'` failed: .*({reason}).*; list mapping\.machines$"
    with pytest.raises(MappingError, match=refused):
        expand_hosts("b[1-2]")


def test_counts_are_spelled_out():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("4") == [4]
    for text in ("", "2(x3", "a", "2,,1", "-1", "1(x99999999)"):
        with pytest.raises(MappingError, match="is no list of tasks per machine"):
            expand_counts(text)


def test_a_process_of_torchrun():
    job = find_job(TORCHRUN)
    assert (job.processes, job.machine) == ((1, 1, 1, 1), 1)
    assert (job.size, job.hosts, job.rendezvous) == (4, (), ("host0", 29500))
    assert not job.hosts_store
    assert find_job(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).hosts_store
    # Each agent counts its own restarts.
    assert find_job(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}).identity == job.identity


def test_a_process_of_srun_knows_its_step():
    job = find_job(SRUN)
    assert (job.processes, job.machine) == ((1, 1, 1), 2)
    assert (job.hosts, job.label) == (("a1", "a2", "a3"), "77.2")


@pytest.mark.parametrize(
    "several",
    [
        TORCHRUN | {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"},
        SRUN | {"SLURM_STEP_TASKS_PER_NODE": "1(x2),2"},
    ],
)
def test_several_tasks_on_any_machine_are_refused_on_all(started, several):
    started(several)
    with pytest.raises(
        MappingError, match=r"machines; start one task per machine, with mapping: \{name: env"
    ):
        job_of_one_task()


def test_a_batch_script_may_ask_what_the_job_has(started):
    script = {name: SRUN[name] for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE")}
    job = find_job(script)
    assert (len(job.hosts), job.is_started) == (9, False)
    assert environment.started_machines(script) == 1
    started(script)
    assert job_of_one_task() == job
    line = "Slurm job 77 has 9 machines, and this run uses one; start one task on each"
    assert idle_notice(config.load(QUICKSTART)).startswith(line)
    started({"SLURM_JOB_NODELIST": "a1", "SLURM_TASKS_PER_NODE": "1"})
    assert idle_notice(config.load(QUICKSTART)) == ""


def test_torchrun_inside_srun_is_torchrun():
    assert find_job(SRUN | TORCHRUN).starter == "torchrun"
    assert find_job({}) is None
    assert find_job({"RANK": "0", "WORLD_SIZE": "2"}) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (TORCHRUN | {"WORLD_SIZE": "15"}, "WORLD_SIZE=15, GROUP_WORLD_SIZE=4, LOCAL_WORLD_SIZE=1"),
        (TORCHRUN | {"GROUP_RANK": "4"}, "which do not fit"),
        (TORCHRUN | {"GROUP_RANK": "one"}, "GROUP_RANK=one, no whole number"),
        (TORCHRUN | {"MASTER_PORT": ""}, "MASTER_PORT=, no whole number"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, "names 3 hosts, tasks for 2, and names"),
        (SRUN | {"SLURM_NODEID": "3"}, "names this machine 3, which does not fit"),
        (SRUN | {"SLURM_STEP_NODELIST": "a["}, "Invalid hostlist: a"),
        (SRUN | {"SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": ""}, "SLURM sets none of"),
        (SRUN | {"DECENTNODE_JOB": "a/b"}, "DECENTNODE_JOB=a/b: must be letters"),
        (PLACE | {"DECENTNODE_MACHINE": "3"}, "DECENTNODE_MACHINE=3 of DECENTNODE_MACHINES=3: indices"),
        (PLACE | {"DECENTNODE_MACHINES": "x"}, "DECENTNODE_MACHINES=x, no whole number"),
        (PLACE | {"DECENTNODE_MACHINE": ""}, "DECENTNODE_MACHINE not; set"),
        (PLACE | {"DECENTNODE_RENDEZVOUS": ""}, "MACHINES=3, but DECENTNODE_RENDEZVOUS is not set"),
        (PLACE | {"DECENTNODE_RENDEZVOUS": "a:0"}, "RENDEZVOUS=a:0: must be host:port of machine 0"),
        (PLACE | {"DECENTNODE_RENDEZVOUS": "a:99999"}, "must be host:port of machine 0"),
        (
            PLACE | {"DECENTNODE_MACHINES": "", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"},
            "DECENTNODE_MACHINE=1, but Open MPI sets OMPI_COMM_WORLD_RANK=2; leave the first out",
        ),
    ],
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused_in_one_line(variables, message):
    with pytest.raises(MappingError, match=message) as error:
        find_job(variables)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "said",
    [
        PLACE,
        PLACE | SRUN | TORCHRUN,
        {**PLACE, "DECENTNODE_MACHINE": "", "JOB_COMPLETION_INDEX": "1"},
        {
            name: PLACE[name] for name in ("DECENTNODE_RENDEZVOUS", "DECENTNODE_JOB")
        } | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"},
        PLACE | {"DECENTNODE_MACHINE": "", "DECENTNODE_MACHINES": "", "PMI_RANK": "1", "PMI_SIZE": "3"},
    ],
)  # fmt: skip
def test_any_engine_can_say_the_place_of_a_machine(said):
    job = find_job(said)
    assert (job.machine, job.processes, job.rendezvous) == (1, (1, 1, 1), ("host0", 29471))
    assert (job.label, job.series, job.name, job.hosts_store) == ("night-7",) * 2 + ("job night-7", True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a", ("a", 29400)), ("a:5", ("a", 5)), ("10.0.0.1:29500", ("10.0.0.1", 29500)),
        ("[fd00::1]:5", ("fd00::1", 5)), ("[fd00::1]", ("fd00::1", 29400)), ("fd00::1", ("fd00::1", 29400)),
    ],
)  # fmt: skip
def test_a_rendezvous_is_a_host_and_a_port(text, found):
    assert find_job(PLACE | {"DECENTNODE_RENDEZVOUS": text}).rendezvous == found


def test_the_engines_time_of_grace_limits_a_stop():
    assert seconds_to_stop({}) == math.inf and seconds_to_stop({"DECENTNODE_GRACE": "30"}) == 24.0
    for text in ("soon", "0", "-1", "inf", "nan"):
        with pytest.raises(MappingError, match="must be seconds from SIGTERM to SIGKILL, such as 30"):
            seconds_to_stop({"DECENTNODE_GRACE": text})


def test_repetitions_of_a_job_have_a_name_in_common():
    assert find_series({}) == find_series(TORCHRUN) == ""
    assert find_series({"DECENTNODE_JOB": "a"}) == "a"
    assert find_series(TORCHRUN | {"TORCHELASTIC_RUN_ID": "night"}) == "night"
    requeued = SRUN | {"SLURM_RESTART_COUNT": "2"}
    assert find_series(requeued) == find_series(SRUN) == "77.2"
    assert find_job(requeued).label == "77.2.2"
    assert find_job(SRUN | {"DECENTNODE_JOB": "chain"}).label == "chain"


def test_a_configuration_without_machines_takes_those_of_the_job(started):
    started(TORCHRUN)
    mapping = config.load(QUICKSTART).mapping.make()
    assert isinstance(mapping, Environment)
    assert [machine.nodes for machine in mapping.machines] == [4] * 4
    assert [mapping.machine_of(rank) for rank in (0, 3, 4, 15)] == [0, 0, 1, 3]


def test_machines_take_equal_shares_of_the_nodes_or_as_many_as_they_are_given(started):
    started(SRUN)
    with pytest.raises(
        ConfigError, match=r"the machines carry 15 nodes .*, nodes_per_machine: 5\), the graph"
    ):
        config.load(QUICKSTART)
    settings = config.load(QUICKSTART, ["graph={name: ring, nodes: 6}"])
    assert [machine.nodes for machine in settings.mapping.make().machines] == [2] * 3


def ports_of(*overrides):
    settings = config.load(QUICKSTART, ["graph={name: ring, nodes: 6}", *overrides])
    return settings.mapping.make().rendezvous_port, settings.communication.make().base_port


def test_ports_follow_from_the_job_unless_they_are_given(started):
    plain = ports_of()
    started(SRUN | {"SLURM_STEP_ID": "0"})
    first = ports_of()
    # Consecutive jobs, a second step and a requeued job: only the last is the same job.
    taken = {first}
    for change in ({"SLURM_JOB_ID": "78"}, {"SLURM_JOB_ID": "126"}, {"SLURM_STEP_ID": "1"}):
        started(SRUN | {"SLURM_STEP_ID": "0"} | change)
        taken.add(ports_of())
    assert len(taken) == 4
    assert all(
        1024 < port < 29600 and port % 350 in (29550 % 350, 29600 % 350) for pair in taken for port in pair
    )
    started({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "2"})
    assert ports_of() == first
    ports = ports_of(
        "communication={name: zeromq, base_port: 29600}", "mapping={name: environment, nodes_per_machine: 2}"
    )
    assert ports == (first[0], 29600)
    # Listed machines may be in several jobs.
    assert ports_of("mapping={machines: [{address: 127.0.0.1, nodes: 6}]}") == plain == (29500, 29600)


def test_outside_a_job_and_alone_in_one_nothing_changes(started):
    assert config.load(QUICKSTART).mapping.name == "linear"
    with pytest.raises(ConfigError, match=r"mapping.*no engine has started this .*; do that, or"):
        config.load(QUICKSTART, ["mapping=environment"])
    started(TORCHRUN | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"), "1"))
    started(dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0"))
    assert config.load(QUICKSTART).mapping.name == "linear"
    chosen = config.load(QUICKSTART, ["mapping={name: environment, nodes_per_machine: 16}"])
    assert settle(chosen)[0].mapping.make() == Linear(one_machine("127.0.0.1", 16), find_job().port(29550))


def one_machine(address, nodes):
    return (environment.Machine(address, nodes),)


def test_machines_of_the_configuration_stay(started):
    started(TORCHRUN)
    listed = "mapping={machines: [{address: 127.0.0.1, nodes: 16}]}"
    settings = config.load(QUICKSTART, [listed])
    assert settings.mapping.name == "linear"
    assert settle(settings) == (settings, "")


def test_numbers_that_do_not_fit_the_graph_are_reported_with_their_origin(started):
    started(TORCHRUN)
    with pytest.raises(ConfigError) as error:
        config.load(QUICKSTART, ["mapping={name: environment, nodes_per_machine: 2}"])
    assert str(error.value).splitlines() == [
        "command line: mapping: the machines carry 8 nodes (torchrun has started 1 + 1 + 1 + 1 processes on "
        "4 machines, nodes_per_machine: 2), the graph has 16; correct either, they must be equal"
    ]


def test_srun_names_its_machines(started):
    started(SRUN)
    small = "graph={name: ring, nodes: 6}"
    settings, _ = settle(config.load(QUICKSTART, ["run_dir=here", small]))
    machines = settings.mapping.make().machines
    assert [(m.address, m.nodes) for m in machines] == [("a1", 2), ("a2", 2), ("a3", 2)]
    assert (settings.machine, settings.run_dir, settings.mapping.name) == (2, "here/machine-2", "linear")
    assert settle(config.load(QUICKSTART, [small]))[0].run_dir == "runs/quickstart-77.2/machine-2"


def test_a_directory_is_a_machines_own_once(tmp_path):
    assert (
        machine_directory(tmp_path, 2)
        == machine_directory(machine_directory(tmp_path, 2), 2)
        == tmp_path / "machine-2"
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_several_torchruns_on_one_host_get_an_address_each(started, host):
    started(TORCHRUN | {"MASTER_ADDR": host})
    machines = settle(config.load(QUICKSTART, ["run_dir=here"]))[0].mapping.make().machines
    assert [machine.address for machine in machines] == ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]


def learn(count, seconds=10.0, hosts_store=True, machines=None, known=(), name_of="run-{}".format):
    """What each machine learns, or the error; the clock of each shows another second."""
    port, addresses_of = free_ports(1), {}

    def one(machine):
        job = SchedulerJob(
            "torchrun", "test", (1,) * count, machine, rendezvous=("127.0.0.1", port), hosts_store=hosts_store
        )
        try:
            addresses_of[machine], name = agree(job, known, name_of(machine), seconds)
            assert name == name_of(0)
        except (MappingError, StartError) as error:
            addresses_of[machine] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in machines or range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return addresses_of


def test_all_machines_learn_the_same_addresses(monkeypatch):
    published = {1: ["10.0.0.2", "10.0.0.1"], 2: ["fd00::3", "10.0.0.1"]}
    monkeypatch.setattr(addresses, "_own_addresses", lambda job: published[job.machine])
    assert learn(3) == {i: ["10.0.0.1", "10.0.0.2", "fd00::3"] for i in range(3)}


def test_machines_whose_addresses_are_known_learn_the_name_alone():
    assert learn(3, known=["127.0.0.1"] * 3) == {i: ["127.0.0.1"] * 3 for i in range(3)}


@pytest.mark.parametrize("name", ["../run", "/run", "a/b", "", ".", "\u00e4", "run\n"])
def test_no_name_leads_out_of_the_folder_of_runs(name):
    """The store authenticates nobody."""
    errors = learn(2, known=["127.0.0.1"] * 2, name_of=lambda machine: name).values()
    assert all("machine 0 published no name of a directory but" in str(error) for error in errors)


def test_machines_with_one_address_are_refused():
    """Real ones, all on this host."""
    for error in learn(2).values():
        assert isinstance(error, MappingError)
        assert "torchrun: machines 0 and 1 have the same address 127.0.0.1; start one on each" in str(error)


@pytest.mark.parametrize("said", ["no address", "\u00e4", "1.2.3.4\n"])
def test_what_is_no_address_is_refused(monkeypatch, said):
    monkeypatch.setattr(addresses, "_own_addresses", lambda job: [said, "10.0.0.1"])
    assert all("machine 1 published no address but" in str(error) for error in learn(2).values())


def test_what_was_said_before_a_restart_does_not_count():
    """A store of torchrun's agent stays, and machines are started again at different times."""
    store = stores.serve("127.0.0.1", 0, 10.0, 8)
    one = [stores.join("127.0.0.1", store.port, 10.0) for _ in range(3)]

    def say(index, text):
        return lambda: stores.gathered(one[index], index, 3, text, 10.0)[0]

    def all_at_once(*says):
        return in_threads(3, lambda index: says[index]())

    assert all_at_once(say(0, "a"), say(1, "b"), say(2, "c")) == [["a", "b", "c"]] * 3
    # The others come to the call and the result of before.
    late = [lambda: (time.sleep(0.5), say(0, "d")())[1], say(1, "e"), say(2, "f")]
    assert all_at_once(*late) == [["d", "e", "f"]] * 3
    # The first process is killed after its call, to which one has answered.
    with pytest.raises(RuntimeError):
        in_threads(2, lambda index: stores.gathered(one[index], index, 3, "lost", 0.5))
    assert all_at_once(say(0, "g"), say(1, "h"), say(2, "i")) == [["g", "h", "i"]] * 3


def test_a_machine_that_does_not_come_ends_the_waiting_with_one_line():
    error = learn(2, seconds=0.5, machines=[0])[0]
    assert isinstance(error, StartError)
    assert "torchrun: not all machines published their addresses at 127.0.0.1:" in str(error)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("run_dir", "environ", "expected"),
    [
        ("runs/trial-77.2/machine-0", {}, ""),
        # Another job has another number.
        ("runs/trial-77.2/machine-0", SRUN, " with DECENTNODE_JOB=77.2"),
        ("runs/trial-77.2", SRUN, " with DECENTNODE_JOB=77.2"),
        ("runs/mine/machine-0", SRUN, None),
        ("runs/trial-night/machine-0", SRUN | {"DECENTNODE_JOB": "night"}, None),
    ],
)
def test_a_repetition_of_a_job_finds_the_folder_of_its_run(run_dir, environ, expected):
    again = f"submit the same job again{expected or ''}"
    assert repetition(Path(run_dir), environ) == ("" if expected == "" else again)
