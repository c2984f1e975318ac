"""Starting a training job on one machine or many, and finding it again."""

from tasks.launch.local import LocalLauncher
from tasks.launch.protocol import JobShape, JobStatus, Launcher

__all__ = ["JobShape", "JobStatus", "Launcher", "LocalLauncher"]
