"""Create or repair ``.venv``: ``python3 -m environment.install`` (this is ``make setup``).

The environment is installed from a complete lock with ``--no-deps``: resolving costs more time
than unpacking, and two releases of the same pair (torch, fbgemm) that a resolver finds equal may
not load together. torch comes first because it alone may need another index.

A stamp inside the environment says what it was built from. With a matching stamp a second call
returns at once; with a stamp that says "installing" the last attempt was killed half-way, and the
environment is built anew, because pip takes a half-unpacked package for an installed one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from environment.layout import (
    INSTALLING,
    PYTHON_VERSION,
    READY,
    ROOT,
    SHIM,
    VENV,
    VENV_PYTHON,
    EnvironmentProblem,
    Stamp,
    detect_flavour,
    install_digest,
    lock_file,
    pinned_version,
    read_stamp,
    write_stamp,
)

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Unpacked size plus pip's downloads, rounded up.
DISK_NEEDED_GB = {"cpu": 4, "gpu": 16}


def say(text: str) -> None:
    """One line of progress, at once even when the output is a pipe."""
    print(text, flush=True)


def main() -> int:
    """Bring ``.venv`` in line with the lock; the exit status of ``make setup``."""
    try:
        with _only_one_installer():
            install()
    except EnvironmentProblem as problem:
        print(f"setup: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; the next call starts over", file=sys.stderr)
        return 130
    return 0


def install() -> None:
    """Install what is missing.

    Raises:
        EnvironmentProblem: The machine lacks something; the message says what.
    """
    flavour = detect_flavour()
    digest = install_digest(flavour)
    stamp = read_stamp()
    if stamp == Stamp(READY, flavour, digest) and VENV_PYTHON.exists():
        return

    started = time.monotonic()
    check_disk(VENV.parent, DISK_NEEDED_GB[flavour])
    reason = rebuild_reason(stamp, flavour, VENV)
    if reason is not None:
        say(f"[1/5] creating .venv ({reason})")
        create_venv(find_python())
    else:
        say("[1/5] updating .venv")
    write_stamp(Stamp(INSTALLING, flavour, digest))

    lock = lock_file(flavour)
    torch_version = pinned_version(lock.read_text(), "torch")
    if torch_version is None:
        raise EnvironmentProblem(f"{lock} does not pin torch; run: make lock")
    install_torch(torch_version, flavour)
    say(f"[3/5] packages of {lock.relative_to(ROOT)}")
    pip_install("-r", str(lock))
    say("[4/5] tailtower itself")
    if flavour == "cpu":
        pip_install("--no-build-isolation", str(SHIM))
    # "compat" puts the checkout on the path by a plain .pth file, which mypy and editors follow.
    pip_install(
        "--no-build-isolation", "--config-settings", "editable_mode=compat", "--editable", str(ROOT)
    )
    compile_packages()
    write_stamp(Stamp(READY, flavour, digest))
    say(f"environment ready in {time.monotonic() - started:.0f} s ({flavour})")


def rebuild_reason(stamp: Stamp | None, flavour: str, venv: Path) -> str | None:
    """Why the environment must be created from nothing, or ``None`` when it can be updated."""
    python = venv / "bin" / "python"
    if not python.exists():
        # A dangling link too: the interpreter it was made from is gone.
        return "first installation" if not venv.exists() else "its interpreter is gone"
    if python_version(python) != PYTHON_VERSION:
        return "it was made for another Python"
    if stamp is not None and stamp.state == INSTALLING:
        return "the last installation did not finish"
    if stamp is not None and stamp.flavour != flavour:
        return f"it was built for {stamp.flavour}, this machine is {flavour}"
    return None


def python_version(python: Path | str) -> tuple[int, int] | None:
    """Major and minor version of an interpreter, ``None`` when it does not run."""
    try:
        answer = subprocess.run(
            [str(python), "-c", "import sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor = answer.stdout.split()
    return int(major), int(minor)


def find_python() -> str:
    """An interpreter of the wanted version: the one running this, or one on the path.

    Raises:
        EnvironmentProblem: There is none.
    """
    wanted = ".".join(map(str, PYTHON_VERSION))
    for candidate in (sys.executable, shutil.which(f"python{wanted}")):
        if candidate and python_version(candidate) == PYTHON_VERSION:
            return candidate
    running = ".".join(map(str, sys.version_info[:3]))
    raise EnvironmentProblem(
        f"Python {wanted} is needed, this is {running}. Install python{wanted} and its venv module"
        f" (Debian: apt-get install python{wanted}-venv; uv: uv python install {wanted}, then"
        f" put it on the PATH)"
    )


def create_venv(python: str) -> None:
    """Make an empty ``.venv`` with ``python``, over whatever lies there.

    Raises:
        EnvironmentProblem: The venv module is missing or fails.
    """
    # ensurepip is the half that Debian splits off; asking first gives one line, not a traceback.
    probe = subprocess.run(
        [python, "-c", "import venv, ensurepip"], capture_output=True, check=False
    )
    if probe.returncode != 0:
        wanted = ".".join(map(str, PYTHON_VERSION))
        raise EnvironmentProblem(
            f"{python} has no venv module. Debian and Ubuntu: apt-get install python{wanted}-venv"
        )
    made = subprocess.run(
        [python, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise EnvironmentProblem(f"could not create {VENV}: {last_line(made.stdout + made.stderr)}")


def check_disk(folder: Path, needed_gb: int) -> None:
    """Refuse to start what cannot finish.

    Raises:
        EnvironmentProblem: Less than ``needed_gb`` is free where the environment goes.
    """
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < needed_gb:
        raise EnvironmentProblem(
            f"{folder} has {free_gb:.1f} GB free, the environment needs {needed_gb} GB"
        )


def install_torch(version: str, flavour: str) -> None:
    """Install the torch build of ``flavour``, from wherever this machine can get it."""
    requirement = f"torch=={version}"
    if flavour == "gpu":
        say(f"[2/5] torch {version} with CUDA")
        pip_install(requirement)
        return
    index = os.environ.get("TORCH_INDEX")
    if index is None and not configured_index_has_cpu_build(requirement):
        index = CPU_TORCH_INDEX
    say(f"[2/5] torch {version} for CPU" + (f" from {index}" if index else ""))
    pip_install(requirement, *(("--index-url", index) if index else ()))


def configured_index_has_cpu_build(requirement: str) -> bool:
    """Whether pip, as configured on this machine, would pick a CPU build (``+cpu``) of torch.

    An installed build of that version counts as the answer to the same question.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        run_pip(
            ["install", "--dry-run", "--no-deps", "--quiet", "--report", str(report), requirement]
        )
        return report_names_cpu_build(json.loads(report.read_text()))


