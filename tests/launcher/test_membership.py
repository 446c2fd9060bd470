"""Machines that meet, and the membership table of their nodes."""

import secrets
import threading
import time
from dataclasses import replace

import msgspec
import pytest
import zmq

from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard, NodeProgress
from decentnode.communication.launcher_link.reports import (
    Exited,
    Failed,
    Finished,
    PeerBack,
    PeerMissing,
    Published,
    Rejoined,
    Restarted,
    RoundProgress,
    Stopped,
)
from decentnode.core.text import how_it_ended
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, StartError
from decentnode.launcher.cluster.base import OneMachine
from decentnode.launcher.cluster.rendezvous import Rendezvous
from decentnode.launcher.state.membership import MembershipTable, MemberState
from decentnode.launcher.state.messages import (
    DECODER,
    RUN_STARTS,
    Arrived,
    CheckpointsCommitted,
    EvaluationRows,
    Join,
    PartialDistance,
    Pause,
    Presence,
    Refuse,
    RelayedReports,
    Start,
    StopRequest,
    VectorPiece,
    Wait,
)
from decentnode.mapping.base import Linear, Machine, tcp_endpoint
from decentnode.mapping.reachability import REFUSED
from tests.support.launchers import LauncherThreads, join_of, mapping_of
from tests.support.processes import free_ports
from tests.support.reported import report_to

FIVE = {0: [4], 1: [4]}
FINISHED = Finished(2, 10, "ab" * 32, 700, 600, 12.5, {"accuracy": 0.9, "loss": 0.3})


def membership():
    return MembershipTable(range(4), {0: (0, 1), 1: (2,)})


def state(members, rank):
    return members.members[rank].state


class TestMembership:
    def test_nodes_start_run_and_finish(self):
        members = membership()
        assert members.active == {0, 1, 2, 3}
        members.start()
        assert members.ranks(MemberState.RUNNING) == [0, 1, 2, 3]
        report_to(members, FINISHED)
        assert members.ranks(MemberState.FINISHED) == [2]
        assert members.active == {0, 1, 3}
        assert members.members[2].finished == FINISHED
        assert (members.members[2].round, members.members[2].bytes_sent) == (9, 700)

    def test_progress_never_goes_back(self):
        members = membership()
        report_to(members, RoundProgress(1, 5, 0.5, 100))
        report_to(members, Published(1, 4, None, 80, 0.1, True))
        assert (members.members[1].round, members.members[1].bytes_sent) == (5, 100)

    def test_a_failure_is_a_loss_with_its_reason(self):
        members = membership()
        report_to(members, Failed(1, "ValueError: no", out_of_memory=True))
        assert state(members, 1) is MemberState.LOST
        assert members.members[1].error == "ValueError: no"
        report_to(members, Failed(1, "machine 1 fell silent"))
        assert members.members[1].out_of_memory

    def test_the_first_reason_stays(self):
        members = membership()
        report_to(members, Failed(0, "ValueError: no"))
        report_to(members, Exited(0, 4))
        assert members.members[0].error == "ValueError: no"
        assert members.members[1].error == "its process ended with exit code 4"

    def test_an_end_of_a_process_loses_all_its_unfinished_nodes_and_no_others(self):
        members = membership()
        report_to(members, FINISHED)
        report_to(members, Exited(1, -9))
        assert state(members, 2) is MemberState.FINISHED
        report_to(members, Exited(0, -9))
        assert members.ranks(MemberState.LOST) == [0, 1]
        assert members.members[0].error == "killed by signal 9"
        report_to(members, Exited(7, 0))
        assert state(members, 3) is MemberState.STARTING

    def test_a_lost_node_does_not_run_again_at_the_start(self):
        members = membership()
        report_to(members, Failed(3, "gone"))
        members.start()
        assert state(members, 3) is MemberState.LOST

    def test_an_edge_is_broken_only_where_both_ends_finished(self):
        members = membership()
        members.start()
        first, second = PeerMissing(0, 3, 2, "silent"), PeerMissing(0, 4, 1, "gone")
        report_to(members, first)
        report_to(members, second)
        assert members.broken_edges() == []
        assert members.reporting().keys() == {0, 3}
        report_to(members, FINISHED)
        assert members.broken_edges() == []
        report_to(members, msgspec.structs.replace(FINISHED, rank=0))
        assert members.broken_edges() == [first]

    def test_words_for_an_end(self):
        assert how_it_ended(-11) == "killed by signal 11"
        assert how_it_ended(3) == "its process ended with exit code 3"


def refusal(future):
    with pytest.raises((BadInput, StartError)) as caught:
        future.result(10.0)
    return str(caught.value)


def one_machine(join):
    return OneMachine(mapping_of(1), membership(), join)


