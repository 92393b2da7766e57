"""Starts `python -m service`, `python -m worker` and `footplate` as forks of a process that has imported them.

The start of a system costs seven seconds of CPU, six of which are imports. A template process imports a program once
for all test processes of a test run, and forks for every start. The forks of a test process end with it. A template
ends with the last test process.

A fork has its own session, environment, arguments, working folder and output, like a program that was started in the
usual way. `ps`, /proc/<pid>/cmdline and /proc/<pid>/environ show this, too.

    popen = fork(["python", "-m", "worker"], env=..., cwd=..., out=log)     None: must be started in the usual way
    run_after_imports("-c", code)                                           forks the node's template, which has torch

A program is not forked if a variable would have changed its imports (`must_start_fresh`).
FOOTPLATE_TESTS_FORK=0 starts everything in the usual way, as `make faults` does.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import shutil
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
from typing import IO, Any, NoReturn

from tests.support.preload import ALSO_AFTER_IMPORTS, SITECUSTOMIZE

REPOSITORY = str(Path(__file__).resolve().parents[2])
ROOM = "FOOTPLATE_TEMPLATE_ROOM"
ROOM_BYTES = 48 * 1024
"""Bytes for the kernel's copies of arguments and environment, which each fork overwrites with its own."""
PDEATHSIG = 1
READ_BY_IMPORTS = (
    "PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH", "PYTORCH_", "CUDA_", "NVIDIA_", "MALLOC_", "NCCL_",
    "GLOO_", "TRITON_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "ACCELERATE_", "XDG_", "HOME",
    "LANG", "LC_", "TZ", "VIRTUAL_ENV",
)  # fmt: skip
"""TMPDIR is not among them, because a fork looks for its temporary folder again (`take_on`)."""
SET_BY_FORKS = {"PYTHONPATH", "PYTHONUNBUFFERED", "OPENBLAS_NUM_THREADS"}


# -- in pytest ---------------------------------------------------------------------------------------------------------


class Forked:
    """The part of subprocess.Popen that tests use. The template is the parent, and reports the exit code."""

    def __init__(self, template: Template, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._template = template

    returncode: int | None

    def poll(self) -> int | None:
        self._template.receive_exit_codes()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            remaining_seconds = None if deadline is None else deadline - time.monotonic()
            if remaining_seconds is not None and remaining_seconds <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self._template.receive_exit_codes(remaining_seconds)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Template:
    """The connection of this test process to the template of one program, which all test processes of a run share."""

    def __init__(self, program: str) -> None:
        self._forks: dict[int, Forked] = {}
        self._lock = threading.Lock()
        self._program = program
        self._line = _connected(program)
        first = self._next()
        self.environment: Mapping[str, str] = first["environment"]
        """The environment in which the template was started."""
        self.imported = frozenset(first["imported"])
        """The imported top-level modules. No program is forked if its PYTHONPATH has other modules of these names."""

    def fork(self, argv: list[str], ways: list[str], env: Mapping[str, str], cwd: str, *fds: int) -> Forked:
        """Starts the command. The files are its output, or its input, output and errors."""
        request = json.dumps({"argv": argv, "ways": ways, "env": dict(env), "cwd": cwd}).encode()
        with self._lock:
            socket.send_fds(self._line, [request], list(fds))
            while not isinstance(pid := self._next(), int):
                pass
            self._forks[pid] = forked = Forked(self, pid)
            return forked

    def receive_exit_codes(self, seconds: float | None = 0) -> None:
        """Records the exit codes that the template has sent. Waits up to this many seconds for the first one."""
        with self._lock:
            self._line.settimeout(seconds)
            with suppress(BlockingIOError, TimeoutError):
                while True:
                    self._next()
                    self._line.settimeout(0)
            self._line.settimeout(None)

    def _next(self) -> Any:
        packet = b""
        with suppress(ConnectionResetError):
            packet = self._line.recv(1 << 18)
        if not packet:
            raise AssertionError(f"the template of {self._program} has ended:\n{_output(self._program)}")
        message = json.loads(packet)
        if isinstance(message, list):
            pid, code = message
            self._forks.pop(pid).returncode = code
        return message


_started: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
"""The templates that this test process has started, with their output."""


def _output(program: str) -> str:
    if program not in _started:
        return "(another test process has started it, and has its output)"
    process, out = _started[program]
    process.wait()
    out.seek(0)
    return out.read().decode(errors="replace")


def _address(program: str) -> str:
    """Returns the name of an abstract socket. Only one process can bind it, and the name ends with that process."""
    return f"\0footplate-template-{os.environ.get('PYTEST_XDIST_TESTRUNUID') or os.getpid()}-{program}"


def _connected(program: str) -> socket.socket:
    """Connects to the template of this program. The first test process that needs the template starts it."""
    while True:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with suppress(ConnectionRefusedError):
            line.connect(_address(program))
            return line
        line.close()
        # Another test process may have been faster, and its template may not listen yet.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, suppress(OSError):
            listening.bind(_address(program))
            listening.listen(64)
            _start(program, listening)


def _start(program: str, listening: socket.socket) -> None:
    from tests.support.processes import clean_environment

    if not _remembered:  # In a benchmark no fixture has done this.
        remember_environment()
    out = tempfile.TemporaryFile()  # noqa: SIM115
    env = clean_environment()
    changed = read_by_imports(env).keys() - _remembered.keys()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.template", program, str(listening.fileno()), "-" * ROOM_BYTES],
        env={name: env[name] for name in env.keys() - changed} | _remembered | {ROOM: "-" * ROOM_BYTES},
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        pass_fds=[listening.fileno()],
        start_new_session=True,
    )
    _started[program] = process, out


