"""The GPUs of this node, as NVML lists them, or simulated ones for tests and rehearsals."""

from __future__ import annotations

import logging
import os

from footplate.contract.errors import SettingsError
from footplate.contract.messages import Gpu

log = logging.getLogger("footplate.worker")


def inventory(simulated: str) -> list[Gpu]:
    """Returns the GPUs that attempts may use. `simulated` is the setting FOOTPLATE_GPUS. If empty, NVML lists them."""
    if simulated:
        return [_simulated(text.strip()) for text in simulated.split(",") if text.strip()]
    return visible(_from_nvml(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: list[Gpu], devices: str | None) -> list[Gpu]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES leaves to this node, because NVML lists all of the machine.

    `devices` has indices, in the order of nvidia-smi, or beginnings of UUIDs. None leaves all.
    """
    if devices is None or not gpus:
        return gpus
    visible_gpus: list[Gpu] = []
    for name in filter(None, map(str.strip, devices.split(","))):
        if name in NO_MORE:
            break
        matching_gpus = [gpu for at, gpu in enumerate(gpus) if name == str(at) or gpu.uuid.startswith(name)]
        if not matching_gpus:
            uuids = ", ".join(f"{at} ({gpu.uuid})" for at, gpu in enumerate(gpus))
            raise SettingsError(f"CUDA_VISIBLE_DEVICES names {name!r}, but the GPUs of this machine are: {uuids}.")
        visible_gpus += [gpu for gpu in matching_gpus[:1] if gpu not in visible_gpus]
    return visible_gpus


NO_MORE = ("-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES after which no GPU is visible. Slurm sets NoDevFiles for a step without GPUs."""


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
