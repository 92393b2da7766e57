"""Mistakes in specs. Each is reported at the place where it was written, with a hint."""

import pytest

from footplate.contract.arguments.read import FIELDS
from footplate.contract.body import MAX_PROBLEMS
from footplate.contract.files import by_url
from footplate.contract.machine import Resources
from footplate.contract.spec import JobSpec
from tests.contract.specs import TOY, places, problems_of

JOB = "job_" + "0" * 32
CODE = {"bundle": "0" * 64}
ADAM = {"id": "a", "params": [".*"], "use": "adam"}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"modle": "x"}, ("/modle", "unknown_field")),
        ({"a/b~c": 1}, ("/a~1b~0c", "unknown_field")),
        ({"name": 5}, ("/name", "wrong_type")),
        ({"name": ""}, ("/name", "not_well_formed")),
        ({"name": "two\nlines"}, ("/name", "not_well_formed")),
        ({"name": "x" * 129}, ("/name", "too_long")),
        ({"project": "../x"}, ("/project", "not_well_formed")),
        ({"tags": "demo"}, ("/tags", "wrong_type")),
        ({"tags": ["ok", True]}, ("/tags/1", "wrong_type")),
        ({"tags": ["x"] * 33}, ("/tags", "too_long")),
        ({"metrics": ["a.b"] * 100_000}, ("/metrics", "too_long")),
        ({"metadata": []}, ("/metadata", "wrong_type")),
        ({"metadata": {"a": "x" * 17_000}}, ("/metadata", "too_large")),
        ({"priority": "5"}, ("/priority", "wrong_type")),
        ({"priority": 101}, ("/priority", "out_of_range")),
        ({"priority": -(10**30)}, ("/priority", "out_of_range")),
        ({"model": 5}, ("/model", "wrong_type")),
        ({"model": {}}, ("/model/use", "missing")),
        ({"resources": {"strategy": {"type": {}}}}, ("/resources/strategy", "unknown_choice")),
        (
            {"training": {"gradient_checkpointing_kwargs": "{"}},
            ("/training/activation_checkpointing_kwargs", "disagreement"),
        ),
        ({"model": {"use": "m", "arg": {}}}, ("/model/arg", "unknown_field")),
        ({"model": {"use": "m", "args": []}}, ("/model/args", "wrong_type")),
        ({"model": ""}, ("/model", "not_well_formed")),
        ({"model": "os.system"}, ("/model", "not_well_formed")),
        ({"model": {"use": "torch.nn.Linear"}}, ("/model/use", "not_well_formed")),
        ({"model": "../../etc/passwd"}, ("/model", "not_well_formed")),
        ({"model": "builtins:eval"}, ("/model", "needs_bundle")),
        ({"callbacks": ["os:system"]}, ("/callbacks/0", "needs_bundle")),
        ({"callbacks": [{"use": "os:system"}]}, ("/callbacks/0/use", "needs_bundle")),
        ({"trainer": "my:Trainer"}, ("/trainer", "needs_bundle")),
        ({"compute_metrics": "accuracy"}, ("/compute_metrics", "needs_own_code")),
        ({"data": 5}, ("/data", "wrong_type")),
        ({"data": {}}, ("/data", "missing")),
        ({"data": {"trian": "x"}}, ("/data/trian", "unknown_field")),
        ({"data": {"use": "toy/regression", "arg": 1}}, ("/data/arg", "unknown_field")),
        ({"data": {"train": "x", "eval": {}}}, ("/data/eval", "too_short")),
        ({"data": {"train": "x", "eval": {"a/b": "x"}}}, ("/data/eval/a~1b", "not_well_formed")),
        ({"data": {"train": "x", "eval": {"a": {"use": "x", "foo": 1}}}}, ("/data/eval/a/foo", "unknown_field")),
        ({"data": {"train": "x", "eval": {"use": "x", "foo": 1}}}, ("/data/eval/foo", "unknown_field")),
        ({"metrics": "accuracy"}, ("/metrics", "wrong_type")),
        ({"metrics": ["accuracy", 5]}, ("/metrics/1", "wrong_type")),
        ({"training": None}, ("/training", "wrong_type")),
        ({"training": {"lerning_rate": 1}}, ("/training/lerning_rate", "unknown_field")),
        ({"training": {"output_dir": "/etc"}}, ("/training/output_dir", "server_owned")),
        ({"training": {str(number): 1 for number in range(50_000)}}, ("/training", "too_long")),
        ({"training": {"eval_strategy": "epoch"}}, ("/training/eval_strategy", "disagreement")),
        ({"final_eval": "best"}, ("/final_eval", "disagreement")),
        ({"data": {"train": "toy/regression", "split": {"test_size": 0}}}, ("/data/split/test_size", "out_of_range")),
        ({"data": {"train": "toy/text", "split": {"test_size": 1.5}}}, ("/data/split/test_size", "bad_test_size")),
        ({"data": {"train": "toy/regression", "split": {"seed": 1}}}, ("/data/split/test_size", "missing")),
        ({"data": {"train": "toy/regression", "split": 0.1}}, ("/data/split", "wrong_type")),
        ({"resources": {"nodes": 0}}, ("/resources/nodes", "out_of_range")),
        ({"resources": {"gpus_per_node": True}}, ("/resources/gpus_per_node", "wrong_type")),
        ({"resources": {"gpus_per_node": -1}}, ("/resources/gpus_per_node", "out_of_range")),
        ({"resources": {"time_limit": "4 hours"}}, ("/resources/time_limit", "duration")),
        ({"resources": {"time_limit": 0}}, ("/resources/time_limit", "out_of_range")),
        ({"resources": {"time_limit": True}}, ("/resources/time_limit", "wrong_type")),
        ({"resources": {"time_limit": float("inf")}}, ("/resources/time_limit", "wrong_type")),
        ({"resources": {"stall_limit": None}}, ("/resources/stall_limit", "wrong_type")),
        ({"resources": {"strategy": "fdsp"}}, ("/resources/strategy", "unknown_choice")),
        ({"resources": {"strategy": {"type": "fdsp"}}}, ("/resources/strategy", "unknown_choice")),
        ({"resources": {"strategy": {}}}, ("/resources/strategy", "missing")),
        ({"resources": {"strategy": {"type": "single", "x": 1}}}, ("/resources/strategy/x", "unknown_field")),
        ({"retry": {"max_attempts": 0}}, ("/retry/max_attempts", "out_of_range")),
        ({"retry": {"on": ["oom", "nod_lost"]}}, ("/retry/on/1", "unknown_choice")),
        ({"retry": {"backoff": "2d"}}, ("/retry/backoff", "out_of_range")),
        ({"resume_from": {"job": "5"}}, ("/resume_from/job", "not_well_formed")),
        ({"resume_from": {"job": JOB, "checkpoint": "newest"}}, ("/resume_from/checkpoint", "not_well_formed")),
        ({"resume_from": {"job": JOB, "mode": "weight"}}, ("/resume_from/mode", "unknown_choice")),
        ({"optimizers": [{**ADAM, "params": ["("]}]}, ("/optimizers/0/params/0", "not_a_pattern")),
        ({"optimizers": [ADAM, ADAM]}, ("/optimizers/1/id", "duplicate_id")),
        ({"optimizers": [{**ADAM, "schedule": {"use": "y", "x": 1}}]}, ("/optimizers/0/schedule/x", "unknown_field")),
        ({"optimizers": [{**ADAM, "evry": 1}]}, ("/optimizers/0/evry", "unknown_field")),
        ({"loop": {"use": "my:main", "argc": 1}, "code": CODE}, ("/loop/argc", "unknown_field")),
        ({"loop": "main", "code": CODE}, ("/loop", "needs_own_code")),
        ({"loop": "my:main", "code": CODE, "trainer": "my:T"}, ("/trainer", "disagreement")),
        ({"code": {"bundle": "latest"}}, ("/code/bundle", "not_well_formed")),
        ({"env": {"A": 1}}, ("/env/A", "wrong_type")),
        ({"secrets": ["a b"]}, ("/secrets/0", "not_well_formed")),
    ],
)  # fmt: skip
def test_one_mistake_is_reported_as_one_problem_at_its_place(change, place):
    assert places({**TOY, **change}) == [place]


