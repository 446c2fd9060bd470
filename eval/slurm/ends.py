"""How runs end on a real Slurm, and that each continues to the model hash of an undisturbed run.

A limit of time, preemption with and without a time of grace, a requeue, SIGUSR1 for all processes and for the
batch script alone, Ctrl-C of srun, an array of a study, two jobs at once on the same machines, and a
heterogeneous job. What Slurm does not requeue is continued by another job of its name (DECENTNODE_JOB), as
in a chain. With `--moments` each of those that continue is disturbed at random moments of its run, from
the first import on; then nodes fail, too, where root can end them.

    python eval/slurm/ends.py                                   # where sbatch is, in a checkout that all see
    python eval/slurm/ends.py --tools TOOLS                     # as root: in a Slurm that TOOLS/up.sh starts
    python eval/slurm/ends.py --tools TOOLS --folder FOLDER     # in one that it has started in FOLDER
    python eval/slurm/ends.py --tools TOOLS --moments 5         # five random moments for each kind of end

TOOLS has `up.sh FOLDER`, `on.sh FOLDER HOST [-u USER] COMMAND...` and `down.sh FOLDER`; the user's home is in
FOLDER. `--environment` is a virtual environment that this user may read, by default that of this Python.
Partitions are options; `low` and `patient` are preempted by requeue from `high`, `patient` after a while.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SBATCH = "eval/slurm/run.sbatch"
MACHINES = "mapping={name: environment, nodes_per_machine: 4}"
CONFIG = """\
name: ends
rounds: {rounds}
graph: {{name: ring, nodes: {nodes}}}
dataset: {{name: digits, train_size: 400}}
model: {{name: mlp, hidden: [16]}}
sharing: {{name: "paced:Paced", pause: {pause}}}
training: {{optimizer: {{name: SGD, lr: 0.1}}, batch_size: 16, steps_per_round: 2}}
evaluation: {{every: 0, figures: false}}
"""
STUDY = "name: two\nbase: four.yaml\nseeds: 2\n"
PAUSE, ROUNDS = 0.5, 160
"""Longer than a minute, the shortest limit of time."""
BEFORE = 12
"""Rounds until a run is disturbed."""
SHORT_PAUSE, SECONDS = 0.25, 45.0
"""With random moments a run takes about so many seconds from the start of its job."""
LIMIT_OF_TIME = 75.0
"""When Slurm ends a job of one minute: it looks every half minute."""
OVER = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED")
LIMIT = 900.0
"""Seconds until a job that has not ended, or not begun its rounds, is a failure."""
ORDERS = ROOT / "orders"
"""What only root can do, in a Slurm of ours: a file `n2.fail` is removed when the host has failed."""
SLURMD_TIMEOUT = 15
"""Seconds until a host without a slurmd has failed, in a Slurm of ours."""


def answer_of(*words: str) -> str:
    """Returns what a command prints; raises what it complains about."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def waited(is_so: Callable[[], object], what: str) -> None:
    """Waits until something is so; raises TimeoutError."""
    limit = time.monotonic() + LIMIT
    while not is_so():
        if time.monotonic() > limit:
            raise TimeoutError(f"{what}: not within {LIMIT:.0f} s")
        time.sleep(0.5)


def rounds_of(run: Path) -> int:
    """Returns how many rounds node 0 of a run has done."""
    record = run / "records/00000.jsonl"
    return record.read_bytes().count(b"\n") if record.exists() else 0


def hash_of(run: Path) -> str:
    """Returns the model hash of a finished run."""
    summary = json.loads((run / "summary.json").read_text())
    return str(summary["model_hash"]) if summary["finished_nodes"] else "not finished"


class End(NamedTuple):
    """How a job ended, and the run that it left behind, continued where it had to be."""

    name: str
    state: str
    run: Path
    wanted: str
    """The hash of an undisturbed run."""