def report_names_cpu_build(report: dict[str, list[dict[str, dict[str, str]]]]) -> bool:
    """Read pip's installation report (https://pip.pypa.io, "Installation Report")."""
    planned = report["install"]
    # Nothing planned: the wanted version is there already.
    return not planned or "+cpu" in planned[0]["metadata"]["version"]


def pip_install(*arguments: str) -> None:
    """``pip install`` without dependencies and without compiling.

    Compiling comes last, for all packages at once and on all cores.
    """
    run_pip(["install", "--no-deps", "--no-compile", "--progress-bar", "off", *arguments])


def compile_packages() -> None:
    """Compile what was installed on all cores.

    Otherwise the first start of every service compiles what it imports, one file after another,
    and several services the same files at once.
    """
    say("[5/5] compiling")
    command = [str(VENV_PYTHON), "-m", "compileall", "-q", "-j", "0", "-x", "/tests?/", str(VENV)]
    # Templates with the ending .py do not compile, and need not.
    subprocess.run(command, capture_output=True, check=False)


def run_pip(arguments: Sequence[str]) -> None:
    """Run pip of ``.venv`` and condense its output to a line per 25 packages.

    Raises:
        EnvironmentProblem: pip failed; the message is one line with the likely cause.
    """
    # The variable makes every later import compile again and again (50 s instead of 20).
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    lines: list[str] = []
    collected = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables
    ) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if line.startswith("Collecting "):
                collected += 1
                if collected % 25 == 0:
                    say(f"      {collected} packages fetched")
            elif line.startswith("Installing collected packages"):
                say("      unpacking")
    if process.returncode != 0:
        raise EnvironmentProblem(explain_pip_failure(lines))


def explain_pip_failure(lines: Sequence[str]) -> str:
    """One line that says why pip failed, from the lines it printed."""
    text = "\n".join(lines)
    if re.search(r"No space left on device|Errno 28", text):
        return f"no space left on the disk of {ROOT} (or in the temporary folder)"
    if re.search(
        r"NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|Name or service not known"
        r"|Temporary failure in name resolution|Network is unreachable|Connection (broken|reset)",
        text,
    ):
        url = re.search(r"https?://[^\s'\"),;]+|host='[^']+'", text)
        where = url.group(0) if url else "see pip config list"
        return (
            f"the package index cannot be reached ({where}); check the network, or"
            " point pip at a mirror (PIP_INDEX_URL, for torch TORCH_INDEX)"
        )
    missing = re.search(r"No matching distribution found for (\S+)", text)
    if missing:
        return (
            f"the package index has no {missing.group(1)} for this platform (needed: Linux x86_64,"
            f" Python {'.'.join(map(str, PYTHON_VERSION))})"
        )
    return f"pip failed: {last_line(text)}"


def last_line(text: str) -> str:
    """The last line of ``text`` that holds something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")


@contextmanager
def _only_one_installer() -> Iterator[None]:
    """Make a second ``make setup`` wait for the first; the kernel frees the lock of a dead one."""
    with open(__file__) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup is running, waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
