"""Tests what the command reads from its arguments and what it prints, without a service."""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.metadata import version
from operator import length_hint
from pathlib import Path
from traceback import format_exception
from zipfile import ZipFile

import httpx2
import pytest

from footplate import Client
from footplate.cli import main, make_parser, parse
from footplate.cli.cluster import argument_lines, component_row
from footplate.cli.context import UsageError, client_of
from footplate.cli.event_lines import line_of
from footplate.cli.predict import inputs
from footplate.cli.show import cell, warn_of_empty_column
from footplate.cli.submit import read_spec
from footplate.cli.text import duration, number, size, sparkline, steps, table, wrapped
from footplate.contract.errors import InvalidSpec, SettingsError
from footplate.contract.events import Event
from footplate.errors import InvalidRequest
from footplate.local.home import hold, record_holder
from footplate.sdk.bundles import packed
from footplate.sdk.jobs import AsyncJob
from footplate.sdk.models import Component, JobInfo
from footplate.sdk.request import ApiRequest
from footplate.sdk.uploads import AsyncFiles
from tests.client.fake_wire import FakeWire
from tests.client.test_asking import JOB

NODE = {
    "id": "node_" + "0" * 32, "name": "n1", "state": "up", "takes_work": True, "message": None, "refused": None,
    "exposed": None, "pool": "default", "slots": 1, "slots_used": 0, "gpus": [], "jobs": [], "versions": {},
    "catalogue_hash": None, "actions": ["drain"], "first_seen_at": "2026-01-01T12:00:00.000Z",
    "seen_at": "2026-01-01T12:00:00.000Z",
}  # fmt: skip
SPEC = '{"model": "toy/mlp", "data": "toy/regression"}'


def answer_requests(
    monkeypatch: pytest.MonkeyPatch, verb: str, answer: Callable[[httpx2.Request], httpx2.Response]
) -> None:
    """Answers the requests of a module of the command by a function."""
    client = Client("http://service.invalid", transport=httpx2.MockTransport(answer), retries=0)
    monkeypatch.setattr(f"footplate.cli.{verb}.client_of", lambda options: client)