@dataclass
class Ends:
    """The trials, in a folder of work that all machines see."""

    work: Path
    low: str
    patient: str
    high: str
    moments: int = 0
    """How many random moments each kind of end has; 0: one, after some rounds."""
    seed: int = 0
    expected: str = ""
    """The hash of the undisturbed run."""
    names: dict[str, str] = field(default_factory=dict)
    """By job the run that it names."""

    def __post_init__(self) -> None:
        self.chance, self.numbers = random.Random(self.seed), count()

    def fresh(self, name: str) -> str:
        """Returns a name for a job that no other has."""
        return f"{name}-{next(self.numbers)}"

    def submit(self, *words: str, partition: str, name: str) -> str:
        """Submits a job; returns its number."""
        log = f"--output={self.work}/{name}.log"
        return answer_of("sbatch", "--parsable", f"--partition={partition}", log, *words)

    def state(self, job: str) -> str:
        """Returns the state of a job, such as RUNNING."""
        return answer_of("squeue", "--noheader", "--states=all", f"--job={job}", "--format=%T").partition(
            "\n"
        )[0]

    def ended(self, job: str) -> str:
        """Waits for the end of a job; returns its last state."""
        waited(lambda: self.state(job) in OVER, f"end of job {job}")
        return self.state(job)

    def run_of(self, job: str) -> Path:
        """Returns machine 0's part of the run of a job."""
        # A job that names no run is known by its number and that of its step.
        return Path("runs") / f"ends-{self.names.get(job, f'{job}.0')}" / "machine-0"

    def begun(self, *jobs: str) -> None:
        """Waits until the runs of jobs have done some rounds, or for their random moment."""
        if not self.moments:
            return waited(
                lambda: all(rounds_of(self.run_of(job)) >= BEFORE for job in jobs),
                f"round {BEFORE} of {', '.join(jobs)}",
            )
        waited(lambda: all(self.state(job) == "RUNNING" for job in jobs), f"start of {', '.join(jobs)}")
        time.sleep(self.chance.uniform(0.0, SECONDS))

    def started(
        self, name: str, *options: str, partition: str | None = None, is_named: bool = False,
        script: str = SBATCH, overrides: Sequence[str] = (),
    ) -> str:  # fmt: skip
        """Submits the run on two machines; `is_named`: other jobs can continue it."""
        words = (*options, script, str(self.work / "eight.yaml"), *overrides)
        # The warning that the script asks for is not what is tried here.
        words = words if any("signal" in word for word in options) else ("--signal=CONT@0", *words)
        words = (f"--export=ALL,DECENTNODE_JOB={name}", *words) if is_named else words
        job = self.submit(*words, partition=partition or self.high, name=name)
        if is_named:
            self.names[job] = name
        return job

    def continued(self, job: str, name: str) -> Path:
        """Continues a run that was stopped, in a new job of the same name; returns its directory."""
        words = (f"--export=ALL,DECENTNODE_JOB={self.names[job]}", SBATCH, str(self.work / "eight.yaml"))
        again = self.submit(*words, partition=self.high, name=f"{name}-again")
        state = self.ended(again)
        if state != "COMPLETED":
            raise RuntimeError(f"the job that continues it ended as {state}; {self.work}/{name}-again.log")
        return self.run_of(job)

    def undisturbed(self) -> None:
        """Makes the run whose hash the others must have."""
        words = (SBATCH, str(self.work / "eight.yaml"), "sharing.pause=0")
        job = self.submit(*words, partition=self.high, name="whole")
        print(f"undisturbed: {self.ended(job)}", flush=True)
        self.expected = hash_of(self.run_of(job))

    def changed(self, name: str, *changes: tuple[str, str]) -> str:
        """Returns a copy of the batch script in which other text stands."""
        text = (ROOT / SBATCH).read_text()
        for old, new in changes:
            if old not in text:
                raise RuntimeError(f"{SBATCH} has no '{old}'")
            text = text.replace(old, new)
        (self.work / f"{name}.sbatch").write_text(text)
        return str(self.work / f"{name}.sbatch")

    def limit_of_time(self) -> list[End]:
        """SIGTERM twice, to every process of the step, without any warning before."""
        name, script = self.fresh("limit"), SBATCH
        if self.moments:
            late = LIMIT_OF_TIME - self.chance.uniform(0.0, SECONDS)
            script = self.changed(name, ("set -euo pipefail", f"set -euo pipefail; sleep {late:.1f}"))
        job = self.started(name, "--time=1", is_named=True, script=script)
        return [End("limit of time", self.ended(job), self.continued(job, name), self.expected)]

    def warned(self) -> list[End]:
        """SIGUSR1 to every process of the step."""
        job = self.started("warned", "--time=2", "--signal=USR1@45", is_named=True)
        return [End("USR1", self.ended(job), self.continued(job, "warned"), self.expected)]

    def warned_script(self) -> list[End]:
        """SIGUSR1 to the batch script alone, which has become srun."""
        job = self.started("script", "--time=2", "--signal=B:USR1@45", is_named=True)
        return [End("B:USR1", self.ended(job), self.continued(job, "script"), self.expected)]

    def interrupted(self) -> list[End]:
        """SIGINT, as srun passes on a person's Ctrl-C."""
        job = self.started("interrupted", is_named=True)
        self.begun(job)
        answer_of("scancel", "--signal=INT", job)
        return [End("Ctrl-C", self.ended(job), self.continued(job, "interrupted"), self.expected)]

    def requeued(self) -> list[End]:
        """A requeue by hand; the same job goes on."""
        job = self.started(self.fresh("requeued"), partition=self.low)
        self.begun(job)
        answer_of("scontrol", "requeue", job)
        return [End("requeue", self.gone_on(job), self.run_of(job), self.expected)]

    def gone_on(self, job: str) -> str:
        """Waits until a requeued job runs again and ends; returns its last state."""
        waited(lambda: self.state(job) in ("PENDING", *OVER), f"requeue of job {job}")
        if self.state(job) in OVER:
            return self.state(job)
        # It would wait two minutes after a requeue by hand.
        with contextlib.suppress(RuntimeError):
            answer_of("scontrol", "update", f"JobId={job}", "StartTime=now")
        return f"requeued, {self.ended(job)}"

    def two_at_once(self) -> list[End]:
        """Two jobs on the same machines, each with ports, keys and folders of its own."""
        jobs = [self.started(f"at-once-{number}") for number in range(2)]
        return [End("two at once", self.ended(job), self.run_of(job), self.expected) for job in jobs]

    def heterogeneous(self) -> list[End]:
        """A job of two components, a machine of each."""
        component = ("--nodes=1", "--ntasks-per-node=1", f"--partition={self.high}")
        # One srun for both; the first component has the options of the script.
        job = self.started(self.fresh("heterogeneous"), *component, ":", *component)
        if not self.moments:
            return [End("heterogeneous", self.ended(job), self.run_of(job), self.expected)]
        self.begun(job)
        answer_of("scontrol", "requeue", job)
        return [End("heterogeneous", self.gone_on(job), self.run_of(job), self.expected)]

    def slurmd_killed(self) -> list[End]:
        """NODE_FAIL of a machine whose processes live on."""
        return self.node_failed("slurmd")

    def host_killed(self) -> list[End]:
        """NODE_FAIL of a machine that has died."""
        return self.node_failed("host")

    def node_failed(self, what: str) -> list[End]:
        """One of the two machines fails: Slurm requeues the job, without the options that prevent it."""
        name = self.fresh(f"{what}-killed")
        script = self.changed(name, ("#SBATCH --no-kill\n", ""), ("srun --label --no-kill", "srun --label"))
        overrides = ("failures.on_loss=stop", "checkpoint.every=10", f"sharing.pause={PAUSE}")
        job = self.started(name, script=script, overrides=overrides)
        self.begun(job)
        host = self.chance.choice(self.hosts_of(job))
        ordered(f"{host}.{what}")
        state = self.gone_on(job)
        self.repaired(host)
        return [End(f"NODE_FAIL, {what} killed", state, self.run_of(job), self.expected)]

    def hosts_of(self, job: str) -> list[str]:
        """Returns the hosts of a job, the one of the batch script first."""
        hosts = answer_of("squeue", "--noheader", f"--job={job}", "--format=%N")
        return answer_of("scontrol", "show", "hostnames", hosts).splitlines()

    def repaired(self, host: str) -> None:
        """Starts a slurmd again, and waits until Slurm uses the host."""
        ordered(f"{host}.start")
        asked = ("sinfo", "--noheader", f"--nodes={host}", "--format=%t")
        # With a star until the slurmd has answered.
        waited(lambda: {*answer_of(*asked).splitlines()} == {"idle"}, host)

    def left_out(self) -> list[End]:
        """The second machine dies, and the run goes on without it, as the script is; it has no hash."""
        job = self.started(self.fresh("left-out"), overrides=[f"sharing.pause={PAUSE}"])
        waited(lambda: rounds_of(self.run_of(job)) >= BEFORE, f"round {BEFORE} of {job}")
        host = self.hosts_of(job)[1]
        ordered(f"{host}.host")
        state, summary = self.ended(job), json.loads((self.run_of(job) / "summary.json").read_text())
        self.repaired(host)
        print(
            f"left out: {state}, {summary['finished_nodes']} of {summary['nodes']} nodes finished", flush=True
        )
        if (summary["finished_nodes"], summary["exit_code"]) != (4, 3):
            raise RuntimeError(f"exit code {summary['exit_code']}; {self.run_of(job)}")
        return []

    def preempted(self) -> list[End]:
        """Two jobs that make room for a third one: one is requeued at once, one ends in its time of grace.

        Slurm requeues no job that has ended by itself.
        """
        jobs = {
            name: self.started(self.fresh(f"preempted-{name}"), partition=name, is_named=True)
            for name in (self.low, self.patient)
        }
        self.begun(*jobs.values())
        nodes = answer_of("sinfo", "--noheader", f"--partition={self.high}", "--format=%D")
        words = (f"--nodes={nodes}", "--exclusive", "--wrap=srun sleep 10")
        self.submit(*words, partition=self.high, name="third")
        at_once, with_grace = jobs.values()
        state = self.ended(with_grace)
        with ThreadPoolExecutor() as pool:
            continued = pool.submit(self.continued, with_grace, self.names[with_grace])
            return [
                End("preemption", self.gone_on(at_once), self.run_of(at_once), self.expected),
                End("preemption with grace", state, continued.result(), self.expected),
            ]

    def array(self) -> list[End]:
        """A study, each of whose tasks is requeued once; the reference of each run is a single one."""
        out, decentnode = self.work / "study", (sys.executable, "-P", "-m", "decentnode")
        on = f"{{name: slurm, options: [--partition={self.low}]}}"
        said = answer_of(*decentnode, "sweep", str(self.work / "study.yaml"), f"out={out}", "--on", on)
        job = said.partition("submitted job ")[2].partition(":")[0]
        waited(lambda: [rounds_of(run) >= BEFORE for run in self.runs_of_study()] == [True] * 2, "an array")
        tasks = [f"{job}_{task}" for task in range(2)]
        answer_of("scontrol", "requeue", ",".join(tasks))
        with ThreadPoolExecutor() as pool:
            states = [*pool.map(self.gone_on, tasks)]
        runs = self.runs_of_study()
        return [End("array", state, run, self.single(run)) for state, run in zip(states, runs, strict=True)]

    def runs_of_study(self) -> list[Path]:
        """Returns the directories of the study's runs."""
        return sorted(path.parent for path in (self.work / "study").glob("**/records"))

    def single(self, run: Path) -> str:
        """Returns the hash of a single, undisturbed run of the same configuration."""
        directory = Path(tempfile.mkdtemp(dir=self.work)) / "run"
        words = (str(run / "config.yaml"), f"run_dir={directory}", "sharing.pause=0")
        answer_of(sys.executable, "-P", "-m", "decentnode", "run", *words)
        return hash_of(directory)

    def all(self, only: Sequence[str]) -> bool:
        """Makes every trial, several at a time; prints a line for each, and returns whether all are right.

        `only`: the names of those that are wanted; empty: all.
        """
        self.work.mkdir(parents=True)
        pause = SHORT_PAUSE if self.moments else PAUSE
        # Jobs inherit it: a run that is resumed finds the scheme, too.
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parent)])
        )
        for name, nodes in {"eight": 8, "four": 4}.items():
            config = CONFIG.format(rounds=ROUNDS, nodes=nodes, pause=pause)
            (self.work / f"{name}.yaml").write_text(config)
        (self.work / "study.yaml").write_text(STUDY)
        self.undisturbed()
        at_once = [
            self.limit_of_time, self.warned, self.warned_script, self.interrupted, self.requeued,
            self.two_at_once, self.heterogeneous, self.array,
        ]  # fmt: skip
        # These take all machines, or end one.
        alone = [self.preempted, *([self.left_out] if ORDERS.is_dir() else [])]
        if self.moments:
            at_once = [self.limit_of_time, self.requeued, self.heterogeneous] * self.moments
            alone[:1] *= self.moments
            if ORDERS.is_dir():
                alone += [self.slurmd_killed, self.host_killed] * self.moments
        with ThreadPoolExecutor(2 if self.moments else None) as pool:
            verdicts = [*pool.map(self.is_right, [t for t in at_once if not only or t.__name__ in only])]
        verdicts += [self.is_right(trial) for trial in alone if not only or trial.__name__ in only]
        return all(verdicts)

    def is_right(self, trial: Callable[[], list[End]]) -> bool:
        """Makes a trial; prints a line for each of its runs, and returns whether all are right."""
        try:
            ends = [(end, hash_of(end.run)) for end in trial()]
        except (RuntimeError, OSError) as error:
            print(f"{trial.__name__}: {error}", flush=True)
            return False
        for end, found in ends:
            if self.moments and end.state == "COMPLETED":
                print(f"{end.name}: ended before its moment", flush=True)
                return self.is_right(trial)
            verdict = (
                "the same hash" if found == end.wanted else f"{found[:12]} DIFFERS from {end.wanted[:12]}"
            )
            print(f"{end.name}: {end.state}, {verdict}", flush=True)
        return all(found == end.wanted for end, found in ends)


