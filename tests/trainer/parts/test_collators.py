"""Collators make the same batches as those of transformers, draw by draw. Samples that do not fit are named."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch import Tensor
from transformers.data import data_collator as theirs

from footplate.trainer import collators as ours
from footplate.trainer.collators.choose import choose_collator, pads_samples, require_batch
from tests.trainer.parts.tokenizers import TEXTS, bert, t5

SHARED = [name for name in vars(ours) if not name.startswith("_") and hasattr(theirs, name)]


def same(mine: Any, other: Any) -> bool:
    assert list(mine) == list(other)
    for name in mine:
        first, second = mine[name], other[name]
        assert type(first) is type(second), name
        if isinstance(first, (Tensor, numpy.ndarray)):
            assert first.dtype == second.dtype, name
            assert first.shape == second.shape, name
            assert bool((first == second).all()), (name, first, second)
        else:
            assert first == second, name
    return True


def both(name: str, *args: Any, seed: int = 5, **kwargs: Any) -> Any:
    """Returns a function that compares our collator with that of transformers, from the same random state."""

    def call(features: Any, **calling: Any) -> tuple[Any, Any]:
        batches = []
        for module in (ours, theirs):
            collator = getattr(module, name)(*args, **kwargs)
            torch.manual_seed(seed)
            batches.append([collator(_copied(features), **calling) for _ in range(3)])
        for mine, other in zip(*batches, strict=True):
            assert same(mine, other)
        return batches[0][0], batches[1][0]

    return call


def _copied(features: Any) -> Any:
    return [dict(feature) if isinstance(feature, Mapping) else feature for feature in features]


def encoded(tokenizer: Any = None, **options: Any) -> list[dict[str, Any]]:
    tokenizer = tokenizer or bert()
    return [dict(tokenizer(text, **options)) for text in TEXTS]


@pytest.mark.parametrize("name", SHARED)
def test_every_collator_has_the_name_and_signature_of_transformers(name: str) -> None:
    mine, other = getattr(ours, name), getattr(theirs, name)
    if name == "default_data_collator":
        assert list(inspect.signature(mine).parameters)[:2] == list(inspect.signature(other).parameters)
    elif name == "DataCollatorWithFlattening":
        assert list(inspect.signature(mine.__init__).parameters) == list(inspect.signature(other.__init__).parameters)
    elif name != "DataCollatorMixin":
        assert [(field.name, field.default) for field in fields(mine)] == [
            (field.name, field.default) for field in fields(other)
        ]


def test_every_collator_of_transformers_exists() -> None:
    names = {name for name in vars(theirs) if "Collator" in name and inspect.isclass(getattr(theirs, name))}

    assert names <= {*SHARED}


@dataclass
class Sample:
    x: list[float]
    label: float


DEFAULT: list[list[Any]] = [
    [{"x": [1, 2], "label": 3}, {"x": [3, 4], "label": 0}],
    [
        {"x": [1.5], "label": 3.5, "name": "left out", "none": None},
        {"x": [2.0], "label": 0.0, "name": "", "none": None},
    ],
    [{"x": torch.ones(2, 3), "label_ids": [1, 2]}, {"x": torch.zeros(2, 3), "label_ids": [3, 4]}],
    [{"x": numpy.ones(2), "label": numpy.float64(0.5)}, {"x": numpy.zeros(2), "label": numpy.float64(0.25)}],
    [{"label": torch.tensor(1), "label_ids": torch.ones(2)}, {"label": torch.tensor(2), "label_ids": torch.ones(2)}],
    [{"label_ids": torch.ones(2)}, {"label_ids": torch.zeros(2)}],
    [{"label_ids": [0.5, 1.0], "flag": True}, {"label_ids": [0.0, 1.0], "flag": False}],
    [Sample([1.0], 2.0), Sample([2.0], 3.0)],
]


@pytest.mark.parametrize("features", DEFAULT)
def test_the_default_collator_stacks_like_that_of_transformers(features: list[Any]) -> None:
    assert same(ours.default_data_collator(features), theirs.default_data_collator(features))
    assert same(ours.DefaultDataCollator()(features), theirs.DefaultDataCollator()(features))


def test_the_default_collator_maps_pairs_to_the_first_argument_and_labels() -> None:
    batch = ours.default_data_collator([(torch.ones(2), 1), (torch.zeros(2), 0)], first="points")

    assert batch["points"].shape == (2, 2)
    assert batch["labels"].tolist() == [1, 0]


def test_collators_return_numpy_arrays_on_request() -> None:
    batch = ours.default_data_collator(DEFAULT[0], return_tensors="np")

    assert same(batch, theirs.default_data_collator(DEFAULT[0], return_tensors="np"))
    both("DataCollatorForTokenClassification", bert())(
        [{**sample, "labels": [1] * len(sample["input_ids"])} for sample in encoded()], return_tensors="np"
    )
    with pytest.raises(ValueError, match="'tf' not supported"):
        ours.default_data_collator(DEFAULT[0], return_tensors="tf")


class Target(NamedTuple):
    boxes: Tensor
    name: str


def test_the_stack_collator_keeps_every_key_and_any_shape() -> None:
    def sample(number: int) -> dict[str, Any]:
        return {
            "points": torch.full((2, 3, 4), float(number)),
            "name": f"cloud {number}",
            "missing": None,
            "pose": {"rotation": numpy.eye(3), "frame": number},
            "target": Target(torch.zeros(5, 4), "car"),
            "levels": [torch.zeros(2), torch.zeros(3)],
            "weight": 0.5,
            "label": number,
        }

    batch = ours.stack_collator([sample(0), sample(1)])

    assert list(batch) == list(sample(0))
    assert batch["points"].shape == (2, 2, 3, 4)
    assert batch["name"] == ["cloud 0", "cloud 1"]
    assert batch["missing"] == [None, None]
    assert batch["pose"]["rotation"].shape == (2, 3, 3)
    assert batch["pose"]["frame"].tolist() == batch["label"].tolist() == [0, 1]
    assert batch["target"].boxes.shape == (2, 5, 4)
    assert batch["target"].name == ["car", "car"]
    assert [level.shape[1] for level in batch["levels"]] == [2, 3]


@pytest.mark.parametrize("collate", [ours.default_data_collator, ours.stack_collator])
def test_samples_that_cannot_be_stacked_are_named_with_their_shapes(collate: Any) -> None:
    with pytest.raises(ValueError, match=r"'points' cannot be stacked.*shape \(3, 2\), tensor of shape \(4, 2\)"):
        collate([{"points": torch.zeros(3, 2)}, {"points": torch.zeros(4, 2)}])
    with pytest.raises(ValueError, match=r"'input_ids'.*length 3.*length 2"):
        collate([{"input_ids": [1, 2, 3]}, {"input_ids": [1, 2]}])
    with pytest.raises(ValueError, match=r"'y'.*sample 1"):
        collate([{"x": 1, "y": 1}, {"x": 1}])


@pytest.mark.parametrize("options", [{}, {"pad_to_multiple_of": 8}, {"padding": "max_length", "max_length": 16}])
def test_padding_equals_that_of_transformers(options: dict[str, Any]) -> None:
    mine, _ = both("DataCollatorWithPadding", bert(), **options)([{**sample, "label": 1} for sample in encoded()])

    assert mine["input_ids"].shape[1] % (8 if options else 1) == 0
    assert mine["labels"].tolist() == [1] * 4


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["label", "labels"])
def test_labels_of_tokens_are_padded_on_the_side_of_the_tokenizer(side: str, name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(bert(), "padding_side", side)
    rows = [{**sample, name: list(range(len(sample["input_ids"])))} for sample in encoded()]

    mine, _ = both("DataCollatorForTokenClassification", bert(), label_pad_token_id=-7)(rows)
    both("DataCollatorForTokenClassification", bert())(encoded())
    tensors = [{**row, name: torch.tensor(row[name])} for row in rows]
    both("DataCollatorForTokenClassification", bert())(tensors)

    assert (mine[name] == -7).any()


def test_more_labels_than_tokens_are_refused() -> None:
    rows = [{**sample, "labels": [0] * 99} for sample in encoded()]
    with pytest.raises(ValueError, match=r"99 labels, but the samples of its batch have .* tokens"):
        ours.DataCollatorForTokenClassification(bert())(rows)


class Shifts:
    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return labels.roll(1, 1)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "options",
    [{}, {"pad_to_multiple_of": 8}, {"padding": "max_length", "max_length": 20}, {"model": Shifts()}],
)
def test_seq2seq_pads_inputs_and_labels_like_transformers(side: str, options: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(t5(), "padding_side", side)
    rows = [{**sample, "labels": sample["input_ids"][:-2]} for sample in encoded(t5())]

    both("DataCollatorForSeq2Seq", t5(), **options)(rows)
    both("DataCollatorForSeq2Seq", t5(), **options)([{**row, "labels": numpy.array(row["labels"])} for row in rows])
    both("DataCollatorForSeq2Seq", t5(), **options)([{**row, "labels": None} for row in rows])


def test_seq2seq_without_padding_needs_equal_lengths() -> None:
    item = {"input_ids": [4, 5], "attention_mask": [1, 1], "labels": [4, 5]}
    both("DataCollatorForSeq2Seq", t5(), padding=False)([item, item])
    with pytest.raises(ValueError, match="need padding"):
        ours.DataCollatorForSeq2Seq(t5(), padding=False)([item, {**item, "labels": [4]}])


def test_multiple_choice_batches_have_the_shape_samples_choices_length() -> None:
    def sample(texts: list[str], label: int) -> dict[str, Any]:
        return {**bert()(texts), "label": label}

    rows = [sample(TEXTS[:3], 0), sample(TEXTS[1:], 2)]
    mine, _ = both("DataCollatorForMultipleChoice", bert())(rows)

    assert mine["input_ids"].shape[:2] == (2, 3)
    unlabelled = [{name: value for name, value in row.items() if name != "label"} for row in rows]
    assert "labels" not in ours.DataCollatorForMultipleChoice(bert())(unlabelled)
    with pytest.raises(ValueError, match="different numbers of choices, 2, 3"):
        ours.DataCollatorForMultipleChoice(bert())([sample(TEXTS[:3], 0), sample(TEXTS[:2], 0)])


MASKING: list[dict[str, Any]] = [
    {},
    {"mlm_probability": 0.5},
    {"mlm_probability": 0.9, "mask_replace_prob": 0.2, "random_replace_prob": 0.6},
    {"mlm_probability": 0.9, "mask_replace_prob": 0.0, "random_replace_prob": 1.0},
    {"mask_replace_prob": 1.0, "random_replace_prob": 0.0, "mlm_probability": 0.4},
    {"seed": 11, "mlm_probability": 0.5},
    {"pad_to_multiple_of": 8, "mlm_probability": 0.5},
    {"mlm": False},
]


@pytest.mark.parametrize("options", MASKING)
@pytest.mark.parametrize("special", [True, False])
def test_masked_tokens_are_the_same_random_draws_as_in_transformers(options: dict[str, Any], special: bool) -> None:
    rows = encoded(return_special_tokens_mask=special)

    mine, _ = both("DataCollatorForLanguageModeling", bert(), **options)(rows)
    both("DataCollatorForLanguageModeling", bert(), **options)([row["input_ids"] for row in rows])

    assert (mine["labels"] != -100).any()


@pytest.mark.filterwarnings("ignore:Random token replacement")
@pytest.mark.parametrize("seed", range(5))
def test_whole_words_are_masked_like_in_transformers(seed: int) -> None:
    exact: dict[str, Any] = {"return_offsets_mapping": True, "padding": "max_length", "max_length": 16}
    options: dict[str, Any] = {"whole_word_mask": True, "mlm_probability": 0.4, "seed": seed}

    both("DataCollatorForLanguageModeling", bert(), **options)(encoded(return_special_tokens_mask=True, **exact))
    mine, _ = both("DataCollatorForLanguageModeling", bert(), **options)(encoded(**exact))
    # The collator of transformers cannot pad offsets. Without padding, the widths and the random draws differ.
    uneven = ours.DataCollatorForLanguageModeling(bert(), **options)(encoded(return_offsets_mapping=True))

    assert uneven["input_ids"].shape[1] < mine["input_ids"].shape[1]


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_labels_may_be_numpy_scalars(framework: str) -> None:
    features = [{"label": numpy.array(number), "x": [1, 2]} for number in range(3)]

    batch = ours.default_data_collator(features, framework)

    assert (batch["labels"].tolist(), str(batch["labels"].dtype).removeprefix("torch.")) == ([0, 1, 2], "int64")


def test_helper_methods_for_whole_words_equal_those_of_transformers() -> None:
    offsets = numpy.array(
        [[(0, 0), (0, 3), (3, 4), (5, 6), (6, 7), (0, 0)], [(1, 2), (2, 3), (4, 5), (0, 0), (6, 7), (8, 9)]]
    )
    special = numpy.array([[1, 0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0]])
    mask = numpy.array([[0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 1]], dtype=bool)
    sides = [ours.DataCollatorForLanguageModeling, theirs.DataCollatorForLanguageModeling]

    (words, candidates), (their_words, their_candidates) = (
        side._calc_word_ids_and_prob_mask(offsets, special) for side in sides
    )
    whole, their_whole = (side._whole_word_mask(their_words, mask) for side in sides)

    assert (words.tolist(), candidates.tolist(), whole.tolist()) == (
        their_words.tolist(), their_candidates.astype(bool).tolist(), their_whole.tolist(),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:Random token replacement")
def test_a_word_is_masked_entirely_or_not_at_all() -> None:
    situations = set()
    for with_offsets in (True, False):
        rows = encoded(return_offsets_mapping=with_offsets)
        collator = ours.DataCollatorForWholeWordMask(bert(), mlm_probability=0.5, seed=1)
        for _ in range(10):
            batch = collator([dict(row) for row in rows])
            for labels, tokens in zip(batch["labels"], rows, strict=True):
                hidden = labels[: len(tokens["input_ids"])].ne(-100).tolist()
                pieces = bert().convert_ids_to_tokens(tokens["input_ids"])
                for at, piece in enumerate(pieces):
                    if piece.startswith("##"):
                        assert hidden[at] == hidden[at - 1]
                        situations.add((with_offsets, hidden[at]))
    assert len(situations) == 4


def test_whole_word_masking_is_refused_if_words_cannot_be_detected() -> None:
    class Words:
        mask_token, mask_token_id, pad_token, pad_token_id, is_fast = "m", 1, "p", 0, True

        def get_special_tokens_mask(self, ids: list[int], already_has_special_tokens: bool) -> list[int]:
            return [0] * len(ids)

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return ["word"] * len(ids)

    with pytest.raises(ValueError, match="return_offsets_mapping=True"):
        ours.DataCollatorForWholeWordMask(Words())([[1, 2], [3, 4]])


def test_loader_workers_mask_different_positions() -> None:
    collator = ours.DataCollatorForLanguageModeling(bert(), seed=3, mlm_probability=0.5)
    data = [[7] * 40] * 8
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, collate_fn=collator)  # type: ignore[arg-type]

    first, second = (batch["labels"] for batch in loader)

    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mlm_probability": 1.5}, "mlm_probability should be between 0 and 1. It is 1.5"),
        ({"mask_replace_prob": 0.8, "random_replace_prob": 0.3}, "should not exceed 1"),
        ({"mlm": False, "whole_word_mask": True}, "only be used with mlm=True"),
    ],
)
def test_invalid_masking_options_are_refused(options: dict[str, Any], message: str) -> None:
    for module in (ours, theirs):
        with pytest.raises(ValueError, match=message.split(" It is")[0]):
            module.DataCollatorForLanguageModeling(bert(), **options)


def test_masking_is_refused_for_a_tokenizer_without_a_mask_token() -> None:
    with pytest.raises(ValueError, match="`mlm=False`"):
        ours.DataCollatorForLanguageModeling(t5())
    assert ours.DataCollatorForLanguageModeling(t5(), mlm=False)(encoded(t5()))["labels"].eq(-100).any()


@pytest.mark.parametrize("seed", range(5))
def test_permutations_are_the_same_random_draws_as_in_transformers(seed: int) -> None:
    rows = [sample["input_ids"] for sample in encoded(padding="max_length", max_length=16)]

    both("DataCollatorForPermutationLanguageModeling", bert(), seed=seed)(rows)
    both("DataCollatorForPermutationLanguageModeling", bert(), seed=seed, plm_probability=0.5, max_span_length=2)(rows)
    with pytest.raises(ValueError, match="be even"):
        ours.DataCollatorForPermutationLanguageModeling(bert())([[1, 2, 3]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_flash_attn_kwargs": True, "return_seq_idx": True},
        {"return_position_ids": False, "separator_id": -1},
        {"position_ids_start": 2, "return_tensors": "np"},
    ],
)
def test_flattened_batches_equal_those_of_transformers(options: dict[str, Any]) -> None:
    rows = [{"input_ids": sample["input_ids"]} for sample in encoded()]
    both("DataCollatorWithFlattening", **options)(rows)
    both("DataCollatorWithFlattening", **options)([{**row, "labels": list(row["input_ids"])} for row in rows])
    both("DataCollatorWithFlattening", **options)([{"input_ids": torch.tensor(row["input_ids"])} for row in rows])


def restored(inputs: list[int], labels: list[int]) -> list[int]:
    """Returns the original text of T5's inputs: every sentinel is replaced by its span from the labels."""
    sentinels = {t5().convert_tokens_to_ids(f"<extra_id_{number}>") for number in range(30)}
    spans: dict[int, list[int]] = {}
    for token in labels:
        if token in sentinels:
            spans[token] = current = []
        elif token not in (-100, t5().eos_token_id):
            current.append(token)
    text: list[int] = []
    for token in inputs:
        text += spans[token] if token in sentinels else [token]
    return text


