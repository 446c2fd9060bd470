"""The process in which a command from Python works, as the process of the caller sees it.

It is a fork of this process, so that objects of the caller need no file, and nothing here changes. Where this
process has used CUDA, a fork could not use it. The process then starts afresh, and takes plain values alone.
"""

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import NoReturn, TextIO, cast

import msgspec
import torch

from decentnode import errors
from decentnode.api.display import Lines, display_for, in_notebook
from decentnode.api.work import CommandAnswer, CommandRequest, work_on
from decentnode.core.polling import ready
from decentnode.core.process_setup import end_thread_pools
from decentnode.core.streams import standard_descriptors
from decentnode.errors import STOPPED_BY, UNDECODABLE, BadInput, RunFailed
from decentnode.launcher.processes.launcher_process import LauncherProcess, RunProgress
from decentnode.launcher.report.live_view import is_capable

SHOWN_EVERY = 0.25
"""Seconds between two looks at the progress."""
PIECE = 1 << 16


def answer_of(request: CommandRequest, shows: bool, lines: Lines | None = None) -> CommandAnswer:
    """Returns what the process answers, after its end; raises the error that ended it, if one did.

    `shows`: whether output and progress are shown; `lines`: what takes them if not. A KeyboardInterrupt of
    the caller stops the run gracefully, and a second one kills its nodes. A signal that would end the caller,
    as at a batch system's limit of time, stops the run first.
    """
    has_used_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if has_used_cuda and (objects := request.objects()):
        raise BadInput(
            f"{', '.join(objects)}: this process has used CUDA, so the run starts in a new process, which "
            "cannot have its objects; name plug-ins as module:Class, or start the run before CUDA is used"
        )
    request.is_notebook = in_notebook()
    # There the live view of the run draws by itself.
    output = sys.stdout
    is_own = output is not None and output is sys.__stdout__
    is_terminal = shows and is_own and is_capable(cast(TextIO, output))
    lines = lines or display_for(shows and output is not None and not is_terminal)
    with standard_descriptors(), contextlib.closing(RunProgress()) as progress:
        content, begin = bytearray(), _start_afresh if has_used_cuda else work_on

        def work(answer_fd: int, output_fd: int) -> int:
            return begin(request, answer_fd, progress, None if is_terminal else output_fd)

        with _forked(work) as process, _stopped_before_the_caller(process):
            lines.begin(process, progress)
            takers: dict[int, Callable[[bytes], object]]
            takers = dict(zip(process.ends, (content.extend, lines.write), strict=True))
            try:
                has_ended = False
                while not has_ended:
                    try:
                        readable = ready([process.fd, *takers], seconds=SHOWN_EVERY)
                        for fd in takers.keys() & readable:
                            piece = os.read(fd, PIECE)
                            # Not at its end, which the nodes' processes may delay.
                            takers[fd](piece) if piece else takers.pop(fd)
                        has_ended = process.fd in readable and takers.keys().isdisjoint(readable)
                        lines.show(*progress.get())
                    except KeyboardInterrupt:
                        process.stop(signal.SIGINT)
            except BaseException:
                process.kill()
                raise
            finally:
                code, _ = process.reap()
                lines.close()
                process.close_ends()
    try:
        answer = msgspec.json.decode(content, type=CommandAnswer)
    except UNDECODABLE as error:  # It was killed.
        if code is None:
            raise RunFailed("the process of the run was killed") from error
        answer = CommandAnswer(code)
    if answer.error:
        raise getattr(errors, answer.error)(*answer.lines)
    return answer


@contextlib.contextmanager
def _stopped_before_the_caller(process: LauncherProcess) -> Iterator[None]:
    """Passes on signals that would end this process; it ends by them when the run has been saved.

    A signal that the caller handles or ignores is left to it, and so is everything in another thread than
    the main one, which alone can handle signals.
    """
    received: list[int] = []

    def pass_on(signum: int, _: FrameType | None) -> None:
        received.append(signum)
        process.stop(signum)

    is_main = threading.current_thread() is threading.main_thread()
    taken = [s for s in STOPPED_BY if is_main and signal.getsignal(s) is signal.SIG_DFL]
    for signum in taken:
        signal.signal(signum, pass_on)
    try:
        yield
    finally:
        for signum in taken:
            signal.signal(signum, signal.SIG_DFL)
        if received:
            signal.raise_signal(received[0])


@contextlib.contextmanager
def _forked(work: Callable[[int, int], int]) -> Iterator[LauncherProcess]:
    """Forks from a new thread, which has none of the state of the calling one.

    What torch and Python keep by thread is as in a new program then: autocast, the modes for gradients, for
    functions and for operators, the default device, hooks on saved tensors, the running event loop.
    """
    made, is_over = Future[LauncherProcess](), threading.Event()

    def fork() -> None:
        try:
            with contextlib.ExitStack() as filters:
                filters.enter_context(warnings.catch_warnings())
                # Python 3.12 warns of every fork beside other threads.
                warnings.simplefilter("ignore", DeprecationWarning)

                def begin(*ends: int) -> int:
                    # In the child, which has the filters of the caller.
                    filters.close()
                    return work(*ends)

                made.set_result(LauncherProcess(begin, up=2))
        except BaseException as error:
            made.set_exception(error)
        # The kernel kills the process when the thread that forked it ends.
        is_over.wait()

    # Threads of OpenMP would not survive the fork.
    end_thread_pools()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPED_BY)
    try:
        try:
            threading.Thread(target=fork, daemon=True).start()
            process = made.result()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        yield process
    finally:
        is_over.set()


def _start_afresh(
    request: CommandRequest, answer_fd: int, progress: RunProgress, output_fd: int | None
) -> NoReturn:
    """Runs in the child: replaces it by a new Python, which does the work."""
    request_fd = os.memfd_create("decentnode-request")
    os.write(request_fd, msgspec.json.encode(request))
    os.lseek(request_fd, 0, os.SEEK_SET)
    fds = [request_fd, answer_fd, progress.fd, *([] if output_fd is None else [output_fd])]
    for fd in fds:
        os.set_inheritable(fd, True)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "decentnode.api.new_process", *map(str, fds)])