class TestRendezvous:
    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
    def test_all_get_the_same_run_id_whoever_comes_first(self, order):
        with LauncherThreads(3) as launchers:
            came = []
            for machine in order:
                came.append(launchers.start(machine))
                time.sleep(0.05)
            ids = {future.result(10.0).run_id for future in came}
        assert len(ids) == 1
        assert 0 < ids.pop() < 2**63

    def test_run_ids_differ_and_one_machine_opens_no_socket(self):
        alone = one_machine(join_of(0))
        threads = threading.active_count()
        assert len({alone.meet({}, 0.0, lambda: False).run_id for _ in range(2)}) == 2
        assert alone.send(RelayedReports(0, [])) == 0
        alone.exchange(time.monotonic())
        assert threading.active_count() == threads
        alone.close()

    @pytest.mark.slow
    def test_who_is_missing_is_named_on_every_machine(self, monkeypatch):
        monkeypatch.setattr(Timeouts, "refusal", 0.3)
        with LauncherThreads(3) as launchers:
            present = [launchers.start(0, 1.2), launchers.start(1, 6.0)]
            absent = f"timed out after 1 s waiting for machine 2 (127.0.0.3, ranks 4-5); machine 2: {REFUSED}"
            assert [refusal(future) for future in present] == [absent, f"machine 0: {absent}"]

    @pytest.mark.slow
    def test_a_machine_that_cannot_reach_the_first_names_it_and_where(self):
        with LauncherThreads(2) as launchers:
            port = launchers.mapping.rendezvous_port
            assert refusal(launchers.start(1, 0.3)) == (
                "timed out after 0 s waiting for machine 0 (127.0.0.1, ranks 0-1) at "
                f"tcp://127.0.0.1:{port}: the machine answers, but no process listens at this port"
            )

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            ({"version": "0.1.0"}, "version: 0.1.0; machine 0: 0.2.0"),
            (
                {"digest": "f" * 64, "settings": {f"key.{i}": "1" for i in range(9)}},
                "configuration or graph: ffffffffffff; machine 0: dddddddddddd"
                + "".join(f"\n  key.{i}: 1; machine 0: none" for i in range(5))
                + "\n  and 4 more settings",
            ),
            ({"run_id": "00" * 8}, "run to continue: 000000000000; machine 0: none"),
            ({"dataset": "f" * 64}, "dataset's content: ffffffffffff; machine 0: eeeeeeeeeeee"),
        ],
        ids=["version", "digest", "run", "dataset"],
    )
    def test_what_differs_is_refused_on_both_sides(self, change, difference):
        with LauncherThreads(2) as launchers:
            both = launchers.start(0), launchers.start(1, **change)
            reason = f"machine 1 (127.0.0.2, ranks 2-3) has another {difference}"
            assert [refusal(future) for future in both] == [reason, f"machine 0: {reason}"]

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            ({"code": {"phd.py": "c", "lab/nets.py": "b"}}, "other code than machine 0: phd.py"),
            (
                {"files": {"decentnode/core/clock.py": "1"}, "package": "c" * 64},
                "other code than machine 0: decentnode/core/clock.py (hash cccccccccccc; machine 0: )",
            ),
            ({"torch": "2.7.0"}, "another version of torch: 2.7.0; machine 0: "),
        ],
        ids=["plug-in", "package", "torch"],
    )
    def test_other_code_is_refused_on_both_sides_as_bad_input_unless_it_is_allowed(self, change, difference):
        code = {"phd.py": "a", "lab/nets.py": "b"}
        machine = "machine 1 (127.0.0.2, ranks 2-3)"
        with LauncherThreads(2, allow_different_code=True) as launchers:
            both = launchers.start(0, code=code), launchers.start(1, **{"code": code} | change)
            assert both[0].result(10.0) == both[1].result(10.0)
            assert launchers.rendezvous_of[0].conditions.news == [
                f"{machine} has {difference}; failures.allow_different_code permits it"
            ]
        with LauncherThreads(2) as launchers:
            both = (
                launchers.start(0, code=code),
                launchers.start(1, **{"code": code, "digest": "f" * 64} | change),
            )
            reason = (
                f"{machine} has {difference}; put the same files on all machines "
                "(failures.allow_different_code: true permits others)"
            )
            for future, line in zip(both, (reason, f"machine 0: {reason}"), strict=True):
                with pytest.raises(BadInput) as caught:
                    future.result(10.0)
                assert str(caught.value) == line

    def test_a_stop_ends_the_waiting_on_machine_0_and_is_reported(self):
        stopped = threading.Event()
        with LauncherThreads(3) as launchers:
            both = launchers.start(0, is_stopped=stopped.is_set), launchers.start(1)
            time.sleep(0.3)
            stopped.set()
            assert refusal(both[0]) == "the run was stopped on machine 0"
            assert refusal(both[1]) == "machine 0: the run was stopped on machine 0"

    def test_a_stop_ends_the_waiting_elsewhere(self):
        with LauncherThreads(2) as launchers:
            began = time.monotonic()
            assert refusal(launchers.start(1, is_stopped=lambda: True)) == "the run was stopped on machine 1"
        assert time.monotonic() - began < 3.0

    def test_the_end_of_one_is_the_end_of_all_unless_enough_are_left(self, monkeypatch):
        monkeypatch.setattr(Timeouts, "refusal", 0.1)
        line = "machine 1 (127.0.0.2, ranks 2-3) has ended before the run began: it was stopped"
        for start, least in (("all", None), ("at_least 4", [1])):
            with LauncherThreads(3, start, grace=30.0) as launchers:
                gone = threading.Event()
                host, first = launchers.start(0), launchers.start(1, is_stopped=gone.is_set)
                launchers.wait_for(1)
                gone.set()
                assert refusal(first) == "the run was stopped on machine 1"
                if least is None:
                    assert refusal(host) == line
                else:
                    last = launchers.start(2)
                    launchers.wait_for(2)
                    failures = launchers.rendezvous_of[0].conditions.failures
                    launchers.rendezvous_of[0].conditions.failures = replace(failures, grace=0.0)
                    assert last.result(10.0).absent == host.result(10.0).absent == least

    def test_what_ends_before_the_others_are_there_ends_them_when_they_come(self, monkeypatch, capsys):
        line = "machine {} ({}) has ended before the run began: no dataset"
        places = ["127.0.0.1, ranks 0-1", "127.0.0.2, ranks 2-3"]
        for machine in range(2):
            with LauncherThreads(2) as launchers:
                join = join_of(machine)
                early = Rendezvous(launchers.mapping, machine, join, None, launchers.failures)
                ending = launchers._pool.submit(early.announce_end, Refuse("no dataset", is_bad_input=True))
                time.sleep(0.3)
                teller = "machine 0: " if machine == 0 else ""
                with pytest.raises(BadInput) as found:
                    launchers.start(1 - machine).result(10.0)
                assert str(found.value) == teller + line.format(machine, places[machine])
                ending.result(3.0)
                early.close()
            assert "ends before the run begins: no dataset; the other mach" in capsys.readouterr().out

    def test_a_machine_that_is_started_twice_is_refused_and_the_first_stays(self):
        with LauncherThreads(3) as launchers:
            zero, first = launchers.start(0), launchers.start(1)
            time.sleep(0.3)
            zero_, one, two = launchers.mapping.machines
            elsewhere = Linear(
                (zero_, replace(one, listen="127.0.0.9"), two), launchers.mapping.rendezvous_port
            )
            twin = Rendezvous(elsewhere, 1, join_of(1))
            with pytest.raises(StartError, match=r"^machine 0: machine 1 is here already"):
                twin.meet({}, 5.0, lambda: False)
            twin.close()
            last = launchers.start(2)
            assert zero.result(10.0) == first.result(10.0) == last.result(10.0)

    def test_a_machine_of_another_job_is_refused_and_the_own_one_awaited(self):
        with LauncherThreads(2) as launchers:
            zero = launchers.start(0, job="Slurm job 5.0")
            for job, named in (("Slurm job 6.0", "Slurm job 6.0"), ("", "no job")):
                stranger = Rendezvous(launchers.mapping, 1, join_of(1, job=job))
                refused = (
                    f"^machine 0: machine 1 is of another job: {named}; this port has one of Slurm job 5.0$"
                )
                with pytest.raises(StartError, match=refused):
                    stranger.meet({}, 5.0, lambda: False)
                stranger.close()
            start = launchers.start(1, job="Slurm job 5.0")
            assert zero.result(10.0) == start.result(10.0)
            assert launchers.rendezvous_of[0].refused["another job"] >= 2

    def leave(self, launchers, machine, gone, future):
        """Ends a machine that waits for the start, and lets the time pass until it counts as missing."""
        launchers.kill(machine, gone)
        refusal(future)
        host, limit = launchers.rendezvous_of[0], time.monotonic() + 1.0
        while machine in host._joins and time.monotonic() < limit:
            host.last_received[machine] -= 10 * Timeouts.machine_left()
            time.sleep(0.05)

    def test_nobody_begins_with_a_machine_that_has_left_again(self):
        with LauncherThreads(3) as launchers:
            gone = threading.Event()
            host, first = launchers.start(0), launchers.start(1, is_stopped=gone.is_set)
            launchers.wait_for(1)
            self.leave(launchers, 1, gone, first)
            last = launchers.start(2)
            launchers.wait_for(2)
            time.sleep(0.2)
            assert not host.done(), "the run would start without machine 1, whose nodes all would wait for"
            again = launchers.start(1)
            assert host.result(10.0) == again.result(10.0) == last.result(10.0)

    def test_what_a_machine_has_sent_that_has_left_again_does_not_count(self):
        with LauncherThreads(3, "at_least 4", grace=30.0) as launchers:
            gone = threading.Event()
            host = launchers.start(0, handshakes={0: b"zero"})
            first = launchers.start(1, is_stopped=gone.is_set, handshakes={2: b"one"})
            launchers.wait_for(1)
            self.leave(launchers, 1, gone, first)
            last = launchers.start(2, handshakes={4: b"two"})
            launchers.wait_for(2)
            host_failures = launchers.rendezvous_of[0].conditions.failures
            launchers.rendezvous_of[0].conditions.failures = replace(host_failures, grace=0.0)
            assert host.result(10.0).absent == last.result(10.0).absent == [1]
            assert last.result().handshakes == {0: b"zero", 4: b"two"}

    def test_a_machine_that_is_slow_and_reports_again_begins_with_the_others(self):
        with LauncherThreads(3) as launchers:
            host, slow = launchers.start(0), launchers.start(1)
            launchers.wait_for(1)
            launchers.rendezvous_of[0].last_received[1] -= 10 * Timeouts.machine_left()
            last = launchers.start(2)
            assert host.result(10.0) == slow.result(10.0) == last.result(10.0)
            assert host.result().absent == []

    def test_every_machine_learns_what_all_nodes_say_of_themselves(self):
        handshakes = {rank: bytes([rank]) * 32 for rank in range(6)}
        with LauncherThreads(3) as launchers:
            futures = [
                launchers.start(m, handshakes={r: handshakes[r] for r in launchers.mapping.ranks_of(m)})
                for m in (2, 0, 1)
            ]
            assert [future.result(10.0).handshakes for future in futures] == [handshakes] * 3

    def test_a_thousand_keys_fit_into_the_meeting(self):
        mapping = Linear((Machine("127.0.0.1", 1), Machine("127.0.0.2", 1023)), free_ports(1))
        handshakes = {rank: secrets.token_bytes(32) for rank in range(1024)}
        with LauncherThreads(2) as launchers:
            launchers.mapping = mapping
            zero = launchers.start(0, handshakes={0: handshakes[0]})
            start = launchers.start(1, handshakes={rank: handshakes[rank] for rank in range(1, 1024)})
            assert zero.result(10.0) == start.result(10.0)
            assert zero.result().handshakes == handshakes

    def test_no_machine_reports_for_the_nodes_of_another(self):
        with LauncherThreads(3) as launchers:
            liar = launchers.start(1, handshakes={0: b"false", 2: b"true", 4: b"false", 9: b"none"})
            others = [launchers.start(0, handshakes={0: b"zero"}), launchers.start(2)]
            expected = {0: b"zero", 2: b"true"}
            assert [future.result(10.0).handshakes for future in (liar, *others)] == [expected] * 3

    def test_of_a_machine_that_starts_again_the_last_word_counts(self, monkeypatch):
        monkeypatch.setattr(Timeouts, "machine_twin", 0.0)
        with LauncherThreads(3) as launchers:
            host, gone = launchers.start(0), threading.Event()
            first = launchers.start(1, is_stopped=gone.is_set, handshakes={2: b"old", 3: b"old"})
            time.sleep(0.3)
            launchers.kill(1, gone)
            assert refusal(first) == "the run was stopped on machine 1"
            time.sleep(0.3)
            second, limit = launchers.start(1, handshakes={2: b"new"}), time.monotonic() + 10
            # Were the last one heard before it, the start would go to where the first one answered.
            joins = launchers.rendezvous_of[0]._joins
            while joins[1].handshakes != {2: b"new"} and time.monotonic() < limit:
                time.sleep(0.01)
            last = launchers.start(2)
            assert host.result(10.0) == second.result(10.0) == last.result(10.0)
            assert last.result().handshakes[2] == b"new"

    def test_a_run_continues_after_the_newest_round_that_all_ranks_have(self):
        """What a machine says of the ranks of others does not count."""
        offers = [{0: [4, 9], 1: [4, 9, 14], 2: [99]}, {2: [9, 4], 3: [9, 14], 0: [99]}]
        with LauncherThreads(2) as launchers:
            both = [
                launchers.start(m, run_id=f"{77:016x}", incarnation=3 * m, offers=offers[m]) for m in range(2)
            ]
            starts = [future.result(10.0) for future in both]
        assert starts[0] == starts[1]
        assert (starts[0].run_id, starts[0].incarnation, starts[0].round) == (77, 4, 9)

    @pytest.mark.parametrize(("known", "round"), [([20, 4], 9), ([20], 4)])
    def test_rounds_that_others_have_undone_without_a_machine_do_not_count(self, known, round):
        """Machine 1 may have been away when the run went on after round 4, from an older one than its own."""
        offers, starts = [{0: [4, 9], 1: [4, 9]}, {2: [4, 9], 3: [4, 9]}], [[20, 4], known]
        with LauncherThreads(2) as launchers:
            both = [
                launchers.start(m, run_id="1", incarnation=2, offers=offers[m], starts=starts[m])
                for m in range(2)
            ]
            agreed = [future.result(10.0) for future in both]
        assert agreed[0] == agreed[1]
        assert (agreed[0].round, agreed[0].starts) == (round, [20, 4, round])

    def test_a_run_that_was_started_as_often_as_can_be_written_is_refused(self):
        alone = one_machine(join_of(0, run_id="1", incarnation=RUN_STARTS[-1], offers=FIVE))
        with pytest.raises(StartError, match=r"started again 2147483647 times, the limit"):
            alone.meet({}, 0.0, lambda: False)
        alone = one_machine(join_of(0, run_id="1", incarnation=RUN_STARTS[-2], offers=FIVE))
        assert alone.meet({}, 0.0, lambda: False).incarnation == RUN_STARTS[-1]

    def test_no_number_of_starts_travels_that_cannot_be_written(self):
        for number, is_read in ((RUN_STARTS[-1], True), (RUN_STARTS.stop, False), (-1, False)):
            for note in (join_of(1, incarnation=number), Start(1, incarnation=number)):
                content = msgspec.msgpack.encode(note)
                if is_read:
                    assert DECODER.decode(content) == note
                else:
                    with pytest.raises(msgspec.ValidationError):
                        DECODER.decode(content)

    def test_without_a_common_round_all_machines_say_who_lacks_what(self):
        offers = [{0: [4, 9], 1: [4, 9]}, {2: [4], 3: [14]}]
        with LauncherThreads(2) as launchers:
            both = [launchers.start(m, run_id="1", offers=offers[m]) for m in range(2)]
            reason = (
                "there is no round that all ranks have a checkpoint of; round 15 is missing here: "
                "rank 0 has round 5, 10; rank 1 has round 5, 10; rank 2 has round 5"
            )
            assert [refusal(future) for future in both] == [reason, f"machine 0: {reason}"]

    def test_one_machine_alone_keeps_what_its_nodes_say(self):
        alone = one_machine(join_of(0))
        assert alone.meet({0: b"zero"}, 0.0, lambda: False).handshakes == {0: b"zero"}

    def test_a_port_in_use_is_named_with_its_key(self):
        with LauncherThreads(2) as launchers:
            endpoint = tcp_endpoint("127.0.0.1", launchers.mapping.rendezvous_port)
            context = zmq.Context()
            occupant = context.socket(zmq.ROUTER)
            occupant.bind(endpoint)
            message = refusal(launchers.start(0))
            occupant.close(0)
            context.term()
        assert message == f"{endpoint} is in use by another program (key mapping.rendezvous_port)"

    def test_messages_travel_between_all_machines_after_the_start(self):
        notes = [
            RelayedReports(1, [RoundProgress(2, 3, 0.5, 10), FINISHED, Exited(1, -9)]),
            VectorPiece(1, 4, 2, 0, b"\0" * 16),
            PartialDistance(1, 4, 2, 0.5),
        ]
        with LauncherThreads(3) as launchers:
            first, second, third = launchers.meet()
            for receiver, machine in ((first, 0), (third, 2)):
                for note in notes:
                    assert second.send(note, machine) == len(msgspec.msgpack.encode(note))
                assert receive(receiver, len(notes)) == notes
            first.send(VectorPiece(0, 4, 0, 0, b"\1" * 16), 1)
            assert receive(second, 1) == [VectorPiece(0, 4, 0, 0, b"\1" * 16)]

    def test_a_launcher_whose_connection_breaks_continues_where_it_was(self):
        with LauncherThreads(2) as launchers:
            first, second = launchers.meet()
            for turn in range(3):
                second.send(RelayedReports(1, []), 0)
                assert receive(first, 1) == [RelayedReports(1, [])]
                second._channel._outboxes[0].disconnect(launchers.endpoint)
                second._channel._outboxes[0].connect(launchers.endpoint)
                second.send(RelayedReports(1, [FINISHED]), 0)
                assert receive(first, 1) == [RelayedReports(1, [FINISHED])], turn
                first.send(CheckpointsCommitted(turn, -1), 1)
                assert receive(second, 1) == [CheckpointsCommitted(turn, -1)]

    def test_nobody_says_anything_in_the_name_of_another_machine(self):
        with LauncherThreads(3) as launchers:
            first, second, _ = launchers.meet()
            for note in (
                Pause(15, 3, machine=2),
                CheckpointsCommitted(3, 1, machine=2),
                Arrived(2, Presence(1, 1)),
                EvaluationRows(2, []),
                VectorPiece(2, 3, 0, 0, b"mean"),
                StopRequest(1, 15, 3),
            ):
                second.send(note, 0)
            assert receive(first, 1) == [StopRequest(1, 15, 3)]
            assert first.refused == {"identity": 5}

    def test_no_answer_comes_unasked(self):
        """A machine that listens answers on the connection of who asks."""
        with LauncherThreads(3) as launchers:
            first, second, _ = launchers.meet()
            for answer in (Wait([]), Refuse("no", machine=1), Start(7, late=1, machine=1)):
                second.send(answer, 0)
            assert receive(first, 1, seconds=0.3) == []
            assert first.refused == {"another start": 3}

    def test_a_run_is_begun_by_machine_0_alone(self):
        with LauncherThreads(3) as launchers:
            first = launchers.start(1)
            second = launchers.channel(2, bound=tcp_endpoint("127.0.0.3", launchers.mapping.rendezvous_port))
            assert second.wait(10.0)
            join, limit = second.receive(), time.monotonic() + 10.0
            for start in (Start(7), Start(7, machine=2)):
                second.answer(msgspec.msgpack.encode(start), join.launcher)
            rendezvous = launchers.rendezvous_of[1]
            while rendezvous.refused.total() < 2 and time.monotonic() < limit:
                time.sleep(0.01)
            second.close()
            both = launchers.start(0), launchers.start(2)
            assert len({future.result(10.0).run_id for future in (first, *both)}) == 1
            assert rendezvous.refused == {"identity": 2}

    def test_junk_at_the_meeting_point_disturbs_nothing(self):
        with LauncherThreads(2) as launchers:
            host = launchers.start(0)
            stranger = launchers.channel(1)
            nested = b"\x82\xa4type\xa4join\xa1x" + b"\x91" * 50_000 + b"\x00"
            elsewhere = msgspec.msgpack.encode(join_of(7, digest="f" * 64))
            itself = msgspec.msgpack.encode(join_of(0, digest="f" * 64))
            no_text = msgspec.msgpack.encode(Refuse("no")).replace(b"no", b"n\xff")
            for content in (b"", b"\xc1", b"GET /", nested, elsewhere, itself, no_text):
                stranger.send(content, 0)
            stranger._outbox(0).send_multipart([b"a", b"b", b"\xc1"])
            nameless = zmq.Context.instance().socket(zmq.DEALER)
            nameless.connect(launchers.endpoint)
            nameless.send_multipart([b"", msgspec.msgpack.encode(join_of(1, digest="f" * 64))])
            rendezvous, limit = launchers.rendezvous_of[0], time.monotonic() + 2.0
            while rendezvous.refused.total() < 9 and time.monotonic() < limit:
                time.sleep(0.01)
            ids = {host.result(10.0).run_id for host in (host, launchers.start(1))}
            stranger.close()
            nameless.close(0)
            assert rendezvous.refused == {"note": 5, "identity": 2, "frame count": 2}
        assert len(ids) == 1