@pytest.mark.parametrize("seed", range(8))
def test_the_text_can_be_restored_from_corrupted_spans(seed: int) -> None:
    rows = [{"input_ids": [*torch.randint(3, 20, (length,)).tolist(), 1]} for length in (2, 9, 40, 64)]
    batch = ours.DataCollatorForT5MLM(t5(), noise_density=0.3, mean_noise_span_length=2, seed=seed)(rows)

    for row, inputs, mask, labels in zip(
        rows, batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True
    ):
        assert restored(inputs[mask.bool()].tolist(), labels.tolist()) == row["input_ids"]
        assert bool((inputs[~mask.bool()] == t5().pad_token_id).all())
    noise = round(64 * 0.3)
    assert int(batch["labels"][3].ne(-100).sum()) == noise + round(noise / 2) + 1


@pytest.mark.parametrize(("length", "density", "span"), [(64, 0.15, 3.0), (100, 0.5, 3.0), (33, 0.3, 2.0)])
def test_texts_of_the_computed_length_give_the_requested_input_and_target_lengths(
    length: int, density: float, span: float
) -> None:
    tokens, targets = ours.compute_input_and_target_lengths(length, density, span)
    text = [4 + at % 12 for at in range(tokens)]

    batch = ours.DataCollatorForT5MLM(t5(), density, span, target_length=targets, decoder_start_token_id=0)([text] * 3)

    assert batch["labels"].shape[1] == targets
    assert batch["input_ids"].shape[1] in (length, length - 1)
    assert batch["decoder_input_ids"][:, 1:].equal(batch["labels"][:, :-1])
    with pytest.raises(ValueError, match=r"input_length is 7.*length"):
        ours.DataCollatorForT5MLM(t5(), density, span, input_length=7)([text])


