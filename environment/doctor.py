"""Say what is installed, what is free and what is wrong: ``make doctor``.

Works before there is an environment, so it uses the standard library only; everything about
installed packages is asked of the interpreter in ``.venv``. Exits with 1 when something is wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from environment.layout import (
    PYTHON_VERSION,
    READY,
    ROOT,
    VENV,
    VENV_PYTHON,
    detect_flavour,
    install_digest,
    pair_problem,
    read_stamp,
)

MIN_FREE_DISK_GB = 2.0
MIN_FREE_MEMORY_GB = 3.0

# The names must match the fields of tasks.local_stack.settings, which this file cannot import.
PORTS = {
    "airflow": ("TAILTOWER_AIRFLOW_PORT", 8080),
    "airflow execution api": ("TAILTOWER_EXECUTION_PORT", 8081),
    "mlflow": ("TAILTOWER_MLFLOW_PORT", 5000),
}

SHOWN_PACKAGES = (
    "apache-airflow", "mlflow", "great-expectations", "dask", "torch", "torchrec", "fbgemm-gpu-cpu",
    "fbgemm-gpu", "pyarrow", "pandas", "numpy",
)  # fmt: skip

# Runs in the environment's interpreter and prints one JSON object as its last line.
PROBE = """
import importlib.metadata as metadata, json, sys
versions = {}
for name in json.loads(sys.argv[1]):
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        versions[name] = None
print(json.dumps(versions))
"""

# The undefined symbols of a wrong pair show up only when the shared objects are really loaded.
IMPORT_PROBE = """
import warnings
warnings.simplefilter("ignore")
import torch, fbgemm_gpu, torchrec
accelerator = torch.accelerator.current_accelerator()
print(accelerator.type if accelerator is not None else "cpu")
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: What was looked at.
        detail: What was seen.
        wrong: What to do about it, when it must be changed; empty when it is fine.
    """

    topic: str
    detail: str
    wrong: str = ""

    def __str__(self) -> str:
        mark = "WRONG" if self.wrong else "ok   "
        advice = f"\n        -> {self.wrong}" if self.wrong else ""
        return f"{mark}  {self.topic:<22} {self.detail}{advice}"


def main() -> int:
    """Print all findings; 1 when one of them is wrong."""
    findings = [
        check_environment(),
        *check_packages(),
        check_disk(),
        check_memory(),
        *check_ports(),
    ]
    for finding in findings:
        print(finding, flush=True)
    wrong = sum(bool(finding.wrong) for finding in findings)
    print(
        f"\n{wrong} of {len(findings)} checks found something wrong" if wrong else "\nall is well"
    )
    return 1 if wrong else 0


def check_environment() -> Finding:
    """Whether ``.venv`` is there, finished and made from the present lock."""
    topic = "environment"
    if not VENV_PYTHON.exists():
        running = ".".join(map(str, sys.version_info[:3]))
        return Finding(topic, f"no .venv (this is Python {running})", "run: make setup")
    flavour = detect_flavour()
    stamp = read_stamp()
    if stamp is None or stamp.state != READY:
        return Finding(topic, ".venv is not finished", "run: make setup")
    if stamp.flavour != flavour:
        return Finding(
            topic, f".venv is for {stamp.flavour}, this machine is {flavour}", "run: make setup"
        )
    if stamp.digest != install_digest(flavour):
        return Finding(topic, f".venv ({flavour}) is older than its lock", "run: make setup")
    wanted = ".".join(map(str, PYTHON_VERSION))
    return Finding(topic, f".venv, {flavour}, Python {wanted}, up to date")


def check_packages() -> list[Finding]:
    """Versions, the torch pair, and whether the pair really loads."""
    if not VENV_PYTHON.exists():
        return []
    answer = _ask_venv(PROBE, json.dumps(SHOWN_PACKAGES))
    if answer.returncode != 0:
        detail = (answer.stderr.strip().splitlines() or ["no output"])[-1]
        return [
            Finding(
                "packages",
                detail,
                f"the environment is damaged; run: rm -r {VENV}, then make setup",
            )
        ]
    versions: dict[str, str | None] = json.loads(answer.stdout.strip().splitlines()[-1])
    findings = [
        Finding("packages", ", ".join(f"{name} {v}" for name, v in versions.items() if v)),
    ]
    fbgemm = versions["fbgemm-gpu-cpu"] or versions["fbgemm-gpu"]
    problem = pair_problem(versions["torch"], versions["torchrec"], fbgemm)
    if problem is not None:
        return [*findings, Finding("torch pair", problem, "run: make setup")]
    loaded = _ask_venv(IMPORT_PROBE)
    if loaded.returncode != 0:
        detail = (loaded.stderr.strip().splitlines() or ["no output"])[-1]
        return [*findings, Finding("torch pair", detail, f"run: rm -r {VENV}, then make setup")]
    device = loaded.stdout.strip().splitlines()[-1]
    blind = device == "cpu" and detect_flavour() == "gpu"
    advice = "torch does not see the GPU; compare the driver with nvidia-smi" if blind else ""
    return [*findings, Finding("torch pair", f"matches and loads; device: {device}", advice)]


def check_disk() -> Finding:
    """Room for the lake, checkpoints and logs."""
    free = shutil.disk_usage(ROOT).free / 1e9
    low = free < MIN_FREE_DISK_GB
    return Finding(
        "disk",
        f"{free:.1f} GB free at {ROOT}",
        f"the demonstration wants {MIN_FREE_DISK_GB:.0f} GB" if low else "",
    )


def check_memory(meminfo: Path = Path("/proc/meminfo")) -> Finding:
    """Memory that can be had without swapping."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return Finding("memory", "unknown (no /proc/meminfo)")
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if ":" in line}
    free = kilobytes.get("MemAvailable", 0) * 1024 / 1e9
    low = free < MIN_FREE_MEMORY_GB
    return Finding(
        "memory",
        f"{free:.1f} GB available, {os.cpu_count()} cores",
        f"the local stack and training want {MIN_FREE_MEMORY_GB:.0f} GB" if low else "",
    )


def check_ports() -> list[Finding]:
    """Each port of the local stack: free, ours, or somebody else's.

    A taken port is not wrong, because `tailtower up` then takes the next free one.
    """
    findings = []
    for name, (variable, default) in PORTS.items():
        text = os.environ.get(variable, str(default))
        if not text.isdigit() or not 0 < int(text) < 65536:
            findings.append(Finding(f"port {name}", f"{variable}={text}", "not a port number"))
            continue
        port = int(text)
        if not is_taken(port):
            findings.append(Finding(f"port {name}", f"{port} free"))
        else:
            holder = port_holder(port) or "another user's process"
            findings.append(Finding(f"port {name}", f"{port} taken by {holder}"))
    return findings


def is_taken(port: int) -> bool:
    """Whether nobody can listen on ``port`` of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def port_holder(port: int, proc: Path = Path("/proc")) -> str | None:
    """``pid NNN (command)`` of the process that listens on ``port``; ``None`` when it is hidden."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            rows = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            # Columns: slot, local address:port (hexadecimal), remote, state (0A = listening), ...
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for folder in proc.glob("[0-9]*"):
        if inodes & _open_files(folder):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            return f"pid {folder.name} ({command[:60]})"
    return None


def _open_files(process: Path) -> set[str]:
    """What the descriptors of a process point to; empty when it is gone or another user's."""
    targets = set()
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            # One descriptor may be closed while the others are read.
            with suppress(OSError):
                targets.add(os.readlink(link))
    return targets


def _ask_venv(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with the environment's interpreter."""
    return subprocess.run(
        [str(VENV_PYTHON), "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
