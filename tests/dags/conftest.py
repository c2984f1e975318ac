"""An Airflow installation of its own for the tests of the DAGs."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# Airflow reads its settings when it is first imported. They are written to a file, so that only
# AIRFLOW_HOME reaches the processes that other tests start.
if "airflow" in sys.modules:
    raise RuntimeError("Airflow was imported before its home for the tests was made")
HOME = Path(tempfile.mkdtemp(prefix="tailtower-airflow-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ["AIRFLOW_HOME"] = str(HOME)
(HOME / "airflow.cfg").write_text(
    f"""
[core]
dags_folder = {REPOSITORY / "dags"}
load_examples = False
unit_test_mode = False
[database]
sql_alchemy_conn = sqlite:///{HOME / "airflow.db"}
[logging]
base_log_folder = {HOME / "logs"}
[usage_data_collection]
enabled = False
"""
)


@pytest.fixture(scope="session")
def airflow_database() -> Path:
    """The database of this installation, with its tables and the pool of the trainings."""
    from airflow.models.pool import Pool
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    with create_session() as session:
        session.add(Pool(pool="training", slots=1, description="", include_deferred=False))
    return HOME / "airflow.db"
