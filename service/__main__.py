"""`python -m service`: the program, imported without looking for rubbish meanwhile.

What an import makes stays, and the search is an eighth of it.
"""

from __future__ import annotations

import gc
import sys

gc.disable()
from service.program import main  # noqa: E402

gc.enable()

if __name__ == "__main__":
    sys.exit(main())