class TestAtLeast:
    """Machines that carry enough nodes begin without the others, which may come later."""

    def test_enough_nodes_begin_and_the_absent_are_named_to_all(self):
        with LauncherThreads(3, "at_least 4") as launchers:
            starts = [future.result(10.0) for future in (launchers.start(0), launchers.start(2))]
        assert starts[0] == starts[1]
        assert starts[0].absent == [1] and not starts[0].late

    @pytest.mark.slow
    def test_with_less_nobody_begins(self, monkeypatch):
        monkeypatch.setattr(Timeouts, "refusal", 0.1)
        with LauncherThreads(3, "at_least 5") as launchers:
            absent = f"timed out after 1 s waiting for machine 2 (127.0.0.3, ranks 4-5); machine 2: {REFUSED}"
            assert [refusal(f) for f in (launchers.start(0, 1.0), launchers.start(1, 8.0))] == [
                absent,
                f"machine 0: {absent}",
            ]

    def test_the_others_have_the_grace_time(self):
        with LauncherThreads(3, "at_least 4", grace=30.0) as launchers:
            early = launchers.start(0), launchers.start(1)
            time.sleep(0.4)
            assert not early[0].done()
            assert launchers.start(2).result(10.0).absent == early[0].result(10.0).absent == []

    def test_the_end_of_the_deadline_ends_the_grace_time(self):
        with LauncherThreads(2, "at_least 2", grace=30.0) as launchers:
            assert launchers.start(0, 0.5).result(10.0).absent == [1]

    def test_a_run_continues_after_a_round_of_those_that_are_here(self):
        with LauncherThreads(2, "at_least 2") as launchers:
            start = launchers.start(0, run_id=f"{77:016x}", offers={0: [4, 9], 1: [9]}).result(10.0)
        assert (start.run_id, start.round, start.absent) == (77, 9, [1])


