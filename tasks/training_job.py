"""The training job of a role: where it is, how it stands, and how it is ended.

Light on purpose: an orchestrator asks how a job stands before it decides anything.
"""

from __future__ import annotations

from pathlib import Path

from tasks.launch import JobStatus
from tasks.launch.choice import launcher_of
from tasks.run_spec import RunSpec

STATUS = "job_status"
"""Name under which `tailtower step` tells how a training job stands."""


def job_name(run_id: str, role: str) -> str:
    """Name of a role's training job: its folder in the lake, the same for every attempt."""
    return f"checkpoints/{run_id}/{role}"


def job_folder(spec: RunSpec, role: str) -> Path:
    """Folder of a role's training job.

    Raises:
        LakeError: The lake is not on a disk.
    """
    return spec.lake().local_path(job_name(spec.run_id, role))


def job_status(spec: RunSpec, role: str) -> JobStatus:
    """How a role's training job stands; absent, too, for a role that trains without one."""
    return launcher_of(spec.config).status(job_folder(spec, role))
