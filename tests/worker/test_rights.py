"""Tests that training runs as another user if root starts the node and that user can read the folders.

If not, the node reports why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from footplate.contract.errors import SettingsError
from footplate.contract.host.node_folder import NodeFolder
from footplate.contract.host.user import User, change_owner, give, make_writable_folder
from footplate.contract.ids import JobId
from footplate.contract.layout import PASSED_ONLY
from tests.support.processes import REPOSITORY
from tests.support.ways import open_ways
from worker.node import rights
from worker.node.rights import USUAL
from worker.settings import WorkerSettings
from worker.user_range import UserRange, reserve_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give training a user of its own")

SETTLE = """
import json
from footplate.contract.errors import SettingsError
from footplate.contract.host.node_folder import NodeFolder
from worker.node.rights import training_rights
from worker.settings import WorkerSettings
settings = WorkerSettings.from_environment()
try:
    rights = training_rights(settings, NodeFolder(settings.node_path))
    users = rights.users and [rights.users.first, rights.users.last]
    print(json.dumps({"uid": rights.user and rights.user.uid, "users": users, "exposed": rights.exposed}))
except SettingsError as error:
    print(json.dumps({"refused": str(error)}))
"""


def chosen_rights(home: Path, *before: str, **settings: str) -> dict[str, Any]:
    """Returns the rights that a node with these settings would give to training."""
    for name in ("artifacts", "node-1"):
        (home / name).mkdir(parents=True, exist_ok=True)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "FOOTPLATE_HOME": str(home)}
    env |= {f"FOOTPLATE_{name.upper()}": value for name, value in settings.items()}
    words = [*before, sys.executable, "-c", SETTLE]
    process = subprocess.run(words, env=env, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    content: dict[str, Any] = json.loads(process.stdout)
    return content


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Returns a home that other users can reach only after `open_ways` has opened its parent folders."""
    tmp_path.chmod(0o755)
    return tmp_path / "home"


def test_every_attempt_gets_its_own_user_if_such_users_can_enter_the_folders(home: Path) -> None:
    users = [USUAL.first, USUAL.last]
    folders = [home / "artifacts" / name for name in ("bundles", "files")]
    for folder in folders:
        folder.mkdir(parents=True)
        folder.chmod(PASSED_ONLY)
    assert chosen_rights(home, *open_ways(home.parent)) == {"uid": None, "users": users, "exposed": None}
    assert sorted((home / "artifacts").iterdir()) == folders
    assert list((home / "node-1" / "extensions").iterdir()) == []


def test_if_no_training_user_can_work_the_node_reports_why_and_trains_as_itself(home: Path) -> None:
    report = chosen_rights(home)

    assert report["uid"] is report["users"] is None
    assert "it has no permission to enter /" in report["exposed"]
    assert "FOOTPLATE_TRAINING_USER=root" in report["exposed"]


@pytest.mark.parametrize("name", ["artifacts", "data", "models"])
def test_a_folder_that_the_training_user_may_not_enter_is_named(home: Path, name: str) -> None:
    (home / name).mkdir(parents=True)
    (home / name).chmod(0o700)

    report = chosen_rights(home, *open_ways(home.parent))

    assert report["uid"] is None
    assert str(home / name) in report["exposed"]


def test_a_named_training_user_that_cannot_work_stops_the_start(home: Path) -> None:
    message = chosen_rights(home, training_user="nobody")["refused"]

    assert message.startswith("FOOTPLATE_TRAINING_USER='nobody' cannot be used: it has no permission to enter /")


def test_the_training_user_can_be_set_by_name_or_number(home: Path) -> None:
    ways = open_ways(home.parent)

    assert chosen_rights(home, *ways, training_user="nobody")["uid"] == 65_534
    assert chosen_rights(home, *ways, training_user="64123")["uid"] == 64_123


def test_a_range_of_training_users_is_used_as_configured(home: Path) -> None:
    report = chosen_rights(home, *open_ways(home.parent), training_user="64000-64009")

    assert report == {"uid": None, "users": [64_000, 64_009], "exposed": None}


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("64009-64000", "smaller"),
        ("0-100", "smaller"),
        ("60000-61000", "must not contain 0 or 60599"),
        ("64000-64004", "3 slots .* 6 uids"),
        ("60599", "uid of nobody"),
        ("trainer-that-is-not", "no such user"),
    ],
)
def test_an_impossible_training_user_or_range_stops_the_start(home: Path, user: str, why: str) -> None:
    settings = WorkerSettings(home=home, training_user=user, slots=3)

    with pytest.raises(SettingsError, match=why):
        rights.training_rights(settings, NodeFolder(settings.node_path))


def test_training_as_root_is_possible_and_reported_as_exposed(home: Path) -> None:
    settings = WorkerSettings(home=home, training_user="root")

    report = rights.training_rights(settings, NodeFolder(settings.node_path))

    assert (report.user, report.users) == (None, None)
    assert "FOOTPLATE_TRAINING_USER" in str(report.exposed)