class TestLate:
    """A Join after the start."""

    def test_a_machine_gets_the_start_of_the_run_that_is_under_way(self):
        with LauncherThreads(3, "at_least 2") as launchers:
            start = launchers.start(0, handshakes={0: b"zero"}).result(10.0)
            late, host = launchers.start(1), launchers.rendezvous_of[0]
            welcome(launchers)
            agreed = late.result(10.0)
            assert host.is_newcomer(1), "it may not have received the answer"
            launchers.rendezvous_of[1].send(Arrived(1, Presence(1, 1)), 0)
            assert receive(host, 1) == [Arrived(1, Presence(1, 1))]
            assert not host.is_newcomer(1)
        assert (agreed.run_id, agreed.late, agreed.absent, agreed.handshakes) == (start.run_id, 1, [2], {})
        assert (start.seconds, agreed.seconds) == (0.0, 12.5)

    def test_a_run_that_was_begun_on_another_machine_is_known_by_its_id(self):
        with LauncherThreads(2, "at_least 2") as launchers:
            start = launchers.start(0).result(10.0)
            late = launchers.start(1, run_id=f"{start.run_id:016x}", offers={2: [5], 3: [5]})
            welcome(launchers)
            assert (late.result(10.0).late, late.result(10.0).round) == (1, -1)

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            ({"version": "0.1.0"}, "version: 0.1.0; machine 0: 0.2.0"),
            ({"digest": "f" * 64}, "configuration or graph: ffffffffffff; machine 0: dddddddddddd"),
            ({"run_id": "f" * 16}, "run to continue: ffffffffffff; machine 0: none"),
        ],
        ids=["version", "digest", "run"],
    )
    def test_what_differs_is_refused_to_that_machine_alone_and_another_try_counts(self, change, difference):
        with LauncherThreads(3, "at_least 4") as launchers:
            first, second = launchers.start(0), launchers.start(1)
            first.result(10.0), second.result(10.0)
            wrong = launchers.start(2, **change)
            welcome(launchers)
            assert refusal(wrong) == f"machine 0: machine 2 (127.0.0.3, ranks 4-5) has another {difference}"
            launchers.rendezvous_of[2].close()
            right = launchers.start(2)
            welcome(launchers)
            assert right.result(10.0).late == 1

    def test_it_learns_after_which_round_the_run_continued(self):
        past = {"run_id": "0" * 15 + "7", "incarnation": 1}
        with LauncherThreads(2, "at_least 2") as launchers:
            launchers.start(0, **past, offers={0: [4, 9], 1: [4]}).result(10.0)
            late = launchers.start(1, **past, offers={2: [9], 3: [9]})
            welcome(launchers)
            start = late.result(10.0)
        assert (start.late, start.incarnation, start.round) == (1, 2, 4)

    def test_a_launcher_of_an_earlier_start_that_lives_on_is_ignored_until_it_joins(self):
        with LauncherThreads(2, "at_least 2") as launchers:
            launchers.start(0).result(10.0)
            host = launchers.rendezvous_of[0]
            old = launchers.channel(1)
            old.start = b"another start"
            old.send(msgspec.msgpack.encode(RelayedReports(1, [])), 0)
            limit = time.monotonic() + 5.0
            while not host.refused and time.monotonic() < limit:
                assert host.receive(timeout=0.1) == []
            assert host.refused == {"another start": 1}
            late = launchers.start(1)
            welcome(launchers)
            assert late.result(10.0).late == 1
            launchers.rendezvous_of[1].send(RelayedReports(1, []), 0)
            assert receive(host, 1) == [RelayedReports(1, [])]
            old.close()

    def test_an_objection_is_reported(self):
        with LauncherThreads(2, "at_least 2") as launchers:
            launchers.start(0).result(10.0)
            late = launchers.start(1)
            welcome(launchers, "machine 1 has finished")
            assert refusal(late) == "machine 0: machine 1 has finished"

    def test_those_that_were_there_from_the_start_are_none(self):
        with LauncherThreads(2) as launchers:
            host, _ = launchers.meet()
            assert not host.is_newcomer(1)


