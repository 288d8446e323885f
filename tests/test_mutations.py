"""Each guard taken away makes the test named beside it fail: so every guard is needed, and every test can fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutate import MUTATIONS

ROOT = Path(__file__).parents[1]
TESTS_FAILED = 1  # pytest's exit status; others mean that nothing was tested


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_guard_that_is_missing_is_noticed(name):
    """In a process of its own, so that nothing stays broken."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.mutate",
            MUTATIONS[name].test,
        ],
        cwd=ROOT,
        env={**os.environ, "KVPOOL_MUTATION": name},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == TESTS_FAILED, done.stdout[-2000:] + done.stderr[-2000:]