def test_a_spec_is_a_file_of_json_or_yaml_stdin_or_json_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.json").write_text(SPEC)
    (tmp_path / "job.yaml").write_text("model: toy/mlp\ndata: toy/regression\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SPEC.encode())))

    specs = [read_spec(word, []) for word in (str(tmp_path / "job.json"), str(tmp_path / "job.yaml"), "-", SPEC)]

    assert specs == [{"model": "toy/mlp", "data": "toy/regression"}] * 4


def test_set_replaces_one_value_and_creates_missing_objects() -> None:
    deep = "[" * 100_000
    changes = ["training.max_steps=50", "training.bf16=true", "model.use=toy/gpt", f"name={deep}", 'tags=["a"]']

    spec = read_spec('{"model": {"use": "toy/mlp"}}', changes)

    assert spec == {
        "model": {"use": "toy/gpt"},
        "training": {"max_steps": 50, "bf16": True},
        "name": deep,
        "tags": ["a"],
    }


def test_a_repeated_field_in_a_spec_is_refused_by_name() -> None:
    with pytest.raises(InvalidSpec, match="/model"):
        read_spec('{"model": "a", "model": "b"}', [])


def test_a_spec_file_without_an_object_is_refused_with_an_example(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("[1]")

    with pytest.raises(UsageError, match=r"job\.json.*an object"):
        read_spec(str(tmp_path / "job.json"), [])


def test_without_a_yaml_reader_yaml_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yml").write_text("model: toy/mlp\n")
    monkeypatch.setattr("footplate.cli.submit.find_spec", lambda name: None)

    with pytest.raises(UsageError) as refused:
        read_spec(str(tmp_path / "job.yml"), [])

    assert "pyyaml" in (refused.value.hint or "")


def test_yaml_values_are_read_as_json_values(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "training: {learning_rate: 2e-5, eval_strategy: no, save_steps: 0.1, bf16: true, max_steps: 50}\n"
        "metadata: {date: 2026-11-27, run: 007, at: 4:30, none: null, same: '50'}\n"
        "base: &base {max_steps: 1}\nother: {<<: *base, max_steps: 2}\n"
    )

    spec = read_spec(str(tmp_path / "job.yaml"), [])

    assert spec["training"] == {
        "learning_rate": 2e-5, "eval_strategy": "no", "save_steps": 0.1, "bf16": True, "max_steps": 50,
    }  # fmt: skip
    assert spec["metadata"] == {"date": "2026-11-27", "run": "007", "at": "4:30", "none": None, "same": "50"}
    assert spec["other"] == {"max_steps": 2}


def test_a_repeated_key_of_yaml_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model: toy/mlp\ndata: toy/regression\nmodel: toy/gpt\n")

    with pytest.raises(UsageError, match=r"'model' is there twice.*line 3"):
        read_spec(str(tmp_path / "job.yaml"), [])


def test_bytes_that_are_not_utf_8_are_refused_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "a\udcff", "--url", "http://127.0.0.1:9"]) == 2
    assert capsys.readouterr().err == "footplate: an argument is not UTF-8: 'a\\udcff'\n"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("ls --quiet --json", "--json and --quiet"),
        ("ls --columns state --json", "--json and --columns"),
        ("metrics JOB --csv --json", "--json and --csv"),
        ("metrics JOB --plot a.png --follow", "--plot and --follow"),
        ("files FILE --delete FILE", "FILE and --delete"),
    ],
)
def test_options_of_which_only_one_can_take_effect_are_refused_together(
    words: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--url", "http://127.0.0.1:9"]) == 2
    assert f"{names} cannot be used together" in capsys.readouterr().err


def test_a_column_that_no_listed_job_has_is_named_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [JobInfo.model_validate({**JOB, "metrics": {"eval_loss": 0.5}})]

    for name in ("eval_loss", "state", "eval_los"):
        warn_of_empty_column(name, jobs)

    assert (
        capsys.readouterr().err == "footplate: none of these jobs has a metric 'eval_los'; did you mean 'eval_loss'?\n"
    )


def test_rows_of_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}\n')
    (tmp_path / "latin.jsonl").write_bytes(b'{"a": "\xe9"}\n')

    assert list(inputs(parse(make_parser(), ["predict", "JOB", "--file", str(tmp_path / "rows.jsonl")]))) == [
        {"a": 1},
        {"a": 2},
    ]
    with pytest.raises(UsageError, match=r"latin\.jsonl, line 1"):
        list(inputs(parse(make_parser(), ["predict", "JOB", "--file", str(tmp_path / "latin.jsonl")])))


def test_a_sparkline_skips_nan_and_infinity_and_has_at_most_the_given_width() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([1.0, math.nan, 2.0, math.inf]) == "▁█"
    assert sparkline([]) == ""
    assert len(sparkline(list(range(1000)), width=32)) == 32


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.6, "1m 00s"), (200, "3m 20s"), (7500, "2h 05m"), (100 * 3600, "4d 4h")]
)
def test_a_printed_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_command_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"footplate {version('footplate')}\n"


def test_numbers_are_printed_with_few_digits() -> None:
    assert [number(value) for value in (0.123456, 3, None, "NaN", math.nan)] == ["0.1235", "3", "", "NaN", "nan"]
    assert [size(count) for count in (12, 20472, 3.2e9, 5e12)] == ["12 B", "20.5 kB", "3.2 GB", "5.0 TB"]


@pytest.mark.parametrize(("max_steps", "text"), [(30, "7/30"), (0, "7")])
def test_progress_is_printed_without_a_total_if_max_steps_is_unknown(max_steps: int, text: str) -> None:
    job = JobInfo.model_validate({**JOB, "progress": {"step": 7, "max_steps": max_steps, "epoch": 0.0}})

    assert steps(job) == text
    assert repr(AsyncJob(FakeWire(), job, patience=0.0)) == f"<AsyncJob {JOB['id']} queued step {text}>"


def test_a_table_aligns_numbers_right_and_prints_a_message_if_it_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    table(("NAME", "STEPS"), [("a", "7"), ("longer", "120")], empty_text="nothing")
    table(("NAME",), [], empty_text="nothing is there")

    out, err = capsys.readouterr()
    assert out == "NAME    STEPS\na           7\nlonger    120\n"
    assert err == "footplate: nothing is there\n"


