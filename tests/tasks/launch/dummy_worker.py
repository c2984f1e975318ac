"""A rank that does what its job file says: exit with a status, or hold on until it is told."""

import argparse
import json
import os
import signal
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--job", type=Path)
path = parser.parse_args().job
job = json.loads(path.read_text())
(path.parent / f"rank-{os.environ['RANK']}-{os.getpid()}").touch()
if job.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
deadline = time.monotonic() + 60
while job.get("hold") and time.monotonic() < deadline and not (path.parent / "go").exists():
    time.sleep(0.05)
raise SystemExit(job.get("exit", 0))
