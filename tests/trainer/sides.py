"""Runs the same script with `transformers` and with Footplate, and compares the results bit for bit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from torch import nn

import footplate
from footplate.trainer.callbacks import EVENTS

transformers.logging.set_verbosity_error()
logging.getLogger("transformers").propagate = False

TIMINGS = ("runtime", "per_second", "preparation_time")


@dataclass
class Outcome:
    history: list[dict[str, Any]]
    """All logs, without measured times."""
    events: list[str]
    weights: dict[str, torch.Tensor]
    random: torch.Tensor
    """The state of torch's generator at the end. An equal state means equal random draws."""
    returned: dict[str, Any]
    trainer: Any


def on_both(folder: Path, script: Callable[[Any, Path], Any]) -> tuple[Outcome, Outcome]:
    """Runs a script with footplate and with transformers. The script trains the Trainer of the given module."""
    return run(script, footplate, folder / "ours"), run(script, transformers, folder / "theirs")


def run(script: Callable[[Any, Path], Any], side: ModuleType, folder: Path) -> Outcome:
    transformers.set_seed(7)
    trainer, returned = script(side, folder)
    notes = next((callback for callback in trainer.callback_handler.callbacks if hasattr(callback, "names")), None)
    return Outcome(
        history=[timeless(row) for row in trainer.state.log_history],
        events=notes.names if notes else [],
        weights={name: value.clone() for name, value in trainer.model.state_dict().items()},
        random=torch.get_rng_state(),
        returned=timeless(returned),
        trainer=trainer,
    )


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.endswith(TIMINGS)}


def common(values: dict[str, Any]) -> dict[str, Any]:
    """Removes two differences: the printer of transformers removes total_flos, and only Footplate logs exact losses."""
    return {name: value for name, value in values.items() if name != "total_flos" and not name.endswith("_loss_exact")}


def assert_same(ours: Outcome, theirs: Outcome) -> None:
    assert [common(row) for row in ours.history] == [common(row) for row in theirs.history]
    assert ours.events == theirs.events
    assert common(ours.returned) == common(theirs.returned)
    assert ours.weights.keys() == theirs.weights.keys()
    different = [name for name, value in ours.weights.items() if not value.equal(theirs.weights[name])]
    assert different == []
    assert ours.random.equal(theirs.random)


def noting(side: Any) -> Any:
    """Returns a callback of that library, which records the name of every event."""

    class Notes(side.TrainerCallback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.names: list[str] = []
            for event in EVENTS:
                setattr(self, event, self._note(event))

        def _note(self, event: str) -> Callable[..., None]:
            return lambda *args, **kwargs: self.names.append(event)

    return Notes()


def arguments(side: Any, folder: Path, **more: Any) -> Any:
    """Returns arguments with clipping, decay and warm-up. The last batch and the last window are shorter."""
    values = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 3,
        "learning_rate": 5e-3,
        "weight_decay": 0.1,
        "warmup_steps": 2,
        "num_train_epochs": 2,
        "logging_steps": 2,
        "logging_first_step": True,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        **more,
    }
    return side.TrainingArguments(str(folder), **values)


# What is trained


def bert(kind: str, **config: Any) -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return getattr(transformers, kind)(transformers.BertConfig(vocab_size=40, **sizes, **config))  # type: ignore[no-any-return]


def gpt() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def sentences(n: int = 22, seed: int = 3, shortest: int = 4) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, 12, (n,), generator=generator).tolist()
    return [torch.randint(5, 40, (length,), generator=generator).tolist() for length in lengths]


def tokenizer() -> Any:
    """Returns a tokenizer whose words are numbers, which needs no file and no download."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = Tokenizer(WordLevel({word: n for n, word in enumerate([*special, *map(str, range(5, 40))])}, "[UNK]"))
    words.pre_tokenizer = Whitespace()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **names)
