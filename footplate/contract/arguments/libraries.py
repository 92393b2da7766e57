"""The libraries that some values of arguments need, such as trackers, with their packages and install commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from footplate.contract.arguments.argument_fields import OfBitsandbytes, OfTorchao


@dataclass(frozen=True, slots=True)
class Library:
    """A library that a value of an argument needs."""

    packages: tuple[str, ...]
    """Packages that contain the library. One of them must be installed."""
    install: str
    """The argument of `pip install`."""


def _extra(name: str, *packages: str) -> Library:
    return Library(packages or (name,), f"'footplate[{name}]'")


DEEPSPEED, LIGER, PEFT = _extra("deepspeed"), _extra("liger", "liger-kernel"), _extra("peft")
BITSANDBYTES = _extra("bitsandbytes")

TRACKERS: dict[str, Library] = {
    "aim": Library(("aim<4",), "'aim<4'"),
    "clearml": Library(("clearml",), "clearml"),
    "comet_ml": Library(("comet-ml",), "comet-ml"),
    "dvclive": Library(("dvclive",), "dvclive"),
    "mlflow": _extra("mlflow", "mlflow", "mlflow-skinny"),
    "swanlab": Library(("swanlab",), "swanlab"),
    "tensorboard": Library(("tensorboard", "tensorboardx"), "tensorboard"),
    "trackio": _extra("trackio"),
    "wandb": _extra("wandb"),
}
"""The trackers that Accelerate supports."""

OF_BITSANDBYTES = get_args(OfBitsandbytes)
OF_TORCHAO = get_args(OfTorchao)
OPTIMS: dict[str, Library] = {
    **dict.fromkeys(OF_BITSANDBYTES, BITSANDBYTES),
    **dict.fromkeys(OF_TORCHAO, _extra("torchao")),
}
"""The choices of `optim` that need a library."""
