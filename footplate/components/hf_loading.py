"""Loads configs and weights of transformers models. Refuses files that can run code."""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from footplate.contract.errors import NotBuildable, did_you_mean

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")
"""Suffixes of weights that can run code when they are opened, or that the job's models cannot read."""

MERGES_AT_END = "footplate_merges_at_end"
"""The attribute of a model whose adapters are merged into it at the end, so that the whole model is saved."""

NEVER_IN_A_CONFIG = frozenset(
    {"auto_map", "trust_remote_code", "name_or_path", "attn_implementation", "quantization_config", "architectures"}
)
"""Fields of a config that a spec must not set, because they do more than set a model's size."""


def load(
    head: str,
    processor: Any,
    *,
    path: str | None = None,
    num_labels: int | None = None,
    labels: list[str] | None = None,
    problem_type: str | None = None,
    config: dict[str, Any] | None = None,
    from_scratch: bool = False,
    ignore_mismatched_sizes: bool = False,
    dtype: str = "float32",
    attn_implementation: str | None = None,
    quantization: str | None = None,
    double_quantization: bool = False,
    peft: dict[str, Any] | None = None,
) -> Any:
    """Returns a model for the task `head`, such as CausalLM. hf_models.py describes the other arguments."""
    import transformers

    # Progress bars are for terminals, but a job's output is stored line by line.
    transformers.utils.logging.disable_progress_bar()
    changes = {**(config or {}), **_classes(num_labels, labels)}
    changes |= {} if problem_type is None else {"problem_type": problem_type}
    quantized = _quantization(quantization, double_quantization, dtype)
    config_object = _config(path, changes, processor)
    auto = getattr(transformers, f"AutoModelFor{head}")
    if type(config_object) not in auto._model_mapping:
        raise NotBuildable(
            f"transformers has no AutoModelFor{head} for the model_type {config_object.model_type!r}",
            hint="name another model, or use the model component of another task",
        )
    options = quantized | ({} if attn_implementation is None else {"attn_implementation": attn_implementation})
    model = _made(auto, config_object, None if from_scratch else path, dtype, options, ignore_mismatched_sizes)
    if quantized:
        _compute_alike_everywhere(model)
    _require_rows_for_every_token(model, processor)
    return model if peft is None else _with_adapter(model, head, peft)


def _made(
    auto: Any, config: Any, path: str | None, dtype: str, options: dict[str, Any], ignore_mismatched_sizes: bool
) -> Any:
    """Makes the model with the weights in the folder `path`, or with new weights if `path` is None."""
    import torch
    from safetensors import SafetensorError

    kind: Any = dtype if dtype == "auto" else getattr(torch, dtype)
    try:
        if path is None:
            stored = getattr(config, "dtype", None) or torch.float32
            return auto.from_config(config, dtype=stored if dtype == "auto" else kind, **options)
        _require_safetensors(Path(path))
        return auto.from_pretrained(
            path,
            config=config,
            dtype=kind,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
            **options,
        )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        subject = "a new model" if path is None else f"the model in {_called(Path(path))}"
        raise NotBuildable(f"{subject} cannot be made: {first_line(error)}") from error
    except RuntimeError as error:
        if "size mismatch" not in str(error) and "ignore_mismatched_sizes" not in str(error):
            raise
        raise NotBuildable(
            "weights have other shapes than the config requires, so the model cannot be loaded",
            hint="leave num_labels and config as they were stored, or set ignore_mismatched_sizes: true to initialise "
            "weights whose shapes differ",
        ) from error


def _quantization(kind: str | None, double: bool, dtype: str) -> dict[str, Any]:
    """Returns the options by which transformers quantizes the stored weights while it loads them."""
    if kind is None:
        return {}
    if find_spec("bitsandbytes") is None:
        raise NotBuildable("bitsandbytes is not installed on this node", hint="pip install 'footplate[bitsandbytes]'")
    import torch
    from transformers import BitsAndBytesConfig

    if kind == "int8":
        config = BitsAndBytesConfig(load_in_8bit=True)
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=kind,
            bnb_4bit_use_double_quant=double,
            bnb_4bit_compute_dtype=torch.float32 if dtype == "auto" else getattr(torch, dtype),
        )
    # Without a device map, transformers would load the model on the first GPU in each of several processes.
    gpu = {"device_map": {"": int(os.environ.get("LOCAL_RANK", 0))}} if torch.cuda.is_available() else {}
    return {"quantization_config": config, **gpu}


