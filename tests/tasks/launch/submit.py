"""Submits a job to a Dask cluster from the machine that this is run on: `… FOLDER SETTINGS`."""

import json
import sys
from pathlib import Path

from tasks.config import DaskSettings
from tasks.launch import JobShape
from tasks.launch.dask import DaskLauncher

if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[2]).read_text())
    launcher = DaskLauncher(
        DaskSettings.model_validate(settings["dask"]), "tests.tasks.launch.recording_worker"
    )
    launcher.submit(Path(sys.argv[1]), JobShape(**settings["shape"]))
