"""Pushing to the Hugging Face hub: checkpoints beside training, the model when it is saved, each with its card."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.trainer import adapters
from footplate.trainer import checkpoint as files
from footplate.trainer.modelcard import write_card
from footplate.trainer.parts import Parts

log = logging.getLogger("footplate.trainer")

_OF_A_RUN = (
    files.OPTIMIZER, files.SCHEDULER, "rng_state*.pth", files.STATE, files.ARGUMENTS, files.SCALER, files.MANIFEST,
    adapters.REST,
)  # fmt: skip
"""Of a checkpoint, what only who continues it needs."""
_NOT_OUTPUT = ("_*", f"{files.PREFIX_CHECKPOINT_DIR}-*", ".tmp-*", ".old-*")


@dataclass(frozen=True, slots=True)
class Push:
    """On its way; its folder must stay until it has arrived."""

    folder: Path
    arrival: Future[Any]


class Hub(Parts):
    if TYPE_CHECKING:  # of the other parts
        save_model: Callable[..., None]
        is_world_process_zero: Callable[[], bool]

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Makes the repository where it is not there yet: `hub_model_id`, else one of the name of `output_dir`."""
        if not self.is_world_process_zero():
            return
        args = self.args
        made = self._hub_api.create_repo(
            args.hub_model_id or Path(str(args.output_dir)).absolute().name,
            token=token or args.hub_token,
            private=args.hub_private_repo if private is None else private,
            exist_ok=True,
        )
        self.hub_model_id = made.repo_id

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Saves the model to `output_dir` and uploads that, with a card; `kwargs` are `create_model_card`'s."""
        args = self.args
        self.control = self.callback_handler.on_push_begin(args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        named = kwargs.pop("model_name", None) or Path(args.hub_model_id or str(args.output_dir)).name
        of_the_model = getattr(self.model, "model_tags", None) or []
        if of_the_model:
            kwargs["tags"] = list(dict.fromkeys([*_listed(kwargs.get("tags")), *of_the_model]))
        self.create_model_card(model_name=named, **kwargs)
        self._finish_current_push()
        return self._upload(
            Path(str(args.output_dir)), commit_message, token=token, revision=revision, leaving_out=_NOT_OUTPUT,
            run_as_future=not blocking,
        )  # fmt: skip

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Writes README.md to `output_dir`: what was trained, on what, with which arguments, and what came of it."""
        if not self.is_world_process_zero():
            return
        write_card(
            self,
            Path(str(self.args.output_dir)),
            language=language,
            license=license,
            tags=_listed(tags),
            model_name=model_name,
            finetuned_from=finetuned_from,
            tasks=_listed(tasks),
            dataset_tags=_listed(dataset_tags),
            dataset=_listed(dataset),
            dataset_args=_listed(dataset_args),
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Beside training, from the committed folder. While another one is on its way this one is left out, unless
        `hub_always_push`; the run's end is pushed by who calls `push_to_hub` or `save_model`."""
        args, folder = self.args, Path(checkpoint_folder)
        if not self.is_world_process_zero() or args.hub_strategy == "end":
            return
        if self.pushes_in_progress and not args.hub_always_push:
            return
        self.control = self.callback_handler.on_push_begin(args, self.state, self.control)
        epoch = int(self.state.epoch or 0)
        at = f"step {self.state.global_step}" if args.save_strategy == "steps" else f"epoch {epoch}"
        said = f"Training in progress, {at}"
        jobs = [self._upload(folder, said, leaving_out=_OF_A_RUN, run_as_future=True)]
        if args.hub_strategy in ("checkpoint", "all_checkpoints"):
            place = "last-checkpoint" if args.hub_strategy == "checkpoint" else folder.name
            jobs.append(self._upload(folder, f"{said}, checkpoint", to=place, run_as_future=True))
        self._pushes += [Push(folder, job) for job in jobs]

    @cached_property
    def _hub_api(self) -> Any:
        """One for all pushes: it sends what it is to send beside training one after the other. Two of them would let an
        older checkpoint arrive behind a newer one."""
        return hub_api()

    @property
    def pushes_in_progress(self) -> set[Path]:
        """The folders that are on their way. What did not arrive is said once; training goes on."""
        for push in [each for each in self._pushes if each.arrival.done()]:
            self._pushes.remove(push)
            error = push.arrival.exception()
            if error is not None:
                log.warning("%s was not pushed to %s: %s", push.folder.name, self.hub_model_id, error)
        return {each.folder for each in self._pushes}

    def _finish_current_push(self) -> None:
        wait([each.arrival for each in self._pushes])
        assert not self.pushes_in_progress

    def _upload(
        self,
        folder: Path,
        said: str | None,
        *,
        to: str | None = None,
        token: str | None = None,
        revision: str | None = None,
        leaving_out: tuple[str, ...] = (),
        run_as_future: bool,
    ) -> Any:
        return self._hub_api.upload_folder(
            repo_id=str(self.hub_model_id),
            folder_path=folder,
            path_in_repo=to,
            commit_message=said,
            token=token or self.args.hub_token,
            revision=revision or self.args.hub_revision,
            ignore_patterns=list(leaving_out),
            run_as_future=run_as_future,
        )


def hub_api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise ImportError("pushing to the hub needs the extra hub: pip install 'footplate[hub]'") from error
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="footplate")


def _listed(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])