class TestMachine0ComesAgain:
    """It is the meeting point, and finds that the run goes on without it."""

    @pytest.fixture
    def launchers(self, monkeypatch):
        """Three machines after the start, the first of which has ended."""
        monkeypatch.setattr(Timeouts, "machine_twin", 0.5)
        with LauncherThreads(3) as launchers:
            launchers.meet()
            launchers.rendezvous_of[0].close()
            yield launchers

    def test_it_joins_late_as_another_machine_does(self, launchers):
        run_id = launchers.rendezvous_of[1]._start.run_id
        again = launchers.start(0)
        welcome(launchers, machine=1)
        start = again.result(10.0)
        assert (start.run_id, start.late, start.machine) == (run_id, 1, 1)
        launchers.rendezvous_of[0].send(Arrived(0, Presence(1, 1)), 2)
        assert Arrived(0, Presence(1, 1)) in receive(launchers.rendezvous_of[2], 9, seconds=0.5)

    @pytest.mark.parametrize(
        "answer", [{"objection": "no"}, {"objection": "no", "waits": True}], ids=["refusal", "wait"]
    )
    def test_it_begins_no_second_run_although_its_own_nodes_are_enough(self, launchers, answer):
        launchers.failures = replace(launchers.failures, start="at_least 2")
        again = launchers.start(0)
        welcome(launchers, machine=1, **answer)
        time.sleep(0.5)
        assert not again.done()
        welcome(launchers, machine=1)
        assert again.result(10.0).late == 1

    def test_it_begins_without_the_others_when_their_run_has_ended(self, launchers, monkeypatch):
        launchers.failures = replace(launchers.failures, start="at_least 2")
        monkeypatch.setattr(Timeouts, "machine_left", lambda late=0.0: 0.5)
        again = launchers.start(0)
        welcome(launchers, "the run was asked to stop", machine=1)
        assert (again.result(10.0).late, again.result().absent) == (0, [1, 2])

    def test_why_it_cannot_take_part_is_in_the_line_at_the_deadline(self, launchers, monkeypatch):
        monkeypatch.setattr(Timeouts, "refusal", 0.1)
        again = launchers.start(0, 1.0)
        welcome(launchers, "machine 0 has finished", machine=1)
        assert refusal(again) == (
            "timed out after 1 s waiting for machine 1 (127.0.0.2, ranks 2-3); "
            "machine 2 (127.0.0.3, ranks 4-5); a machine with a run in progress says: machine 0 has finished"
        )


