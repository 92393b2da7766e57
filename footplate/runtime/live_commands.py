"""Carries out users' live commands. They are read after a step, carried out there, and reported with an event.

    supervisor -> a JSON line behind the shared page -> on_step_end, before the Trainer acts on its control

A command to save or evaluate sets the Trainer's control, as the arguments do at their steps. A changed argument keeps
its new value in later attempts. An attempt that continues from a checkpoint after the change sets the value before its
first step. An attempt that continues from an earlier checkpoint sets it again at the step of the change, so that the
repeated steps are the same. Evaluations are repeated, too, because a callback may count them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch.optim.lr_scheduler import LambdaLR

from footplate.contract.events import DoData, Kind
from footplate.contract.host.launch import COMMANDS_AT
from footplate.contract.messages import Command
from footplate.runtime.emit import EventSocket
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.checkpoint import STATE
from footplate.trainer.live_changes import CADENCES, ChangeResult, begin_with, change, continue_as
from footplate.trainer.state import TrainerControl, TrainerState
from footplate.trainer.strategies.peers import OneProcess

NOTHING = bytes(8)


class FootplateRun:
    """Applies live commands to Footplate's Trainer."""

    def __init__(self, trainer: Any, peers: OneProcess) -> None:
        self._trainer, self.peers = trainer, peers

    def begin_with(self, values: dict[str, Any]) -> None:
        begin_with(self._trainer, values)

    def change(self, values: dict[str, Any]) -> ChangeResult:
        return change(self._trainer, values)

    def can_evaluate(self) -> bool:
        overridden = self._trainer._footplate.overrides
        return self._trainer.eval_dataset is not None or "evaluate" in overridden or "get_eval_dataloader" in overridden

    def learning_rate(self) -> float:
        return float(self._trainer._get_learning_rate())


class TransformersRun(FootplateRun):
    """Applies live commands to transformers' Trainer, whose learning rate and intervals can change between steps."""

    def begin_with(self, values: dict[str, Any]) -> None:
        """Sets changed intervals. A changed learning rate is already in the schedule that the checkpoint holds."""
        intervals = {name: value for name, value in values.items() if name in CADENCES}
        for name, value in intervals.items():
            setattr(self._trainer.args, name, value)
        if intervals:
            self._trainer.state.compute_steps(self._trainer.args, self._trainer.state.max_steps)

    def change(self, values: dict[str, Any]) -> ChangeResult:
        changed = ChangeResult()
        for name, value in values.items():
            before = getattr(self._trainer.args, name, None)
            reason = self._why_not(name, value)
            if reason is not None:
                changed.refused[name] = reason
                continue
            setattr(self._trainer.args, name, value)
            if name == "learning_rate":
                schedule = self._trainer.lr_scheduler
                continue_as(schedule, schedule, value)
            changed.values[name] = (before, value)
        self._trainer.state.compute_steps(self._trainer.args, self._trainer.state.max_steps)
        return changed

    def _why_not(self, name: str, value: Any) -> str | None:
        args, schedule = self._trainer.args, self._trainer.lr_scheduler
        if name in CADENCES:
            strategy = getattr(getattr(args, CADENCES[name]), "value", getattr(args, CADENCES[name]))
            return None if strategy == "steps" else f"{CADENCES[name]} is {str(strategy)!r}, so {name} is not used"
        if name != "learning_rate":
            return f"{name} of a script under transformers' Trainer cannot change while it trains"
        if isinstance(value, dict):
            return "the script has one optimizer, so learning_rate must be a number"
        if not isinstance(schedule, LambdaLR):
            return f"the schedule, {type(schedule).__name__}, does not follow learning_rate"
        if any(base != args.learning_rate for base in schedule.base_lrs):
            return "the optimizer's parameter groups have different learning rates"
        return None

    def can_evaluate(self) -> bool:
        return self._trainer.eval_dataset is not None


