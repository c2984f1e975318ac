"""The installer's choices and messages, without installing anything."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from environment import install
from environment.layout import INSTALLING, READY, EnvironmentProblem, Stamp


@pytest.fixture(scope="module")
def bare_venv(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bare") / ".venv"
    venv.create(folder, with_pip=False)
    return folder


def test_a_finished_environment_is_updated_in_place(bare_venv):
    assert install.rebuild_reason(Stamp(READY, "cpu", "old"), "cpu", bare_venv) is None
    # Made by hand: nothing says it is broken.
    assert install.rebuild_reason(None, "cpu", bare_venv) is None


def test_a_killed_installation_is_built_anew(bare_venv):
    reason = install.rebuild_reason(Stamp(INSTALLING, "cpu", "new"), "cpu", bare_venv)
    assert reason is not None
    assert "did not finish" in reason


def test_another_flavour_is_built_anew(bare_venv):
    assert "gpu" in str(install.rebuild_reason(Stamp(READY, "cpu", "x"), "gpu", bare_venv))


def test_an_environment_without_its_interpreter_is_built_anew(tmp_path):
    assert install.rebuild_reason(None, "cpu", tmp_path / ".venv") == "first installation"
    binaries = tmp_path / "broken" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(tmp_path / "gone")
    assert "interpreter" in str(install.rebuild_reason(None, "cpu", tmp_path / "broken"))


def test_a_wrong_python_is_named_with_the_cure(monkeypatch):
    monkeypatch.setattr(install, "python_version", lambda _: (3, 9))
    with pytest.raises(EnvironmentProblem, match=r"Python 3\.11 is needed.*python3\.11-venv"):
        install.find_python()


def test_the_right_python_is_found():
    assert install.python_version(install.find_python()) == (3, 11)
    assert install.python_version("/does/not/exist") is None


def test_a_missing_venv_module_is_named(monkeypatch):
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1)
    )
    with pytest.raises(EnvironmentProblem, match=r"python3\.11-venv"):
        install.create_venv(sys.executable)


def test_a_full_disk_stops_the_installation_before_it_starts(tmp_path):
    install.check_disk(tmp_path, 0)
    with pytest.raises(EnvironmentProblem, match="needs 1000000 GB"):
        install.check_disk(tmp_path, 1_000_000)


@pytest.mark.parametrize(
    ("planned", "answer"),
    [
        ([{"metadata": {"name": "torch", "version": "2.13.0+cpu"}}], True),
        ([{"metadata": {"name": "torch", "version": "2.13.0"}}], False),
        ([], True),
    ],
)
def test_the_build_pip_would_pick_is_read_from_its_report(planned, answer):
    assert install.report_names_cpu_build({"install": planned}) is answer


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "no space left"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(\"<pip._vendor>:"
            " Failed to establish a new connection\")': /simple/torch/\n"
            "ERROR: No matching distribution found for torch==2.13.0",
            "cannot be reached",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "has no torch==2.13.0"),
        ("some lines\nERROR: the wheel is odd\n\n", "pip failed: ERROR: the wheel is odd"),
        ("", "pip failed: no output"),
    ],
)
def test_pip_failures_become_one_line(output, said):
    message = install.explain_pip_failure(output.splitlines())
    assert said in message
    assert "\n" not in message
