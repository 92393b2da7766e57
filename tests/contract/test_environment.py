"""Tests which environment variables a job may set, and that secrets are masked in events."""

from __future__ import annotations

import json

import pytest

from footplate.contract.environment import SecretMask, refused_env, secrets_of, unknown_secrets
from footplate.contract.errors import SettingsError
from service.settings import ServiceSettings


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "HF_HOME", "MY_FLAG"])
def test_a_job_may_set_harmless_and_allowed_variables(name: str) -> None:
    assert refused_env({name: "1"}, "HF_*, MY_FLAG") == []


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "PYTHONPATH", "FOOTPLATE_REDIS", "CUDA_VISIBLE_DEVICES", "RANK", "TMPDIR"]
)
def test_variables_that_the_node_sets_are_refused_even_if_they_are_allowed(name: str) -> None:
    assert [problem.code for problem in refused_env({name: "1"}, f"{name},L*,P*,F*,C*")] == ["env_not_allowed"]


def test_a_variable_that_is_not_allowed_is_refused_with_the_setting_that_allows_it() -> None:
    (problem,) = refused_env({"AWS_PROFILE": "x"}, "")

    assert problem.pointer == "/env/AWS_PROFILE"
    assert "FOOTPLATE_ENV_ALLOWED" in str(problem.hint)
    assert [item.code for item in refused_env({"A-B": "x"}, "*")] == ["bad_name"]


@pytest.mark.parametrize("text", ["*", "HF-*", "A B", "HF_*X"])
def test_a_malformed_list_of_allowed_variables_is_refused_at_start_up(text: str) -> None:
    with pytest.raises(SettingsError, match="FOOTPLATE_ENV_ALLOWED"):
        ServiceSettings.from_environment({"FOOTPLATE_ENV_ALLOWED": text})


def test_secrets_are_variables_with_a_prefix_and_a_minimum_length() -> None:
    assert secrets_of({"FOOTPLATE_SECRET_TOKEN": "hunter22", "TOKEN": "x"}) == {"TOKEN": "hunter22"}
    with pytest.raises(SettingsError, match="6 characters") as error:
        secrets_of({"FOOTPLATE_SECRET_TOKEN": "abc"})
    assert "abc" not in error.value.message
    with pytest.raises(SettingsError):
        secrets_of({"FOOTPLATE_SECRET_LD_PRELOAD": "/tmp/evil.so"})


def test_an_unknown_secret_is_refused_with_the_variable_that_defines_it() -> None:
    (problem,) = unknown_secrets(["TOKEN", "KEY"], ["KEY"])

    assert (problem.pointer, problem.code) == ("/secrets/0", "unknown_secret")
    assert "FOOTPLATE_SECRET_TOKEN" in str(problem.hint)


def test_secrets_are_masked_in_texts_lists_and_keys_of_an_event() -> None:
    hidden = SecretMask(["hunter22", "hunter22-and-more", "line one\nline two"])

    event = {"text": "key=hunter22-and-more;", "list": ["hunter22", 5, None], "hunter22": "at line two of it"}

    assert hidden(event) == {"text": "key=***;", "list": ["***", 5, None], "***": "at *** of it"}
    assert SecretMask([])(event) is event


def test_secrets_are_masked_in_events_that_are_nested_almost_as_deep_as_json_allows() -> None:
    deep = json.loads('{"a":' * 900 + '"hunter22"' + "}" * 900)

    assert "hunter22" not in json.dumps(SecretMask(["hunter22"])([deep, "x"]))
