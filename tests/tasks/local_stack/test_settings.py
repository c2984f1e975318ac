"""Settings, secrets and addresses on disk."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tasks.errors import ConfigError
from tasks.local_stack import credentials
from tasks.local_stack.errors import StackError, log_tail
from tasks.local_stack.services import airflow_environment, describe
from tasks.local_stack.settings import DEFAULT_PORTS, StackSettings, settings_from_environment
from tasks.local_stack.state import load_stack_info, save_ports


def settings(root: Path) -> StackSettings:
    return StackSettings(root=root, dags_folder=root / "dags")


def test_everything_lies_below_var_of_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = settings_from_environment()
    assert found.ports == DEFAULT_PORTS
    assert found.pipeline_config is None
    for folder in (found.airflow_home, found.mlflow_home, found.run_folder):
        assert folder.is_relative_to(tmp_path / "var")


def test_the_pipeline_of_the_working_folder_is_the_default(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/demo.yaml").touch()
    (tmp_path / "mine.yaml").touch()
    assert settings_from_environment(tmp_path).pipeline_config == tmp_path / "conf/demo.yaml"
    named = settings_from_environment(tmp_path, extra={"TAILTOWER_CONFIG": "mine.yaml"})
    assert named.pipeline_config == tmp_path / "mine.yaml"


@pytest.mark.parametrize(
    "extra",
    [
        {"TAILTOWER_AIRFLOW_PORT": "http"},
        {"TAILTOWER_MLFLOW_PORT": "0"},
        {"TAILTOWER_EXECUTION_PORT": "65536"},
        {"TAILTOWER_CONFIG": "absent.yaml"},
    ],
)
def test_a_wrong_variable_is_named(tmp_path, extra):
    with pytest.raises(ConfigError, match=next(iter(extra))):
        settings_from_environment(tmp_path, extra=extra)


def test_secrets_are_made_once_and_for_their_owner_only(tmp_path):
    home = tmp_path / "airflow"
    first = credentials.ensure_credentials(home)
    password = credentials.read_password(credentials.ensure_password_file(home))
    assert credentials.ensure_credentials(home) == first
    assert credentials.read_password(credentials.ensure_password_file(home)) == password
    assert len(first.jwt_secret) >= 64
    for path in (home / "secrets.json", credentials.password_file(home)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_two_installations_share_no_secret(tmp_path):
    one, two = (credentials.ensure_credentials(tmp_path / name) for name in ("one", "two"))
    assert not {one.secret_key, one.jwt_secret, one.fernet_key} & {
        two.secret_key,
        two.jwt_secret,
        two.fernet_key,
    }


def test_damaged_secrets_are_named_with_the_cure(tmp_path):
    (tmp_path / "secrets.json").write_text("{")
    with pytest.raises(StackError, match="secrets"):
        credentials.ensure_credentials(tmp_path)
    (tmp_path / "passwords.json").write_text("[]")
    with pytest.raises(StackError, match="password"):
        credentials.read_password(tmp_path / "passwords.json")


def test_every_listener_is_on_loopback(tmp_path):
    secrets = credentials.ensure_credentials(tmp_path)
    services = describe(settings(tmp_path), DEFAULT_PORTS, secrets)
    listening = [service for service in services if service.port is not None]
    assert {service.port for service in listening} == set(DEFAULT_PORTS.values())
    for service in listening:
        assert service.command[service.command.index("--host") + 1] == "127.0.0.1"
    (scheduler,) = [s for s in services if s.name == "airflow-scheduler"]
    assert "--skip-serve-logs" in scheduler.command


def test_a_service_is_described_after_those_it_needs(tmp_path):
    secrets = credentials.ensure_credentials(tmp_path)
    seen: set[str] = set()
    for service in describe(settings(tmp_path), DEFAULT_PORTS, secrets):
        assert set(service.after) <= seen
        seen.add(service.name)
    assert "airflow-triggerer" not in seen


def test_tasks_learn_the_addresses_that_were_chosen(tmp_path):
    ports = {"airflow": 9001, "execution": 9002, "mlflow": 9003}
    variables = airflow_environment(
        settings(tmp_path), ports, credentials.ensure_credentials(tmp_path)
    )
    assert variables["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:9003"
    assert ":9002/" in variables["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
    assert variables["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:9001"


def test_addresses_without_a_running_process_are_no_stack(tmp_path):
    assert load_stack_info(tmp_path) is None
    save_ports(tmp_path, DEFAULT_PORTS)
    assert load_stack_info(tmp_path) is None
    dead = {"pid": 2**22 - 1, "created": 1.0, "executable": "/x", "fingerprint": "f"}
    (tmp_path / "var/run/mlflow.pid").write_text(json.dumps(dead))
    assert load_stack_info(tmp_path) is None


def test_the_tail_of_a_log_is_short_and_indented(tmp_path):
    log = tmp_path / "x.log"
    assert "no log" in log_tail(log)
    log.write_text("\n".join(f"line {n}" for n in range(100)))
    assert log_tail(log, lines=2) == "    line 98\n    line 99"