@pytest.mark.parametrize(
    ("missing", "why"),
    [("chown", "Operation not permitted"), ("setuid", "become")],
)
def test_a_root_without_chown_or_setuid_reports_why_training_is_exposed(home: Path, missing: str, why: str) -> None:
    """Covers a store on NFS that does not trust root, and a container without capabilities."""
    if shutil.which("setpriv") is None:
        pytest.fail("setpriv, of util-linux, takes capabilities away")
    report = chosen_rights(home, *open_ways(home.parent), "setpriv", f"--bounding-set=-{missing}")

    assert report["uid"] is None
    assert why in report["exposed"]


def test_a_node_without_root_trains_as_its_own_user(home: Path) -> None:
    chosen_rights(home)
    another = [*open_ways(home.parent), "setpriv", "--reuid=64123", "--regid=64123", "--clear-groups"]

    assert chosen_rights(home, *another) == {"uid": None, "users": None, "exposed": None}
    assert chosen_rights(home, *another, training_user="64123") == {"uid": None, "users": None, "exposed": None}
    message = chosen_rights(home, *another, training_user="nobody")["refused"]
    assert all(name in message for name in ("'nobody'", "root"))


USER = User(name="trainer", uid=64_123, gid=64_123)


def test_changing_a_folders_owner_does_not_follow_links(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (tmp_path / "link").symlink_to(secret)

    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        give(tmp_path / "link", USER)

    assert secret.stat().st_uid == 0


def test_a_user_gets_a_folder_below_unlistable_folders_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = make_writable_folder(tmp_path, PurePosixPath("jobs/one/attempts/1"), USER)
    finally:
        os.umask(before)
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (64_123, 0o750)
    assert {(path.stat().st_uid, path.stat().st_mode & 0o777) for path in list(folder.parents)[:3]} == {(0, 0o711)}
    os.chown(folder, 1, 1)

    make_writable_folder(tmp_path, PurePosixPath("jobs/one/attempts/1"), USER)

    assert folder.stat().st_uid == 1


def test_root_takes_over_files_of_training_but_not_the_targets_of_links(tmp_path: Path) -> None:
    folder, foreign = tmp_path / "attempt", tmp_path / "foreign"
    (folder / "outputs").mkdir(parents=True)
    (folder / "outputs" / "model").write_text("weights")
    (folder / "outputs" / "model").chmod(0o4777)
    foreign.write_text("another user's")
    os.link(foreign, folder / "second name")
    (folder / "link").symlink_to(foreign)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER.uid, USER.gid, follow_symlinks=False)
    os.chown(foreign, 64_124, 64_124)
    foreign.chmod(0o600)

    change_owner(folder, USER.uid, os.geteuid(), os.getegid())

    assert {path.lstat().st_uid for path in (folder, *folder.rglob("*"))} == {0, 64_124}
    assert (folder / "outputs" / "model").stat().st_mode & 0o7777 == 0o755
    assert (foreign.stat().st_uid, foreign.stat().st_mode & 0o777) == (64_124, 0o600)


USERS = UserRange(first=64_200, last=64_203)
JOB = JobId("job_" + "0" * 32)


def test_two_attempts_never_hold_the_same_user(tmp_path: Path) -> None:
    first, second = (reserve_user(USERS, tmp_path, JOB, 1, nodes=1) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.user != second.user
    assert reserve_user(USERS, tmp_path, JOB, 1, nodes=1) is None, "the upper half is for jobs on several nodes only"

    os.close(first.lock)

    third = reserve_user(USERS, tmp_path, JOB, 1, nodes=1)
    assert third is not None
    assert third.user == first.user
    for reservation in (second, third):
        os.close(reservation.lock)


def test_the_nodes_of_one_job_agree_on_its_user(tmp_path: Path) -> None:
    reservations = [reserve_user(USERS, tmp_path / str(node), JOB, 1, nodes=2) for node in range(2)]

    assert len({entry.user.uid for entry in reservations if entry is not None}) == 1
    assert reserve_user(USERS, tmp_path / "0", JOB, 1, nodes=2) is None, "the user is already reserved on this machine"
    for item in reservations:
        assert item is not None
        os.close(item.lock)


def test_the_user_of_a_killed_attempt_owns_no_files_when_it_is_used_again(tmp_path: Path) -> None:
    users = UserRange(first=64_204, last=64_205)
    reservation = reserve_user(users, tmp_path / "locks", JOB, 1, nodes=1)
    assert reservation is not None
    lent, shared_file = tmp_path / "lent", Path("/dev/shm", f"left-{os.getpid()}")
    lent.mkdir()
    shared_file.write_text("in memory")
    for path in (lent, shared_file):
        os.chown(path, reservation.user.uid, reservation.user.gid)
    reservation.lend([lent])
    os.close(reservation.lock)

    again = reserve_user(users, tmp_path / "locks", JOB, 2, nodes=1)

    assert again is not None
    assert again.user == reservation.user
    os.close(again.lock)
    assert lent.stat().st_uid == 0
    assert not shared_file.exists()
