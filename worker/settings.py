"""What a node reads from its environment."""

from __future__ import annotations

import os
import socket
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat

from footplate.contract.bucket import SCHEME, RemoteStore, Root
from footplate.contract.environment import EnvAllowed
from footplate.contract.outbound import Networks
from footplate.contract.settings import RedisUrl, Settings


class WorkerSettings(Settings):
    home: Path = Path(".footplate")
    """State of a one-machine set-up."""
    node_home: Path | None = None
    """This node's own folder: identity, journals, sockets. Empty: `node-1` in the home folder."""
    node_name: str = Field(default_factory=socket.gethostname)
    node_address: str = ""
    """This machine's address where other nodes reach it, for jobs on several nodes. Empty: the one towards Redis."""
    pool: str = "default"
    redis: RedisUrl = "redis://127.0.0.1:6379/0"
    artifacts: Root = ""
    """Root of the artifact store: the service's, the same files or the same bucket. Empty: `artifacts` in the home
    folder."""
    data: Path | None = None
    """What data:// means. Empty: `data` in the home folder."""
    models: Path | None = None
    """What models:// means. Empty: `models` in the home folder."""
    hub: Literal["on", "off"] = "off"
    """Whether this node fetches what jobs name on a hub, from HF_ENDPOINT and with HF_TOKEN, if it has them."""
    hub_cache: Path | None = None
    """Where it keeps that, as huggingface_hub keeps it. Empty: `hub` in the home folder."""
    stores_allow: Networks = ""
    """Hosts, with commas between them, from which this node fetches files of rows by https, and networks for those that
    are not public, which may be plain http. As the service's."""
    stores_max_mb: PositiveFloat = 4096.0
    """The largest file that it fetches so, in MiB."""
    env_allowed: EnvAllowed = ""
    """Variables that a job's `env` may set here: as the service's, so that what it accepts is set."""
    training_user: str = ""
    """Who training runs as, if root starts the node: a range of uids such as 60600-61111, of which each attempt has one
    to itself; or one user for all, by a name or a uid. Empty: the range 60600-61111, if a user of it can work here;
    else, or with `root`, training has the node's own rights."""
    slots: int = Field(default=0, ge=0, le=256)
    """How many ranks run here at once. 0: one a GPU; without a GPU, half the CPUs, at least one."""
    gpus: str = ""
    """A simulated inventory, for tests and rehearsals: `uuid:name:memory_mb:capability, ...`. Empty: ask NVML."""
    beat_seconds: PositiveFloat = 2.0
    drain_seconds: PositiveFloat = 60.0
    """How long a draining node waits for its attempts to checkpoint."""
    journal_max_mb: PositiveFloat = 512.0
    """How much of one attempt's history may wait on this disk."""

    @property
    def node_path(self) -> Path:
        return (self.node_home or self.home / "node-1").absolute()

    @property
    def artifacts_path(self) -> Path:
        """The folder that the service and all nodes see, or would."""
        return Path(self.artifacts or self.home / "artifacts").absolute()

    @cached_property
    def bucket(self) -> RemoteStore | None:
        """Where the artifacts lie, if it is no folder: an attempt then works in one of this node's own."""
        return RemoteStore(self.artifacts) if self.artifacts.startswith(SCHEME) else None

    @property
    def data_path(self) -> Path:
        return (self.data or self.home / "data").absolute()

    @property
    def models_path(self) -> Path:
        return (self.models or self.home / "models").absolute()

    @property
    def hub_path(self) -> Path:
        return (self.hub_cache or self.home / "hub").absolute()

    @property
    def stores_path(self) -> Path:
        return (self.home / "stores").absolute()

    def slot_count(self, gpu_count: int) -> int:
        return self.slots or gpu_count or max(1, (os.cpu_count() or 2) // 2)
