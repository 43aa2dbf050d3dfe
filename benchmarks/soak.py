"""Run the fault soak of tests/test_soak.py with 5,000 calls."""

import os
import sys
from pathlib import Path

import pytest

os.environ["ORI_SOAK_CALLS"] = "5000"
test = Path(__file__).parent.parent / "tests" / "test_soak.py"
sys.exit(pytest.main([str(test), "--durations=2", "--timeout=300", *sys.argv[1:]]))
