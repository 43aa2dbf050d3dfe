"""The command `ori`, as `python -m orchestrator`: for where it is not on the PATH."""

import sys

from orchestrator.serve.cli import main

if __name__ == "__main__":
    sys.exit(main())
