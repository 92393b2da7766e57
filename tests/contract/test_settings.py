"""Settings are read from environment variables. A wrong one is refused with a hint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import make_url

from footplate.contract.errors import SettingsError
from footplate.contract.settings import Settings
from footplate.contract.variables import SETTINGS, unknown
from footplate.sdk.settings import ClientSettings
from service.settings import ServiceSettings
from worker.settings import WorkerSettings


class Some(Settings):
    lease_seconds: float = 30.0


def test_a_misspelt_variable_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError) as error:
        Some.from_environment({"FOOTPLATE_LEASE_SECOND": "300", "FOOTPLATE_LEASE_SECONDS": "soon"})

    assert "FOOTPLATE_LEASE_SECOND is not a setting: did you mean FOOTPLATE_LEASE_SECONDS?" in error.value.message
    assert "FOOTPLATE_LEASE_SECONDS='soon'" in error.value.message


def test_an_unknown_port_variable_is_refused_unless_kubernetes_sets_it() -> None:
    assert unknown({"FOOTPLATE_HOST_PORT": "8080"})


def test_an_unknown_variable_without_a_near_name_gets_the_page_of_settings() -> None:
    assert unknown({"FOOTPLATE_XYLOPHONE": "1"}) == [
        "FOOTPLATE_XYLOPHONE is not a setting: unset it, or look for the one you mean in docs/reference/settings.md."
    ]


@pytest.mark.parametrize(
    "environ",
    [
        {"FOOTPLATE_SLOTS": "2"},  # a setting of another program of Footplate
        {"FOOTPLATE_LEASE_SECOND": ""},
        {"FOOTPLATE_API_PORT": "tcp://10.0.0.1:8080", "FOOTPLATE_API_SERVICE_HOST": "10.0.0.1"},
        {"FOOTPLATE_PORT_8080_TCP_ADDR": "10.0.0.1", "FOOTPLATE_SERVICE_PORT_HTTP": "8080"},
        {"PATH": "/bin", "FOOTPLATER": "1"},
    ],
)
def test_empty_variables_and_those_of_kubernetes_are_ignored(environ: dict[str, str]) -> None:
    assert Some.from_environment(environ) == Some()


def test_the_older_name_of_a_setting_is_read_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    older, both = {"FOOTPLATE_RING_SECONDS": "7"}, {"FOOTPLATE_RING_SECONDS": "7", "FOOTPLATE_RESEND_SECONDS": "5"}

    assert ServiceSettings.from_environment(older).resend_seconds == 7
    assert re.search("FOOTPLATE_RING_SECONDS.*FOOTPLATE_RESEND_SECONDS", caplog.text)
    assert ServiceSettings.from_environment(both).resend_seconds == 5


@pytest.mark.parametrize(
    ("program", "name", "value"),
    [
        (ServiceSettings, "UPLOAD_MAX_MB", "inf"),
        (WorkerSettings, "DRAIN_SECONDS", "inf"),
        (ServiceSettings, "DATABASE", "/var/lib/footplate.db"),
        (ServiceSettings, "DATABASE", "postgresql+psycopg://user:password@host:port/name"),
        (ServiceSettings, "DATABASE", "postgres://host/name"),
        (ServiceSettings, "DATABASE", "sqlite:///~/footplate.db"),
        (ServiceSettings, "HOME", "~nobody-of-this-name/state"),
        (ServiceSettings, "ALLOWED_ORIGINS", "https://tools.example.org, other.example.org"),
        (ServiceSettings, "ALLOWED_ORIGINS", "*"),
        (ServiceSettings, "API_KEY", "0123456789abcdef0123456789\n"),
        (ServiceSettings, "ARTIFACTS", "s3:/bucket/prefix"),
        (WorkerSettings, "POOL", "the gpu pool"),
    ],
)
def test_a_value_that_could_never_work_is_refused_by_name(program: type[Settings], name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"FOOTPLATE_{name}") as error:
        program.from_environment({f"FOOTPLATE_{name}": value})

    assert "password" not in error.value.message.replace("user:password@host/name", "")
    assert "0123456789" not in error.value.message


def test_origins_and_urls_of_databases_that_work_are_accepted() -> None:
    origins = "https://tools.example.org:8443/, http://[::1]:3000"
    url = "postgresql+psycopg://user:p%40ss@host:5432/name"

    settings = ServiceSettings.from_environment({"FOOTPLATE_ALLOWED_ORIGINS": origins, "FOOTPLATE_DATABASE": url})

    assert (settings.allowed_origins, settings.database_url) == (origins, url)


def test_paths_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    variables = {"FOOTPLATE_HOME": "~/state", "FOOTPLATE_ARTIFACTS": "~/shared", "FOOTPLATE_MODELS": "~"}

    service, node = (program.from_environment(variables) for program in (ServiceSettings, WorkerSettings))

    assert service.database_url == "sqlite:////home/me/state/footplate.db"
    assert {service.artifacts_path, node.artifacts_path} == {Path("/home/me/shared")}
    assert (node.node_path, node.models_path) == (Path("/home/me/state/node-1"), Path("/home/me"))


def test_the_database_is_in_the_home_folder_whatever_its_name() -> None:
    home = "/work/feature%2Fone? #1"

    url = ServiceSettings.from_environment({"FOOTPLATE_HOME": home}).database_url

    assert make_url(url).database == f"{home}/footplate.db"


def test_the_list_of_known_variables_equals_the_fields_of_the_settings() -> None:
    fields = {
        name.upper() for settings in (ServiceSettings, WorkerSettings, ClientSettings) for name in settings.model_fields
    }
    assert fields == SETTINGS, "footplate/contract/variables.py must list every field of the settings"