class LiveCommands(TrainerCallback):
    """A callback that reads live commands after each step, and carries them out on all ranks."""

    run: FootplateRun
    """The run to which commands are applied. A script may have several runs, one after the other."""

    def __init__(self, event_socket: EventSocket, stop_fd: int, commands: Sequence[Command]) -> None:
        self._event_socket = event_socket
        self._page, self._fd = mmap.mmap(stop_fd, mmap.PAGESIZE), stop_fd
        self._seen = NOTHING
        self._read = 0
        self._waiting = [command for command in commands if command.step is None]
        self._again: dict[int, list[Command]] = {}
        self._known = list(commands)

    def begin(self, folder: str | None) -> None:
        """Prepares to continue from a checkpoint. Changes before its step are set now, later ones at their step."""
        if folder is None:
            self.begin_at(0)
            return
        # Only the first rank reads the step, because other nodes may not see the folder.
        self.begin_at(self.run.peers.from_main(lambda: TrainerState.load_from_json(Path(folder, STATE)).global_step))

    def begin_at(self, step: int, since: int = 0) -> None:
        """Prepares to continue at `step`. Commands up to the step `since` belong to an earlier stage."""
        changes: dict[str, Any] = {}
        self._again.clear()
        for command in self._known:
            if command.step is not None and command.step > step:
                self._again.setdefault(command.step, []).append(command)
            elif command.step is not None and command.step > since:
                changes |= _merged(changes, command.set)
        self.run.begin_with(changes)
        if changes:
            text = (
                f"continues with changed arguments: {', '.join(f'{name} {value}' for name, value in changes.items())}"
            )
            self._event_socket.send(Kind.NOTE, {"message": text, "set": changes}, step)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        step, peers = state.global_step, self.run.peers
        for command in self._again.pop(step, ()) if self._again else ():
            self._do(command, state, control, "again")
        # Only the first rank reads the commands, and sends them to the others. On another rank, which never reads them,
        # the same commands would look new at every step.
        has_news = peers.is_main and (bool(self._waiting) or self._page[COMMANDS_AT] != self._seen)
        if peers.any([has_news])[0]:
            # All ranks get here at the same step, so all carry out the commands after the same step.
            for command in peers.from_main(self._receive):
                self._do(command, state, control, "done")
        return control

    def _receive(self) -> list[Command]:
        """Returns the new commands. A line that is not complete yet is read the next time."""
        self._seen = self._page[COMMANDS_AT]
        unread_bytes = int.from_bytes(self._seen, "little") - self._read
        lines = os.pread(self._fd, unread_bytes, mmap.PAGESIZE + self._read)
        complete_lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(complete_lines)
        commands, self._waiting = self._waiting, []
        return [*commands, *(Command.model_validate_json(line) for line in complete_lines.splitlines())]

    def _do(
        self, command: Command, state: TrainerState, control: TrainerControl, status: Literal["done", "again"]
    ) -> None:
        changed = self.run.change(command.set) if command.set else ChangeResult()
        saves, refusals = command.save and status == "done", dict(changed.refused)
        evaluates = command.evaluate
        if evaluates and not self.run.can_evaluate():
            evaluates, refusals["evaluate"] = False, "the job has no data to evaluate on"
        control.should_save |= saves
        control.should_evaluate |= evaluates
        data = DoData(
            status=status, message=_sentence(saves, evaluates, changed, refusals, self.run), asked=command.no,
            save=saves, evaluate=evaluates, refused=refusals,
            set={name: {"from": old, "to": new} for name, (old, new) in changed.values.items()},
        )  # fmt: skip
        self._event_socket.send(Kind.DO, data.model_dump(exclude_defaults=True), state.global_step, state.epoch)


def _merged(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a later change. Learning rates by optimizer are merged with the earlier ones."""
    old_rates, new_rates = earlier.get("learning_rate"), later.get("learning_rate")
    if isinstance(old_rates, dict) and isinstance(new_rates, dict):
        return {**later, "learning_rate": {**old_rates, **new_rates}}
    return later


def _sentence(saves: bool, evaluates: bool, changed: ChangeResult, refusals: dict[str, str], run: FootplateRun) -> str:
    sentences = ["saves a checkpoint"] * saves + ["evaluates the model"] * evaluates
    for name, (old_value, new_value) in changed.values.items():
        if isinstance(new_value, dict):
            rates = new_value.items()
            sentences += [f"{name}.{optimizer} is {rate}, was {old_value[optimizer]}" for optimizer, rate in rates]
        else:
            sentences.append(f"{name} is {new_value}, was {old_value}")
    rate = changed.values.get("learning_rate", (0.0, 0.0))[1]
    if changed.values.keys() & {"learning_rate", "max_steps"} and not isinstance(rate, dict):
        sentences.append(f"the current learning rate is {run.learning_rate():.6g}")
    sentences += [f"{name} was not carried out: {why}" for name, why in refusals.items()]
    return "; ".join(sentences)
