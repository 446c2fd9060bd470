"""What the process of a command does: that of the command line, with values and objects of the caller."""

import asyncio
import contextlib
import gc
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TextIO

import msgspec
import torch

from decentnode import errors
from decentnode.config import extends
from decentnode.config import loader as config
from decentnode.config.error_locations import plugin_errors_as_bad_input, with_locations
from decentnode.config.extends import ConfigSource
from decentnode.config.overrides import Override
from decentnode.config.python_source import document_of, objects_in
from decentnode.config.settings import Settings
from decentnode.core.hooks import found
from decentnode.core.process_setup import check_current_folder, find_gpus_without_cuda
from decentnode.core.streams import send_output_to
from decentnode.errors import ConfigError, DecentnodeError, ExitCode, RunFailed, explained
from decentnode.launcher.cluster.scheduler import part_of
from decentnode.launcher.processes.launcher_process import RunProgress
from decentnode.launcher.recovery.resume import ResumePlan
from decentnode.launcher.repeat import repeat_here
from decentnode.launcher.report.console import LiveConsole
from decentnode.launcher.report.live_view import screen_for
from decentnode.launcher.report.progress_console import ProgressConsole
from decentnode.launcher.start import run_here
from decentnode.mapping.job import job_of_one_task
from decentnode.node import calibration, dry_round
from decentnode.node.experiment import Experiment
from decentnode.node.privacy.notices import notices_of, notices_of_trial

Screen = Callable[[TextIO], LiveConsole]
KEEP_MODELS: Override = {"records": {"models": {}}}
"""What a caller can do with a run is done with its models, so the last ones are kept."""
TF32 = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""A variable from which torch takes the precision of products when it is imported."""
TORCH_BACKENDS = {
    "backends.cudnn.enabled": True, "backends.cudnn.benchmark": False,
    "backends.cudnn.deterministic": False, "backends.cudnn.allow_tf32": True,
    "backends.mkldnn.enabled": True, "backends.mkldnn.deterministic": False,
    "backends.fp32_precision": "none", "backends.cudnn.fp32_precision": "none",
    "backends.cudnn.conv.fp32_precision": "tf32", "backends.cudnn.rnn.fp32_precision": "tf32",
    "backends.mkldnn.fp32_precision": "none", "backends.mkldnn.conv.fp32_precision": "none",
    "backends.mkldnn.rnn.fp32_precision": "none", "backends.mkldnn.matmul.fp32_precision": "none",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": True,
    "backends.cuda.matmul.allow_fp16_accumulation": False,
}  # fmt: skip
"""Switches of torch that change numbers, as a new Python has them."""
DEFAULT_TRANSPORTS = (None, "zeromq", {"name": "zeromq"})


class CommandRequest(msgspec.Struct):
    """A command with its arguments."""

    command: str
    """One of `COMMANDS`, or what a layer has registered for the hook `work`."""
    config: Any
    """The path of a configuration, a study or a run, a name, or values."""
    overrides: dict[str, Any]
    loads: bool = True
    """Whether to load the dataset and make a dry round, to validate."""
    accepts_other_code: bool = False
    with_its_code: bool = False
    """Whether a resume or repetition takes plug-ins from the copies in the run."""
    or_resume: bool = False
    """Whether `run` resumes the run if it was begun before."""
    is_notebook: bool = False

    @property
    def source(self) -> ConfigSource:
        """The configuration as the loader reads it."""
        return partial(document_of, self.config) if isinstance(self.config, Mapping) else str(self.config)

    @property
    def network(self) -> torch.nn.Module | None:
        """The model that was passed as a module; None if it was not."""
        values = {**(self.config if isinstance(self.config, Mapping) else {}), **self.overrides}
        model = values.get("model")
        model = model.get("name") if isinstance(model, Mapping) else model
        return model if isinstance(model, torch.nn.Module) else None

    def objects(self) -> list[str]:
        """Returns the keys whose values are objects, which no file can have."""
        values = self.config if isinstance(self.config, Mapping) else {}
        return list({**objects_in(values), **objects_in(self.overrides)})


class CommandAnswer(msgspec.Struct):
    """What came of it."""

    code: int
    """The exit code."""
    directory: str = ""
    """The directory of the run or study."""
    values: dict[str, Any] = {}
    """The resolved configuration, or the pace, where that was asked for."""
    error: str = ""
    """The class of the error that ended it, in `decentnode.errors`."""
    lines: list[str] = []
    """The lines of the error, or what the user should know."""


def work_on(request: CommandRequest, answer_fd: int, progress: RunProgress, output_fd: int | None) -> int:
    """Does what is asked in this process, and writes the answer; returns the exit code.

    `output_fd`: takes all output; None: it goes where that of this process goes.
    """
    if output_fd is not None:
        send_output_to(output_fd)
    find_gpus_without_cuda()
    _forget_caller()
    screen: Screen = screen_for if output_fd is None else partial(ProgressConsole, progress=progress)
    try:
        check_current_folder()
        answer: CommandAnswer = (COMMANDS | found("work"))[request.command](request, screen)
    except KeyboardInterrupt:
        answer = CommandAnswer(ExitCode.INTERRUPTED)
    except DecentnodeError as error:
        kind = next(cls for cls in type(error).__mro__ if hasattr(errors, cls.__name__))
        answer = CommandAnswer(error.exit_code, error=kind.__name__, lines=[*error.lines])
    except Exception as error:
        traceback.print_exception(error)
        answer = CommandAnswer(ExitCode.FAILED, error=RunFailed.__name__, lines=[explained(error)])
    sys.stdout.flush()
    with open(answer_fd, "wb") as file:
        file.write(msgspec.json.encode(answer))
    return answer.code


def _forget_caller() -> None:
    """Sets what the caller may have changed for its whole process to what a new Python has.

    The same run gives the same models then. What torch keeps by thread is new in the thread of this process.
    """
    asyncio.set_event_loop_policy(None)
    gc.enable()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)
    # The variable holds for the command line, too.
    torch.set_float32_matmul_precision("high" if os.environ.get(TF32) == "1" else "highest")
    for path, value in TORCH_BACKENDS.items():
        backend, _, option = path.rpartition(".")
        with contextlib.suppress(AttributeError):  # no version of torch has all of them
            setattr(attrgetter(backend)(torch), option, value)
    for kernel in ("flash", "mem_efficient", "math", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(True)
    torch.backends.mha.set_fastpath_enabled(True)


def _run(request: CommandRequest, screen: Screen) -> CommandAnswer:
    job_of_one_task()
    settings, overrides = _settings(request, KEEP_MODELS)
    if request.or_resume and isinstance(request.config, Mapping):
        # Those of an earlier call stand for these, which its files do not have.
        overrides = [objects_in(request.config), *overrides]
    code, directory = run_here(
        settings, request.source, overrides, screen=screen, or_resume=request.or_resume
    )
    return CommandAnswer(code, str(directory))


def _settings(request: CommandRequest, *first: Override) -> tuple[Settings, Sequence[Override]]:
    """Returns the settings, and what has changed the configuration; `first`: changes before the caller's."""
    overrides: list[Override] = [*first, request.overrides]
    with plugin_errors_as_bad_input():
        document = extends.read(request.source)
        transport = document.value.get("communication")
        is_chosen = any(key.partition(".")[0] == "communication" for key in request.overrides)
        if request.is_notebook and not is_chosen and transport in DEFAULT_TRANSPORTS:
            in_process = [*overrides, {"communication": "inproc"}]
            # Where the experiment needs processes, or has another defect, the line below says so.
            with contextlib.suppress(ConfigError):
                return config.load(request.source, in_process), in_process
        return config.understand(document, overrides), overrides


