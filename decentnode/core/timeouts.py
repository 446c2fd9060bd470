"""What bounds each wait of a run, in seconds: `decentnode doctor CONFIG` prints it.

How often something is looked at stands beside its loop, in constants named `..._INTERVAL`.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Timeouts:
    """All limits: the four of a configuration, those that follow from them, and fixed ones.

    The `deadline` that a static method takes is that of one exchange: `exchange_deadline`, at least
    `deadline`, or that of DecentralizedDataParallel.
    """

    deadline: float
    """A node's wait for a silent peer in an exchange."""
    grace: float
    """A broken link between machines until the peer is lost; absent machines once `at_least` are here."""
    start_deadline: float
    """Start of the processes, rendezvous, hello barrier, forming of a process group, rejoin."""
    stop_deadline: float
    """A graceful stop until nodes are killed; inf: only those that hang (`hung_process`)."""

    join: ClassVar[float] = 60.0
    """All ranks of a run of scripts to join, where `failures.start_deadline` says nothing else."""
    thread_check: ClassVar[float] = 0.1
    """Seconds between two looks whether a thread that has joined still lives."""
    launcher_end: ClassVar[float] = 60.0
    """The end of the launcher that a rank has started, with summary and pictures, after its script."""
    attach: ClassVar[float] = 10.0
    """A message of a script that joins, once it has connected."""
    script_end: ClassVar[float] = 5.0
    """The end of a script's process, once its connection has ended."""
    busy_beat: ClassVar[float] = 0.5
    """Seconds between two heartbeats of a loop that is busy with something else than steps, and of a process
    of a simulation that waits for another one.
    """

    # One exchange.

    spin: ClassVar[float] = 50e-6
    """A node's wait in which it only yields the processor, until it sleeps."""
    first_request: ClassVar[float] = 0.1
    """A node's wait until it first requests a missing payload, where its waits are usually shorter."""
    unanswered: ClassVar[float] = 0.5
    """The least pause before a request of an asynchronous scheme is repeated; slow answers lengthen it."""
    longest_unanswered: ClassVar[float] = 60.0
    """The longest such pause (RFC 6298, section 2.5)."""
    standstill: ClassVar[float] = 1.0
    """Lateness of a check of deadlines; beyond it this process was suspended, and the time does not count."""

    def exchange_deadline(self, usual_round: float = 0.0, starts: bool = False) -> float:
        """Silence of a peer in one exchange; one that computes and is only behind gets more time."""
        # Before its first one a peer may still wait at the hello barrier.
        return max(self.deadline, 5 * usual_round) + starts * self.start_deadline

    @staticmethod
    def peer_behind(deadline: float) -> float:
        """Time in one round for which a peer's reports of being behind extend its deadline."""
        return 9 * deadline

    @staticmethod
    def first_pause(deadline: float) -> float:
        """The longest pause before the first request for a missing payload."""
        return deadline / 4

    @staticmethod
    def longest_pause(deadline: float) -> float:
        """The longest pause between further requests, unless the first is longer; they are signs of life."""
        return deadline / 8

    @staticmethod
    def waiting_notice(deadline: float) -> float:
        """Wait until a node that requests payloads informs all others that it waits."""
        return min(1.0, deadline / 8)

    @staticmethod
    def exclusion(deadline: float, times: int = 8) -> float:
        """Exclusion of a peer after successive timeouts (exponential back-off)."""
        return deadline * min((1 << times - 1) - 1, 64)

    @staticmethod
    def group_exchange(deadline: float) -> float:
        """A process group that delivers nothing; ZeroMQ has the rest of the deadline."""
        return deadline / 2

    @staticmethod
    def exchange_queue(deadline: float) -> float:
        """An exchange of DecentralizedDataParallel that its transport should have ended."""
        return 2 * deadline + 10.0

    @property
    def sampled_view(self) -> float:
        """A node's wait for a view of the peer-sampling service; short for the node's peers."""
        return self.deadline / 2

    @property
    def sampling_barrier(self) -> float:
        """The service's wait for processes that have not asked for a view that others wait for."""
        return self.deadline / 4

    # Links of a host process.

    local_link: ClassVar[float] = 0.1
    """A broken link on one machine until the peer is lost: its last messages may still arrive."""
    unmade_link: ClassVar[float] = 1.0
    """A link on one machine that was never made, until the peer is lost."""
    link_heartbeat: ClassVar[float] = 6.0
    """An unanswered heartbeat of a link between machines until the link is broken."""
    connect: ClassVar[float] = 6.0
    """A connection between machines that is not made, until it counts as refused."""
    link_linger: ClassVar[float] = 5.0
    """Delivery of what a closed link still holds."""
    message_burst: ClassVar[float] = 0.5
    """Messages read in one check, so a fast sender does not occupy the socket thread."""
    key_handshake: ClassVar[float] = 5.0
    """A new connection until it has authenticated."""
    silent_connection: ClassVar[float] = 1.2 * key_handshake
    """A connection without any message until it counts as silent."""
    guard_self_test: ClassVar[float] = 2.0
    """The test that links refuse a stranger."""
    rejoin_answer: ClassVar[float] = 3.0
    """A restarted process's wait for answers, before it continues without silent peers."""

    @staticmethod
    def model_request(start_deadline: float, requests: int = 10) -> float:
        """One request of a restarted node for a neighbor's model."""
        return start_deadline / requests

    # Process groups.

    least_transfer: ClassVar[float] = 0.05
    """The least wait for a transfer, also after its limit."""
    group_operation: ClassVar[float] = 3600.0
    """An operation of a process group that has no limit of its own."""
    collective_rest: ClassVar[float] = 1.0
    """The end of a collective after a rank has left or the group has failed: its reason may still arrive."""
    collective_check: ClassVar[float] = 0.1
    """A wait for a collective, until lost ranks are looked for again."""
    nccl_launch: ClassVar[float] = 1.0
    """A launch that waits for NCCL, until the group is aborted."""
    nccl_abort: ClassVar[float] = 5.0
    """The abort of a process group, which may hang in NCCL."""
    baseline_answer: ClassVar[float] = 5.0
    """Answers of live processes after an all-reduce has failed."""

    @staticmethod
    def group_formed(start_deadline: float) -> float:
        """Plan and connections of a process group; their own errors come first, with more detail."""
        return 2 * start_deadline + 0.2

    # A host process and its launcher.

    report: ClassVar[float] = 1.0
    """Room in the pipe for a report; progress reports do not wait."""
    last_report: ClassVar[float] = 30.0
    """Room in the pipe for the last report of a node."""
    snapshot: ClassVar[float] = 5.0
    """A node's wait until the observer has read its last snapshot."""
    snapshot_behind: ClassVar[float] = 0.2
    """The same in virtual time while another node is behind, which the observer needs, too."""
    undecided: ClassVar[float] = 20.0
    """A node's wait for the last round of a graceful stop."""
    crash: ClassVar[float] = 0.2
    """Pause before an injected crash, in which queued messages leave."""
    least_farewell: ClassVar[float] = 5.0
    """A failed process's service to readers of what it sent."""
    killed: ClassVar[float] = 2.0
    """The end of processes that were killed."""

    attacks: ClassVar[float] = 600.0
    """Online attacks after the last round; `decentnode attack` makes those that are left."""

    @property
    def evaluator(self) -> float:
        """A node's wait for an evaluator that has not read its last vector; short for the node's peers."""
        return self.deadline / 4

    @property
    def farewell(self) -> float:
        """A finished process's service to readers of what it sent; slow ones may not have started to read."""
        return max(self.least_farewell, self.deadline)

    @property
    def process_exit(self) -> float:
        """Exit of a process without nodes, until it is killed: one farewell for links, one for a group."""
        return 2 * self.farewell + 5.0

    @property
    def process_lost(self) -> float:
        """Exit of a process without nodes, until the launcher waits no longer."""
        return self.process_exit + self.killed

    def stuck_process(
        self, longest: float = 0.0, starts: bool = False, evaluates: bool = False, saved_bytes: int = 0
    ) -> float:
        """A process without a mark, until it is reported; `longest`: its longest silence so far;
        `saved_bytes`: what all nodes of its machine save.
        """
        return (
            max(self.deadline, 5 * longest)
            + starts * self.start_deadline
            + evaluates * self.snapshot
            + saved_bytes / 1e7
        )

    @staticmethod
    def hung_process(stuck_process: float) -> float:
        """A process without a mark, until it is killed."""
        return 2 * stuck_process

    late_check: ClassVar[float] = 1.5
    """Lateness of a check of heartbeats; beyond it the launcher was suspended, and the time does not
    count.
    """
    notice: ClassVar[float] = 2.0
    """Silence of a process until the watchdog checks whether it waits."""
    reported_wait: ClassVar[float] = 2.0
    """How long a reported wait stays valid beyond the next check."""
    unseen_straggler: ClassVar[float] = 2.0
    """A wait for a node of another machine until its rank is named."""

    @staticmethod
    def unusual_wait(usual_round: float = 0.0) -> float:
        """A node's wait until it is reported."""
        return max(Timeouts.notice, 2 * usual_round)

    server_end: ClassVar[float] = 10.0
    """The end of the fork server and its children; twice, the second time after a kill."""
    stack_dump: ClassVar[float] = 0.3
    """Time for hung processes to write their stacks before they are killed."""

    # Launchers among themselves.

    machine_silent: ClassVar[float] = 10.0
    """The longest such silence (`launcher_silent`), whatever the grace."""

    @property
    def launcher_silent(self) -> float:
        """A launcher without a message until its nodes count as lost; they count again when it reconnects."""
        # Nodes that have lost a peer there wait for an observer that waits for that machine. They must not
        # give up first, or evaluations lack the mean model until the machine counts as silent.
        return min(self.machine_silent, self.grace + self.snapshot)

    machine_lost: ClassVar[float] = 600.0
    """A launcher without a message until no checkpoints are kept for it."""
    machine_twin: ClassVar[float] = 3.0
    """A launcher without a message until another one may take its place."""
    launcher_probe: ClassVar[float] = 1.0
    """A connection to a launcher that may run, from a machine that returns."""
    place: ClassVar[float] = 30.0
    """A machine that was given a place in a run, until another one may have it; the wait for such a place."""
    refusal: ClassVar[float] = 5.0
    """Repetition of a refused start, for machines that join meanwhile."""
    early_end: ClassVar[float] = 20.0
    """What a machine that has failed before all have met waits to tell the others."""
    rendezvous_notice: ClassVar[float] = 10.0
    """A wait for other machines, until a line says for which."""
    reach: ClassVar[float] = 2.0
    """A try to reach a machine that is missing."""
    store_farewell: ClassVar[float] = 5.0
    """Service of a finished rank of DecentralizedDataParallel whose store others may still read."""
    launcher_linger: ClassVar[float] = 2.0
    """Delivery of a launcher's last messages."""
    same_interrupt: ClassVar[float] = 0.1
    """Until a Ctrl-C after the first request to stop is another one, which kills: a person's."""
    same_termination: ClassVar[float] = 10.0
    """Until a SIGTERM after the first request to stop is another one, which kills."""
    announced_round: ClassVar[float] = 0.05
    """Pause at a stop, in which nodes announce a round or see that they must wait."""
    announcements: ClassVar[float] = 3.0
    """The coordinator's wait at a stop for the rounds of the others."""
    decision: ClassVar[float] = machine_silent + announcements + 2.0
    """The others' wait at a stop for the last round, which another coordinator may have to name."""

    @staticmethod
    def machine_left(late: float = 0.0) -> float:
        """A launcher without a message before the start, until it is missing; `late` is our own look."""
        return max(5.0, 2 * late)

    @staticmethod
    def launcher_vector(nbytes: int = 0) -> float:
        """A vector between launchers until it is lost."""
        return max(10.0, nbytes / 1e5)

    # The observer, and what a launcher does beside its nodes.

    observation: ClassVar[float] = 20.0
    """An observation without new input, until it uses what has arrived."""
    last_observation: ClassVar[float] = 60.0
    """Observations after all nodes have finished."""
    stopped_observation: ClassVar[float] = 8.0
    """Observations after all nodes have finished, in a run that was asked to stop."""
    last_rows: ClassVar[float] = 30.0
    """The end of a run, or of its launcher, until its writers have finished; others are killed."""
    control_answer: ClassVar[float] = 3.0
    """A request to a launcher and its answer (`decentnode status`, `decentnode restart`)."""
    stop_share: ClassVar[float] = 0.8
    """The part of an engine's time of grace in which nodes end; the rest is for what follows."""
    run_lock: ClassVar[float] = 3.0
    """A resumed run's wait for processes of a killed launcher; `last_rows` more for its writers."""
    lease: ClassVar[float] = 60.0
    """A run without a heartbeat of the host that has it, until another host may have it."""
    console_line: ClassVar[float] = 1.0
    """A line for a blocked output, until it is dropped."""
    drawing: ClassVar[float] = 60.0
    """The process that draws pictures; on a new machine matplotlib searches fonts."""
    name_lookup: ClassVar[float] = 5.0
    """Look-up of the machines' names."""
    scontrol: ClassVar[float] = 10.0
    """The answer of `scontrol show hostnames`."""
    git: ClassVar[float] = 5.0
    """Each question to git about the sources of plug-ins."""
    forecast: ClassVar[float] = 20.0
    """The forecast of a study; variants that it does not reach in time have none."""
    compile: ClassVar[float] = 600.0
    """For the dry round of a network that torch.compile compiles."""
    dry_round: ClassVar[float] = 60.0
    """The forecast of one variant beyond that, until its process is killed."""
    calibration: ClassVar[float] = 60.0
    """For warming up, and again for measuring local steps; what has begun by then is ended."""
    torch_import: ClassVar[float] = 60.0
    """The import of torch in `decentnode doctor`."""
