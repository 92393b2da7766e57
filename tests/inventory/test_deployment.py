"""Checks that files and names in Dockerfile and docker-compose.yml exist, as far as possible without Docker."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from footplate.contract.settings import variable
from service.settings import ServiceSettings
from tests.support.processes import REPOSITORY, Processes
from worker.settings import WorkerSettings

COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
SETTINGS_OF = {
    "service": {variable(name) for name in ServiceSettings.model_fields},
    "worker": {variable(name) for name in WorkerSettings.model_fields},
}


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_has_an_ordinary_user_a_read_only_disk_and_no_capability(name: str) -> None:
    item = SERVICES[name]

    assert item["read_only"] is True
    assert item["cap_drop"] == ["ALL"]
    assert item["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in item
    assert name in OURS or item["user"].split(":")[0] not in ("0", "root")
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize("name", OURS)
def test_every_image_is_a_build_target_that_reads_all_its_settings(name: str) -> None:
    target = OURS[name]["build"]["target"]

    assert re.search(rf"^FROM \S+ AS {target}$", DOCKERFILE, re.MULTILINE)
    assert set(OURS[name]["environment"]) <= SETTINGS_OF[target]


@pytest.mark.parametrize("name", [name for name in OURS if "command" in OURS[name]])
def test_every_command_of_a_container_is_a_subcommand_of_the_service(name: str, processes: Processes) -> None:
    names = processes.start("-m", "service", "--help", name="help")
    names.wait()

    assert OURS[name]["command"][0] in names.output


def test_containers_of_nodes_reach_neither_the_database_nor_the_internet() -> None:
    for name in ("worker", "worker-gpu"):
        assert SERVICES[name]["networks"] == ["pipe"]
        assert not any("DATABASE" in key or "API_KEY" in key for key in SERVICES[name]["environment"])
    assert COMPOSE["networks"]["pipe"]["internal"] is True
    assert "pipe" not in SERVICES["postgres"]["networks"]


@pytest.mark.parametrize("name", ["worker", "worker-gpu"])
def test_a_node_stops_before_control_which_stores_its_last_events(name: str) -> None:
    """Compose stops a container before those that it depends on."""
    assert "control" in SERVICES[name]["depends_on"]
    assert not any("worker" in dependency for dependency in SERVICES["control"]["depends_on"])


def test_no_secret_has_a_default() -> None:
    matches = re.findall(
        r"\$\{([A-Z_]*(?:KEY|PASSWORD)[A-Z_]*)(:\?|[^}]*)", (REPOSITORY / "docker-compose.yml").read_text()
    )

    assert {name for name, _ in matches} == {"FOOTPLATE_API_KEY", "POSTGRES_PASSWORD"}
    assert all(how.startswith(":?") for _, how in matches)


def test_service_and_nodes_share_the_artifacts_and_a_node_keeps_its_journals() -> None:
    for name in ("api", "control", "worker", "worker-gpu"):
        assert "artifacts:/var/lib/footplate/artifacts" in SERVICES[name]["volumes"]
    assert "node:/var/lib/footplate/node-1" in SERVICES["worker"]["volumes"]
    mounted = {entry for item in SERVICES.values() for entry in item.get("volumes", [])}
    assert {entry.split(":")[0] for entry in mounted if not entry.startswith("$")} == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", ["worker", "worker-gpu"])
def test_a_node_reads_models_and_data_from_folders_of_the_host(name: str) -> None:
    bound = {entry.partition("}:")[2] for entry in SERVICES[name]["volumes"] if entry.startswith("${FOOTPLATE_")}

    assert bound == {"/var/lib/footplate/models:ro", "/var/lib/footplate/data:ro"}


def test_the_files_that_images_copy_exist_and_are_not_ignored() -> None:
    let_through = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    names = re.findall(r"^COPY (?!--from)(.+) \./$", DOCKERFILE, re.MULTILINE)[0].split()

    assert set(names) <= let_through
    assert all((REPOSITORY / name).exists() for name in let_through)


def test_the_image_of_the_service_does_not_install_torch() -> None:
    layer = DOCKERFILE.partition("AS build-service")[2].partition("FROM build AS build-worker")[0]

    assert re.findall(r"--extra (\w+)", layer) == ["service", "otel", "s3"]


def test_the_extras_of_the_image_of_the_worker_exist() -> None:
    default = re.findall(r'^ARG EXTRAS="(.+)"$', DOCKERFILE, re.MULTILINE)[0]
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert set(default.split()) <= set(extras)
    assert OURS["worker"]["build"]["args"] == {"EXTRAS": f"${{WORKER_EXTRAS:-{default}}}"}
