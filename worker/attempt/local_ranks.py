"""The ranks of an attempt that run on this node: their folders, their user, and the order that starts each."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path, PurePosixPath

from footplate.contract.host.bundle_files import copy_to_fixed_path, unpack
from footplate.contract.host.environment import EXTENSIONS, EXTENSIONS_VARIABLE, built_for, extensions_owner
from footplate.contract.host.launch import Order
from footplate.contract.host.linux import try_lock
from footplate.contract.host.scratch import remove
from footplate.contract.host.user import (
    User,
    change_owner,
    close_to_lists,
    give,
    give_fetched_files,
    make_passable_folders,
    make_writable_folder,
)
from footplate.contract.layout import attempt_folder
from footplate.contract.messages import Grant
from footplate.contract.spec import JobSpec
from worker.attempt.rendezvous import RendezvousAddress
from worker.identity import Node
from worker.settings import WorkerSettings
from worker.user_range import ReservedUser, lock_folder, reserve_user


class LocalRanks:
    """The folders and the orders of an attempt's ranks on this node."""

    def __init__(
        self, settings: WorkerSettings, node: Node, grant: Grant, spec: JobSpec, environment: Mapping[str, str]
    ) -> None:
        """Takes the variables that the spec sets, in `environment`."""
        self._settings, self._node, self._grant, self._environment = settings, node, grant, environment
        self.owner = TrainingUser(node, grant, spec)
        self.root = settings.artifacts_path
        """The folder that training uses as the artifact store."""
        self.scratch = ""
        """The folder for temporary files."""
        # Every node of the job has this many ranks.
        rank_count = spec.resources.processes_per_node or max(1, len(grant.gpus))
        self.world = grant.nodes * rank_count
        """The number of ranks on all nodes."""
        self._ranks = range(grant.source * rank_count, (grant.source + 1) * rank_count)
        self.needs_rendezvous = self.world > 1 or spec.resources.needs_a_launcher
        """True if ranks connect to each other, or use a library that expects a launcher."""

    def make_folders(self, *, was_fetched: bool) -> None:
        """Makes the folders that training writes to, owned by its user.

        If training has the node's own rights, nothing happens here, because training makes its folders itself.
        """
        if (user := self.owner.user) is not None:
            self.owner.make_folders(self.root, self.scratch, was_fetched=was_fetched)
            for folder in (*map(self._scratch_of, self._ranks), self.scratch):
                give(Path(folder), user)

    def orders(self, address: RendezvousAddress, hub: dict[str, str]) -> list[Order]:
        """Returns one order for each rank. `hub` maps each repository and URL to its files on this node."""
        user_variables = {} if self.owner.user is None else self.owner.user.environment(self.scratch)
        variables = {**user_variables, **self._environment, **self.owner.build_variables}
        return [self._order(rank, address, variables, hub) for rank in self._ranks]

    def gpus_of(self, rank: int) -> list[str]:
        """Returns the GPU of this rank if there are as many GPUs as ranks, else all GPUs of the attempt."""
        gpus = self._grant.gpus
        return [gpus[rank - self._ranks.start]] if len(gpus) == len(self._ranks) else gpus

    def _order(
        self, rank: int, address: RendezvousAddress, environment: Mapping[str, str], hub: dict[str, str]
    ) -> Order:
        grant, settings = self._grant, self._settings
        grant_fields = {name: value for name, value in grant if name in Order.model_fields}
        return Order(
            **grant_fields,
            rank=rank,
            world=self.world,
            node=grant.source,
            host=address.host,
            port=address.port,
            interface=address.interface,
            artifacts=self.root,
            data=settings.data_path,
            models=settings.models_path,
            hub=hub,
            unpacked=self.owner.unpacked,
            threads=threads_of(os.environ.get("OMP_NUM_THREADS", ""), self._node.threads),
            environment={**environment, "TMPDIR": self._scratch_of(rank)},
        )

    def _scratch_of(self, rank: int) -> str:
        """Returns a rank's own temporary folder, because each rank unpacks files of the same names."""
        if self.world == 1:
            return self.scratch
        folder = Path(self.scratch, f"rank-{rank}")
        folder.mkdir(exist_ok=True)
        return str(folder)


def threads_of(omp_num_threads: str, default: int) -> int:
    """Returns the number of threads that an operator has set, or the usual number.

    OpenMP also accepts a number for each level of nested regions, such as `4,2`. torch has only the first level.
    """
    first = omp_num_threads.partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else default


