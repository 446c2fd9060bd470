"""One machine's launcher of scripts, from their first request to its exit code."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from decentnode.communication.launcher_link.attachment import JoinRefusal
from decentnode.core.process_setup import check_kernel, default_threads, exit_by_signals
from decentnode.core.streams import print_line
from decentnode.core.text import counted, how_it_ended
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, DecentnodeError, ExitCode
from decentnode.launcher import preflight
from decentnode.launcher.cluster.scheduler import settle, this_machine
from decentnode.launcher.early_end import end_announced
from decentnode.launcher.launcher import Launcher
from decentnode.launcher.own_loop.loop_settings import settings_of
from decentnode.launcher.own_loop.script_server import ScriptServer
from decentnode.launcher.recovery.resume import ResumePlan, how_it_is_over, started_before
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.live_view import screen_for
from decentnode.launcher.state.run_directory import locked_directory
from decentnode.node.experiment import Experiment


def serve_scripts(
    server: ScriptServer, mapping: dict[str, Any], start_deadline: float,
    screen: Callable[[TextIO], LiveConsole] = screen_for, resume: Path | None = None,
    or_resume: bool = False,
) -> ExitCode:  # fmt: skip
    """Runs this machine's part of the run that its scripts ask for; returns the exit code.

    `mapping`: the machines, where the scripts' configuration names none. Raises what prevents the run, which
    the scripts are told first. `resume`: the directory of a run that its checkpoints continue. `or_resume`:
    whether an earlier start of the same command may have begun it.
    """
    check_kernel()
    torch.set_num_threads(1)
    try:
        server.start()
        request = server.first_request(start_deadline)
        os.chdir(request.folder)
        resume_plan = None if resume is None else ResumePlan(resume, by_scripts=True)
        lock = None
        settings, ignored = settings_of(request, mapping)
        or_resume = or_resume or request.or_resume
        if or_resume:
            settings, job = settle(settings, or_resume)
            lock = locked_directory(Path(str(settings.run_dir)))
            resume_plan = started_before(settings, by_scripts=True, lock=lock)
            if resume_plan is not None and (over := how_it_is_over(resume_plan, this_machine(settings))):
                line, code = over
                print_line(line)
                server.dismiss(JoinRefusal(line, is_finished=True), late=Timeouts.attach)
                return code
        if resume_plan is not None:
            saved, given = (one.model.options["parameters"] for one in (resume_plan.settings, settings))
            if saved != given:
                raise BadInput(
                    f"{resume_plan.run_dir}: the script's model has other parameters than that of this run"
                )
            settings = settings if or_resume else resume_plan.settings
        if ignored:
            print_line(ignored)
        if not or_resume:
            settings, job = settle(settings)
        machine = this_machine(settings)
        with end_announced(settings, machine, job):
            if shortage := preflight.check(settings, machine):
                print_line(shortage)
            launcher = Launcher(
                Experiment.from_settings(settings),
                machine,
                screen(sys.stdout),
                resume_plan,
                job=job,
                make_server=server.serve,
                or_resume=or_resume,
                lock=lock,
            )
        return launcher.run()
    except DecentnodeError as error:
        refusal = JoinRefusal(str(error), error.exit_code == ExitCode.BAD_INPUT)
        server.dismiss(refusal, late=Timeouts.attach)
        raise
    except BaseException as error:
        how = "was stopped" if isinstance(error, SystemExit) else f"has failed: {error!r}"
        server.dismiss(JoinRefusal(f"the launcher {how}"))
        raise
    finally:
        server.dismiss(JoinRefusal("the run has ended"))


def script_command(script: Sequence[str]) -> list[str]:
    """Returns the command of a script with its arguments: a file, or `-m module`."""
    return [sys.executable, "-u", *script]


def starter(
    command: Sequence[str], socket_path: Path, logs: Callable[[int], Path], first_rank: int, size: int,
    local_size: int, more: Mapping[str, str],
) -> Callable[[int], "subprocess.Popen[bytes]"]:  # fmt: skip
    """Returns what starts the script of a local rank, in a session of its own, with its output in a file."""

    def start(local_rank: int) -> "subprocess.Popen[bytes]":
        environ = {
            "OMP_NUM_THREADS": str(default_threads(local_size)),
            **os.environ, **more, "DECENTNODE_LAUNCHER": str(socket_path),
            "DECENTNODE_RANK": str(first_rank + local_rank), "DECENTNODE_SIZE": str(size),
            "DECENTNODE_LOCAL_RANK": str(local_rank), "DECENTNODE_LOCAL_SIZE": str(local_size),
        }  # fmt: skip
        # A script that is started again by a thread of the launcher must not inherit what that blocks.
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        try:
            with logs(local_rank).open("ab") as log:
                return subprocess.Popen(
                    command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    # A Ctrl-C of the terminal reaches the launcher alone, which ends the run after a round.
                    start_new_session=True,
                )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    return start


def end_of_scripts(server: ScriptServer, code: ExitCode) -> ExitCode:
    """Waits for the scripts, which may still save their models; returns the exit code of all together."""
    # The launcher's handlers ask for the end of a run that has ended.
    exit_by_signals()
    codes = server.wait_for_scripts()
    failed = [(rank, ended) for rank, ended in enumerate(codes) if ended]
    if failed and code == ExitCode.OK:
        rank, ended = failed[0]
        print_line(
            f"after the run, local rank {rank}: {how_it_ended(ended)} "
            f"({counted(len(failed), 'script')} failed)"
        )
        return ExitCode.FAILED
    return code


def main(arguments: Sequence[str]) -> int:
    """Runs the launcher that the first rank of a machine has started; `arguments`: see `parallel/joining`."""
    descriptor, expected, nodes_per_machine, machines, deadline, log = arguments
    listener = socket.socket(fileno=int(descriptor))
    os.setsid()
    server = ScriptServer(listener, int(expected))
    nodes = int(nodes_per_machine)
    mapping: dict[str, Any] = {"name": "environment", "nodes_per_machine": nodes}
    if int(machines) == 1:
        mapping = {"name": "linear", "machines": [{"address": "127.0.0.1", "nodes": nodes}]}
    with (
        Path(log).open("a") if log else contextlib.nullcontext(sys.stdout) as output,
        contextlib.redirect_stdout(output),
    ):
        try:
            return int(serve_scripts(server, mapping, float(deadline), lambda _: LiveConsole(output)))
        except DecentnodeError as error:
            print(error, file=output, flush=True)
            return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
