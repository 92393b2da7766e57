"""Models of transformers that a spec may name, by task. Weights are loaded from a folder's safetensors, or initialised.

Nothing is downloaded, code beside the weights is never run, and pickled files are never opened. The import of
transformers takes seconds, so transformers is imported only when a model is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from footplate.components.component import component, needs
from footplate.components.hf_loading import load

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
Quantization = Annotated[
    Literal["nf4", "fp4", "int8"] | None,
    "Load the linear layers with 4 or 8 bits (bitsandbytes) and train an adapter on them. nf4 with peft is QLoRA",
]
DoubleQuantization = Annotated[bool, "With nf4 or fp4: quantize the scales too, which saves 0.4 bits per parameter"]
Labels = Annotated[list[str] | None, "Names of the classes, in the order of their numbers; they go into the config"]
Count = Annotated[int | None, "The number of classes; null takes it from labels or the config"]
InitialiseMismatched = Annotated[
    bool, "Initialise weights whose stored shape differs, such as a head for other classes"
]


ProblemType = Annotated[
    Literal["regression", "single_label_classification", "multi_label_classification"] | None,
    "The type of the labels; null detects it from the first batch",
]
CLASSES: dict[str, Any] = {"num_labels": Count, "labels": Labels}


def _model(head: str, summary: str, **of_classes: Any) -> Callable[..., Any]:
    """Returns the component for the models of a task. `of_classes` are extra arguments for classification."""
    can_differ: dict[str, Any] = {"ignore_mismatched_sizes": InitialiseMismatched} if of_classes else {}
    model = component(
        partial(load, head), summary, path=Folder, **of_classes, config=Config, from_scratch=Scratch, **can_differ,
        dtype=Dtype, attn_implementation=Attention, quantization=Quantization,
        double_quantization=DoubleQuantization, peft=Peft,
    )  # fmt: skip
    return needs("transformers", extra="hf")(model)


sequence_classification = _model(
    "SequenceClassification", "Classifies texts or pairs of texts.", **CLASSES, problem_type=ProblemType
)
token_classification = _model(
    "TokenClassification", "Classifies every token, for example names or parts of speech.", **CLASSES
)
causal_lm = _model("CausalLM", "Predicts the next token, like GPT-2, Llama or Qwen.")
masked_lm = _model("MaskedLM", "Predicts masked tokens of a text, like BERT or RoBERTa.")
seq2seq = _model("Seq2SeqLM", "Generates one text from another, like T5 or BART.")
question_answering = _model(
    "QuestionAnswering",
    "Finds the start and end of an answer in a text. Rows hold start_positions and end_positions.",
)