def test_the_doctor_does_not_print_ok_for_something_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    details = {"redis": "Redis is unreachable", "disk": "0.1 GB are left"}
    answers = {
        "/readyz": {"status": "degraded", "degraded": list(details), "details": details},
        "/jobs": {"data": [], "next_cursor": None},
        "/nodes": {"data": [NODE | {"exposed": "training has root's rights"}], "next_cursor": None},
    }
    answer_requests(monkeypatch, "doctor", lambda request: httpx2.Response(200, json=answers[request.url.path]))

    assert main(["doctor"]) == 1

    findings = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert findings["service"] == "ok     service    http://service.invalid answers"
    assert findings["redis"] == "WRONG  redis      Redis is unreachable"
    assert findings["store"] == "WRONG  store      0.1 GB are left"
    assert findings["rights"] == "note   rights     n1: training has root's rights"
    assert findings["clock"].startswith("note ")
    assert not [line for line in findings.values() if line.startswith("ok") and "degraded" in line]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sumbit", "job.json"], "'sumbit'; did you mean 'submit'?"),
        (["compare", "first", "second"], "'compare'; use 'metrics JOB JOB'"),
        (["xyzzy"], "'xyzzy'; the verbs are up, submit, "),
    ],
)
def test_an_unknown_verb_prints_the_nearest_one_or_all(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert f"footplate: there is no verb {message}" in capsys.readouterr().err


def test_an_option_of_a_verb_before_the_verb_is_refused_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9", "ls"]) == 2
    assert "'--url' follow the verb" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["show", ""],
        ["metrics", ""],
        ["nodes", "--drain", ""],
        ["checkpoints", "@last", "--delete", ""],
        ["download", "@last", "--checkpoint", ""],
        ["files", "--delete", ""],
        ["submit", SPEC, "--code", ""],
        ["metrics", "@last", "--names", ""],
    ],
)
def test_an_empty_name_exits_with_2_before_any_request(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--url", "http://127.0.0.1:9"])

    assert ended.value.code == 2
    assert "the value is empty" in capsys.readouterr().err


def test_help_is_printed_to_a_terminal_that_cannot_show_all_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))

    with pytest.raises(SystemExit) as ended:
        main(["events", "--help"])

    assert ended.value.code == 0


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://a:b:c", "http://127.0.0.1:99999", "http://a..b:8080", "ftp://host"]
)
def test_an_address_that_cannot_exist_exits_with_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--url", url]) == 2
    assert "is not the address of a service" in capsys.readouterr().err


@pytest.mark.parametrize("proxy", ["socks9://127.0.0.1:1080", "http://a:b:c"])
def test_a_proxy_that_cannot_be_used_exits_with_2(
    proxy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)

    assert main(["ls", "--url", "http://192.0.2.1:8080"]) == 2
    assert "ALL_PROXY" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "project"),
    [
        ("show a", None),
        ("show a --project vision", "vision"),
        ("keys --project vision delete key_1", "vision"),
        ("keys create me --project *", None),
    ],
)
def test_a_verb_acts_in_the_named_project(line: str, project: str | None) -> None:
    """The `--project` of `keys create` is the new key's project, which may be `*`."""
    client = client_of(parse(make_parser(), [*line.split(), "--url", "http://service.invalid"]))

    assert ApiRequest("GET", "/nodes").http_request(client._twin._wire).url.params.get("project") == project


@pytest.mark.parametrize(
    "proxy", ["http://me:hunter2/z@proxy:80", "http://me:hunter2#z@proxy:80", "ftp://me:hunter2@p"]
)
def test_the_password_of_a_proxy_is_in_no_error(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)

    with pytest.raises(SettingsError) as refused:
        Client("http://192.0.2.1:8080")

    assert "hunter2" not in "".join(format_exception(refused.value))