def test_span_corruption_refuses_tokenizers_and_texts_it_cannot_use() -> None:
    with pytest.raises(ValueError, match="no sentinel <extra_id_0>"):
        ours.DataCollatorForT5MLM(bert())([[7, 8, 9]])
    with pytest.raises(ValueError, match="1 tokens is too short to mask"):
        ours.DataCollatorForT5MLM(t5())([[7, 1]])
    with pytest.raises(ValueError, match="noise_density"):
        ours.DataCollatorForT5MLM(t5(), noise_density=1.0)


def test_the_default_collator_depends_on_the_processing_class() -> None:
    class Images:
        def pad(self, images: Any, pad_size: Any = None, return_tensors: Any = None) -> Any: ...

    class Own:
        padding_side = "right"

        def pad(self, rows: Any, **options: Any) -> Any: ...

    assert isinstance(choose_collator(bert()), ours.DataCollatorWithPadding)
    assert pads_samples(Own())
    for processor in (None, Images(), object()):
        assert choose_collator(processor, first="pixels")([(torch.ones(1), 0)])["pixels"].shape == (1, 1)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (None, "junk returned None"),
        ([torch.ones(1)], "returned list of Tensor, and a model needs named arguments"),
        ({}, "empty dict"),
        ({1: torch.ones(1)}, "the key 1"),
        ({"x": [1, 2], "y": "z"}, "no tensor at all, only x: list of int, y: str"),
    ],
)
def test_a_collator_that_does_not_return_a_batch_is_named(batch: Any, message: str) -> None:
    def junk(features: Any) -> Any: ...

    junk.__qualname__ = "junk"
    with pytest.raises(TypeError, match=message):
        require_batch(batch, junk)


def test_a_batch_that_holds_a_tensor_at_any_depth_is_accepted() -> None:
    batch = {"pose": {"r": [torch.ones(1)]}, "name": "a"}

    require_batch(batch, None)