@pytest.mark.parametrize("body", [None, [], "toy/mlp", 5, True])
def test_a_spec_that_is_not_an_object_is_refused(body):
    assert places(body) == [("", "wrong_type")]


def test_a_missing_model_and_missing_data_are_reported_together():
    assert places({}) == [("/model", "missing"), ("/data", "missing")]


def test_a_loop_of_the_users_own_needs_neither_model_nor_data():
    spec = JobSpec.parse({"loop": "my_code:main", "code": {"bundle": "0" * 64}})
    assert spec.model is None


def test_a_script_needs_a_bundle_and_refuses_fields_it_would_ignore():
    script = {"loop": {"script": "train.py"}}
    assert places(script) == [("/loop/script", "needs_bundle")]
    spec = JobSpec.parse({**script, "code": CODE})
    assert JobSpec.parse(spec.as_json()) == spec
    assert places({**script, "code": CODE, **TOY, "training": {"max_steps": 5}}) == [
        ("/model", "disagreement"), ("/data", "disagreement"), ("/training", "disagreement"),
    ]  # fmt: skip


def test_a_script_may_start_from_another_jobs_checkpoint_but_not_from_a_folder():
    script = {"loop": {"script": "train.py"}, "code": CODE}
    assert places({**script, "resume_from": {"job": JOB, "mode": "weights"}}) == []
    assert places({**script, "resume_from": {"path": "models://a"}}) == [("/resume_from/path", "disagreement")]
    assert places({"loop": "my:main", "code": CODE, "resume_from": {"job": JOB, "mode": "weights"}}) == [
        ("/resume_from/mode", "disagreement")
    ]


