"""The decisions the installer and the doctor share."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from environment import layout
from environment.layout import Stamp


def _checkout(root: Path) -> Path:
    shim = root / "environment" / "fbgemm-gpu-shim"
    shim.mkdir(parents=True)
    for flavour in layout.FLAVOURS:
        (root / "environment" / f"{flavour}.lock").write_text("torch==2.13.0\n")
    (root / "environment" / "install.py").write_text("# installer\n")
    (shim / "pyproject.toml").write_text("# shim\n")
    (root / "pyproject.toml").write_text("# project\n")
    return root


@pytest.mark.parametrize(
    "changed", ["environment/cpu.lock", "environment/install.py", "pyproject.toml"]
)
def test_the_digest_follows_every_file_that_decides_the_environment(tmp_path, changed):
    root = _checkout(tmp_path)
    before = layout.install_digest("cpu", root)
    assert layout.install_digest("cpu", root) == before
    (root / changed).write_text("# something else\n")
    assert layout.install_digest("cpu", root) != before


def test_the_digest_ignores_the_other_flavours_lock(tmp_path):
    root = _checkout(tmp_path)
    before = layout.install_digest("cpu", root)
    (root / "environment/gpu.lock").write_text("torch==2.14.0\n")
    assert layout.install_digest("cpu", root) == before
    assert layout.install_digest("gpu", root) != before


def test_the_digest_tells_moved_bytes_apart(tmp_path):
    one, two = _checkout(tmp_path / "one"), _checkout(tmp_path / "two")
    (one / "environment/install.py").write_text("ab")
    (one / "pyproject.toml").write_text("c")
    (two / "environment/install.py").write_text("a")
    (two / "pyproject.toml").write_text("bc")
    assert layout.install_digest("cpu", one) != layout.install_digest("cpu", two)


def test_a_stamp_survives_the_round_trip(tmp_path):
    stamp = Stamp(layout.READY, "cpu", "abc")
    layout.write_stamp(stamp, tmp_path / "stamp.json")
    assert layout.read_stamp(tmp_path / "stamp.json") == stamp


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": "ready"}', '{"surprise": 1}'])
def test_a_damaged_stamp_counts_as_none(tmp_path, content):
    path = tmp_path / "stamp.json"
    path.write_text(content)
    assert layout.read_stamp(path) is None
    assert layout.read_stamp(tmp_path / "absent.json") is None


def _nvidia_smi(monkeypatch, *, returncode: int, stdout: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, returncode, stdout, ""),
    )


def test_a_machine_with_a_working_driver_gets_the_gpu_flavour(monkeypatch):
    _nvidia_smi(monkeypatch, returncode=0, stdout="GPU 0: NVIDIA H200 (UUID: GPU-1)\n")
    assert layout.detect_flavour() == "gpu"


@pytest.mark.parametrize(("returncode", "stdout"), [(9, ""), (0, "No devices found.\n")])
def test_a_driver_that_does_not_answer_means_cpu(monkeypatch, returncode, stdout):
    _nvidia_smi(monkeypatch, returncode=returncode, stdout=stdout)
    assert layout.detect_flavour() == "cpu"


def test_no_nvidia_smi_means_cpu(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert layout.detect_flavour() == "cpu"


@pytest.mark.parametrize(
    ("torch", "companion"), [("2.13.0", "1.8"), ("2.13.0+cpu", "1.8"), ("2.14.1", "1.9")]
)
def test_the_pair_rule(torch, companion):
    assert layout.expected_companion(torch) == companion
    assert layout.pair_problem(torch, f"{companion}.0", f"{companion}.2") is None


def test_a_wrong_pair_is_named():
    problem = layout.pair_problem("2.13.0+cpu", "1.8.0", "1.9.0")
    assert problem is not None
    assert "fbgemm 1.9.0" in problem
    assert "1.8.x" in problem
    assert "torchrec 1.8.0" not in problem


def test_a_longer_minor_number_is_not_taken_for_a_match():
    assert layout.pair_problem("2.6.0", "1.10.0", "1.1.0") is not None


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ((None, "1.8.0", "1.8.0"), "not installed: torch"),
        (("2.13.0", None, None), "not installed: torchrec, fbgemm"),
        (("3.0.0", "1.8.0", "1.8.0"), "no known torchrec release"),
    ],
)
def test_a_pair_that_cannot_be_judged_is_a_problem(versions, said):
    assert said in str(layout.pair_problem(*versions))


@pytest.mark.parametrize("flavour", layout.FLAVOURS)
def test_the_locks_hold_a_pair_that_loads(flavour):
    lock = layout.lock_file(flavour).read_text()
    fbgemm = "fbgemm-gpu-cpu" if flavour == "cpu" else "fbgemm-gpu"
    versions = [layout.pinned_version(lock, name) for name in ("torch", "torchrec", fbgemm)]
    assert layout.pair_problem(*versions) is None
    assert "+" not in str(versions[0])
    assert ("nvidia-nccl" in lock) == (flavour == "gpu")


@pytest.mark.parametrize("flavour", layout.FLAVOURS)
def test_the_locks_follow_the_project_file(flavour):
    project = tomllib.loads((layout.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras[flavour]]
    lock = layout.lock_file(flavour).read_text()
    names = [re.split(r"[\[<>=]", requirement)[0] for requirement in wanted]
    # Locks use normal names: lower case, one hyphen for each run of separators.
    names = [re.sub(r"[-_.]+", "-", name).lower() for name in names]
    missing = [name for name in names if layout.pinned_version(lock, name) is None]
    assert not missing, "run: make lock"
