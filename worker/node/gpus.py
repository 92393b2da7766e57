"""The GPUs of this node: by UUID, from NVML, or the simulated ones of a rehearsal."""

from __future__ import annotations

import logging

from footplate.contract.errors import SettingsError
from footplate.contract.messages import Gpu

log = logging.getLogger("footplate.worker")


def inventory(simulated: str) -> list[Gpu]:
    """What this node may lend out. `simulated` is the setting FOOTPLATE_GPUS; empty asks the driver."""
    return [_simulated(one.strip()) for one in simulated.split(",") if one.strip()] if simulated else _from_nvml()


def _simulated(text: str) -> Gpu:
    try:
        uuid, name, memory, capability = text.split(":")
        major, _, minor = capability.partition(".")
        return Gpu(uuid=uuid, name=name, memory_mb=int(memory), capability=(int(major), int(minor or 0)))
    except ValueError:
        raise SettingsError(
            f"FOOTPLATE_GPUS names {text!r}: a simulated GPU is 'uuid:name:memory_mb:capability', "
            "for example 'GPU-a:H100:81559:9.0'."
        ) from None


def _from_nvml() -> list[Gpu]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        log.info("no GPUs here: NVML says %s", error)
        return []
    try:
        return [_ask(pynvml, pynvml.nvmlDeviceGetHandleByIndex(n)) for n in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _ask(nvml, handle) -> Gpu:  # type: ignore[no-untyped-def]
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_mb=nvml.nvmlDeviceGetMemoryInfo(handle).total // 1024**2,
        capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
    )
