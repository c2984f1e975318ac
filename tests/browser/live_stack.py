"""A local stack with a tiny pipeline, for tests that look at its pages."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import yaml

from tasks.config_file import load_config
from tasks.demo_data import DemoSettings, generate
from tasks.lake import Lake
from tasks.local_stack.settings import StackSettings
from tasks.version import PROJECT_ROOT
from tests.tasks.local_stack.helpers import free_port

FIRST_DAY = date(2026, 1, 1)
DAYS = 10
TINY = DemoSettings(
    users=300, items=200, events_per_day=3000, joiners_per_day=10, releases_per_day=5, clusters=6
)


def prepare(root: Path) -> StackSettings:
    """Writes logs and a pipeline file, unless they are there, and chooses free ports."""
    lake, config = root / "lake", root / "shop.yaml"
    if not config.exists():
        generate(TINY, Lake(str(lake)), start=FIRST_DAY, days=DAYS)
        settings = load_config(
            PROJECT_ROOT / "conf/demo.yaml",
            [
                "name=shop",
                f"lake={lake}",
                "tracking.experiment=Shop",
                "tracking.model_name=shop",
                "tables.*.dim=8",
                "model.dim=8",
                "training.epochs=1",
                "training.batch_size=256",
                "training.log_every=2",
                "evaluation.bootstrap_samples=200",
                # The newest model is always served, so that the registry has a history.
                "gate.against=[champion]",
                "gate.margin=-1.0",
                "gate.min_tail_ratio=0.0",
                "gate.min_coverage_ratio=0.0",
            ],
        )
        config.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    return StackSettings(
        root=root,
        dags_folder=PROJECT_ROOT / "dags",
        ports={name: free_port() for name in ("airflow", "execution", "mlflow")},
        pipeline_config=config,
    )
