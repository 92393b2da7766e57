"""Whose rights training has: another user's where root starts the node and he can work there, and who says so where he
cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.support.processes import REPOSITORY
from tests.support.ways import open_ways
from worker.rights import UNNAMED
from worker.user import User, give, make_room

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give training a user of its own")

SETTLE = """
import json
from contract.errors import SettingsError
from worker.node import Places
from worker.rights import settled
from worker.settings import WorkerSettings
settings = WorkerSettings.from_environment()
try:
    rights = settled(settings, Places(settings.node_path))
    print(json.dumps({"uid": rights.user and rights.user.uid, "exposed": rights.exposed}))
except SettingsError as error:
    print(json.dumps({"refused": str(error)}))
"""


def settled(home: Path, *before: str, **settings: str) -> dict[str, Any]:
    """What a node that starts there makes of it."""
    for name in ("artifacts", "node-1"):
        (home / name).mkdir(parents=True, exist_ok=True)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "FOOTPLATE_HOME": str(home)}
    env |= {f"FOOTPLATE_{name.upper()}": value for name, value in settings.items()}
    words = [*before, sys.executable, "-c", SETTLE]
    done = subprocess.run(words, env=env, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where everybody finds the way to who goes open ways, and root alone without."""
    tmp_path.chmod(0o755)
    return tmp_path / "home"


def test_a_user_of_its_own_is_what_training_has_where_he_can_work(home: Path) -> None:
    assert settled(home, *open_ways(home.parent)) == {"uid": UNNAMED, "exposed": None}
    assert list((home / "artifacts").iterdir()) == []
    assert list((home / "node-1" / "extensions").iterdir()) == []


def test_where_he_cannot_the_node_says_why_and_training_has_its_own_rights(home: Path) -> None:
    told = settled(home)

    assert told["uid"] is None
    assert "it may not pass /" in told["exposed"]
    assert "start the node again; or say FOOTPLATE_TRAINING_USER=root" in told["exposed"]


@pytest.mark.parametrize("name", ["artifacts", "data", "models"])
def test_a_root_that_is_closed_to_him_is_named(home: Path, name: str) -> None:
    (home / name).mkdir(parents=True)
    (home / name).chmod(0o700)

    told = settled(home, *open_ways(home.parent))

    assert told["uid"] is None
    assert str(home / name) in told["exposed"]


def test_a_user_who_was_named_and_cannot_work_ends_the_start(home: Path) -> None:
    refused = settled(home, training_user="nobody")["refused"]

    assert refused.startswith("FOOTPLATE_TRAINING_USER='nobody' cannot be used: it may not pass /")


def test_a_user_who_was_named_is_training_s_by_name_or_number(home: Path) -> None:
    ways = open_ways(home.parent)

    assert settled(home, *ways, training_user="nobody")["uid"] == 65_534
    assert settled(home, *ways, training_user="64123")["uid"] == 64_123


def test_nobody_s_name_is_refused(home: Path) -> None:
    refused = settled(home, training_user="trainer-that-is-not")["refused"]

    assert "this machine knows no such user" in refused


def test_root_is_taken_at_its_word_and_said(home: Path) -> None:
    told = settled(home, *open_ways(home.parent), training_user="root")

    assert told == {
        "uid": None,
        "exposed": "as FOOTPLATE_TRAINING_USER says, training has all of this node's rights: root's",
    }


@pytest.mark.parametrize(
    ("missing", "why"), [("chown", "cannot be given to it: Operation not permitted"), ("setuid", "cannot be become")]
)
def test_a_root_who_may_not_give_folders_or_rights_away_says_so(home: Path, missing: str, why: str) -> None:
    """As where the store is on NFS that trusts no root, and in a container without capabilities."""
    if shutil.which("setpriv") is None:
        pytest.fail("setpriv, of util-linux, takes capabilities away")
    told = settled(home, *open_ways(home.parent), "setpriv", f"--bounding-set=-{missing}")

    assert told["uid"] is None
    assert why in told["exposed"]


def test_a_node_that_is_not_root_s_trains_as_itself_and_as_nobody_else(home: Path) -> None:
    settled(home)
    another = [*open_ways(home.parent), "setpriv", "--reuid=64123", "--regid=64123", "--clear-groups"]

    assert settled(home, *another) == {"uid": None, "exposed": None}
    assert settled(home, *another, training_user="64123") == {"uid": None, "exposed": None}
    refused = settled(home, *another, training_user="nobody")["refused"]
    assert "only a node that root starts can give training a user of its own" in refused


USER = User(name="trainer", uid=64_123, gid=64_123)


def test_a_folder_that_is_given_away_is_never_the_one_behind_a_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (tmp_path / "link").symlink_to(secret)

    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        give(tmp_path / "link", USER)

    assert secret.stat().st_uid == 0


def test_room_is_made_with_open_ways_whatever_the_umask_and_what_is_another_s_stays_his(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = make_room(tmp_path, PurePosixPath("jobs/one/attempts/1"), USER)
    finally:
        os.umask(before)
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (64_123, 0o755)
    assert {(path.stat().st_uid, path.stat().st_mode & 0o777) for path in list(folder.parents)[:3]} == {(0, 0o755)}
    os.chown(folder, 1, 1)

    make_room(tmp_path, PurePosixPath("jobs/one/attempts/1"), USER)

    assert folder.stat().st_uid == 1
