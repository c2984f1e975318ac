"""Compile both locks from ``pyproject.toml``: ``python3 -m environment.lock`` (``make lock``).

uv resolves in seconds and for a machine other than this one, so the CUDA lock can be made without
a GPU. It is installed into a folder that is thrown away: nobody needs it to use the project.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from environment.install import find_python, last_line, say
from environment.layout import FLAVOURS, PYTHON_VERSION, ROOT, EnvironmentProblem, lock_file

PLATFORM = "x86_64-manylinux_2_28"

HEADERS = {
    "cpu": """\
# The environment of a machine without a GPU, for Linux x86_64 and Python 3.11.
# Made by `make lock` from pyproject.toml; install it with `make setup`.
#
# torch is named without "+cpu": where its CPU build comes from differs from machine to machine,
# see environment/install.py. The requirement fbgemm-gpu of torchrec is satisfied by fbgemm-gpu-cpu
# and environment/fbgemm-gpu-shim.
""",
    "gpu": """\
# The environment of a machine with an NVIDIA GPU, for Linux x86_64 and Python 3.11.
# Made by `make lock` from pyproject.toml; install it with `make setup`.
#
# The pair torch 2.13.0 and fbgemm-gpu 1.8.0 is built against CUDA 13.0 (both wheels load
# libcudart.so.13); the driver must be new enough for it (580 or later).
""",
}


def main() -> int:
    """Write both locks; the exit status of ``make lock``."""
    try:
        with tempfile.TemporaryDirectory(prefix="tailtower-lock-") as folder:
            tools = Path(folder)
            say("installing uv into a temporary environment")
            python = tools / "bin" / "python"
            _run([find_python(), "-m", "venv", str(tools)])
            _run([str(python), "-m", "pip", "install", "--quiet", "uv"])
            settings = _run([str(python), "-m", "pip", "config", "list"])
            for flavour in FLAVOURS:
                lock = lock_file(flavour)
                compiled = _run(compile_command(tools / "bin" / "uv", flavour, settings))
                lock.write_text(HEADERS[flavour] + without_local_versions(compiled))
                say(f"{lock.relative_to(ROOT)}: {compiled.count('==')} packages")
    except EnvironmentProblem as problem:
        print(f"lock: {problem}", file=sys.stderr)
        return 1
    return 0


def compile_command(uv: Path, flavour: str, pip_settings: str) -> list[str]:
    """The call of uv that prints the lock of ``flavour``."""
    command = [
        str(uv), "pip", "compile", "--quiet", "--no-header", "--annotation-style", "line",
        "--python-version", ".".join(map(str, PYTHON_VERSION)), "--python-platform", PLATFORM,
        "--extra", flavour, "--extra", "sketch", "--extra", "serving", "--extra", "onnx",
        "--extra", "benchmarks", "--extra", "dev",
    ]  # fmt: skip
    if flavour == "cpu":
        command += ["--override", "environment/overrides-cpu.txt"]
    command += index_options(pip_settings, with_find_links=flavour == "cpu")
    return [*command, "pyproject.toml"]


def index_options(pip_settings: str, *, with_find_links: bool) -> list[str]:
    """Options of uv for what ``pip config list`` prints, since uv reads nothing of pip's settings.

    ``find-links`` is left out for the CUDA lock: folders of wheels kept on a CPU machine hold CPU
    builds, which would win over the index.
    """
    wanted = {"index-url": "--index-url"}
    if with_find_links:
        wanted["find-links"] = "--find-links"
    options: list[str] = []
    # The environment (":env:") is printed first and wins, as it does in pip.
    seen: set[str] = set()
    for match in re.finditer(r"^[\w:]+\.\.?([\w-]+)='(.*)'$", pip_settings, flags=re.MULTILINE):
        name, values = match.groups()
        if name in wanted and name not in seen:
            seen.add(name)
            for value in values.split():
                options += [wanted[name], value]
    return options


def without_local_versions(lock_text: str) -> str:
    """Strip build labels such as ``+cpu``: the lock names releases, the installer picks builds."""
    return re.sub(r"^([\w.-]+==[^\s+]+)\+\S+", r"\1", lock_text, flags=re.MULTILINE)


def _run(command: list[str]) -> str:
    """Run ``command`` in the project root and return its output.

    Raises:
        EnvironmentProblem: It failed.
    """
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentProblem(f"{' '.join(command[:4])} failed: {last_line(done.stderr)}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
