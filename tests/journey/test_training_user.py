"""Tests a node that root starts, which runs training as another user.

Hostile code cannot do what root could do, and everything that training needs works.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore
from tests.support.s3_server import S3Server
from tests.support.system import JSON, LONG_TOY, SHORT_TOY, System, standing_system
from tests.support.ways import OpenProcesses
from tests.worker.test_extensions import FILES
from worker.node.rights import USUAL

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give training a user of its own")

ONE = 64_123
"""The uid of a user that runs all training of a node."""
ENDLESS = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 100_000}}
ROOTED = "rooted"
"""The pool of a node that runs training as root."""

HOSTILE = """
import json
import os
import socket
from pathlib import Path

NEVER = ("/proc", "/sys", "/dev")


def main(job, home, store, others):
    could = []
    # A file, because many processes make a list that a job's row does not hold. Opened before the folder is moved.
    written = open(Path(job.folder, "report.json"), "w")

    def tries(what, do):
        try:
            do()
        except OSError:
            return
        could.append(what)

    def read(path):
        with open(path, "rb") as file:
            file.read(1)

    def write(path):
        with open(path, "ab"):
            pass

    everyone = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    # Other training, which is still ending perhaps, is the same user's.
    mine = {pid for pid in everyone if session(pid) == os.getsid(0) or os.getuid() and user(pid) == os.getuid()}
    for pid in set(everyone) - mine:
        tries(f"environment of {name(pid)}", lambda: read(f"/proc/{pid}/environ"))
        tries(f"memory of {name(pid)}", lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR)))
        tries(f"descriptors of {name(pid)}", lambda: os.listdir(f"/proc/{pid}/fd"))
        tries(f"signal {name(pid)}", lambda: os.kill(pid, 0))
    # What the node and the service keep. Its own attempt, and what its own bundle has built, are its own.
    own = [str(job.folder), f"{home}/node-1/extensions/"]
    for parent, _, files in os.walk(home):
        if not any(f"{parent}/".startswith(one) for one in (*own, f"{store}/")):
            for file in files:
                tries(f"read {parent}/{file}", lambda: read(f"{parent}/{file}"))
                tries(f"write {parent}/{file}", lambda: write(f"{parent}/{file}"))
            tries(f"write in {parent}", lambda: write(f"{parent}/planted"))
    # What other jobs have written, or write now. Their paths are told here; nobody lists them.
    for folder in (f"{store}/jobs", f"{store}/bundles", f"{store}/files"):
        tries(f"list {folder}", lambda: os.listdir(folder))
    for path in others:
        tries(f"write {path}", lambda: write(path if os.path.isfile(path) else f"{path}/planted"))
        tries(f"rename {path}", lambda: os.rename(path, f"{path}-2"))
    for parent, _, files in os.walk(store):
        if os.stat(parent).st_uid != os.getuid() or os.getuid() == 0:
            tries(f"write in {parent}", lambda: write(f"{parent}/planted"))
            for file in files:
                tries(f"write {parent}/{file}", lambda: write(f"{parent}/{file}"))
    tries("take its own folder away", lambda: os.rename(job.folder, f"{job.folder}-2"))
    tries("write in /etc", lambda: write("/etc/planted-by-a-test"))
    tries("become root", lambda: os.setuid(0))
    tries("take root's groups", lambda: os.setgroups([0]))
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    told = {key: status[key].strip() for key in ("Uid", "Gid", "Groups", "CapEff", "CapPrm", "NoNewPrivs")}
    told["environment"] = sorted(name for name in os.environ if "FOOTPLATE" in name)
    json.dump({"could": could, **told}, written)
    written.close()


def session(pid):
    try:
        return os.getsid(pid)
    except OSError:
        return None


def user(pid):
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))


