"""Writes what job.json names: the sentences of examples/sentences, and a tiny DistilBERT beside its tokenizer.

python examples/four-metrics/prepare.py .footplate
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from pathlib import Path

SENTENCES = Path(__file__).parent.parent / "sentences" / "prepare.py"


def prepare(home: Path) -> None:
    runpy.run_path(str(SENTENCES))["prepare"](home)
    bert, folder = home / "models/bert-tiny", home / "models/distilbert-tiny"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bert / name, folder / name)
    config = {
        "model_type": "distilbert", "architectures": ["DistilBertModel"], "dim": 64, "n_layers": 2, "n_heads": 2,
        "hidden_dim": 128, "max_position_embeddings": 64, "pad_token_id": 0,
        "vocab_size": json.loads((bert / "config.json").read_text())["vocab_size"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    home = Path(sys.argv[1] if len(sys.argv) > 1 else ".footplate")
    prepare(home)
    print(f"Wrote data/sst2, models/bert-tiny and models/distilbert-tiny in {home}.")
