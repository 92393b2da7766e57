"""Starts `python -m service` and `python -m worker` as forks of a process that has already imported them.

A system start costs seven seconds of CPU, and six of them are imports. A template process imports a program once for
each pytest process, and forks it for every start. Each fork becomes what a fresh start would be, with its own session,
environment, arguments, working folder and output. `ps`, /proc/<pid>/cmdline and /proc/<pid>/environ agree.

    popen = fork(["python", "-m", "worker"], env=..., cwd=..., out=log)     None: must be started in the usual way

Where a program's code or libraries would have read a variable during import, there is no fork: `must_start_fresh`.
FOOTPLATE_TESTS_FORK=0 starts everything in the usual way, as `make faults` does.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from tests.support.preload import ALSO_AFTER_IMPORTS, SITECUSTOMIZE

REPOSITORY = str(Path(__file__).resolve().parents[2])
ROOM = "FOOTPLATE_TEMPLATE_ROOM"
ROOM_BYTES = 48 * 1024
"""Space in the kernel's copies of arguments and environment: a fork writes its own there, and needs no more."""
PDEATHSIG = 1
READ_BY_IMPORTS = (
    "PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH", "PYTORCH_", "CUDA_", "NVIDIA_", "MALLOC_", "NCCL_",
    "GLOO_", "TRITON_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "ACCELERATE_", "XDG_", "HOME",
    "LANG", "LC_", "TZ", "TMPDIR", "VIRTUAL_ENV",
)  # fmt: skip
SET_BY_FORKS = {"PYTHONPATH", "PYTHONUNBUFFERED", "OPENBLAS_NUM_THREADS"}


# -- in pytest ---------------------------------------------------------------------------------------------------------


