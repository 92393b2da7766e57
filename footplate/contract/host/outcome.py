"""Turns exceptions, exit codes and signals into the reason of a failure, and an error with code, message and hint."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from footplate.contract.errors import (
    AttemptError,
    FootplateError,
    InvalidSpec,
    NotAvailableYet,
    NotFetched,
    OwnCodeError,
    UnknownComponent,
)
from footplate.contract.events import Failure
from footplate.contract.lifecycle import Reason

TRACEBACK_CHARS = 8000
OUTPUT_LINES = 100


class Verdict(NamedTuple):
    """The reason of an attempt's failure, which decides about a retry, and the error that the user reads."""

    reason: Reason
    error: Failure


class _Row(NamedTuple):
    """A row of the table of exceptions: the failure reason and error code of those that `matches` accepts.

    If `code` is empty, the exception's own code is used.
    """

    matches: Callable[[BaseException], bool]
    reason: Reason
    code: str
    hint: str | None = None


def _is(*names: str) -> Callable[[BaseException], bool]:
    """Returns a function that matches exceptions by their class's full name, so that torch need not be imported."""
    return lambda error: any(f"{cls.__module__}.{cls.__qualname__}" in names for cls in type(error).__mro__)


def _says(*texts: str) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def _not_fetched(*codes: str) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, NotFetched) and error.code.startswith(codes)


_LOST = ("closed by peer", "reset by peer", "Connection was likely closed", "remote process exited", "Broken pipe")
"""Texts in torch's errors that mean that the connection to another process has broken."""


def lost_a_peer(error: BaseException) -> bool:
    """Returns True if the connection to another rank or to the rendezvous broke.

    For gloo, torch raises RuntimeError.
    """
    return _is("torch.distributed.DistNetworkError", "torch.distributed.DistStoreError")(error) or _says(*_LOST)(error)


def _lost_data_worker(error: BaseException) -> bool:
    """Returns True if a data loader's process died. The error is torch's RuntimeError, or that of a broken pipe."""
    if isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ConnectionError | EOFError) and "/multiprocessing/" in frames[-1].filename


OTHER_RANKS = "the lines that all ranks printed may show why: footplate logs"
SMALLER = "a smaller per_device_train_batch_size with more gradient_accumulation_steps needs less memory"

OUT_OF_RANGE = (
    "a label or a token id is out of its range: labels are 0 to num_labels - 1, token ids less than vocab_size. With "
    '"resources": {"gpus_per_node": 0} the error names the value'
)

BLOCKING = 'with "env": {"CUDA_LAUNCH_BLOCKING": "1"} the traceback shows the operation that failed'
DATA_WORKERS = "a data worker is killed when memory runs out: fewer dataloader_num_workers need less"

EXITED = "`footplate logs` shows what the process printed. Code in a job must return instead of ending the process"

DECIDED = 'the program ended itself, and would do so again. With "error" in retry.on the job is tried again'
EXITED_WITH_0 = (
    "training ended before it had a result. Code in a callback ends training with control.should_training_stop = True, "
    "which makes the job succeed with its outputs"
)
USAGE_ERROR = 2
"""The exit code of a program that refuses its arguments, such as argparse's and click's."""
MOST_STDERR_LINES = 5


def _decided_to_exit(error: BaseException) -> bool:
    """Returns True for sys.exit with a message, or with the code of wrong arguments.

    Another code may come from a child process or a lost peer, and the program only passed it on.
    """
    if not isinstance(error, SystemExit):
        return False
    return error.code == USAGE_ERROR or not isinstance(error.code, int)


EXCEPTIONS = (
    _Row(lambda error: isinstance(error, UnknownComponent | InvalidSpec | NotAvailableYet), Reason.NOT_BUILDABLE, ""),
    _Row(_not_fetched("hub_unreachable", "store_unreachable", "hub_cache"), Reason.CRASHED, ""),
    _Row(_not_fetched("dataset_"), Reason.DATASET_ERROR, ""),
    _Row(_not_fetched(""), Reason.NOT_BUILDABLE, ""),
    _Row(lambda error: isinstance(error, OwnCodeError), Reason.NOT_BUILDABLE, ""),
    _Row(_is("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"), Reason.OOM, "gpu_out_of_memory", SMALLER),
    _Row(_says("CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED"), Reason.OOM, "gpu_out_of_memory", SMALLER),
    _Row(_says("DefaultCPUAllocator: can't allocate memory"), Reason.OOM, "out_of_memory", SMALLER),
    _Row(lambda error: isinstance(error, MemoryError), Reason.OOM, "out_of_memory", SMALLER),
    _Row(_is("torch.distributed.DistBackendError"), Reason.CRASHED, "nccl_error", OTHER_RANKS),
    _Row(lost_a_peer, Reason.CRASHED, "peer_lost", OTHER_RANKS),
    _Row(_says("device-side assert"), Reason.CRASHED, "cuda_error", OUT_OF_RANGE),
    _Row(_is("torch.AcceleratorError"), Reason.CRASHED, "cuda_error", BLOCKING),
    _Row(_says("CUDA error", "CUDNN_STATUS", "CUBLAS_STATUS"), Reason.CRASHED, "cuda_error", BLOCKING),
    _Row(_says("NCCL"), Reason.CRASHED, "nccl_error", OTHER_RANKS),
    _Row(_lost_data_worker, Reason.CRASHED, "data_worker_lost", DATA_WORKERS),
    _Row(lambda error: isinstance(error, FloatingPointError), Reason.ERROR, "nan",
         "lower learning_rate or max_grad_norm, or add warm-up steps; replace fp16, which overflows early, by bf16"),
    _Row(_is("footplate.trainer.checkpoint.CannotSave"), Reason.ERROR, "cannot_save",
         "make room in the artifact store, then resume the job, which continues from its last checkpoint"),
    _Row(lambda error: isinstance(error, SystemExit) and error.code in (None, 0), Reason.ERROR, "exited",
         EXITED_WITH_0),
    _Row(_decided_to_exit, Reason.ERROR, "exited", DECIDED),
    _Row(lambda error: isinstance(error, SystemExit), Reason.CRASHED, "exited", EXITED),
)  # fmt: skip