def test_all_mistakes_in_a_spec_are_reported_at_once():
    body = {
        "modle": "toy/mlp",
        "data": {"train": "os.system", "eval": "x.csv"},
        "priority": True,
        "training": {"lerning_rate": 1, "max_steps": "5"},
        "resources": {"nodes": 0, "time_limit": "soon"},
        "retry": {"on": ["never"]},
    }
    assert sorted(pointer for pointer, _ in places(body)) == [
        "/data/eval",
        "/data/train",
        "/model",
        "/modle",
        "/priority",
        "/resources/nodes",
        "/resources/time_limit",
        "/retry/on/0",
        "/training/lerning_rate",
        "/training/max_steps",
    ]


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"metrcs": []}, "did you mean 'metrics'?"),
        ({"learning_rate": 1}, "it belongs at /training/learning_rate"),
        ({"gpus_per_node": 1}, "it belongs at /resources/gpus_per_node"),
        ({"max_attempts": 1}, "it belongs at /retry/max_attempts"),
        ({"training": {"lerning_rate": 1}}, "did you mean 'learning_rate'?"),
        ({"resources": {"gpu_per_node": 1}}, "did you mean 'gpus_per_node'?"),
        ({"retry": {"on": ["nod_lost"]}}, "did you mean 'node_lost'?"),
        ({"resources": {"strategy": "fdsp"}}, "did you mean 'fsdp'?"),
    ],
)
def test_an_unknown_field_gets_the_nearest_name_or_its_right_place_as_a_hint(change, hint):
    assert [problem.hint for problem in problems_of({**TOY, **change})] == [hint]


def test_no_problem_repeats_the_value_that_was_sent():
    """The value may be a secret that was written in the wrong field."""
    body = {**TOY, "name": ["hunter2"], "env": {"A": ["hunter2"]}, "secrets": ["hunter2 "], "metadata": "hunter2"}
    assert "hunter2" not in str([problem.as_dict() for problem in problems_of(body)])


def test_the_number_of_problems_reported_for_one_spec_is_limited():
    assert len(problems_of({**TOY, **{f"metric{number}": 1 for number in range(3000)}})) == MAX_PROBLEMS


def test_stating_a_default_value_is_not_a_mistake():
    body = {**TOY, "loss": None, "optimizers": None, "code": None, "env": {}, "secrets": [], "report_to": [],
            "resources": {"nodes": 1, "gpus_per_node": 1, "processes_per_node": 1, "strategy": "single"}}  # fmt: skip
    assert places(body) == []


@pytest.mark.parametrize("path", ["data://../x.jsonl", "data://a/../../x.jsonl", "models://..", "data://./x.jsonl"])
def test_a_path_that_leaves_its_root_is_refused(path):
    data = {"use": "files/jsonl", "args": {"paths": [path]}}
    assert places({**TOY, "data": data}) == [("/data/args/paths/0", "path_outside_root")]


@pytest.mark.parametrize(
    ("field", "component", "pointer", "hint"),
    [
        ("model", {"use": "hf/x", "args": {"path": "bert-base"}}, "/model/args/path",
         "did you mean 'models://bert-base'? models:// is the models folder on the nodes. A model of a hub is hub://NAME"),
        ("data", {"use": "files/jsonl", "args": {"paths": ["/home/me/a.jsonl"]}}, "/data/args/paths/0",
         "did you mean 'data://a.jsonl'? A file on your own machine is uploaded: footplate upload FILE prints its name "
         "for the spec"),
        ("data", "./x/a.jsonl", "/data",
         "did you mean 'data://x/a.jsonl'? A file on your own machine is uploaded: footplate upload FILE prints its "
         "name for the spec"),
        ("model", {"use": "hf/x", "args": {"path": "https://x.org/m"}}, "/model/args/path",
         "put the file below models:// on the nodes, or upload it"),
        ("data", "s3://x/a.jsonl", "/data", "put the file below data:// on the nodes, or upload it"),
        ("data", {"use": "my:rows", "args": {"options": {"file": "file:///a"}}}, "/data/args/options/file",
         "put the file below data:// on the nodes, or upload it"),
    ],
)  # fmt: skip
def test_a_path_without_a_root_is_refused_with_a_hint(field, component, pointer, hint):
    (problem,) = problems_of({**TOY, "code": {"bundle": "a" * 64}, field: component})
    assert (problem.pointer, problem.code, problem.hint) == (pointer, "path_without_root", hint)


