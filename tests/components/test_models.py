"""Models of transformers come from a folder or a config, and everything else is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from footplate.components import hf_loading, hf_models, hf_processors
from footplate.contract.errors import NotBuildable
from footplate.runtime.build import check_trainer

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
BERT = {"model_type": "bert", **SMALL}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a small BERT classifier that transformers has saved."""
    folder = tmp_path_factory.mktemp("bert")
    hf_models.sequence_classification(None, config={**BERT, "vocab_size": 40}, labels=["a", "b"]).save_pretrained(
        folder
    )
    return folder


@pytest.mark.parametrize(
    ("kind", "config", "name"),
    [
        (hf_models.sequence_classification, BERT, "BertForSequenceClassification"),
        (hf_models.token_classification, BERT, "BertForTokenClassification"),
        (hf_models.question_answering, BERT, "BertForQuestionAnswering"),
        (hf_models.masked_lm, BERT, "BertForMaskedLM"),
        (hf_models.causal_lm, {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2}, "GPT2LMHeadModel"),
        (hf_models.seq2seq, {"model_type": "t5", "d_model": 8, "num_layers": 1, "num_heads": 1, "d_kv": 4, "d_ff": 8},
         "T5ForConditionalGeneration"),
    ],
)  # fmt: skip
def test_a_model_built_from_a_config_fits_its_tokenizer(
    tokenizer: Any, kind: Any, config: dict[str, Any], name: str
) -> None:
    model = kind(tokenizer, config=config)

    assert type(model).__name__ == name
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert model.dtype is torch.float32


@pytest.mark.parametrize(
    ("config", "derived"),
    [
        ({"model_type": "llama", **SMALL}, {"num_key_value_heads": 2, "head_dim": 8}),
        ({"model_type": "llama", **SMALL, "num_key_value_heads": 1}, {"num_key_value_heads": 1, "head_dim": 8}),
        ({"model_type": "llama", **SMALL, "head_dim": 4}, {"num_key_value_heads": 2, "head_dim": 4}),
        ({"model_type": "gpt2", "hidden_size": 8, "num_hidden_layers": 1, "n_head": 2}, {"n_embd": 8, "n_layer": 1}),
    ],
)
def test_derived_config_values_follow_from_the_given_sizes(
    tokenizer: Any, config: dict[str, Any], derived: dict[str, int]
) -> None:
    model = hf_models.causal_lm(tokenizer, config=config)

    assert {name: getattr(model.config, name) for name in derived} == derived
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, len(tokenizer))


@pytest.mark.parametrize(("name", "value"), [("hidden_size", "wide"), ("num_attention_heads", 0)])
def test_an_impossible_size_in_a_config_is_refused(bert: Path, name: str, value: Any) -> None:
    with pytest.raises(NotBuildable, match="cannot be made"):
        hf_models.causal_lm(None, config={"model_type": "llama", **SMALL, name: value})


def test_a_decoder_has_as_many_layers_as_its_encoder_by_default(tokenizer: Any) -> None:
    small = {"model_type": "t5", "d_model": 8, "num_layers": 1, "num_heads": 1, "d_kv": 4, "d_ff": 8}
    assert hf_models.seq2seq(tokenizer, config=small).config.num_decoder_layers == 1


def test_weights_are_loaded_from_the_folder_unless_from_scratch_is_set(bert: Path) -> None:
    original = hf_models.sequence_classification(None, path=str(bert))
    again = hf_models.sequence_classification(None, path=str(bert))
    new = hf_models.sequence_classification(None, path=str(bert), from_scratch=True)

    assert torch.equal(original.classifier.weight, again.classifier.weight)
    assert not torch.equal(original.classifier.weight, new.classifier.weight)
    assert new.config.id2label == {0: "a", 1: "b"}