@cache
def _template(program: str, pytest_pid: int) -> Template:
    return Template(program)


def fork(argv: Sequence[str], *, env: Mapping[str, str], cwd: str, out: int) -> Forked | None:
    """Returns a fork that runs the command, or None if the command must be started in the usual way."""
    if not is_ours(argv) or os.environ.get("FOOTPLATE_TESTS_FORK") == "0":
        return None
    ways, command = _without_ways(argv)
    template = _template(command[2], os.getpid())
    if must_start_fresh(template, env):
        return None
    return template.fork(command, ways, env, cwd, out)


def run_after_imports(*words: str) -> str:
    """Runs `python -c CODE` or `python -m MODULE` in a new process that has imported torch, and returns its output."""
    from tests.support.processes import clean_environment

    argv, env = [sys.executable, *words], clean_environment()
    template = None if os.environ.get("FOOTPLATE_TESTS_FORK") == "0" else _template("worker", os.getpid())
    with open(os.devnull) as nothing, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        if template is None or must_start_fresh(template, env):
            code = subprocess.run(argv, env=env, cwd=REPOSITORY, stdin=nothing, stdout=out, stderr=errors).returncode
        else:
            fds = [file.fileno() for file in (nothing, out, errors)]
            code = template.fork(argv, [], env, REPOSITORY, *fds).wait()
        errors.seek(0)
        assert code == 0, f"the process exited with {code}:\n{errors.read()}"
        out.seek(0)
        return out.read()


def is_ours(argv: Sequence[str]) -> bool:
    """Returns True if the command starts a service or a node."""
    _, command = _without_ways(argv)
    return command[:2] == [sys.executable, "-m"] and command[2] in ("service", "worker")


COMMAND = """#!{python} -IS
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect({address!r})
line.recv(1 << 18)
argv = [{python!r}, "-m", "footplate", *sys.argv[1:]]
asked = {{"argv": argv, "ways": [], "env": dict(os.environ), "cwd": os.getcwd()}}
socket.send_fds(line, [json.dumps(asked).encode()], [0, 1, 2])
while not isinstance(said := json.loads(line.recv(1 << 18)), list):
    pass
code = said[1]
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@cache
def folder_of_commands() -> Path:
    """Returns a folder for the PATH with a `footplate` command that forks, because imports take most of its time."""
    installed = Path(sys.executable).parent
    if os.environ.get("FOOTPLATE_TESTS_FORK") == "0":
        return installed
    _template("footplate", os.getpid())
    folder = Path(tempfile.mkdtemp(prefix="footplate-commands-"))
    atexit.register(shutil.rmtree, folder)
    command = folder / "footplate"
    command.write_text(COMMAND.format(python=sys.executable, address=_address("footplate")))
    command.chmod(0o755)
    return folder


def _without_ways(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the folders that tests/support/ways.py opens, and the command that it would start."""
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
    return read_by_imports(template.environment) != read_by_imports(env)