class Forked:
    """The part of subprocess.Popen that tests use. The template is the parent, and reports how this process ended."""

    def __init__(self, template: Template, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._template = template

    returncode: int | None

    def poll(self) -> int | None:
        self._template.hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self._template.hear(left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Template:
    """One template process. It dies with pytest, and its forks die with it."""

    def __init__(self, program: str) -> None:
        from tests.support.processes import clean_environment, die_with_parent

        self.environment = clean_environment()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._forks: dict[int, Forked] = {}
        self._lock = threading.Lock()
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.template", program, str(theirs.fileno()), "-" * ROOM_BYTES],
                env=self.environment | {ROOM: "-" * ROOM_BYTES},
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        atexit.register(self._process.kill)
        self.imported: frozenset[str] = frozenset(self._next()["imported"])
        """Top-level names: a folder on the PYTHONPATH that has others of these must have its effect."""

    def fork(self, argv: list[str], ways: list[str], env: Mapping[str, str], cwd: str, out: int) -> Forked:
        asked = json.dumps({"argv": argv, "ways": ways, "env": dict(env), "cwd": cwd}).encode()
        with self._lock:
            socket.send_fds(self._line, [asked], [out])
            while not isinstance(pid := self._next(), int):
                pass
            self._forks[pid] = forked = Forked(self, pid)
            return forked

    def hear(self, seconds: float | None = 0) -> None:
        """Notes every end that the template has reported, after waiting for the first one for so long."""
        with self._lock:
            self._line.settimeout(seconds)
            with suppress(BlockingIOError, TimeoutError):
                while True:
                    self._next()
                    self._line.settimeout(0)
            self._line.settimeout(None)

    def _next(self) -> Any:
        packet = self._line.recv(1 << 18)
        if not packet:
            self._out.seek(0)
            raise AssertionError(f"the template ended with {self._process.wait()}:\n{self._out.read().decode()}")
        said = json.loads(packet)
        if isinstance(said, list):
            pid, code = said
            self._forks.pop(pid).returncode = code
        return said


@cache
def _template(program: str, pytest_pid: int) -> Template:
    return Template(program)


def at_start(program: str) -> Mapping[str, str]:
    """Returns the environment in which the template of this program was started."""
    return _template(program, os.getpid()).environment


def fork(argv: Sequence[str], *, env: Mapping[str, str], cwd: str, out: int) -> Forked | None:
    """A fork that runs this, or None where only a fresh start is the same."""
    if not is_ours(argv) or os.environ.get("FOOTPLATE_TESTS_FORK") == "0":
        return None
    ways, command = _without_ways(argv)
    template = _template(command[2], os.getpid())
    if must_start_fresh(template, env):
        return None
    return template.fork(command, ways, env, cwd, out)


def is_ours(argv: Sequence[str]) -> bool:
    """Returns True if the command starts a service or a node."""
    _, command = _without_ways(argv)
    return command[:2] == [sys.executable, "-m"] and command[2] in PROGRAMS


def _without_ways(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The folders to which tests/support/ways.py opens the way, and the command behind it."""
    words = list(argv)
    if words[1:2] and Path(words[1]).name == "ways.py":
        return json.loads(words[2]), words[3:]
    return [], words


def must_start_fresh(template: Template, env: Mapping[str, str]) -> bool:
    """Returns True if a variable, a sitecustomize.py or another module would change an import."""
    for folder in filter(Path.is_dir, map(Path, set(_folders(env)) - {REPOSITORY})):
        customize = folder / SITECUSTOMIZE
        if customize.exists() and not customize.read_text().startswith(ALSO_AFTER_IMPORTS):
            return True
        if any(path.stem in template.imported for path in folder.iterdir()):
            return True
    names = {name for name in {*template.environment, *env} if name.startswith(READ_BY_IMPORTS)} - SET_BY_FORKS
    return any(template.environment.get(name) != env.get(name) for name in names)


def _folders(env: Mapping[str, str]) -> list[str]:
    return [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]


# -- in the template ---------------------------------------------------------------------------------------------------


def import_service() -> None:
    importlib.import_module("service.program")
    for name in ("service.control.process", "alembic.command", "psycopg", "uvicorn.protocols.http.httptools_impl"):
        importlib.import_module(name)


def import_worker() -> None:
    from footplate.runtime import warm_parent
    from worker.node import parent

    outside = dict(os.environ)
    _set_environment(parent.clean_environment(outside))
    warm_parent.preload()
    _set_environment(outside)
    for name in ("worker.node.parent", "worker.attempt.supervise", "celery.apps.worker"):
        importlib.import_module(name)
    for name in ("celery.bin.celery", "celery.bin.worker", "celery.concurrency.prefork", "kombu.transport.redis"):
        importlib.import_module(name)
    importlib.import_module("celery.fixups.django")


PROGRAMS: dict[str, Callable[[], None]] = {"service": import_service, "worker": import_worker}


def main(program: str, line: socket.socket) -> None:
    gc.disable()
    PROGRAMS[program]()
    importlib.import_module("tests.support.ways")
    gc.collect()
    gc.freeze()
    gc.enable()
    assert len(os.listdir("/proc/self/task")) == 1, "what is forked beside threads hangs"
    line.send(json.dumps({"imported": sorted({name.partition(".")[0] for name in sys.modules})}).encode())
    selector = selectors.DefaultSelector()
    selector.register(line, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if isinstance(key.data, int):
                selector.unregister(key.fd)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])
                line.send(json.dumps([key.data, code]).encode())
                continue
            packet, fds, _, _ = socket.recv_fds(line, 1 << 20, 1)
            if not packet:
                os._exit(0)
            if (pid := os.fork()) == 0:
                selector.close()
                _become(json.loads(packet), fds[0], line)
                return
            os.close(fds[0])
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)


def _become(asked: dict[str, Any], out: int, line: socket.socket) -> None:
    """The rest of a fork's life. It returns where the program ends, so that the interpreter ends as it always does."""
    parent = os.getppid()
    os.setsid()
    ctypes.CDLL(None).prctl(PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    line.send(json.dumps(os.getpid()).encode())
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.closerange(3, 1 << 16)
    line.detach()
    if asked["ways"]:
        from tests.support import ways

        ways.open_for([Path(folder) for folder in asked["ways"]])
    os.chdir(asked["cwd"])
    argv, env = asked["argv"], asked["env"]
    take_on(argv, env)
    module = argv[2]
    if module == "worker":
        keep_a_warm_seed()
    run(module)


def run(module: str) -> None:
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def take_on(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Arguments and environment as after an exec, for Python, for C, and for who reads /proc."""
    sys.argv[:] = [argv[0], *argv[3:]]
    sys.orig_argv[:] = argv
    before = {REPOSITORY, *_folders(os.environ)}
    sys.path[:] = [os.getcwd(), *_folders(env), *(folder for folder in sys.path if folder not in before)]
    importlib.invalidate_caches()
    if "footplate.runtime.build" in sys.modules:
        # Other folders have other entry points.
        sys.modules["footplate.runtime.build"].registered.cache_clear()
    _set_environment(env)
    _say_in_proc("\0".join(argv), "\0".join(f"{name}={value}" for name, value in env.items()))
    tempfile.tempdir = None
    for customize in (Path(folder) / SITECUSTOMIZE for folder in _folders(env)):
        if customize.exists():
            runpy.run_path(str(customize))
    if env.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]


def _set_environment(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)


def _say_in_proc(argv: str, environ: str) -> None:
    # Fields 48 to 51 of /proc/self/stat: where the kernel keeps both.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[45:49])
    for said, start, end in ((argv, arg_start, arg_end), (environ, env_start, env_end)):
        raw, room = said.encode(), end - start
        assert len(raw) < room, f"{len(raw)} bytes do not fit into {room}"
        ctypes.memset(start, 0, room)
        ctypes.memmove(start, raw, len(raw))


# -- in a forked node --------------------------------------------------------------------------------------------------


def keep_a_warm_seed() -> None:
    """Makes the node's first warm parent by a fork, before anything of the node runs.

    Later ones start in the usual way.
    """
    from worker.node import parent

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _be_a_warm_seed(theirs)
    theirs.close()
    seeds = [(pid, ours)]

    def start(command: list[str], *, stdin: int, env: dict[str, str], start_new_session: bool) -> Any:
        assert start_new_session
        if not seeds:
            return subprocess.Popen(command, stdin=stdin, env=env, start_new_session=True)
        child, line = seeds.pop()
        socket.send_fds(line, [json.dumps({"argv": command, "env": env}).encode()], [stdin])
        line.close()
        return _Child(child)

    parent.subprocess = SimpleNamespace(Popen=start)  # type: ignore[assignment]


class _Child:
    """A child of this process, as WarmKeeper uses one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _be_a_warm_seed(line: socket.socket) -> NoReturn:
    node = os.getppid()
    ctypes.CDLL(None).prctl(PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != node:
        os._exit(1)
    _say_in_proc("seed", "")
    packet, fds, _, _ = socket.recv_fds(line, 1 << 20, 1)
    if not packet:
        os._exit(0)
    os.setsid()
    os.dup2(fds[0], 0)
    os.closerange(3, 1 << 16)
    line.detach()
    asked = json.loads(packet)
    take_on(asked["argv"], asked["env"])
    # A warm parent that starts in the usual way has imported nothing of these, and training may have its own.
    for name in [name for name in sys.modules if name.partition(".")[0] in PROGRAMS]:
        del sys.modules[name]
    code = 0
    try:
        run(asked["argv"][2])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