def test_training_on_a_stream_requires_max_steps():
    rows = {"use": "files/jsonl", "args": {"paths": ["data://a.jsonl"], "streaming": True}}
    spec = {**TOY, "data": {"train": rows}}
    assert places(spec) == [("/training", "missing")]
    assert places({**spec, "training": {"max_steps": 5}}) == []
    assert (
        places({**TOY, "data": {"train": "toy/regression", "eval": rows}, "training": {"eval_strategy": "epoch"}}) == []
    )


def test_a_stored_spec_with_a_split_is_accepted_again():
    split = {"train": "toy/regression", "split": {"test_size": 0.1}}
    stored_spec = JobSpec.parse({**TOY, "data": split, "training": {"eval_strategy": "epoch"}}).as_json()
    assert JobSpec.parse(stored_spec).as_json() == stored_spec


def test_a_plain_value_in_place_of_an_object_gets_an_example_as_a_hint():
    (problem,) = problems_of({**TOY, "data": {"train": "toy/text", "split": 0.1}})
    assert (problem.pointer, problem.hint) == ("/data/split", 'for example {"test_size": 0.1, "seed": 7}')
    unknown = problems_of({**TOY, "data": {"train": "toy/text", "split": {"train_size": 0.9, "test_size": 0.1}}})
    assert "test_size, seed" in unknown[0].detail


def test_a_split_excludes_evaluation_data_and_needs_an_indexed_dataset():
    split = {"train": "toy/regression", "split": {"test_size": 0.1, "seed": 7}}
    assert places({**TOY, "data": split, "training": {"eval_strategy": "epoch"}, "final_eval": "last"}) == []
    streamed = {"use": "files/jsonl", "args": {"paths": ["data://a.jsonl"], "streaming": True}}
    for data in ({**split, "eval": "toy/regression"}, {**split, "train": streamed}, {**split, "train": None}):
        assert places({**TOY, "data": data, "training": {"max_steps": 5}}) == [("/data/split", "disagreement")]


def test_the_best_model_can_be_evaluated_at_the_end_only_if_it_is_loaded():
    split = {"train": "toy/regression", "split": {"test_size": 20}}
    best = {**TOY, "data": split, "final_eval": "best"}
    assert places(best) == [("/final_eval", "disagreement")]
    assert (
        places(
            {**best, "training": {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}}
        )
        == []
    )


def test_the_rows_of_a_dataset_may_be_given_by_url():
    rows = "https://data.example.org/a/rows.jsonl?v=2"
    spec = {**TOY, "data": {"train": {"use": "files/jsonl", "args": {"paths": [rows, "data://b.jsonl"]}}}}
    assert places(spec) == places({**TOY, "data": "https://data.example.org/rows.csv"}) == []
    assert [*by_url(JobSpec.parse(spec).texts)] == [("/data/train/args/paths/0", rows)]
    elsewhere = {**TOY, "data": {"use": "toy/regression", "args": {"title": rows}}}
    assert [*by_url(JobSpec.parse(elsewhere).texts)] == []


@pytest.mark.parametrize(
    "url", ["https://", "https://me:pw@x.org/a.jsonl", "https://x.org:99999/a", "https://x.org/a b", "http://x.org/a#b"]
)
def test_a_malformed_url_is_refused(url):
    rows = {"use": "files/jsonl", "args": {"paths": [url]}}
    assert places({**TOY, "data": rows}) == [("/data/args/paths/0", "bad_url")]


@pytest.mark.parametrize("value", [{}, [], "", {"type": {}}, {"use": []}, [{}]], ids=str)
def test_a_value_of_the_wrong_type_in_any_field_is_refused_without_a_crash(value):
    fields = [*JobSpec.model_fields]
    inside = [("training", name) for name in FIELDS] + [("resources", name) for name in Resources.model_fields]

    bodies = [{**TOY, name: value} for name in fields] + [{**TOY, part: {name: value}} for part, name in inside]

    assert all(isinstance(problems_of(body), list) for body in bodies)


def test_the_beginning_of_a_name_gets_the_full_name_as_a_hint():
    (problem,) = problems_of({**TOY, "training": {"optim": "adam"}})
    assert problem.hint == "did you mean 'adamw_torch'?"
