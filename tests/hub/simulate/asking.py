"""Asks NVML in another process: the library and the binding are loaded once per process."""

import json
import subprocess
import sys

PRELUDE = """
import json, sys
import pynvml as N

def out(value):
    print("OUT " + json.dumps(value))

def attempt(function, *arguments):
    try:
        return getattr(N, function)(*arguments)
    except N.NVMLError as error:
        return "!" + type(error).__name__.removeprefix("NVMLError_")

"""


def ask(environment, code, *arguments, prefix=()):
    """Return what `code` gives to out(), run in a Python that has that environment."""
    result = subprocess.run(
        [*prefix, sys.executable, "-c", PRELUDE + code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return next(json.loads(line[4:]) for line in result.stdout.splitlines() if line.startswith("OUT "))
