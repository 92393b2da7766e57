"""Models of transformers, by task. Weights are loaded from safetensors in a folder, or initialised.

Nothing is downloaded, code beside the weights is never run, and pickled files are never opened. hf_loading.py does the
loading. This module does not import transformers, so that a catalogue of components is cheap.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from footplate.components.extras import needs

Folder = Annotated[str | None, "Folder with config.json and *.safetensors, as save_pretrained writes it"]
Config = Annotated[
    dict[str, Any] | None,
    'Without path: the whole config, such as {"model_type": "gpt2", "n_layer": 2}. With path: the values to change',
]
Scratch = Annotated[bool, "With path: use its config, but start with new weights"]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16", "auto"],
    "The type of the weights in memory. auto keeps the stored type; training.bf16 computes in bfloat16 with any type",
]
Attention = Annotated[
    Literal["eager", "sdpa", "flash_attention_2", "flex_attention"] | None,
    "The attention implementation; null uses the model's default",
]
Peft = Annotated[
    dict[str, Any] | None,
    'Train an adapter (peft\'s LoraConfig) and leave the model as it is: {"r": 8, "target_modules": ["q_proj"]}. '
    '"merge": true merges the adapter into the model in the outputs',
]
Labels = Annotated[list[str] | None, "Names of the classes, in the order of their numbers; they go into the config"]
Count = Annotated[int | None, "The number of classes; null takes it from labels or the config"]
Anew = Annotated[bool, "Weights whose shape differs, such as a head for other classes, are initialised"]


@needs("transformers", extra="hf")
def sequence_classification(
    processor: Any,
    /,
    *,
    path: Folder = None,
    num_labels: Count = None,
    labels: Labels = None,
    problem_type: Annotated[
        Literal["regression", "single_label_classification", "multi_label_classification"] | None,
        "The type of the labels; null detects it from the first batch",
    ] = None,
    config: Config = None,
    from_scratch: Scratch = False,
    ignore_mismatched_sizes: Anew = False,
    dtype: Dtype = "float32",
    attn_implementation: Attention = None,
    peft: Peft = None,
) -> Any:
    """Classifies texts or pairs of texts."""
    from footplate.components.hf_loading import Wanted, load

    overrides = _classes(num_labels, labels, config, problem_type=problem_type)
    wanted = Wanted(path, overrides, from_scratch, dtype, attn_implementation, ignore_mismatched_sizes)
    return load("SequenceClassification", wanted, processor, peft)


@needs("transformers", extra="hf")
def token_classification(
    processor: Any,
    /,
    *,
    path: Folder = None,
    num_labels: Count = None,
    labels: Labels = None,
    config: Config = None,
    from_scratch: Scratch = False,
    ignore_mismatched_sizes: Anew = False,
    dtype: Dtype = "float32",
    attn_implementation: Attention = None,
    peft: Peft = None,
) -> Any:
    """Classifies every token, for example names or parts of speech."""
    from footplate.components.hf_loading import Wanted, load

    overrides = _classes(num_labels, labels, config)
    wanted = Wanted(path, overrides, from_scratch, dtype, attn_implementation, ignore_mismatched_sizes)
    return load("TokenClassification", wanted, processor, peft)


@needs("transformers", extra="hf")
def causal_lm(
    processor: Any,
    /,
    *,
    path: Folder = None,
    config: Config = None,
    from_scratch: Scratch = False,
    dtype: Dtype = "float32",
    attn_implementation: Attention = None,
    peft: Peft = None,
) -> Any:
    """Predicts the next token, like GPT-2, Llama or Qwen."""
    from footplate.components.hf_loading import Wanted, load

    return load("CausalLM", Wanted(path, config or {}, from_scratch, dtype, attn_implementation), processor, peft)


@needs("transformers", extra="hf")
def masked_lm(
    processor: Any,
    /,
    *,
    path: Folder = None,
    config: Config = None,
    from_scratch: Scratch = False,
    dtype: Dtype = "float32",
    attn_implementation: Attention = None,
    peft: Peft = None,
) -> Any:
    """Predicts hidden tokens of a text, like BERT or RoBERTa."""
    from footplate.components.hf_loading import Wanted, load

    return load("MaskedLM", Wanted(path, config or {}, from_scratch, dtype, attn_implementation), processor, peft)


@needs("transformers", extra="hf")
def seq2seq(
    processor: Any,
    /,
    *,
    path: Folder = None,
    config: Config = None,
    from_scratch: Scratch = False,
    dtype: Dtype = "float32",
    attn_implementation: Attention = None,
    peft: Peft = None,
) -> Any:
    """Generates one text from another, like T5 or BART."""
    from footplate.components.hf_loading import Wanted, load

    return load("Seq2SeqLM", Wanted(path, config or {}, from_scratch, dtype, attn_implementation), processor, peft)


@needs("transformers", extra="hf")
def question_answering(
    processor: Any,
    /,
    *,
    path: Folder = None,
    config: Config = None,
    from_scratch: Scratch = False,
    dtype: Dtype = "float32",
    attn_implementation: Attention = None,
    peft: Peft = None,
) -> Any:
    """Finds the start and end of an answer in a text. Rows hold start_positions and end_positions."""
    from footplate.components.hf_loading import Wanted, load

    wanted = Wanted(path, config or {}, from_scratch, dtype, attn_implementation)
    return load("QuestionAnswering", wanted, processor, peft)


def _classes(
    num_labels: int | None, labels: list[str] | None, config: dict[str, Any] | None, **more: Any
) -> dict[str, Any]:
    from footplate.components.hf_loading import classes

    return {**(config or {}), **classes(num_labels, labels), **{k: v for k, v in more.items() if v is not None}}