def name(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\\0").replace(b"\\0", b" ").decode()[-60:].strip()
    except OSError:
        return "one that has ended"
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Yields a service and a node, which root has started in a folder that every user may enter."""
    folder = tmp_path_factory.mktemp("rights")
    url = f"sqlite:///{folder}/home/footplate.db"
    with standing_system(folder, url, starting=OpenProcesses, FOOTPLATE_CODE="on", FOOTPLATE_HUB="on") as system:
        yield system


def code(system: System, **files: str) -> JSON:
    return {"bundle": system.upload({f"{name}.py": text for name, text in files.items()})}


def hostile(system: System, *others: Path, **more: object) -> JSON:
    """Returns the spec of a job whose code attacks other files.

    The code gets the paths of other jobs' files, because it could not find them by itself.
    """
    paths = [str(path) for path in others]
    args = {"home": str(system.folder), "store": str(system.folder / "artifacts"), "others": paths}
    return {"code": code(system, hostile=HOSTILE), "loop": {"use": "hostile:main", "args": args}, **more}


def run(system: System, spec: JSON) -> JSON:
    job = system.until_settled(system.submit(spec), within=120)
    assert job["state"] == "succeeded", job
    return job


def report(system: System, job: JSON) -> JSON:
    """Returns the report that the hostile code wrote during its attempt."""
    (path,) = (system.folder / "artifacts" / "jobs" / job["id"]).rglob("report.json")
    content: JSON = json.loads(path.read_text())
    return content


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in [folder, *folder.rglob("*")]}


def attempt_of(system: System, job: str) -> Path:
    return system.folder / "artifacts" / "jobs" / job / "attempts" / "1"


def is_usual(*uids: int) -> bool:
    return all(USUAL.first <= uid <= USUAL.last for uid in uids)


def test_hostile_code_can_reach_only_its_own_files(system: System) -> None:
    finished_folder = attempt_of(system, run(system, SHORT_TOY)["id"])
    other = system.submit(ENDLESS)
    system.until_step(other, 1)
    [victim, *_] = system.training_pids(other)
    at_work = Path(os.readlink(f"/proc/{victim}/cwd"))

    files = (finished_folder / "outputs" / "model.safetensors", finished_folder / "outputs", finished_folder, at_work)
    message = report(system, run(system, hostile(system, *files)))
    system.do(other, "cancel", {"mode": "kill"})

    allowed = {f"read {system.folder}/{name}" for name in ("all.url",)}
    assert [action for action in message["could"] if action not in allowed] == []
    uids = {int(uid) for uid in f"{message['Uid']} {message['Gid']}".split()}
    assert len(uids) == 1
    assert is_usual(*uids)
    assert (message["Groups"], message["NoNewPrivs"]) == ("", "1")
    assert int(message["CapEff"], 16) == int(message["CapPrm"], 16) == 0
    assert message["environment"] == []


@pytest.mark.matrix
def test_without_a_training_user_hostile_code_can_reach_other_files(system: System) -> None:
    """This is the negative control: the same code with FOOTPLATE_TRAINING_USER=root."""
    settings = {"FOOTPLATE_TRAINING_USER": "root", "FOOTPLATE_POOL": ROOTED}
    node = system.start_node(7, **settings)
    weights_file = attempt_of(system, run(system, SHORT_TOY)["id"]) / "outputs" / "model.safetensors"
    spec = hostile(system, weights_file, resources={"pool": ROOTED})
    message = report(system, run(system, spec))
    assert any(action.startswith("list ") for action in message["could"])
    assert f"write {weights_file}" in message["could"]
    exposed = {row["name"]: row["exposed"] for row in system.get("/nodes")["data"]}
    node.terminate()

    could = message["could"]
    assert f"read {system.folder}/footplate.db" in could
    assert f"read {system.folder}/node-1/node.json" in could
    assert any(action.startswith("environment of") and action.endswith("-m worker") for action in could)
    assert any(action.startswith("signal") and action.endswith("-m worker") for action in could)
    assert f"write in {system.folder}/artifacts" in could
    assert "FOOTPLATE_TRAINING_USER is root" in exposed["node-7"]
    assert exposed["node-1"] is None
    Path("/etc/planted-by-a-test").unlink()
    for planted in system.folder.rglob("planted"):
        planted.unlink()


def test_root_owns_files_of_ended_training_in_folders_that_cannot_be_listed(system: System) -> None:
    final_job = run(
        system, {**SHORT_TOY, "training": {**SHORT_TOY["training"], "save_strategy": "steps", "save_steps": 10}}
    )

    job = system.folder / "artifacts" / "jobs" / final_job["id"]
    assert owners(job) == {0}, "only root may change files of a finished job"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (job.parent, job, job / "attempts")} == {0o711}
    assert system.final_weights(final_job["id"])
    for closed in ("journals", "run"):
        assert stat.S_IMODE((system.folder / "node-1" / closed).stat().st_mode) == 0o700


@pytest.mark.matrix
def test_an_extension_that_a_bundle_builds_is_reused_by_the_next_job(system: System) -> None:
    model = {"use": "my_op:Net", "args": {"name": "twice", "compiler": "c++"}}
    spec: JSON = {**SHORT_TOY, "model": model, "code": {"bundle": system.upload(FILES)}}
    run(system, spec)
    extension_folder = system.folder / "node-1" / "extensions" / spec["code"]["bundle"]
    (op,) = extension_folder.glob("*/*torch*/*/*.so")
    when = op.stat().st_mtime_ns

    run(system, spec)

    assert op.stat().st_mtime_ns == when
    assert owners(extension_folder) == {0}
    assert stat.S_IMODE(extension_folder.parent.stat().st_mode) == 0o711


def test_a_script_with_a_secret_and_a_home_of_its_own_runs(system: System) -> None:
    text = """
import getpass, os, tempfile
from pathlib import Path
home = Path.home()
(home / ".cache").mkdir(exist_ok=True)
(home / ".cache" / "kept").touch()
Path("outputs").mkdir(exist_ok=True)
Path("outputs", "told").write_text(f"{getpass.getuser()} {home} {tempfile.gettempdir()}")
"""
    job = run(system, {"code": code(system, train=text), "loop": {"script": "train.py"}})

    message = (system.folder / "artifacts" / "jobs" / job["id"] / "attempts" / "1" / "outputs" / "told").read_text()
    name, home, temporary = message.split()
    assert is_usual(int(name))
    assert home == temporary
    assert not Path(home).exists(), "the home must be deleted with its attempt"


@pytest.mark.matrix
def test_a_script_with_a_bucket_continues_from_files_fetched_by_root(
    tmp_path_factory: pytest.TempPathFactory, s3: S3Server
) -> None:
    """The script may change these files, as in a shared folder, and may read the others, whatever the node's umask."""
    folder = tmp_path_factory.mktemp("fetched")
    settings = {"FOOTPLATE_CODE": "on", "FOOTPLATE_TRAINING_USER": str(ONE), **s3.environment(folder.name)}
    text = """
import os, sys
from pathlib import Path
state = Path("state", "step")
state.parent.mkdir(exist_ok=True)
before = state.read_text() if state.exists() else ""
state.write_text(before + f"as {os.getuid()};")
Path("state", "beside").touch()
sys.exit(0 if before else 3)
"""
    with standing_system(folder, slots=(1,), starting=OpenProcesses, **settings) as system:
        (system.folder / "node-2").mkdir(mode=0o755)
        system.start_node(2, before=["sh", "-c", 'umask 077; exec "$@"', "sh"], FOOTPLATE_POOL="closed")
        spec = {"code": code(system, train=text), "loop": {"script": "train.py"}, "resources": {"pool": "closed"}}
        job = run(system, {**spec, "retry": {"on": ["crashed"]}})

    assert job["attempt"] == 2
    content = RemoteStore(settings["FOOTPLATE_ARTIFACTS"]).read(f"{layout.outputs_folder(job['id'], 2)}/state/step")
    assert content.decode() == f"as {ONE};" * 2