def test_a_head_of_another_size_is_initialized_only_on_request(bert: Path) -> None:
    with pytest.raises(NotBuildable, match="other shapes than the config requires") as error:
        hf_models.sequence_classification(None, path=str(bert), num_labels=5)
    assert "ignore_mismatched_sizes" in str(error.value.hint)

    model = hf_models.sequence_classification(None, path=str(bert), num_labels=5, ignore_mismatched_sizes=True)

    assert model.classifier.weight.shape[0] == 5


def test_config_values_may_be_overridden_and_unknown_keys_are_refused(bert: Path) -> None:
    model = hf_models.sequence_classification(
        None, path=str(bert), config={"hidden_dropout_prob": 0.5}, dtype="bfloat16", attn_implementation="eager"
    )

    assert model.config.hidden_dropout_prob == 0.5
    assert model.dtype is torch.bfloat16
    assert model.config._attn_implementation == "eager"
    with pytest.raises(NotBuildable, match=r"bert.*'hiden_size'") as error:
        hf_models.masked_lm(None, config={**BERT, "hiden_size": 8})
    assert error.value.hint == "did you mean 'hidden_size'?"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (None, "neither a path nor a config"),
        ({"hidden_size": 8}, "neither a path nor a config"),
        ({"model_type": "brt"}, "no model_type 'brt'"),
        ({"model_type": "vit"}, "no AutoModelForMaskedLM for the model_type 'vit'"),
        ({**BERT, "auto_map": {"AutoModel": "x.Y"}}, "must not set 'auto_map'"),
        ({**BERT, "_attn_implementation": "somebody/kernels"}, "must not set '_attn_implementation'"),
        ({**BERT, "hidden_size": 15}, "cannot be made"),
    ],
)
def test_a_config_without_a_known_model_type_is_refused(config: dict[str, Any] | None, says: str) -> None:
    with pytest.raises(NotBuildable, match=says):
        hf_models.masked_lm(None, config=config)


