"""The GPUs of this node, as NVML lists them, or simulated ones for tests and rehearsals."""

from __future__ import annotations

import logging

from footplate.contract.errors import SettingsError
from footplate.contract.messages import Gpu

log = logging.getLogger("footplate.worker")


def inventory(simulated: str) -> list[Gpu]:
    """Returns the GPUs that attempts may use. `simulated` is the setting FOOTPLATE_GPUS. If empty, NVML lists them."""
    return [_simulated(text.strip()) for text in simulated.split(",") if text.strip()] if simulated else _from_nvml()


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
        log.info("this node has no GPUs, because NVML failed: %s", error)
        return []
    try:
        return [_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(n)) for n in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml, handle) -> Gpu:  # type: ignore[no-untyped-def]
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_mb=nvml.nvmlDeviceGetMemoryInfo(handle).total // 1024**2,
        capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
    )
