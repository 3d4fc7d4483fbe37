"""Code that a test runs in a process of its own."""

import os
import subprocess
import sys


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code, which has to succeed; gives the process that has ended.

    Args:
        code: of Python.
        arguments: what it finds in ``sys.argv`` after the first.
        environment: variables beside those of this process, of which tilecast's are left out.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TILECAST_")}
    process = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=ours | environment,
    )
    assert process.returncode == 0, process.stderr
    return process