class TrainingUser:
    """The user of one attempt's training. Each attempt has a user of its own if the node has a range of users."""

    def __init__(self, node: Node, grant: Grant, spec: JobSpec) -> None:
        self._node, self._grant, self._spec = node, grant, spec
        self.user = node.rights.user
        """The user. None: training runs as the node's own user, or no user is reserved yet."""
        self.build_variables: dict[str, str] = {}
        self.unpacked: Path | None = None
        """The bundle's files, if they are unpacked for this user."""
        self._reserved: ReservedUser | None = None
        """The attempt's own user and its lock, once reserved."""
        self._build: BuildFolder | None = None
        self._shared: int | None = None
        """A descriptor of the attempt's folder, if several nodes share the folder. Locked while this node uses it."""
        self._descriptors = ExitStack()

    def reserve(self) -> bool:
        """Reserves a user, if each attempt has its own. Returns False if none is free now."""
        if (users := self._node.rights.users) is not None and self._reserved is None:
            grant, locks = self._grant, lock_folder(self._node.folder.root / "users")
            self._reserved = reserve_user(users, locks, grant.job, grant.attempt, grant.nodes)
            if self._reserved is not None:
                self.user = self._reserved.user
                self._descriptors.callback(os.close, self._reserved.lock)
        return users is None or self._reserved is not None

    @property
    def lock(self) -> int | None:
        """The lock that reserves the attempt's user."""
        return None if self._reserved is None else self._reserved.lock

    def make_folders(self, root: Path, scratch: str, *, was_fetched: bool) -> None:
        """Makes the attempt's folder below `root`, and the folder of its extensions."""
        assert self.user is not None
        grant = self._grant
        folder = attempt_folder(grant.job, grant.attempt)
        if was_fetched:
            give_fetched_files(root, folder, self.user)
        # Later attempts and forks read these checkpoints as other users, even while this attempt runs.
        room = make_writable_folder(root, folder, self.user, is_passed=True)
        if self._reserved is None:
            return
        self._build = BuildFolder(self._node.folder.root, self._spec, grant.project or grant.job, self.user)
        self.build_variables = self._build.environment(scratch, self._descriptors)
        self._reserved.lend(folder for folder in (room, self._build.folder) if folder is not None)
        self.unpacked = self._build.unpacked(root, scratch)
        if grant.nodes > 1 and not was_fetched:
            self._shared = os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._descriptors.callback(os.close, self._shared)
            fcntl.flock(self._shared, fcntl.LOCK_SH)

    def take_files_back(self) -> None:
        """Makes root the owner of training's files. All training processes on this node must have ended."""
        if self._reserved is None:
            return
        if self._shared is not None and not _is_last(self._shared):
            # Another node still uses the shared folder. The last node that uses it makes root its owner.
            self._reserved.lend([] if self._build is None or self._build.folder is None else [self._build.folder])
        self._reserved.take_back()

    def close(self) -> None:
        self._descriptors.close()


def _is_last(descriptor: int) -> bool:
    """Releases this node's shared lock. Returns False if another node still has one, and so uses the folder."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return try_lock(descriptor)
    except OSError:
        return False


class BuildFolder:
    """The folder in which one attempt builds its bundle's extensions, if each attempt has a user of its own.

        extensions/<bundle>/code           the bundle's files, which belong to root and are the same for every attempt
        extensions/<bundle>/<project>/     the builds of a project, which belong to one attempt's user at a time

    If an attempt of the project builds from this bundle already, a second one builds in its own temporary folder.
    """

    def __init__(self, root: Path, spec: JobSpec, project: str, user: User) -> None:
        self._root, self._spec, self._project, self._user = root, spec, project, user
        self.folder: Path | None = None
        """The folder that belongs to the attempt's user for now. None: the attempt builds in its temporary folder."""

    def environment(self, scratch: str, descriptors: ExitStack) -> dict[str, str]:
        """Makes the build folder, and returns the variable that names it. A job without extensions needs no folder.

        The folder's lock is held until `descriptors` is closed.
        """
        if (owner := extensions_owner(self._spec)) is None:
            return {}
        owner_folder = PurePosixPath(EXTENSIONS, owner)
        builds = self._root / owner_folder
        if builds.exists() and builds.lstat().st_uid != os.geteuid():
            # These files belong to a user that all attempts shared, so code of any job may have changed them.
            remove(builds)
        make_passable_folders(self._root, owner_folder)
        close_to_lists(self._root, [EXTENSIONS])
        close_to_lists(self._root / EXTENSIONS, [owner])
        builds.touch()
        folder = Path(scratch, EXTENSIONS)
        name = sha256(self._project.encode()).hexdigest()[:16]
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(builds / f"{name}.lock", flags, 0o600)
        descriptors.callback(os.close, lock)
        if try_lock(lock):
            self.folder = folder = make_writable_folder(self._root, owner_folder / name, self._user)
            change_owner(folder, os.geteuid(), self._user.uid, self._user.gid)
        return {EXTENSIONS_VARIABLE: str(folder / built_for())}

    def unpacked(self, artifacts: Path, scratch: str) -> Path | None:
        """Unpacks the bundle, and returns its folder. Returns None without a bundle, and for a script.

        A script's training process unpacks the bundle into its working folder. Raises OwnCodeError for a bad bundle.
        """
        if (code := self._spec.code) is None or self._spec.is_script:
            return None
        bundle = unpack(code.bundle, artifacts, Path(scratch))
        fixed_copy = copy_to_fixed_path(bundle, self._root / EXTENSIONS / code.bundle)
        if fixed_copy.folder != bundle.folder:
            remove(bundle.folder)
        return fixed_copy.folder
