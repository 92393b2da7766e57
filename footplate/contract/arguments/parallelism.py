"""What `parallelism_config` says: over how many processes each way to share goes. Accelerate's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from footplate.contract.errors import did_you_mean

SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
_BACKENDS = ("cp_backend", "sp_backend")


def sizes(value: Any) -> Any:
    """By name, from a dict, from the path of a JSON file that holds one, or from Accelerate's own object."""
    if isinstance(value, str):
        value = json.loads(Path(value).read_text(encoding="utf-8"))
    if value is None:
        return value
    if not isinstance(value, dict):
        # Accelerate's object has read the launcher's environment, too.
        strategy = getattr(getattr(value, "cp_handler", None), "cp_comm_strategy", None) or "allgather"
        if strategy != "allgather":
            raise ValueError(f"parallelism_config's cp_comm_strategy is {strategy!r}, and 'allgather' is what there is")
        value = {name: getattr(value, name, None) for name in SIZES}
    found = {name: size for name, size in value.items() if name not in _BACKENDS and size is not None}
    for name, size in found.items():
        if name not in SIZES:
            raise ValueError(f"parallelism_config has no {name!r}: {did_you_mean(name, SIZES) or ', '.join(SIZES)}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"parallelism_config's {name} is {size!r}, and a size is 1 or more processes")
    return {name: found.get(name, 1) for name in SIZES}
