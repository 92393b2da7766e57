"""Uploads to the Hugging Face hub: checkpoints during training, and the model with its card when it is saved."""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.trainer import adapters
from footplate.trainer import checkpoint as files
from footplate.trainer.modelcard import listed

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")

_OF_A_RUN = (
    files.OPTIMIZER, files.SCHEDULER, "rng_state*.pth", files.STATE, files.ARGUMENTS, files.SCALER, files.MANIFEST,
    adapters.REST,
)  # fmt: skip
"""The files of a checkpoint that only a resumed run needs."""
_NOT_OUTPUT = ("_*", f"{files.PREFIX_CHECKPOINT_DIR}-*", ".tmp-*", ".old-*")


def init_hf_repo(trainer: Trainer, token: str | None = None, private: bool | None = None) -> None:
    """Creates the repository `hub_model_id`, or else one named like `output_dir`, if it does not exist."""
    if not trainer.is_world_process_zero():
        return
    args = trainer.args
    repository = _api(trainer).create_repo(
        args.hub_model_id or Path(str(args.output_dir)).absolute().name,
        token=token or args.hub_token,
        private=args.hub_private_repo if private is None else private,
        exist_ok=True,
    )
    trainer.hub_model_id = repository.repo_id


def push_to_hub(
    trainer: Trainer,
    commit_message: str | None = "End of training",
    blocking: bool = True,
    token: str | None = None,
    revision: str | None = None,
    private: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Saves the model to `output_dir` and uploads it with a model card. `kwargs` go to `create_model_card`."""
    args = trainer.args
    trainer.control = trainer.callback_handler.on_push_begin(args, trainer.state, trainer.control)
    if trainer.hub_model_id is None:
        trainer.init_hf_repo(token=token, private=private)
    trainer.save_model(_internal_call=True)
    if not trainer.is_world_process_zero():
        return None
    model_name = kwargs.pop("model_name", None) or Path(args.hub_model_id or str(args.output_dir)).name
    model_tags = getattr(trainer.model, "model_tags", None) or []
    if model_tags:
        kwargs["tags"] = list(dict.fromkeys([*listed(kwargs.get("tags")), *model_tags]))
    trainer.create_model_card(model_name=model_name, **kwargs)
    trainer._finish_current_push()
    return _upload(
        trainer, Path(str(args.output_dir)), commit_message, token=token, revision=revision, leaving_out=_NOT_OUTPUT,
        run_as_future=not blocking,
    )  # fmt: skip


def push_checkpoint(trainer: Trainer, checkpoint_folder: str) -> None:
    """Uploads a committed checkpoint in the background.

    If another upload is in progress, this checkpoint is skipped, unless `hub_always_push` is set. The final model is
    uploaded by `push_to_hub` or `save_model`.
    """
    args, folder = trainer.args, Path(checkpoint_folder)
    if not trainer.is_world_process_zero() or args.hub_strategy == "end":
        return
    if pushes_in_progress(trainer) and not args.hub_always_push:
        return
    trainer.control = trainer.callback_handler.on_push_begin(args, trainer.state, trainer.control)
    epoch = int(trainer.state.epoch or 0)
    at = f"step {trainer.state.global_step}" if args.save_strategy == "steps" else f"epoch {epoch}"
    message = f"Training in progress, {at}"
    jobs = [_upload(trainer, folder, message, leaving_out=_OF_A_RUN, run_as_future=True)]
    if args.hub_strategy in ("checkpoint", "all_checkpoints"):
        place = "last-checkpoint" if args.hub_strategy == "checkpoint" else folder.name
        jobs.append(_upload(trainer, folder, f"{message}, checkpoint", to=place, run_as_future=True))
    trainer._footplate.pushes |= dict.fromkeys(jobs, folder)


def _api(trainer: Trainer) -> Any:
    """Returns the Trainer's only hub client, which uploads in order.

    With two clients, an older checkpoint could arrive after a newer one.
    """
    internals = trainer._footplate
    if internals.hub_api is None:
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise ImportError("pushing to the hub needs the extra hub: pip install 'footplate[hub]'") from error
        internals.hub_api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="footplate")
    return internals.hub_api


def pushes_in_progress(trainer: Trainer) -> set[Path]:
    """Returns the folders that are being uploaded to the hub. Logs uploads that have failed since the last call."""
    pushes = trainer._footplate.pushes
    for upload in [upload for upload in pushes if upload.done()]:
        folder, error = pushes.pop(upload), upload.exception()
        if error is not None:
            log.warning("%s was not pushed to %s: %s", folder.name, trainer.hub_model_id, error)
    return set(pushes.values())


@dataclass(frozen=True, slots=True)
class PushInProgress:
    """The uploads that are under way, as Hugging Face's Trainer shows them to subclasses."""

    uploads: tuple[Future[Any], ...]

    def is_done(self) -> bool:
        return all(upload.done() for upload in self.uploads)

    def wait_until_done(self) -> None:
        wait(self.uploads)


def push_in_progress(trainer: Trainer) -> PushInProgress | None:
    """The upload of a checkpoint that is under way, or None. Setting None forgets the uploads."""
    pushes = trainer._footplate.pushes
    return PushInProgress(tuple(pushes)) if pushes else None


def forget_pushes(trainer: Trainer, push: None) -> None:
    if push is not None:
        raise AttributeError("push_in_progress can only be set to None, because the Trainer itself lists its uploads")
    trainer._footplate.pushes.clear()


def finish_current_push(trainer: Trainer) -> None:
    wait(trainer._footplate.pushes)
    assert not pushes_in_progress(trainer)


def _upload(
    trainer: Trainer,
    folder: Path,
    message: str | None,
    *,
    to: str | None = None,
    token: str | None = None,
    revision: str | None = None,
    leaving_out: tuple[str, ...] = (),
    run_as_future: bool,
) -> Any:
    return _api(trainer).upload_folder(
        repo_id=str(trainer.hub_model_id),
        folder_path=folder,
        path_in_repo=to,
        commit_message=message,
        token=token or trainer.args.hub_token,
        revision=revision or trainer.args.hub_revision,
        ignore_patterns=list(leaving_out),
        run_as_future=run_as_future,
    )
