"""Starting a training job on one machine or many, and finding it again."""

from tasks.launch.local import LocalLauncher
from tasks.launch.protocol import JobStatus, Launcher

__all__ = ["JobStatus", "Launcher", "LocalLauncher"]
