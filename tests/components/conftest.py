"""Makes the tokenizer of examples/sentences, which knows a few sentences."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from footplate.components import hf_processors
from tests.support.processes import REPOSITORY

PREPARE = runpy.run_path(str(REPOSITORY / "examples/sentences/prepare.py"))


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    PREPARE["write_tokenizer"](folder, ["the film is dull", "the cast is warm and the story is moving"])
    return folder


@pytest.fixture
def tokenizer(tokenizer_folder: Path) -> Any:
    return hf_processors.tokenizer(path=str(tokenizer_folder))