@pytest.mark.parametrize(
    ("width", "columns"), [(80, "JOB  NAME   STATE    LOSS"), (20, "JOB  NAME   STATE"), (9, "JOB"), (2, "JOB")]
)
def test_a_table_leaves_out_the_least_important_columns_until_it_fits(
    width: int, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    table(
        ("JOB", "NAME", "STATE", "LOSS"),
        [("a1", "first", "running", "0.1")],
        empty_text="",
        optional_columns=("LOSS",),
    )

    assert capsys.readouterr().out.splitlines()[0] == columns


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of the lock file of a `footplate up` in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("FOOTPLATE_URL", "FOOTPLATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".footplate").mkdir()
    return tmp_path / ".footplate/up.lock"


def test_the_client_finds_the_system_that_runs_in_this_folder(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hold(lock.parent) as home:
        record_holder(home, "http://127.0.0.1:4711")
        assert Client().url == "http://127.0.0.1:4711"
        assert Client("http://elsewhere:1").url == "http://elsewhere:1"
        monkeypatch.setenv("FOOTPLATE_URL", "http://named:2")
        assert Client().url == "http://named:2"


@pytest.mark.parametrize("record", ['{"pid": %d, "url": null}', '{"pid": %d, "url": "http://127.0.0.1:1"}', "{", None])
def test_without_a_running_system_in_this_folder_the_client_uses_its_default(record: str | None, lock: Path) -> None:
    """A system that was killed leaves its record, and another process may have its pid by now."""
    if record is not None:
        lock.write_text(record.replace("%d", str(os.getpid())))

    assert Client().url == "http://127.0.0.1:8080"


def test_a_client_with_a_home_that_cannot_exist_does_not_use_the_default_address(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOOTPLATE_HOME", "~nobody-of-this-name/footplate")

    with pytest.raises(SettingsError, match="FOOTPLATE_HOME: "):
        Client()


def test_the_client_refuses_to_guess_while_the_system_in_this_folder_starts(lock: Path) -> None:
    """The default address may be that of a system in another folder."""
    with hold(lock.parent):
        with pytest.raises(SettingsError, match="still starting"):
            Client()
        assert Client("http://elsewhere:1").url == "http://elsewhere:1"


def test_a_client_that_looks_at_the_lock_does_not_keep_the_system_from_starting(lock: Path) -> None:
    lock.touch()
    with ThreadPoolExecutor(1) as pool, lock.open() as client:
        fcntl.flock(client, fcntl.LOCK_SH)
        starting = pool.submit(lambda: hold(lock.parent).__enter__())
        client.close()

        assert starting.result().path == lock.parent


SOCKET = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  {uid}  0 30337 1 0\n"


@pytest.mark.parametrize("uid", sorted({0, os.getuid(), 4242}))
def test_another_users_server_at_the_default_address_is_named(
    uid: int, lock: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sockets = lock.with_name("tcp")
    sockets.write_text("  sl  local_address rem_address   st …\n" + SOCKET.format(uid=uid))
    monkeypatch.setattr("footplate.sdk.settings.SOCKETS", sockets)

    Client("http://127.0.0.1:8080")
    assert not caplog.messages, "an address that the user has chosen is right"
    Client()
    assert [message for message in caplog.messages if "http://127.0.0.1:8080" in message] == caplog.messages
    assert len(caplog.messages) == (uid == 4242)


@pytest.mark.parametrize(
    ("words", "sort"),
    [([], "-created"), (["--sort", "name"], "name"), (["--sort", "priority", "--reverse"], "priority")],
)
def test_ls_requests_jobs_in_the_chosen_order(words: list[str], sort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.params["sort"] == sort
        return httpx2.Response(200, json={"data": [], "next_cursor": None})

    answer_requests(monkeypatch, "show", answer)

    assert main(["ls", *words]) == 0


def test_ls_with_watch_waits_for_a_service_that_restarts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([(JOB["id"], 200), None, None, ("", 503), ("job_" + "1" * 32, 200)])

    def answer(request: httpx2.Request) -> httpx2.Response:
        if (fields := next(answers)) is None:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(fields[1], json={"data": [{**JOB, "id": fields[0]}], "next_cursor": None})

    def stop_after_the_last_answer(seconds: float) -> None:
        if not length_hint(answers):
            raise KeyboardInterrupt

    answer_requests(monkeypatch, "show", answer)
    monkeypatch.setattr("time.sleep", stop_after_the_last_answer)

    assert main(["ls", "--watch", "--quiet"]) == 130

    out, err = capsys.readouterr()
    assert out.split() == [JOB["id"], "job_" + "1" * 32]
    assert [line.split(" (")[0] for line in err.splitlines()] == [
        "footplate: connection lost", "footplate: connected again"
    ]  # fmt: skip


CHECKPOINT = {
    "id": "ckpt_1", "attempt": 1, "step": 30, "no": 9, "status": "committed", "bytes": 7, "files": 2, "path": "a/b",
    "manifest_sha256": "", "metrics": {}, "is_best": False, "pinned": False, "created_at": "2026-01-01T00:00:00.000Z",
}  # fmt: skip
DOWNLOADS = (["download"], ["download", "--checkpoint", "latest"], ["export"], ["export", "--merge"])


@pytest.mark.parametrize("words", DOWNLOADS, ids=" ".join)
def test_an_interrupted_download_marks_its_folder_for_its_own_files_alone(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        _, _, job, *rest = request.url.path.split("/")
        if rest[-1:] == ["model.bin"]:
            raise KeyboardInterrupt
        if rest[-1:] == ["config.json"]:
            return httpx2.Response(200, content=b"{}")
        if rest[-1:] in (["outputs"], ["files"]):
            files = [{"path": "config.json", "bytes": 2, "modified_at": "", "sha256": sha256(b"{}").hexdigest()}]
            files += [{"path": "model.bin", "bytes": 5, "modified_at": "", "sha256": "0" * 64}]
            return httpx2.Response(200, json={"data": files, "next_cursor": None})
        return httpx2.Response(
            200, json=CHECKPOINT if "checkpoints" in rest else {**JOB, "id": job, "state": "succeeded"}
        )

    answer_requests(monkeypatch, "files", answer)
    folder = tmp_path / "out"

    for _ in range(2):
        assert main([*words, str(JOB["id"]), "-o", str(folder)]) == 130
    assert (folder / "config.json").read_text() == "{}"
    others = [[*words, "job_" + "1" * 32], *([*other, str(JOB["id"])] for other in DOWNLOADS if other != words)]
    for other in others:
        assert main([*other, "-o", str(folder)]) == 2, other
        assert f"{JOB['id']}" in capsys.readouterr().err


def test_an_export_of_a_session_names_the_checkpoint_of_the_job_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if "checkpoints" in request.url.path:
            problem = {"code": "not_found", "title": "Not found", "status": 404, "detail": "has no checkpoint yet"}
            return httpx2.Response(404, json=problem)
        if request.url.path.endswith("/export"):
            bodies.append(json.loads(request.content))
            raise KeyboardInterrupt
        return httpx2.Response(200, json=JOB)

    answer_requests(monkeypatch, "files", answer)

    assert main(["export", str(JOB["id"]), "--checkpoint", "best", "-o", str(tmp_path / "out")]) == 130
    assert bodies == [{"checkpoint": "best", "merge": False}]


def test_a_download_of_a_file_that_does_not_exist_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {"data": [{"path": "model.bin", "bytes": 5, "modified_at": ""}], "next_cursor": None}
    answer_requests(
        monkeypatch, "files",
        lambda request: httpx2.Response(200, json=outputs if request.url.path.endswith("/outputs") else JOB),
    )  # fmt: skip

    assert main(["download", str(JOB["id"]), "nothing", "-o", str(tmp_path / "out")]) == 3
    assert not (tmp_path / "out").exists()


def test_events_prints_a_message_if_no_event_matches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = {"data": [], "next_cursor": None, "last": 12}
    answer_requests(
        monkeypatch, "watch",
        lambda request: httpx2.Response(200, json=events if request.url.path.endswith("/events") else JOB),
    )  # fmt: skip

    assert main(["events", str(JOB["id"]), "--kinds", "eval"]) == 0
    assert f"no event matches; the state of {JOB['id']} is {JOB['state']}" in capsys.readouterr().err


def test_a_job_that_is_named_twice_is_changed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deleted: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            deleted.append(request.url.path)
            return httpx2.Response(204)
        is_list = request.url.path == "/jobs"
        return httpx2.Response(200, json={"data": [JOB], "next_cursor": None} if is_list else JOB)

    answer_requests(monkeypatch, "change", answer)

    assert main(["rm", str(JOB["id"]), "@last"]) == 0
    assert deleted == [f"/jobs/{JOB['id']}"]


def test_a_job_that_matches_a_filter_and_is_refused_is_printed_with_its_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {
        "status": 409,
        "code": "job_in_use",
        "detail": "another job starts from it",
        "hint": "delete that one first",
    }
    outcomes = {"data": [{"job": JOB["id"], "state": "failed", "error": error}], "next_cursor": None}
    answer_requests(monkeypatch, "change", lambda request: httpx2.Response(200, json=outcomes))

    assert main(["rm", "--tag", "sweep"]) == 2
    assert f"{JOB['id']}: another job starts from it; delete that one first" in capsys.readouterr().err


def test_ls_columns_may_be_job_fields_or_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    job = JobInfo.model_construct(id="job_" + "0" * 24 + "beefbeef", tags=["a", "b"], metrics={"eval_loss": 0.25})  # type: ignore[call-arg]

    assert [cell(job, name) for name in ("job", "tags", "eval_loss", "accuracy")] == ["beefbeef", "a, b", "0.25", ""]
    with pytest.raises(SystemExit):
        main(["ls", "--columns", "job,,state"])
    assert "'job,,state'" in capsys.readouterr().err


def test_a_cell_that_ends_with_an_ellipsis_itself_does_not_count_as_cut(capsys: pytest.CaptureFixture[str]) -> None:
    table(("NAME", "STATE"), [("a run, the second …", "queued")], empty_text="")

    output = capsys.readouterr()
    assert output.out.splitlines()[1] == "a run, the second …  queued"
    assert output.err == ""


def test_a_table_shortens_long_cells_before_it_leaves_columns_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    table(
        ("WHERE", "a", "b"),
        [("/training/learning_rate", "x" * 40, "1")],
        empty_text="",
        long_columns=("WHERE", "a"),
    )

    output = capsys.readouterr()
    head, row = output.out.splitlines()
    assert head.split() == ["WHERE", "a", "b"]
    assert "| cat" in output.err
    assert len(row) == 40
    assert row.count("…") == 2


def test_long_text_is_wrapped_between_words_but_never_within_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    text = "state      failed because /a/path/that/is/longer/than/the/terminal/is/wide cannot be read"

    lines = wrapped(text, terminal, indent=11).split("\n")

    assert " ".join(line.strip() for line in lines) == text
    assert [line[:11].strip() for line in lines[1:]] == ["", ""]
    assert wrapped(text, io.StringIO(), indent=11) == text, "lines for a pipe must not be wrapped"


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        ("do", {"status": "asked", "message": "requested: save", "save": True}, "step 12  requested: save"),
        ("line", {"stream": "stdout", "text": "a line"}, "| a line"),
        ("line", {"stream": "stdout", "text": ""}, "|"),
        ("gap", {"message": "the journal was lost", "from": 7}, "events are missing here: the journal was lost"),
        ("state", {"state": "paused", "reason": "pause"}, "paused (pause); `footplate resume beefbeef` continues it"),
    ],
)
def test_an_event_is_printed_as_a_single_line(kind: str, data: dict[str, object], line: str) -> None:
    job = "job_" + "0" * 24 + "beefbeef"
    event = Event.model_construct(job=job, attempt=1, step=12, kind=kind, data=data)  # type: ignore[call-arg]

    assert line_of(event) == line


@pytest.fixture
def metric_requests(monkeypatch: pytest.MonkeyPatch) -> list[httpx2.URL]:
    """Returns the URLs of requests for metrics. The answers are of a job that logged its loss at the steps 1 to 4."""
    requests: list[httpx2.URL] = []
    seen_fields = {"no": 1, "epoch": None, "at": "", "attempt": 1}
    seen_metric = {"value": 9.0, "step": 1, **seen_fields}
    summary = {"name": "loss", "count": 4, "not_finite": 0, "last": seen_metric, "min": seen_metric, "max": seen_metric}
    curve = {
        "job": JOB["id"], "name": "loss", "count": 4, "left_out": 0, "exact": True, "attempts": [], "x": [2, 3],
        "y": [0.75, 0.5],
    }  # fmt: skip
    rows = [{"no": step, "step": step, "epoch": None, "loss": 1 / step} for step in (1, 2, 3, 4)]
    lists = {"summary": [summary], "series": [curve], "metrics": rows}

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request.url)
        data = lists.get(request.url.path.rpartition("/")[2])
        return httpx2.Response(200, json=JOB if data is None else {"data": data, "next_cursor": None, "last": 4})

    answer_requests(monkeypatch, "metrics", answer)
    return requests


def test_metrics_summarizes_only_the_chosen_steps(
    metric_requests: list[httpx2.URL], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", str(JOB["id"]), "--first-step", "2", "--last-step", "3"]) == 0

    line = capsys.readouterr().out.splitlines()[1].split()
    assert line[:-1] == ["loss", "0.5", "0.5", "3", "0.75", "2", "2"]
    assert dict(metric_requests[-1].params)["first_step"] == "2"
    assert dict(metric_requests[-1].params)["last_step"] == "3"


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["--first-step", "3"], [3, 4]),
        (["--last-step", "1"], [1]),
        (["--first-step", "0", "--last-step", "2"], [1, 2]),
        (["--first-step", "9", "--names", "loss"], []),
    ],
)
def test_metrics_with_json_prints_only_the_rows_of_the_chosen_steps(
    words: list[str], steps: list[int], metric_requests: list[httpx2.URL], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", str(JOB["id"]), "--json", *words]) == 0

    assert [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines()] == steps


def test_a_range_of_steps_that_ends_before_it_begins_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", str(JOB["id"]), "--first-step", "9", "--last-step", "3"]) == 2

    assert "--first-step 9 is after --last-step 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "name", "words"),
    [
        ("try JOB --complete --set max_tokens=5 Once upon", "text", ["Once", "upon"]),
        ("predict JOB --checkpoint best one two", "inputs", ["one", "two"]),
        ("cancel A --mode kill B", "job", ["A", "B"]),
        ("upload a.csv --tokenizer models://t b.csv", "paths", ["a.csv", "b.csv"]),
    ],
)
def test_positional_arguments_may_continue_after_an_option(line: str, name: str, words: list[str]) -> None:
    assert getattr(parse(make_parser(), line.split()), name) == words


def test_components_names_a_missing_library_and_prints_defaults_as_json() -> None:
    path = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "description": "A folder"}
    scratch = {"type": "boolean", "default": False}
    args = {"properties": {"path": path, "from_scratch": scratch}}
    component = Component(name="hf/x", group="models", summary="Reads.", args=args, needs="tf (pip install 'f[hf]')")

    assert component_row(component) == ("models", "hf/x", "Reads. No node has tf (pip install 'f[hf]').")
    assert list(argument_lines(component)) == [
        "  path = null  string or null  A folder",
        "  from_scratch = false  boolean",
    ]


async def test_a_named_pipe_is_left_out_of_a_bundle_and_refused_as_rows(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    os.mkfifo(tmp_path / "rows.jsonl")

    assert ZipFile(io.BytesIO(packed(tmp_path))).namelist() == ["train.py"]
    with pytest.raises(InvalidRequest, match="not a regular file"):
        await AsyncFiles(FakeWire()).upload(tmp_path / "rows.jsonl")


async def test_an_upload_of_a_folder_or_of_a_missing_file_is_not_refused_for_its_suffix(tmp_path: Path) -> None:
    files = AsyncFiles(FakeWire())

    with pytest.raises(InvalidRequest, match="is a folder"):
        await files.upload(tmp_path)
    with pytest.raises(FileNotFoundError):
        await files.upload(tmp_path / "rows")


def test_a_code_folder_that_is_too_large_is_refused_with_its_largest_entries(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    (tmp_path / "out/checkpoint-5").mkdir(parents=True)
    with open(tmp_path / "out/checkpoint-5/model.safetensors", "wb") as file:
        file.truncate(200 * 1024 * 1024)

    with pytest.raises(InvalidRequest) as refused:
        packed(tmp_path)

    assert refused.value.code == "bundle_too_large"
    assert "The largest here: out (200.0 MiB), train.py (0.0 MiB)" in refused.value.message
