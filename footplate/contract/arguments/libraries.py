"""Libraries that only some arguments need: the packages that contain each, and how a node gets them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Library:
    packages: tuple[str, ...]
    """Requirements, of which one is enough."""
    install: str
    """The argument of `pip install`."""


def _extra(name: str, *packages: str) -> Library:
    return Library(packages or (name,), f"'footplate[{name}]'")


DEEPSPEED, LIGER, PEFT = _extra("deepspeed"), _extra("liger", "liger-kernel"), _extra("peft")

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

OF_BITSANDBYTES = (
    "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "ademamix", "ademamix_8bit",
    "paged_ademamix_32bit", "paged_ademamix_8bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit",
    "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit",
)  # fmt: skip
OF_TORCHAO = ("adamw_torch_4bit", "adamw_torch_8bit")
OPTIMS: dict[str, Library] = {
    **dict.fromkeys(OF_BITSANDBYTES, _extra("bitsandbytes")),
    **dict.fromkeys(OF_TORCHAO, _extra("torchao")),
}
"""The choices of `optim` that need a library."""
