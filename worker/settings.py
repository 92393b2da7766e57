"""The settings of a node, read from environment variables at its start."""

from __future__ import annotations

import os
import socket
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat

from footplate.contract.bucket import SCHEME, RemoteStore, Root
from footplate.contract.environment import EnvAllowed
from footplate.contract.fields import Slug
from footplate.contract.outbound import Networks
from footplate.contract.settings import LocalPath, RedisUrl, Settings


class WorkerSettings(Settings):
    """The settings of a node. Each is the variable FOOTPLATE_ with the field's name in capitals."""

    home: LocalPath = Path(".footplate")
    """The folder that holds all files of a one-machine set-up."""
    node_home: LocalPath | None = None
    """This node's own folder, with its identity, journals and sockets. Empty: `node-1` in the home folder."""
    node_name: str = Field(default_factory=socket.gethostname)
    node_address: str = ""
    """The address at which other nodes reach this one, for jobs on several nodes. Empty: the address from which this
    node connects to Redis."""
    pool: Slug = "default"
    redis: RedisUrl = "redis://127.0.0.1:6379/0"
    artifacts: Root = ""
    """The root of the artifact store, with the same files or the same bucket as the service's. Empty: `artifacts` in
    the home folder."""
    data: LocalPath | None = None
    """The folder that `data://` stands for. Empty: `data` in the home folder."""
    models: LocalPath | None = None
    """The folder that `models://` stands for. Empty: `models` in the home folder."""
    hub: Literal["on", "off"] = "off"
    """`on` lets this node fetch what jobs name on a hub, from `HF_ENDPOINT` and with `HF_TOKEN`, if these are set."""
    hub_cache: LocalPath | None = None
    """The cache of fetched repositories, in the layout of huggingface_hub. Empty: `hub` in the home folder."""
    stores_allow: Networks = ""
    """Hosts from which this node fetches files of rows by https, separated by commas. Hosts that are not public need
    their network here, and may use http. Set it like the service's."""
    stores_max_mb: PositiveFloat = 4096.0
    """The largest file that is fetched from these hosts, in MiB."""
    env_allowed: EnvAllowed = ""
    """Variables that a job's `env` may set here. Set it like the service's, which checks specs against its own."""
    training_user: str = ""
    """The users that training runs as, if root starts the node. A range of uids, such as `60600-61111`, gives each
    attempt a uid of its own. A name or a single uid is one user for all attempts. `root` gives training the node's own
    rights. Empty: the range 60600-61111 if its users can work on this machine, else the node's own rights."""
    slots: int = Field(default=0, ge=0, le=256)
    """The number of ranks that may run here at once. 0: one per GPU, or half the CPUs if there is no GPU. The variable
    CUDA_VISIBLE_DEVICES limits the GPUs of a node, by the indices of nvidia-smi or by UUIDs."""
    gpus: str = ""
    """Simulated GPUs for tests and rehearsals, as `uuid:name:memory_mb:capability, ...`. Empty: those of NVML."""
    beat_seconds: PositiveFloat = 2.0
    drain_seconds: PositiveFloat = 60.0
    """The time in which the attempts of a draining node must checkpoint."""
    journal_max_mb: PositiveFloat = 512.0
    """The most MiB of one attempt's events that may wait on this node's disk."""

    @property
    def node_path(self) -> Path:
        return (self.node_home or self.home / "node-1").absolute()

    @property
    def artifacts_path(self) -> Path:
        """The artifact store's folder. Meaningless if the store is a bucket."""
        return Path(self.artifacts or self.home / "artifacts").absolute()

    @cached_property
    def bucket(self) -> RemoteStore | None:
        """The artifact store if it is a bucket, else None. With a bucket, attempts work in folders of this node."""
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