def read_by_imports(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that imports read, without those that each fork sets for itself."""
    return {name: env[name] for name in env if name.startswith(READ_BY_IMPORTS) and name not in SET_BY_FORKS}


_remembered: dict[str, str] = {}
"""The variables that imports read, as they were before the first test. A template starts with these."""


def remember_environment() -> None:
    _remembered.update(read_by_imports(os.environ))


def restore_environment() -> None:
    for name in read_by_imports(os.environ).keys() - _remembered.keys():
        del os.environ[name]
    os.environ.update(_remembered)


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


def import_footplate() -> None:
    importlib.import_module("footplate.cli")
    for part in ("sdk", "contract"):
        package = importlib.import_module(f"footplate.{part}")
        for module in pkgutil.iter_modules(package.__path__, f"footplate.{part}."):
            importlib.import_module(module.name)


PROGRAMS: dict[str, Callable[[], None]] = {
    "footplate": import_footplate,
    "service": import_service,
    "worker": import_worker,
}


def main(program: str, listening: socket.socket) -> None:
    environment = {name: value for name, value in os.environ.items() if name != ROOM}
    gc.disable()
    PROGRAMS[program]()
    importlib.import_module("tests.support.ways")
    gc.collect()
    gc.freeze()
    gc.enable()
    assert len(os.listdir("/proc/self/task")) == 1, "a fork of a process with threads may hang"
    imported = sorted({name.partition(".")[0] for name in sys.modules})
    _serve(listening, json.dumps({"imported": imported, "environment": environment}).encode())


FIRST_SECONDS = 60
"""The time that a template waits for its first test process, which may have been killed meanwhile."""


def _serve(listening: socket.socket, greeting: bytes) -> None:
    """Forks for all connected test processes, and ends with the last one. The function returns only in a fork."""
    forks: dict[socket.socket, set[int]] = {}
    """The living forks of each test process."""
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    while ready := selector.select(None if forks else FIRST_SECONDS):
        for key, _ in ready:
            line: Any = key.fileobj
            if line is listening:
                line, _ = listening.accept()
                line.send(greeting)
                forks[line] = set()
                selector.register(line, selectors.EVENT_READ)
            elif key.data is not None:
                selector.unregister(line)
                _reap(*key.data, pidfd=line, forks=forks)
            elif (packet := _received(line)) is None:
                selector.unregister(line)
                for pid in forks.pop(line):
                    os.kill(pid, signal.SIGKILL)
                line.close()
                if not forks:
                    os._exit(0)
            else:
                request, fds = packet
                if (pid := os.fork()) == 0:
                    selector.close()
                    for other in {listening, *forks} - {line}:
                        other.detach()
                    _become(request, fds, line)
                    return
                for fd in fds:
                    os.close(fd)
                forks[line].add(pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (line, pid))


def _received(line: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns the request of a test process, or None if the test process has ended.

    The files are the fork's output, or its input, output and errors.
    """
    with suppress(ConnectionResetError):
        packet, fds, _, _ = socket.recv_fds(line, 1 << 20, 3)
        if packet:
            return json.loads(packet), fds
    return None


def _reap(line: socket.socket, pid: int, *, pidfd: int, forks: dict[socket.socket, set[int]]) -> None:
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if line in forks:
        forks[line].discard(pid)
        # The test process may have ended a moment ago.
        with suppress(OSError):
            line.send(json.dumps([pid, code]).encode())


def _become(request: dict[str, Any], fds: list[int], line: socket.socket) -> None:
    """Runs the program in a fork. Returns when the program ends, so that the interpreter shuts down as usual."""
    parent = os.getppid()
    os.setsid()
    ctypes.CDLL(None).prctl(PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    line.send(json.dumps(os.getpid()).encode())
    for number, fd in enumerate(fds) if len(fds) == 3 else ((1, fds[0]), (2, fds[0])):
        os.dup2(fd, number)
    if len(fds) == 3:
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.closerange(3, 1 << 16)
    line.detach()
    if request["ways"]:
        from tests.support import ways

        ways.open_for([Path(folder) for folder in request["ways"]])
    os.chdir(request["cwd"])
    argv, env = request["argv"], request["env"]
    take_on(argv, env)
    if argv[1] == "-c":
        exec(argv[2], {"__name__": "__main__"})
        return
    module = argv[2]
    if module == "worker":
        keep_warm_seeds()
    run(module)


def run(module: str) -> None:
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def take_on(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Sets arguments and environment as after an exec, for Python, for C, and for readers of /proc."""
    sys.argv[:] = [argv[0], *argv[3:]]
    sys.orig_argv[:] = argv
    before = {REPOSITORY, *_folders(os.environ)}
    sys.path[:] = [os.getcwd(), *_folders(env), *(folder for folder in sys.path if folder not in before)]
    importlib.invalidate_caches()
    if "footplate.runtime.build" in sys.modules:
        # The PYTHONPATH has changed, so other entry points may be installed.
        sys.modules["footplate.runtime.build"].registered.cache_clear()
    _set_environment(env)
    _set_name_in_proc("\0".join(argv), "\0".join(f"{name}={value}" for name, value in env.items()))
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


def _set_name_in_proc(argv: str, environ: str) -> None:
    # Fields 48 to 51 of /proc/self/stat are the addresses of both.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[45:49])
    for text, start, end in ((argv, arg_start, arg_end), (environ, env_start, env_end)):
        raw, room = text.encode(), end - start
        assert len(raw) < room, f"{len(raw)} bytes do not fit into {room}"
        ctypes.memset(start, 0, room)
        ctypes.memmove(start, raw, len(raw))


# -- in a forked node --------------------------------------------------------------------------------------------------


WARM_SEEDS = 2
"""The number of forked warm parents of a node: the first one, and its replacement. Later ones start as usual."""
SEED_IS_NAMED = b"named"
"""The packet that a seed sends once its command line differs from that of its node."""


def keep_warm_seeds() -> None:
    """Forks the first warm parents of the node before any code of the node runs."""
    from worker.node import parent

    seeds = [_warm_seed() for _ in range(WARM_SEEDS)]

    def start(command: list[str], *, stdin: int, env: dict[str, str], start_new_session: bool) -> Any:
        assert start_new_session
        if not seeds:
            return subprocess.Popen(command, stdin=stdin, env=env, start_new_session=True)
        child, line = seeds.pop()
        socket.send_fds(line, [json.dumps({"argv": command, "env": env}).encode()], [stdin])
        line.close()
        return _Child(child)

    parent.__dict__["subprocess"] = SimpleNamespace(Popen=start)


def _warm_seed() -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _be_a_warm_seed(theirs)
    theirs.close()
    # A starting node kills children that have its own command line, because an earlier start may have left them.
    assert ours.recv(len(SEED_IS_NAMED)) == SEED_IS_NAMED, "the process that becomes the warm parent has ended"
    return pid, ours


class _Child:
    """The part of subprocess.Popen that WarmKeeper uses, for a fork of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _be_a_warm_seed(line: socket.socket) -> NoReturn:
    node = os.getppid()
    ctypes.CDLL(None).prctl(PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != node:
        os._exit(1)
    _set_name_in_proc("seed", "")
    line.send(SEED_IS_NAMED)
    packet, fds, _, _ = socket.recv_fds(line, 1 << 20, 1)
    if not packet:
        os._exit(0)
    os.setsid()
    os.dup2(fds[0], 0)
    os.closerange(3, 1 << 16)
    line.detach()
    request = json.loads(packet)
    take_on(request["argv"], request["env"])
    # A warm parent that is started as usual has not imported these programs, and training may use other modules.
    for name in [name for name in sys.modules if name.partition(".")[0] in PROGRAMS]:
        del sys.modules[name]
    code = 0
    try:
        run(request["argv"][2])
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
