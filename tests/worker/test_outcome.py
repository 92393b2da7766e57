from __future__ import annotations

from tests.support.processes import Processes


def outcome_of(processes: Processes, ending: str) -> str:
    reading = processes.start("-m", "tests.worker.treacherous", ending)
    reading.wait(60)
    return reading.output


def test_a_killed_data_worker_is_a_crash_and_may_be_tried_again(processes: Processes) -> None:
    assert outcome_of(processes, "killed").startswith("crashed data_worker_lost")


def test_an_exception_of_a_dataset_is_an_error_of_the_user_in_any_process(processes: Processes) -> None:
    report = outcome_of(processes, "raises")

    assert report.startswith("error error")
    assert "hung up" in report
