"""`python -m footplate`, the same as `footplate`."""

import sys

from footplate.cli import main

if __name__ == "__main__":
    sys.exit(main())