def welcome(launchers, objection="", machine=0, waits=False):
    """Answers the next machine that comes, as the coordinator."""
    host, limit = launchers.rendezvous_of[machine], time.monotonic() + 10.0
    start = Start(0, absent=[2], late=1, presences={machine: Presence()}, seconds=12.5, machine=machine)
    while time.monotonic() < limit:
        for note in host.receive(timeout=0.1):
            if isinstance(note, Join) and host.is_newcomer(note.machine):
                host.admit(note, start, objection, waits)
                return
    raise AssertionError("nobody has come")


def receive(rendezvous, count, seconds=5.0):
    notes, limit = [], time.monotonic() + seconds
    while len(notes) < count and time.monotonic() < limit:
        notes += rendezvous.receive(timeout=0.1)
    return notes


def test_a_node_that_was_restarted_counts_as_running_and_its_edges_are_restored():
    membership = MembershipTable(range(3), {0: (0,), 1: (1,), 2: (2,)})
    membership.start()
    report_to(membership, Exited(1, -9))
    assert membership.ranks(MemberState.LOST) == [1]
    for _ in range(3):  # said again, it takes no more memory
        report_to(membership, PeerMissing(0, 4, 1, "its process ended"))
    assert len(membership.missing_edges) == 1
    report_to(membership, Restarted(1, -9, 1))
    assert membership.ranks(MemberState.LOST) == []
    assert membership.members[1].restarts == 1
    assert membership.missing_edges  # until its neighbors hear it again
    report_to(membership, PeerBack(0, 7, 1))
    assert membership.missing_edges == {}
    assert 1 in membership.reporting()


