"""What the installer, the lock compiler and the doctor agree on: paths, flavours, the stamp.

Everything here runs under any Python 3.8 or newer without a third-party package, because it is
what runs before there is an environment.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "tailtower-install.json"
SHIM = ROOT / "environment" / "fbgemm-gpu-shim"

PYTHON_VERSION = (3, 11)
FLAVOURS = ("cpu", "gpu")

INSTALLING = "installing"
READY = "ready"


class EnvironmentProblem(Exception):
    """Something about this machine stops the installation; one line says what and what to do."""


@dataclass(frozen=True)
class Stamp:
    """The record a (possibly unfinished) installation leaves inside the environment.

    Attributes:
        state: ``installing`` from the first change on, ``ready`` after the last.
        flavour: ``cpu`` or ``gpu``.
        digest: What was installed from, see :func:`install_digest`.
    """

    state: str
    flavour: str
    digest: str


def lock_file(flavour: str) -> Path:
    """The lock of one flavour."""
    return ROOT / "environment" / f"{flavour}.lock"


def install_digest(flavour: str, root: Path = ROOT) -> str:
    """A digest of everything that decides what ends up in the environment."""
    digest = hashlib.sha256(flavour.encode())
    for name in (
        f"environment/{flavour}.lock",
        "environment/install.py",
        "environment/fbgemm-gpu-shim/pyproject.toml",
        "pyproject.toml",
    ):
        # The name and length keep two files from trading bytes unnoticed.
        content = (root / name).read_bytes()
        digest.update(f"{name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def read_stamp(path: Path = STAMP) -> Stamp | None:
    """The stamp at ``path``; ``None`` when there is none or it cannot be understood."""
    try:
        return Stamp(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_stamp(stamp: Stamp, path: Path = STAMP) -> None:
    """Replace the stamp at ``path`` in one step, so that a kill never leaves half of it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(stamp), indent=2) + "\n")
    temporary.replace(path)


def detect_flavour() -> str:
    """``gpu`` when an NVIDIA driver answers on this machine, else ``cpu``."""
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    try:
        listing = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "gpu" if listing.returncode == 0 and "GPU" in listing.stdout else "cpu"


def pinned_version(lock_text: str, package: str) -> str | None:
    """The version a lock pins ``package`` to, or ``None``."""
    match = re.search(rf"^{re.escape(package)}==(\S+)", lock_text, flags=re.MULTILINE)
    return match.group(1) if match else None


def expected_companion(torch_version: str) -> str:
    """The ``1.(N-5)`` of torchrec and fbgemm that belongs to torch ``2.N``.

    Raises:
        ValueError: ``torch_version`` is not a torch 2 release for which the rule is known.
    """
    match = re.match(r"2\.(\d+)", torch_version)
    if match is None or int(match.group(1)) < 5:
        raise ValueError(f"no known torchrec release pairs with torch {torch_version}")
    return f"1.{int(match.group(1)) - 5}"


def pair_problem(torch: str | None, torchrec: str | None, fbgemm: str | None) -> str | None:
    """One line about torch, torchrec and fbgemm not belonging together, or ``None`` when they do.

    A wrong pair installs without complaint and dies at import with "undefined symbol".
    """
    versions = {"torch": torch, "torchrec": torchrec, "fbgemm": fbgemm}
    missing = [name for name, version in versions.items() if version is None]
    if missing or torch is None:
        return f"not installed: {', '.join(missing)}"
    try:
        expected = expected_companion(torch)
    except ValueError as error:
        return str(error)
    wrong = [
        f"{name} {version}"
        for name, version in versions.items()
        if name != "torch" and not str(version).startswith(expected + ".")
    ]
    if wrong:
        return f"torch {torch} needs torchrec and fbgemm {expected}.x, found {' and '.join(wrong)}"
    return None