def _compute_alike_everywhere(model: Any) -> None:
    """Keeps bitsandbytes from packing 4-bit weights for the CPU at the first evaluation.

    With packed weights, training computes slightly different values. A resumed job, in which no evaluation has packed
    them yet, would then differ from one that was not interrupted.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


# The config


def _classes(num_labels: int | None, labels: list[str] | None) -> dict[str, Any]:
    """Returns the fields of a config for the number and the names of the classes."""
    if labels is None:
        return {} if num_labels is None else {"num_labels": num_labels}
    if len(set(labels)) != len(labels) or not labels:
        raise NotBuildable("labels must be names of classes, at least one and each only once")
    if num_labels is not None and num_labels != len(labels):
        raise NotBuildable(
            f"num_labels is {num_labels}, but labels names {len(labels)} classes", hint="leave num_labels out"
        )
    return {"id2label": dict(enumerate(labels)), "label2id": {name: at for at, name in enumerate(labels)}}


def _config(path: str | None, changes: dict[str, Any], processor: Any) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    for name in changes:
        if name in NEVER_IN_A_CONFIG or name.startswith("_"):
            raise NotBuildable(
                f"a job's config must not set {name!r}",
                hint="config is for sizes of the model, such as num_hidden_layers",
            )
    if path is None:
        return _new_config(changes, processor)
    folder = Path(path)
    if (folder / "adapter_config.json").is_file():
        raise NotBuildable(
            f"{_called(folder)} holds an adapter but not a model", hint="name the model for which the adapter was made"
        )
    if not (folder / "config.json").is_file():
        raise NotBuildable(
            f"{_called(folder)} holds no config.json, so it is not a model's folder",
            hint="save the model there with its save_pretrained",
        )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise NotBuildable(
            f"{_called(folder)}/config.json belongs to an unknown model: {first_line(error)}",
            hint="code beside a model's weights is not run: send that code as a bundle",
        ) from error
    for name, value in _under_config_names(config, changes).items():
        try:
            setattr(config, name, value)
        except StrictDataclassError as error:
            raise _cannot_be(config, error) from error
    return config


def _new_config(settings: dict[str, Any], processor: Any) -> Any:
    """Returns the config of a new model. Values that the spec does not set follow the tokenizer, such as vocab_size."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = settings.get("model_type")
    if kind is None:
        raise NotBuildable(
            "the model has neither a path nor a config with a model_type",
            hint='for example {"path": "models://bert"} or {"config": {"model_type": "gpt2", "n_layer": 2}}',
        )
    if kind not in CONFIG_MAPPING_NAMES:
        hint = did_you_mean(str(kind), CONFIG_MAPPING_NAMES) or "for example bert, gpt2, llama, t5"
        raise NotBuildable(f"transformers has no model_type {kind!r}", hint=hint)
    defaults = AutoConfig.for_model(kind)
    values = _under_config_names(defaults, {name: value for name, value in settings.items() if name != "model_type"})
    if processor is not None and hasattr(defaults, "vocab_size"):
        tokens = {name: getattr(processor, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        values = {"vocab_size": len(processor), **tokens, **values}
    try:
        # The config is made from these values, so that derived sizes, such as Llama's head_dim, follow them.
        config = AutoConfig.for_model(kind, **values)
    except (StrictDataclassError, ValueError, TypeError, ArithmeticError) as error:
        raise _cannot_be(defaults, error) from error
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id
    return config


def _under_config_names(config: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Returns the changes by the config's own field names, such as n_embd for hidden_size.

    Raises NotBuildable for a name that the config does not have.
    """
    declared = fields(config) if is_dataclass(config) else ()
    valid_names = {*vars(config), *config.attribute_map, *(field.name for field in declared), "num_labels"}
    values = {}
    for name, value in changes.items():
        if name not in valid_names:
            plain = [valid_name for valid_name in valid_names if not valid_name.startswith("_")]
            raise NotBuildable(
                f"the config of a {config.model_type} has no field {name!r}", hint=did_you_mean(name, plain)
            )
        config_name = config.attribute_map.get(name, name)
        values[config_name] = {int(at): label for at, label in value.items()} if name == "id2label" else value
    return values


def _cannot_be(config: Any, error: Exception) -> NotBuildable:
    return NotBuildable(f"a {config.model_type} with this config cannot be made: {' '.join(str(error).split())[:300]}")


# The weights


def _require_safetensors(folder: Path) -> None:
    file_names = sorted(file.name for file in folder.iterdir() if file.is_file())
    if any(name.endswith(".safetensors") for name in file_names):
        return
    pickled = [name for name in file_names if name.endswith(PICKLED)]
    if pickled:
        raise NotBuildable(
            f"{_called(folder)} holds its weights only in {', '.join(pickled[:3])}. Such files are not opened, "
            "because that could run code in them",
            hint="load them on a machine where you trust them, and write safetensors with save_pretrained",
        )
    raise NotBuildable(
        f"{_called(folder)} holds no weights",
        hint="put model.safetensors there, or set from_scratch: true; only safetensors are fetched from a hub",
    )


def _require_rows_for_every_token(model: Any, processor: Any) -> None:
    if not hasattr(processor, "convert_tokens_to_ids"):
        return
    rows, tokens = model.get_input_embeddings().weight.shape[0], len(processor)
    if tokens > rows:
        raise NotBuildable(
            f"the tokenizer has {tokens} tokens, but the model has {rows} embeddings: they do not belong together",
            hint="name the tokenizer that belongs to the model, or leave vocab_size out of the config of a new model",
        )
    if model.config.pad_token_id is None and processor.pad_token_id is not None:
        # Models that classify find the end of a text by the pad token.
        model.config.pad_token_id = processor.pad_token_id


# Adapters

_MERGE = "merge"
_TASKS = {
    "SequenceClassification": "SEQ_CLS", "TokenClassification": "TOKEN_CLS", "CausalLM": "CAUSAL_LM",
    "Seq2SeqLM": "SEQ_2_SEQ_LM", "QuestionAnswering": "QUESTION_ANS",
}  # fmt: skip
_LORA = frozenset(
    {"r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "bias", "use_rslora", "use_dora",
     "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern",
     "fan_in_fan_out"}
)  # fmt: skip


def _with_adapter(model: Any, head: str, options: dict[str, Any]) -> Any:
    config = {name: value for name, value in options.items() if name != _MERGE}
    for name in config:
        if name not in _LORA:
            names = ", ".join(sorted({*_LORA, _MERGE}))
            raise NotBuildable(f"peft: LoRA has no option {name!r}. Known: {names}", hint=did_you_mean(name, _LORA))
    if not isinstance(options.get(_MERGE, False), bool):
        raise NotBuildable(f"peft: {_MERGE} must be true or false; true merges the adapter into the model at the end")
    try:
        peft: Any = import_module("peft")
    except ImportError as error:
        raise NotBuildable("peft is not installed on this node", hint="pip install 'footplate[peft]'") from error
    try:
        adapted = peft.get_peft_model(model, peft.LoraConfig(task_type=_TASKS.get(head), **config))
    except (ValueError, TypeError) as error:
        raise NotBuildable(f"peft cannot put this adapter into the model: {first_line(error)}") from error
    setattr(adapted, MERGES_AT_END, options.get(_MERGE, False))
    return adapted


def _called(folder: Path) -> str:
    """Returns the folder's name, or the repository's name for a folder in huggingface_hub's cache."""
    repository = folder.parents[1].name if folder.parent.name == "snapshots" else ""
    return repository.partition("--")[2].replace("--", "/") or folder.name


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