def finished(membership):
    for rank in membership.members:
        report_to(membership, Finished(rank, 20, "", 0, 0, 0.0))


def test_what_a_process_missed_that_has_died_does_not_count_once_it_is_restarted():
    membership = MembershipTable(range(3), {0: (0,), 1: (1,), 2: (2,)})
    membership.start()
    report_to(membership, PeerMissing(0, 10, 1, "its process ended"))
    report_to(membership, PeerMissing(2, 10, 1, "its process ended"))
    report_to(membership, Restarted(1, -9, 1))
    report_to(membership, PeerBack(2, 12, 1))
    assert 1 not in membership.reporting()
    report_to(membership, Restarted(0, -9, 1))  # its new process misses nobody, so it hears nobody again
    assert 1 in membership.reporting()
    assert membership.reporting().keys() == {0, 1, 2}
    finished(membership)
    assert membership.missing_edges == {} and membership.broken_edges() == []


def test_a_node_that_ran_out_of_memory_and_was_restarted_has_not_in_the_end():
    membership = MembershipTable(range(2), {0: (0,), 1: (1,)})
    membership.start()
    report_to(membership, Failed(0, "out of memory", out_of_memory=True))
    assert membership.members[0].out_of_memory
    report_to(membership, Restarted(0, 5, 1))
    finished(membership)
    assert not membership.members[0].out_of_memory


