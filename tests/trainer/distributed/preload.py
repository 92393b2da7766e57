"""Imports what a rank needs, before ranks are forked. DeepSpeed is left out: its import reads the environment."""

from __future__ import annotations

import os

# Set before torch is imported, because the last bits of a sum depend on the number of threads.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import transformers

from footplate.trainer import preload
from tests.trainer.distributed import job

preload()
__all__ = ["job", "transformers"]
