"""What the service reads from its environment."""

from __future__ import annotations

from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, model_validator

from footplate.contract.bucket import SCHEME, RemoteStore, Root
from footplate.contract.environment import EnvAllowed
from footplate.contract.outbound import Networks
from footplate.contract.settings import RedisUrl, Settings
from service.artifact_files import Store


class ServiceSettings(Settings):
    home: Path = Path(".footplate")
    """State of a one-machine set-up: database, artifacts, logs."""
    database: str = ""
    """SQLAlchemy URL. Empty: SQLite in the home folder. PostgreSQL: postgresql+psycopg://user:password@host/name."""
    redis: RedisUrl = "redis://127.0.0.1:6379/0"
    """redis://, rediss:// or unix:// URL."""
    artifacts: Root = ""
    """Root of the artifact store: a folder that nodes see as well, or s3://bucket/prefix. Empty: `artifacts` in the
    home folder."""
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    """0 takes any free port."""
    url_file: Path | None = None
    """Where to write the base URL once the service listens."""
    api_key: SecretStr | None = None
    """The bootstrap key: may do everything, and makes the others. Without one the service listens on loopback only."""
    allowed_origins: str = ""
    """Comma-separated origins, beside its own, whose pages may open the websocket."""
    rate_per_key: float = Field(default=200.0, ge=0)
    """Requests a second that an API process takes of one key; a quiet one may send five times as many. 0: any."""
    rate_per_address: float = Field(default=100.0, ge=0)
    """Requests a second that an API process takes of one address without a good key, the page and /readyz among them;
    a quiet one may send five times as many. Behind a proxy that is the proxy's. 0: any."""
    streams_per_key: int = Field(default=2000, ge=0)
    """Websockets and event streams that one key may hold open at an API process. 0: any."""
    ping_seconds: float = Field(default=15.0, gt=0, le=20)
    """How often a quiet stream shows that it is alive: by a websocket's ping, or by a comment in server-sent events.
    Shorter than what a proxy in between calls idle; at most 20."""
    code: Literal["on", "off"] = "off"
    """Whether users may bring code of their own. It runs with the rights of training. `make up` says on."""
    hub: Literal["on", "off"] = "off"
    """Whether jobs may name what lies on a hub: hub://owner/name. Nodes that are to fetch it have it on as well."""
    upload_max_mb: PositiveFloat = 4096.0
    """The largest file that POST /files takes, in MiB."""
    env_allowed: EnvAllowed = ""
    """Variables that a job's `env` may set, beside a few that do no harm: names, or beginnings with a star, and commas
    between them."""
    stores_allow: Networks = ""
    """Hosts, with commas between them, that jobs may name files of by https, and networks for those that are not
    public: `data.example.org, minio.internal, 10.1.0.0/16`. Nodes fetch them, and look at their own."""
    webhooks_allow: Networks = ""
    """Hosts and networks, with commas between them, that webhooks may reach beside the public internet, and by plain
    http: `hooks.internal, 10.1.0.0/16`."""
    lease_seconds: PositiveFloat = 30.0
    """An attempt that has not been heard of for this long is lost."""
    beat_seconds: PositiveFloat = 2.0
    """How often workers report."""
    claim_seconds: PositiveFloat = 30.0
    """A placed attempt that nobody claimed for this long goes back to the queue."""
    ring_seconds: PositiveFloat = 3.0
    """A placed attempt that nobody claimed for this long is rung again."""
    start_seconds: PositiveFloat = 1800.0
    """How long a claimed attempt may take until its training says that it runs; a job's longer stall_limit counts."""
    stop_seconds: PositiveFloat = 60.0
    """How long a running attempt may take to checkpoint and stop before it is killed."""
    kill_seconds: PositiveFloat = 10.0
    """How long after a kill, or after the stop's deadline, an attempt counts as gone."""
    retry_backoff_seconds: float = Field(default=2.0, ge=0)
    """Doubles with each failure, up to five minutes."""
    poll_seconds: PositiveFloat = 0.25
    """How often control looks for work that nobody poked it about."""
    readers: PositiveInt = 4
    """Threads, and connections, that read SQL."""
    writers: PositiveInt = 2
    """Threads, and connections, that write PostgreSQL. SQLite has one writer."""

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{(self.home / 'footplate.db').absolute()}"

    @property
    def artifacts_path(self) -> Path:
        """The folder that the artifacts lie in; where they lie in a bucket, one for what is on its way there."""
        at = (
            self.home / "artifacts"
            if isinstance(self.store, RemoteStore)
            else self.artifacts or self.home / "artifacts"
        )
        return Path(at).absolute()

    @cached_property
    def store(self) -> Store:
        """Where the artifacts lie."""
        if self.artifacts.startswith(SCHEME):
            return RemoteStore(self.artifacts)
        return Path(self.artifacts or self.home / "artifacts").absolute()

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @model_validator(mode="after")
    def leases_outlive_beats(self) -> Self:
        if self.lease_seconds < 2 * self.beat_seconds:
            raise ValueError(
                f"a lease of {self.lease_seconds:g} s must span two beats of {self.beat_seconds:g} s or more; "
                "raise FOOTPLATE_LEASE_SECONDS or lower FOOTPLATE_BEAT_SECONDS"
            )
        return self

    @model_validator(mode="after")
    def strangers_need_a_key(self) -> Self:
        if not self.is_loopback and self.api_key is None:
            raise ValueError(
                f"FOOTPLATE_HOST={self.host} is reachable from other machines, and there is no key; "
                "set FOOTPLATE_API_KEY, or listen on 127.0.0.1"
            )
        if self.api_key is not None and len(self.api_key.get_secret_value()) < 22:
            raise ValueError("FOOTPLATE_API_KEY is too short to be a key: use 22 random characters (128 bits) or more")
        return self
