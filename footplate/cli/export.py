"""The verb `export`: writes a model of a job to a folder, for use with another program."""

from __future__ import annotations

from footplate.cli.context import Given, Verbs, add_job, add_verb, client_of, find
from footplate.cli.text import say, say_json


def add_verbs(verbs: Verbs) -> None:
    export = add_verb(verbs, "export", run_export, "write a job's model, tokenizer and card to a folder")
    add_job(export)
    export.add_argument("--checkpoint", metavar="C", help="latest, best, or an id; else the job's final model")
    export.add_argument("--merge", action="store_true", help="merge the adapters into the weights")
    export.add_argument("-o", "--output", metavar="FOLDER", help="the folder to write to; else one with the job's id")


def run_export(given: Given) -> int:
    job = find(client_of(given), given.job)
    written = job.export(given.output or f"{job.id}-export", checkpoint=given.checkpoint, merge=given.merge)
    if given.json:
        say_json([str(path) for path in written])
    else:
        say(*map(str, written))
    return 0