def of_exception(error: BaseException, rank: int = 0) -> Verdict:
    """Returns reason and error for an exception in training, whether users' code, torch or Footplate raised it."""
    for row in EXCEPTIONS:
        if row.matches(error):
            return Verdict(row.reason, _failure(error, row.code, row.hint, rank))
    if isinstance(error, AttemptError) and error.code in set(Reason):
        return Verdict(Reason(error.code), _failure(error, error.code, None, rank))
    return Verdict(Reason.ERROR, _failure(error, "", None, rank))


def _failure(error: BaseException, code: str, hint: str | None, rank: int) -> Failure:
    our_error = error if isinstance(error, FootplateError) else None
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if our_error is not None:
        message = our_error.message
    if isinstance(error, SystemExit):
        message = f"training called sys.exit({error.code!r})"
    own_trace = error.trace if isinstance(error, OwnCodeError) else None
    trace = own_trace or "".join(traceback.format_exception(error))
    return Failure(
        code=code or (our_error.code if our_error else "error"),
        message=message[:2000],
        hint=(our_error.hint if our_error else None) or hint or _note(error),
        rank=rank,
        traceback=trace[-TRACEBACK_CHARS:],
    )


def with_stderr(error: Failure, lines: Sequence[str]) -> Failure:
    """Adds the last lines of stderr, such as argparse's usage, to the error of a program that called sys.exit."""
    last_lines = [line for line in lines if line.strip()][-MOST_STDERR_LINES:]
    if error.code != "exited" or not last_lines:
        return error
    return error.model_copy(
        update={"message": "\n".join([f"{error.message}. Its last lines on stderr:", *last_lines])[:2000]}
    )


def _note(error: BaseException) -> str | None:
    """Returns the last note of an exception. The Trainer and users' code add notes that say what would work."""
    notes = getattr(error, "__notes__", None)
    return str(notes[-1])[:2000] if isinstance(notes, list) and notes else None


def of_exit(code: int, *, rank: int, peak_rss_mb: float, is_oom_kill: bool, output: str) -> Verdict:
    """Returns reason and error for a process that sent no outcome.

    `code` is its exit code, or minus the signal's number.
    """
    reason, name = Reason.CRASHED, "exited"
    hint: str | None = None
    if is_oom_kill:
        reason, name, hint = Reason.OOM, "out_of_memory", SMALLER
        event = "the kernel's OOM killer ended the training process"
    elif code == -signal.SIGKILL:
        name, event = "killed", "the training process was killed (SIGKILL): the kernel's OOM killer or a kill -9"
    elif code < 0:
        signal_name = _signal_name(-code)
        name, event = signal_name.lower(), f"the training process died of {signal_name}"
        if -code == signal.SIGSEGV:
            hint = "a native extension accessed invalid memory; faulthandler's lines in the log may name it"
    else:
        event, hint = f"the training process exited with code {code} and reported no outcome", EXITED
    message = f"{event}; it had used {peak_rss_mb:.0f} MB"
    return Verdict(reason, Failure(code=name, message=message, hint=hint, rank=rank, traceback=output or None))


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def stalled(seconds: float, output: str) -> Verdict:
    hint = "raise resources.stall_limit if a step, an evaluation or loading may take that long"
    text = f"training made no progress and printed nothing for {seconds:.0f} s, its stall limit, so it was killed"
    return Verdict(Reason.STALLED, Failure(code="stalled", message=text, hint=hint, traceback=output or None))


def time_limit(seconds: float | None) -> Verdict:
    text = "the job's time limit" + (f" of {seconds:.0f} s" if seconds else "") + " is reached"
    hint = "raise resources.time_limit and resume the job, which continues from its last checkpoint"
    return Verdict(Reason.TIME_LIMIT, Failure(code="time_limit", message=text, hint=hint))


def of_ours(error: FootplateError, reason: Reason) -> Verdict:
    return Verdict(reason, Failure(code=error.code, message=error.message, hint=error.hint))
