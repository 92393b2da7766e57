"""`python -m worker` runs one node, like `celery -A worker.app worker`."""

from __future__ import annotations

import sys

from footplate.contract.errors import SettingsError


def main() -> None:
    try:
        from worker.app import app
    except SettingsError as error:
        print(f"footplate worker: {error.message}", file=sys.stderr)
        raise SystemExit(2) from error
    app.worker_main(["worker", "--loglevel=INFO", *sys.argv[1:]])


if __name__ == "__main__":
    main()