def test_pickled_weights_are_refused_by_name(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((bert / "config.json").read_text())
    with pytest.raises(NotBuildable, match="holds no weights") as error:
        hf_models.masked_lm(None, path=str(tmp_path))
    assert "from_scratch" in str(error.value.hint)

    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")

    with pytest.raises(NotBuildable, match=r"only in pytorch_model\.bin\. Such files are not opened"):
        hf_models.masked_lm(None, path=str(tmp_path))


def test_python_code_beside_the_weights_is_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(mark)!r}, 'w')\nclass C: pass\n")
    files = {"AutoConfig": "mine.C", "AutoModelForMaskedLM": "mine.C", "AutoTokenizer": ["mine.C", None]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": files}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": files}))

    with pytest.raises(NotBuildable, match="belongs to an unknown model"):
        hf_models.masked_lm(None, path=str(tmp_path))
    with pytest.raises(NotBuildable, match="no tokenizer can be read"):
        hf_processors.tokenizer(path=str(tmp_path))
    assert not mark.exists()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotBuildable, match=r"holds no config\.json"):
        hf_models.causal_lm(None, path=str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(NotBuildable, match="belongs to an unknown model"):
        hf_models.causal_lm(None, path=str(tmp_path))
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/etc"}')
    with pytest.raises(NotBuildable, match="holds an adapter but not a model"):
        hf_models.causal_lm(None, path=str(tmp_path))


def test_damaged_weights_are_refused(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((bert / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)

    with pytest.raises(NotBuildable, match="cannot be made"):
        hf_models.masked_lm(None, path=str(tmp_path))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tokenizer: Any) -> None:
    with pytest.raises(NotBuildable, match="the model has 5 embeddings"):
        hf_models.masked_lm(tokenizer, config={**BERT, "vocab_size": 5})


def test_class_names_that_repeat_or_contradict_num_labels_are_refused() -> None:
    with pytest.raises(NotBuildable, match=r"num_labels.*3.*names 2"):
        hf_models.token_classification(None, config=BERT, num_labels=3, labels=["a", "b"])
    with pytest.raises(NotBuildable, match="each only once"):
        hf_models.token_classification(None, config=BERT, labels=["a", "a"])


def test_only_the_adapter_and_the_new_head_are_trained(bert: Path) -> None:
    model = hf_models.sequence_classification(None, path=str(bert), peft={"r": 2, "target_modules": ["query"]})

    trained = {name for name, item in model.named_parameters() if item.requires_grad}
    assert trained
    assert all("lora" in name or "classifier" in name for name in trained)


@pytest.mark.parametrize(
    ("peft", "says"),
    [
        ({"rank": 2}, r"LoRA has no option 'rank'\. Known: .*, r, "),
        ({"base_model_name_or_path": "/etc"}, "LoRA has no option 'base_model_name_or_path'"),
        ({"r": 2, "target_modules": ["nothing"]}, "peft cannot put this adapter into the model"),
        ({"r": 0, "target_modules": ["query"]}, "peft cannot put this adapter into the model"),
        ({"r": 2, "merge": "yes"}, "peft: merge must be true or false"),
    ],
)
def test_wrong_adapter_arguments_are_refused(bert: Path, peft: dict[str, Any], says: str) -> None:
    with pytest.raises(NotBuildable, match=says):
        hf_models.sequence_classification(None, path=str(bert), peft=peft)


def test_quantization_without_bitsandbytes_is_refused_with_the_pip_command(bert: Path) -> None:
    peft = {"r": 2, "target_modules": ["query"]}

    with pytest.raises(NotBuildable, match="bitsandbytes is not installed on this node") as error:
        hf_models.sequence_classification(None, path=str(bert), quantization="nf4", peft=peft)
    assert error.value.hint == "pip install 'footplate[bitsandbytes]'"


def test_a_quantized_model_computes_in_the_type_of_its_other_weights(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_load(path: str, *, config: Any, quantization_config: Any, **options: Any) -> Any:
        received.append(quantization_config.to_diff_dict())
        return transformers.BertForSequenceClassification(config)

    received: list[dict[str, Any]] = []
    monkeypatch.setattr(hf_loading, "find_spec", lambda name: name)
    monkeypatch.setattr(transformers.AutoModelForSequenceClassification, "from_pretrained", fake_load)
    for options in (
        {"quantization": "nf4", "dtype": "bfloat16", "double_quantization": True},
        {"quantization": "int8"},
    ):
        hf_models.sequence_classification(None, path=str(bert), peft={"target_modules": ["query"]}, **options)

    four, eight = received
    assert (four["load_in_4bit"], four["bnb_4bit_quant_type"], four["bnb_4bit_use_double_quant"]) == (True, "nf4", True)
    assert four["bnb_4bit_compute_dtype"] == "bfloat16"
    assert eight["load_in_8bit"]


def test_merging_an_adapter_is_refused_for_a_sharded_model(bert: Path) -> None:
    peft = {"r": 2, "target_modules": ["query"], "merge": True}
    model = hf_models.sequence_classification(None, path=str(bert), peft=peft)
    whole, cut = (
        SimpleNamespace(
            model=model, eval_dataset=None, _footplate=SimpleNamespace(strategy=SimpleNamespace(holds_whole=value))
        )
        for value in (True, False)
    )

    check_trainer(whole, [])

    with pytest.raises(NotBuildable, match=r"peft\.merge.*whole model") as error:
        check_trainer(cut, [])
    assert error.value.hint == "use ddp or one process, or leave merge out and merge the job's outputs later"


def test_an_unknown_pad_token_is_refused_with_the_nearest_token(tokenizer_folder: Path) -> None:
    tokenizer = hf_processors.tokenizer(path=str(tokenizer_folder), pad_token="[SEP]", padding_side="left")

    assert (tokenizer.pad_token, tokenizer.padding_side) == ("[SEP]", "left")
    with pytest.raises(NotBuildable, match=r"'\[PADD\]'; its special tokens") as error:
        hf_processors.tokenizer(path=str(tokenizer_folder), pad_token="[PADD]")
    assert error.value.hint == "did you mean '[PAD]'?"