def ordered(order: str) -> None:
    """Has root do something to a host, and waits until it is done."""
    (ORDERS / order).touch()
    waited(lambda: not (ORDERS / order).exists(), order)


def obey(tools: Path, own: Path, orders: Path) -> None:
    """Kills the slurmd of a host or all of its processes, or starts its slurmd, as files ask."""
    for order in orders.iterdir():
        host, what = order.name.split(".")
        if what == "start":
            slurmd = ("slurmd", "-N", host, "-f", str(own / "slurm.conf"))
            answer_of(str(tools / "on.sh"), str(own), host, *slurmd)
        else:
            victims = [int((own / "spool" / f"{host}.pid").read_text())]
            victims += processes_of(int((own / "hosts" / f"{host}.pid").read_text())) * (what == "host")
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        order.unlink()


def processes_of(holder: int) -> list[int]:
    """Returns the processes in the network namespace of one, but not this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            if path.readlink() == Path(f"/proc/{holder}/ns/net").readlink():
                found.append(int(path.parts[2]))
    return [pid for pid in found if pid != holder]


def in_a_slurm_of_ours(
    tools: Path, folder: Path | None, environment: Path, words: Sequence[str],
    script: str = "eval/slurm/ends.py", settings: Mapping[str, int] | None = None,
) -> int:  # fmt: skip
    """Runs a script of this checkout as the user of a Slurm that `tools` start; returns its exit code.

    `settings` replace those of slurm.conf in a Slurm that is started here.
    """
    own = folder or Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    try:
        if folder is None:
            own.chmod(0o755)
            tools = shutil.copytree(tools, own / "tools")
            template = tools / "slurm.conf.in"
            lines = template.read_text().splitlines()
            lines = [line for line in lines if line.partition("=")[0] not in (settings or {})]
            lines += [f"{name}={value}" for name, value in (settings or {}).items()]
            template.write_text("\n".join([*lines, ""]))
            print(answer_of(str(tools / "up.sh"), str(own)), flush=True)
        checkout = Path(tempfile.mkdtemp(prefix="checkout-", dir=own / "home"))
        for name in answer_of("git", "-C", str(ROOT), "ls-files").splitlines():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
        (checkout / ".venv").symlink_to(environment)
        orders = checkout / ORDERS.name
        orders.mkdir()
        owner = (own / "home").stat()
        for path in (checkout, *checkout.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        there = 'cd "$1" && export PYTHONPATH="$1" && shift && exec .venv/bin/python "$@"'
        user = (own / "home").owner()
        command = [str(tools / "on.sh"), str(own), "login", "-u", user]
        process = subprocess.Popen([*command, "sh", "-c", there, "sh", str(checkout), script, *words])
        while process.poll() is None:
            obey(tools, own, orders)
            time.sleep(0.1)
        return process.returncode
    finally:
        if folder is None:
            subprocess.run([str(tools / "down.sh"), str(own)], check=False)
            shutil.rmtree(own, ignore_errors=True)


def main() -> int:
    """Returns 0 if every run ended with the hash of an undisturbed one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=Path, help="the folder of up.sh, on.sh and down.sh")
    parser.add_argument("--folder", type=Path, help="of a Slurm that up.sh has started")
    parser.add_argument("--environment", type=Path, default=Path(sys.prefix), help="with bin/activate")
    for partition in ("low", "patient", "high"):
        parser.add_argument(f"--{partition}", default=partition, help=f"the partition (default: {partition})")
    parser.add_argument("--only", action="append", default=[], help="one trial by name; may be repeated")
    parser.add_argument("--moments", type=int, default=0, help="random moments for each kind of end")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    given = parser.parse_args()
    partitions = {name: getattr(given, name) for name in ("low", "patient", "high")}
    if given.tools:
        words = [f"--{name}={value}" for name, value in partitions.items()]
        words += [f"--only={name}" for name in given.only]
        words += [f"--moments={given.moments}", f"--seed={given.seed}"]
        return in_a_slurm_of_ours(
            given.tools.absolute(), given.folder, given.environment.absolute(), words,
            settings={"SlurmdTimeout": SLURMD_TIMEOUT} if given.moments else None,
        )  # fmt: skip
    os.chdir(ROOT)
    work = Path("runs").absolute() / f"ends-{os.getpid()}"
    ends = Ends(work, **partitions, moments=given.moments, seed=given.seed)
    return 0 if ends.all(given.only) else 1


if __name__ == "__main__":
    sys.exit(main())
