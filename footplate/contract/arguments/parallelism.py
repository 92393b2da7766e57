"""Reads the argument `parallelism_config`: the numbers of processes for each kind of parallelism."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from footplate.contract.errors import did_you_mean

SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
_BACKENDS = ("cp_backend", "sp_backend")


def sizes(value: Any) -> Any:
    """Returns sizes such as `tp_size` by name, from a dict, the path of a JSON file, or Accelerate's own object."""
    if isinstance(value, str):
        value = json.loads(Path(value).read_text(encoding="utf-8"))
    if value is None:
        return value
    if not isinstance(value, dict):
        # If a script does not set cp_comm_strategy, Accelerate's object has it from the launcher's variables.
        strategy = getattr(getattr(value, "cp_handler", None), "cp_comm_strategy", None) or "allgather"
        if strategy != "allgather":
            raise ValueError(
                f"parallelism_config's cp_comm_strategy is {strategy!r}, but only 'allgather' is supported"
            )
        value = {name: getattr(value, name, None) for name in SIZES}
    named_sizes = {name: size for name, size in value.items() if name not in _BACKENDS and size is not None}
    for name, size in named_sizes.items():
        if name not in SIZES:
            hint = did_you_mean(name, SIZES) or f"the sizes are {', '.join(SIZES)}"
            raise ValueError(f"parallelism_config has no size {name!r}: {hint}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"parallelism_config's {name} is {size!r}, but a size is 1 or more processes")
    return {name: named_sizes.get(name, 1) for name in SIZES}