def _resume(request: CommandRequest, screen: Screen) -> CommandAnswer:
    job, overrides = job_of_one_task(), [request.overrides]
    directory = part_of(Path(request.config), job, overrides)
    plan = ResumePlan(directory, overrides, request.accepts_other_code, request.with_its_code)
    code, directory = run_here(plan.settings, plan.config, overrides, resume_plan=plan, screen=screen)
    return CommandAnswer(code, str(directory))


def _repeat(request: CommandRequest, screen: Screen) -> CommandAnswer:
    job, overrides = job_of_one_task(), [KEEP_MODELS, request.overrides]
    directory = part_of(Path(request.config), job, overrides)
    code, directory = repeat_here(directory, overrides, request.with_its_code, screen)
    return CommandAnswer(code, str(directory))


def _validate(request: CommandRequest, screen: Screen) -> CommandAnswer:
    del screen
    settings, overrides = _settings(request)
    lines: list[str] = []
    if request.loads:
        with with_locations(request.source, overrides):
            experiment = Experiment.from_settings(settings)
            found = experiment.samples.dataset
            notices = (*found.notices, *notices_of(experiment), *notices_of_trial(experiment))
            lines = [*found.schema, *notices, *dry_round.check(experiment).notices]
    return CommandAnswer(ExitCode.OK, values=config.resolved(settings), lines=lines)


def _calibrate(request: CommandRequest, screen: Screen) -> CommandAnswer:
    del screen
    request.overrides = {
        **request.overrides,
        **calibration.instant_if_missing(request.source, [request.overrides]),
    }
    settings, overrides = _settings(request)
    with with_locations(request.source, overrides):
        measured = calibration.calibrate(Experiment.from_settings(settings), calibration.STEPS)
    return CommandAnswer(ExitCode.OK, values=measured.pace)


COMMANDS: dict[str, Callable[[CommandRequest, Screen], CommandAnswer]] = {
    "calibrate": _calibrate,
    "repeat": _repeat,
    "run": _run,
    "resume": _resume,
    "validate": _validate,
}
