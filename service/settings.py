"""The service's settings, which are environment variables."""

from __future__ import annotations

import re
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, field_validator, model_validator
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from footplate.contract.bucket import SCHEME, RemoteStore, Root
from footplate.contract.environment import EnvAllowed
from footplate.contract.outbound import Networks
from footplate.contract.settings import LocalPath, RedisUrl, Settings
from service.artifact_files import Store
from service.base_models import PartialSpec, read_table

_KEY = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@*\s]+/?")


class ServiceSettings(Settings):
    home: LocalPath = Path(".footplate")
    """The folder for all state of a one-machine set-up: database, artifacts, logs."""
    database: str = ""
    """The SQLAlchemy URL. Empty: SQLite in the home folder. PostgreSQL: postgresql+psycopg://user:password@host/name."""
    redis: RedisUrl = "redis://127.0.0.1:6379/0"
    """A redis://, rediss:// or unix:// URL."""
    artifacts: Root = ""
    """The root of the artifact store: a folder that nodes share, or s3://bucket/prefix. Empty: `artifacts` in the home
    folder."""
    host: str = "127.0.0.1"
    """The address to listen on. Any other than a loopback address needs `FOOTPLATE_API_KEY`."""
    port: int = Field(default=8080, ge=0, le=65535)
    """The port to listen on. 0: any free port."""
    url_file: LocalPath | None = None
    """A file to which the service writes its base URL once it listens."""
    api_key: SecretStr | None = None
    """The bootstrap key, which allows everything and makes other keys. Without it the service listens on loopback
    only."""
    allowed_origins: str = ""
    """Further origins whose pages may send requests and open websockets, separated by commas."""
    rate_per_key: float = Field(default=200.0, ge=0)
    """The requests a second that an API process accepts from one key, or five times as many after a pause. 0: no
    limit."""
    rate_per_address: float = Field(default=100.0, ge=0)
    """The requests a second without a valid key that an API process accepts from one address, or five times as many
    after a pause. The dashboard's page and /readyz count. Behind a proxy this is the proxy's address. 0: no limit."""
    streams_per_key: int = Field(default=2000, ge=0)
    """The websockets and event streams that one key may have open at an API process. 0: no limit."""
    ping_seconds: float = Field(default=15.0, gt=0, le=20)
    """The interval at which a quiet stream sends a ping or, in server-sent events, a comment. It must be shorter than
    the idle timeout of proxies, and is at most 20."""
    code: Literal["on", "off"] = "off"
    """Allows users' own code, which runs with the rights of training. `make up` sets this to on."""
    hub: Literal["on", "off"] = "off"
    """Allows jobs to name files on a hub, as hub://owner/name. The nodes that fetch them need the same setting."""
    upload_max_mb: PositiveFloat = 4096.0
    """The largest file that POST /files accepts, in MiB."""
    openai_models: LocalPath | None = None
    """A JSON file that says which model is trained for each name of OpenAI's base models. An entry is a path, or a
    partial spec: `{"gpt-4o-mini": "models://qwen2.5-0.5b"}`."""
    env_allowed: EnvAllowed = ""
    """Variables that a job's `env` may set beside a few harmless ones: names, or prefixes with a star, separated by
    commas."""
    stores_allow: Networks = ""
    """Hosts whose files jobs may name by https, and networks of such hosts that are not public, separated by commas:
    `data.example.org, minio.internal, 10.1.0.0/16`. Nodes fetch the files, and check their own setting."""
    webhooks_allow: Networks = ""
    """Hosts and networks that webhooks may reach beside the public internet, also by plain http, separated by commas:
    `hooks.internal, 10.1.0.0/16`."""
    lease_seconds: PositiveFloat = 30.0
    """The time without a heartbeat after which an attempt counts as lost."""
    beat_seconds: PositiveFloat = 2.0
    """The interval at which workers send heartbeats."""
    claim_seconds: PositiveFloat = 30.0
    """The time after which a placed attempt that no worker has claimed goes back to the queue."""
    resend_seconds: PositiveFloat = 3.0
    """The time after which the start message of a placed attempt is sent again if no worker has claimed the attempt."""
    external_seconds: PositiveFloat = 1800.0
    """The time without a report after which a run elsewhere counts as lost. A run sends none while it evaluates."""
    start_seconds: PositiveFloat = 1800.0
    """The time that a claimed attempt has until its training runs, or the job's stall_limit if that is longer."""
    stop_seconds: PositiveFloat = 60.0
    """The time that a running attempt has to checkpoint and stop. Training gets SIGTERM after 80 % of it, and SIGKILL
    after 90 %. A script without a Trainer or Accelerate gets SIGTERM at once."""
    kill_seconds: PositiveFloat = 10.0
    """The time after a kill, or after the deadline of a stop, at which an attempt counts as gone."""
    retry_backoff_seconds: float = Field(default=2.0, ge=0, le=86_400)
    """The wait before another attempt, for jobs whose `retry` names none, at most a day. The wait doubles with each
    attempt that wrote no new checkpoint."""
    poll_seconds: PositiveFloat = 0.25
    """The interval at which control looks for work in SQL, even if no API process has woken control."""
    readers: PositiveInt = 4
    """The number of threads that read SQL, each with a connection. Curves are read in one further thread."""
    writers: PositiveInt = 2
    """The number of threads that write PostgreSQL, each with a connection. SQLite has one."""

    @property
    def database_url(self) -> str:
        # A folder's name may have characters with a meaning in a URL, such as the %2F of a branch in Jenkins.
        path = str((self.home / "footplate.db").absolute())
        return self.database or URL.create("sqlite", database=path).render_as_string()

    @property
    def artifacts_path(self) -> Path:
        """The folder of the artifacts. If they are in a bucket, the folder for uploads on their way there."""
        folder = "" if self.artifacts.startswith(SCHEME) else self.artifacts
        return Path(folder or self.home / "artifacts").absolute()

    @cached_property
    def store(self) -> Store:
        """The artifact store, which is a folder or a bucket."""
        return RemoteStore(self.artifacts) if self.artifacts.startswith(SCHEME) else self.artifacts_path

    @cached_property
    def base_models(self) -> dict[str, PartialSpec]:
        """The partial spec of each base model of /v1, from the file that `openai_models` names."""
        return {} if self.openai_models is None else read_table(self.openai_models)

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @field_validator("database")
    @classmethod
    def database_is_supported(cls, url: str) -> str:
        try:
            parsed_url = make_url(url) if url else None
            is_supported = parsed_url is None or parsed_url.drivername in ("sqlite", "postgresql+psycopg")
        except (ArgumentError, ValueError):
            is_supported = False
        if not is_supported:
            raise ValueError("write sqlite:///path or postgresql+psycopg://user:password@host/name")
        if parsed_url is not None and (parsed_url.database or "").startswith("~"):
            raise ValueError("~ does not stand for a home folder in a URL; write sqlite:////whole/path/footplate.db")
        return url

    @field_validator("allowed_origins")
    @classmethod
    def origins_have_a_scheme_and_no_path(cls, origins: str) -> str:
        for origin in filter(None, map(str.strip, origins.split(","))):
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is not an origin, such as https://tools.example.org:8443")
        return origins

    @field_validator("openai_models")
    @classmethod
    def base_models_can_be_read(cls, path: Path | None) -> Path | None:
        if path is not None:
            read_table(path)
        return path

    @model_validator(mode="after")
    def leases_outlive_beats(self) -> Self:
        if self.lease_seconds < 2 * self.beat_seconds:
            raise ValueError(
                f"a lease of {self.lease_seconds:g} s must be at least twice the heartbeat interval, which is "
                f"{self.beat_seconds:g} s; raise FOOTPLATE_LEASE_SECONDS or lower FOOTPLATE_BEAT_SECONDS"
            )
        return self

    @model_validator(mode="after")
    def other_machines_need_a_key(self) -> Self:
        if not self.is_loopback and self.api_key is None:
            raise ValueError(
                f"FOOTPLATE_HOST={self.host} is reachable from other machines, and there is no key; "
                "set FOOTPLATE_API_KEY, or listen on 127.0.0.1"
            )
        if self.api_key is not None and len(self.api_key.get_secret_value()) < 22:
            raise ValueError("FOOTPLATE_API_KEY is too short: use 22 random characters (128 bits) or more")
        if self.api_key is not None and not _KEY.fullmatch(self.api_key.get_secret_value()):
            raise ValueError(
                "FOOTPLATE_API_KEY has a space, a line break or a character outside ASCII, so no client could send it; "
                "use letters, digits and signs only"
            )
        return self
