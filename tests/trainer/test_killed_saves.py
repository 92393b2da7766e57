"""Tests a save that is killed at any durable step. The older or the newer checkpoint remains and verifies."""

from __future__ import annotations

from pathlib import Path

from tests.support.template import run_after_imports

SCRIPT = """
import os, sys
from pathlib import Path
from footplate.trainer import checkpoint as files
from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.trainer import Trainer

def train(folder, steps, die_at=None):
    \"\"\"In a child, which is killed at its n-th step towards the disk: a sync or a rename.\"\"\"
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = [die_at]
    def count(real):
        def call(*args, **kwargs):
            if left[0] is not None:
                if left[0] == 0:
                    os.kill(os.getpid(), 9)
                left[0] -= 1
            return real(*args, **kwargs)
        return call
    os.fsync, os.rename, os.mkdir = count(os.fsync), count(os.rename), count(os.mkdir)
    args = TrainingArguments(str(folder), max_steps=steps, disable_tqdm=True)
    Trainer(toy.mlp(), args, train_dataset=toy.regression()).train()
    os._exit(0)

def killed_at_every_step(folder, overwrite):
    assert train(folder, 2) == 0
    killed = 0
    while (ended := train(folder, 2 if overwrite else 4, die_at=killed)) != 0:
        assert ended == -9, ended
        files.sweep(folder)
        left = sorted(path.name for path in folder.iterdir())
        assert left in (["checkpoint-2"], ["checkpoint-2", "checkpoint-4"]), left
        for name in left:
            files.verify(folder / name)
        killed += 1
    return killed

for overwrite in (False, True):
    print("killed", killed_at_every_step(Path(sys.argv[1]) / str(overwrite), overwrite), flush=True)
"""


def test_a_save_killed_at_any_step_leaves_checkpoints_that_verify(tmp_path: Path) -> None:
    """A save has at least 11 steps: a folder, six files, a manifest, a rename, and the syncs of two folders.

    A save over an older checkpoint of the same step has one more step, which moves the older checkpoint aside.
    If the save fails, the older checkpoint is moved back.
    """
    output = run_after_imports("-c", SCRIPT, str(tmp_path))

    beside, over = (int(line.split()[1]) for line in output.splitlines() if line.startswith("killed"))
    assert beside >= 11
    assert over >= 12
