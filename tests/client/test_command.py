"""Tests the installed program `footplate` with a real service, as people and scripts use it."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import time
from argparse import Namespace

import pytest

from footplate.cli import main
from footplate.cli.completion import words_of_jobs
from footplate.cli.text import print_json, print_lines, table
from tests.client.conftest import FAILING, PROGRAM, Command
from tests.support.processes import Standstill, at_ease, free_port
from tests.support.system import LONG_TOY, SHORT_TOY, System

SHORT = json.dumps(SHORT_TOY)
LONG = json.dumps({**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 60, "dataloader_num_workers": 1}})


def test_submit_with_watch_prints_every_state_and_log_in_plain_lines(command: Command, standing: System) -> None:
    (command.folder / "job.json").write_text(SHORT)

    submitted = command.run("submit", "job.json", "--set", "training.logging_steps=5", "--name", "told", "--watch")

    lines = submitted.stdout.splitlines()
    assert submitted.returncode == 0
    assert all(line.startswith("footplate: waits for ") for line in submitted.stderr.splitlines())
    assert re.fullmatch(r"job_[0-9a-f]{32}", lines[0])
    assert [line.split()[1] for line in lines if " loss " in line] == ["5", "10", "15", "20"]
    assert (lines[1], lines[-2]) == ("queued (submitted)", "succeeded (completed)")
    assert re.fullmatch(rf"outputs: \d+ files, .*B; `footplate download {lines[0][-8:]}` downloads them", lines[-1])

    assert "\033" not in submitted.stdout
    assert standing.job(lines[0])["name"] == "told"


def test_submit_and_validate_print_the_warnings_about_a_spec(command: Command) -> None:
    older = ["--set", "training.evaluation_strategy=no"]

    submitted, validated = (command.run(verb, SHORT, *older) for verb in ("submit", "validate"))

    begins = "warning: /training/evaluation_strategy: "
    assert any(line.startswith(begins) for line in submitted.stderr.splitlines())
    assert re.fullmatch(r"job_[0-9a-f]{32}\n", submitted.stdout), "only the id must be printed, for scripts"
    assert any(line.startswith(begins) for line in validated.stdout.splitlines())


def test_a_job_can_be_named_by_its_name_or_the_start_or_end_of_its_id(command: Command) -> None:
    job = command.good("submit", SHORT, "--name", "found by name").strip()

    for word in (job[-8:], job[:-2], "found by name"):
        assert json.loads(command.good("show", word, "--json"))["id"] == job
    unknown_job = command.run("show", "beefbeef")
    assert unknown_job.returncode == 3
    assert "'beefbeef'" in unknown_job.stderr
    assert command.run("show", "job_" + "0" * 32).returncode == 3
    command.good("submit", SHORT, "--name", "found by name")
    ambiguity = command.run("cancel", "found by name")
    assert ambiguity.returncode == 2
    assert "2 jobs: " in ambiguity.stderr
    assert job[-8:] in ambiguity.stderr


def test_bash_completes_actions_options_and_jobs_without_running_names(command: Command) -> None:
    for name in ("$(touch pwned)", "two words"):
        command.good("submit", SHORT, "--name", name)
    lines = ["ca", "submit --wa", "show two", r"diff @last \$\(", "keys cr"]
    complete_script = f"""
    complete_it() {{
      COMP_LINE="footplate $1" COMP_POINT=${{#COMP_LINE}} COMP_TYPE=9
      _python_argcomplete {PROGRAM} "${{1##* }}" ""; echo "${{COMPREPLY[@]}}"
    }}
    {"; ".join(f"complete_it {shlex.quote(line)}" for line in lines)}"""
    script = command.good("completion", "bash") + complete_script

    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env=command.env, cwd=command.folder
    )

    assert [line.strip() for line in result.stdout.splitlines()] == [
        "cancel",
        "--watch",
        r"two\ words",
        r"\$\(touch\ pwned\)",
        "create",
    ]
    assert not (command.folder / "pwned").exists()


def test_without_a_running_service_bash_completes_no_job_names(command: Command) -> None:
    options = Namespace(url=f"http://127.0.0.1:{free_port()}", project=None)

    assert words_of_jobs(options) == []


def test_ctrl_c_stops_the_watching_but_not_the_job(command: Command, standing: System) -> None:
    job = command.good("submit", "-", "--set", "training.max_steps=100000", stdin=LONG).strip()
    watch = command.start("watch", job, "--after", "0")
    watch.until(lambda: "step 3 " in watch.output, within=60, what="the watch shows step 3")

    watch.signal(signal.SIGINT)

    assert watch.wait(20) == 130
    assert f"stopped watching; {job} continues" in watch.output
    assert "Traceback" not in watch.output
    assert standing.state(job) == "running"
    assert command.good("do", job, "--save", "--set", "logging_steps=5").startswith(f"{job} running")
    assert "write --save" in command.run("do", job, "save").stderr
    refused = command.run("do", job, "--set", "learning_rat=1")
    assert (refused.returncode, "did you mean 'learning_rate'?" in refused.stderr) == (2, True)
    assert command.good("cancel", job, "--mode", "kill").startswith(f"{job} stopping")
    ended = command.run("watch", job)
    assert ended.returncode == 1
    assert f"{job} cancelled" in ended.stderr


def test_a_watch_continues_after_two_kills_of_the_service(command: Command, standing: System) -> None:
    gate = standing.gate()
    # Without the gate, the job would end while the service is unreachable.
    job = command.good("submit", json.dumps({**json.loads(LONG), "callbacks": [gate.at(31)]})).strip()
    watch = command.start("watch", job, "--after", "0", "--json")
    for step in (3, 30):
        watch.until(lambda: f'"step": {step},' in watch.output, within=60, what=f"the watch shows step {step}")  # noqa: B023
        standing.services["all"].kill()
        standing.start_service()
    gate.open(31)

    assert watch.wait(60) == 0, watch.output
    lines = watch.output.splitlines()
    assert sum("connection lost" in line for line in lines) == 2
    assert sum("connected again" in line for line in lines) == 2
    assert [json.loads(line) for line in lines if line.startswith("{")] == standing.events(job)


def test_an_export_says_that_a_job_writes_the_files(command: Command) -> None:
    command.good("submit", SHORT, "--watch")

    result = command.run("export", "@last", "-o", "exported")

    assert result.returncode == 0, result.stderr
    assert "`footplate queue`" in result.stderr
    assert (command.folder / "exported/model.safetensors").exists()


def test_a_watch_of_a_failed_job_exits_with_1_and_shows_the_error(command: Command) -> None:
    result = command.run("submit", json.dumps(FAILING), "--watch")

    assert result.returncode == 1
    assert "failed" in result.stderr
    assert "shapes cannot be multiplied" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in command.good("show", "@last")


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (2, ["submit", "nowhere.json"], "nowhere.json' cannot be read: No such file"),
        (2, ["submit", '{"model": '], "not JSON at line 1"),
        (2, ["submit", "[1]"], "cannot be read"),
        (2, ["submit", SHORT, "--set", "nothing"], "no value"),
        (2, ["submit", SHORT, "--set", "model.args.depth=1"], '"toy/mlp", which is not an object'),
        (2, ["submit", '{"optimizers": [{}]}', "--set", "optimizers.0.every=5"], "--set 'optimizers=[…]'"),
        (2, ["submit", SHORT, "--set", "training.learning_rat=1"], "did you mean 'learning_rate'?"),
        (2, ["validate", '{"model": "toy/mlq", "data": "toy/regression"}'], "did you mean 'toy/mlp'?"),
        (2, ["ls", "--state", "runing"], "did you mean 'running'?"),
        (2, ["ls", "--tag", ""], "/query/tag: is empty"),
        (2, ["submit", ""], "no spec is named"),
        (2, ["submit", __file__], "--code"),
        (2, ["submit", '{"tags": 5}', "--tag", "x"], "tags must be a list, and the spec has 5"),
        (2, ["validate", SHORT, "--code", __file__.replace(".py", ".toml")], "No such file"),
        (2, ["validate", SHORT, "--code", "/etc/hostname"], "not a folder, a .py file or a zip"),
        (3, ["components", "toy/mlq"], "did you mean 'toy/mlp'?"),
        (3, ["components", "zzz"], "footplate components"),
        (3, ["nodes", "--drain", "nobody"], "known: node-1"),
        (3, ["show", "nothing"], "name 'nothing'"),
    ],
)
def test_a_wrong_command_line_names_its_fix(
    code: int,
    words: list[str],
    message: str,
    standing: System,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FOOTPLATE_URL", standing.url)

    assert main(words) == code

    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("footplate: ")
    assert out == ""


@pytest.mark.parametrize(
    "words",
    [["ls", "--limit", "-1"], ["webhooks", "deliveries", "hook", "--limit", "x"], ["watch", "@last", "--after", "-1"]],
)
def test_an_invalid_number_exits_with_2_and_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)

    assert ended.value.code == 2
    assert f"{words[-2]}: {words[-1]!r}" in capsys.readouterr().err


def test_an_unreachable_service_exits_with_4_at_once(command: Command) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    started_at = time.monotonic()

    with Standstill() as still:
        result = command.run("ls", FOOTPLATE_URL=url)
    seconds = time.monotonic() - started_at - still.seconds

    assert result.returncode == 4
    assert url in result.stderr
    assert "make up" in result.stderr
    assert seconds < at_ease(5)


def test_metrics_are_printed_as_a_table_csv_or_json(command: Command, standing: System) -> None:
    command.good("submit", SHORT, "--watch")

    assert command.good("queue", "@last") == ""
    summary = command.good("metrics", "@last")
    rows = list(csv.DictReader(io.StringIO(command.good("metrics", "@last", "--csv", "--names", "loss"))))
    lines = [json.loads(line) for line in command.good("metrics", "@last", "--json").splitlines()]

    job = json.loads(command.good("ls", "--limit", "1", "--json"))["id"]
    losses = standing.losses(job)
    optional_columns = min(losses, key=lambda step: losses[step])
    assert re.search(rf"^loss .*  {optional_columns}  .*  20  [▁▂▃▄▅▆▇█]{{20}}$", summary, re.MULTILINE)
    assert command.good("metrics", "@last", "--follow") == summary
    assert {int(row["step"]): float(row["loss"]) for row in rows if row["loss"]} == standing.losses(job)
    assert lines == standing.metrics(job)
    unknown_metric = command.run("metrics", "@last", "--names", "no_such")
    assert unknown_metric.returncode == 2
    assert all(name in unknown_metric.stderr for name in ("'no_such'", "it has: loss"))


def test_metrics_of_several_jobs_are_in_one_table(command: Command) -> None:
    for name in ("slower", "faster"):
        command.good("submit", SHORT, "--name", name, "--watch")

    compared = command.good("metrics", "slower", "faster", "--names", "loss").splitlines()
    rows = list(csv.DictReader(io.StringIO(command.good("metrics", "slower", "faster", "--csv", "--names", "loss"))))
    both = command.run("metrics", "slower", "faster", "--follow")

    assert [line.split()[:2] for line in compared] == [["METRIC", "JOB"], ["loss", "slower"], ["loss", "faster"]]
    assert len({row["job"] for row in rows}) == 2
    assert (both.returncode, "--follow" in both.stderr) == (2, True)


def test_submit_prints_why_a_job_waits_and_fork_warns_if_no_step_is_left(command: Command) -> None:
    submitted = command.run("submit", SHORT, "--name", "forked")
    waiting = command.run("submit", SHORT, "--set", 'resources={"gpus_per_node": 64}')
    command.good("watch", "forked")

    forked = command.run("fork", "forked", "--name", "after")

    assert "`footplate watch " in submitted.stderr
    assert "64" in waiting.stderr
    assert "no step is left to train" in forked.stderr
    command.good("cancel", waiting.stdout.strip())


def test_an_upload_prints_its_id_and_its_wrong_rows(command: Command) -> None:
    (command.folder / "rows.csv").write_text("text,label\ngood,1\nbad,x\none,two,three\n")

    uploaded = command.run("upload", "rows.csv")
    output = command.good("files", uploaded.stdout.strip())

    assert "rows.csv: 2 rows, 1 bad" in uploaded.stderr
    assert "row 4" in uploaded.stderr
    assert "row 3" in output
    assert "row 4" in output


def test_watch_on_a_terminal_shows_a_progress_bar_and_events_as_lines(command: Command) -> None:
    job = command.good("submit", LONG).strip()
    our_end, terminal = pty.openpty()
    watch = subprocess.Popen([PROGRAM, "watch", job], stdout=terminal, stderr=terminal, env=command.env, close_fds=True)
    os.close(terminal)

    message = ""
    with contextlib.suppress(OSError):  # marks the end of the output
        while data := os.read(our_end, 65536):
            message += data.decode()
    os.close(our_end)

    assert watch.wait(60) == 0
    plain_text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", message)
    assert re.search(r"━+ +\d+% step \d+/60", plain_text)
    assert re.search(r"^loss +[\d.]+ +[▁▂▃▄▅▆▇█]+ *\r$", plain_text, re.MULTILINE)
    assert "checkpoint of step 60 committed" in plain_text
    assert plain_text.rstrip().splitlines()[-1].startswith("outputs: ")
    drawn_lines = [line for line in plain_text.replace("\r", "\n").splitlines() if line.startswith(("━", "loss "))]
    assert max(map(len, drawn_lines)) <= 80


def test_printed_lines_of_a_job_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines("a name\x1b[2J\r\x9b31m that clears", "tabs\tand größe stay", "re\u202eversed")

    assert capsys.readouterr().out == "a name�[2J��31m that clears\ntabs\tand größe stay\nre�versed\n"


def test_a_cell_of_a_table_cannot_break_lines_or_reverse_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    table(["name", "state"], [["one\nforged  succeeded", "re\u202eversed\u2069\t\x9b"]], empty_text="none")

    assert capsys.readouterr().out.splitlines()[1:] == ["one�forged  succeeded  re�versed���"]


def test_json_output_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name\u202e": "\x1b[2J\x9b31m\x7f\u2028größe"}

    print_json(value)

    output = capsys.readouterr().out
    assert output == '{"name\\u202e": "\\u001b[2J\\u009b31m\\u007f\\u2028größe"}\n'
    assert json.loads(output) == value


def test_the_command_reports_a_wrong_key_and_works_with_the_right_one(command: Command, standing: System) -> None:
    url_file = standing.folder / "keyed.url"
    words = {"FOOTPLATE_API_KEY": "right" * 8, "FOOTPLATE_PORT": "0", "FOOTPLATE_URL_FILE": str(url_file)}
    service = standing.run("service", "api", name="keyed", **words)
    service.until(url_file.exists, within=30, what="the service with a key listens")
    address = {"FOOTPLATE_URL": url_file.read_text().strip()}

    for environment in (address, {**address, "FOOTPLATE_API_KEY": "wrong" * 8}):
        result = command.run("ls", **environment)
        assert result.returncode == 2, result
        assert "key" in result.stderr
        assert "wrong" not in result.stderr
        assert "WRONG  key" in command.run("doctor", **environment).stdout
    assert command.run("ls", **address, FOOTPLATE_API_KEY="right" * 8).returncode == 0
    service.terminate()


def test_an_api_key_that_a_header_cannot_hold_exits_with_2(command: Command) -> None:
    result = command.run("ls", FOOTPLATE_API_KEY="fpk_…")

    assert result.returncode == 2
    assert result.stderr.startswith("footplate: the API key")


def test_an_unknown_option_prints_the_options_of_its_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fork", "@last", "--step", "7"])

    assert ended.value.code == 2
    assert "--checkpoint" in capsys.readouterr().err


def test_doctor_checks_every_part_and_prints_how_to_fix_a_problem(command: Command) -> None:
    findings = [json.loads(line) for line in command.good("doctor", "--json").splitlines()]

    # Whether training can give up root depends on this machine. The node reports it, and the doctor repeats it.
    nodes = [json.loads(line) for line in command.good("nodes", "--json").splitlines()]
    exposed = [f"{node['name']}: {node['exposed']}" for node in nodes if node["exposed"]]
    assert [finding["text"] for finding in findings if finding["what"] == "rights"] == exposed
    assert [finding["what"] for finding in findings if finding["what"] != "rights"] == [
        "python", "footplate", "service", "database", "redis", "control", "nodes", "store", "key", "clock",
    ]  # fmt: skip
    assert all(finding["is_well"] for finding in findings)
    assert [finding["what"] for finding in findings if finding["is_note"]] == ["rights"] * len(exposed)
    nobody = command.run("doctor", FOOTPLATE_URL=f"http://127.0.0.1:{free_port()}")
    assert nobody.returncode == 4
    assert "make up" in nobody.stdout
    misspelt = command.run("doctor", FOOTPLATE_ULR="http://127.0.0.1:8080")
    assert misspelt.returncode == 2
    assert "did you mean FOOTPLATE_URL?" in misspelt.stderr


def test_a_closed_pipe_ends_a_list_without_an_error(command: Command) -> None:
    script = f"set -o pipefail; {PROGRAM} components --json | head -1"
    result = subprocess.run(["bash", "-c", script], env=command.env, capture_output=True, text=True, check=False)

    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["group"] == "models"