def test_who_is_back_is_not_waited_for_by_evaluations_before_its_neighbors_hear_it():
    membership = MembershipTable(range(2), {0: (0,), 1: (1,)})
    membership.start()
    report_to(membership, Failed(1, "has not come yet"))
    report_to(membership, PeerMissing(0, 0, 1, "has not come yet"))
    report_to(membership, Restarted(1, None, 16))
    assert membership.reporting() == {0: -1}
    report_to(membership, PeerBack(0, 7, 1))
    report_to(membership, RoundProgress(1, 8, None, 0))
    assert membership.reporting() == {0: -1, 1: 8}
    assert membership.reporting([1]) == {1: 8}
    report_to(membership, Stopped(1, 9))
    assert membership.reporting() == {0: -1}


class TestProgress:
    """Of nodes here it is read in shared memory (`MembershipTable.read_progress`)."""

    @pytest.fixture
    def board(self):
        return HeartbeatBoard(range(2))

    @pytest.fixture
    def table(self, board):
        table = MembershipTable(range(2), {0: (0,), 1: (1,)}, heartbeats=board)
        table.start()
        return table

    def test_it_counts_when_the_reports_before_it_are_processed(self, board, table):
        board.of(0).record_progress(NodeProgress(3, 0.5, 700, 0.25))
        table.read_progress()
        assert table.reporting() == {0: -1, 1: -1}, "an evaluation of an earlier round may be in the pipe"
        assert table.record_progress() == [0]
        assert table.reporting() == {0: 3, 1: -1}
        assert table.progress_of(0) == RoundProgress(0, 3, 0.5, 700, 0.25)
        assert table.record_progress() == []

    def test_a_node_that_goes_back_between_the_two_is_where_it_says(self, board, table):
        board.of(1).record_progress(NodeProgress(9, 0.5, 700, None))
        table.read_progress()
        board.of(1).go_back_to(6)
        report_to(table, Rejoined(1, 6))
        table.record_progress()
        assert table.members[1].round == 5
        table.read_progress()
        table.record_progress()
        assert table.members[1].round == 5

    def test_the_last_report_of_a_node_says_more(self, board, table):
        board.of(0).record_progress(NodeProgress(8, 0.5, 700, None))
        table.read_progress()
        report_to(table, msgspec.structs.replace(FINISHED, rank=0))
        table.record_progress()
        assert (table.members[0].round, table.members[0].bytes_sent) == (9, 700)


def test_the_sets_of_the_table_follow_every_change_of_a_state():
    """They are kept up to date by `set_state`, and must equal what a pass over all nodes finds."""
    table = MembershipTable(range(6), {0: (0, 1), 1: (2,), 2: (3, 4), 3: (5,)}, local=range(5))
    table.start()
    changes = [
        Failed(0, "gone"), FINISHED, Exited(1, 0), Failed(1, "gone"), Exited(0, -9), Restarted(0, -9, 1),
        Stopped(3, 4), Exited(2, 0), msgspec.structs.replace(FINISHED, rank=0), Failed(5, "gone"),
        Restarted(2, None, 1), Restarted(3, None, 1), Exited(0, 0),
    ]  # fmt: skip
    for change in changes:
        report_to(table, change)
        states = {rank: member.state for rank, member in table.members.items()}
        assert table.active == {rank for rank, state in states.items() if state.is_active}
        assert table.lost == {rank for rank, state in states.items() if state is MemberState.LOST}
        assert table.running == sum(state is MemberState.RUNNING for state in states.values())
        assert table.idle == {
            position
            for position, ranks in table.here.items()
            if position not in table.ended and table.active.isdisjoint(ranks)
        }
