"""The job on Kubernetes: manifests by the published schema; its state is what kubectl says."""

import json
import stat

import pytest
import yaml

from tasks.errors import ClusterError, ConfigError
from tasks.launch import JobShape, JobStatus
from tasks.launch.attempts import Attempt, newest
from tasks.launch.kubernetes import MANIFEST, KubernetesLauncher, job_name, manifests
from tasks.launch_settings import KubernetesSettings

SHAPE = JobShape(ranks_per_node=2, threads=3, max_restarts=4, min_nodes=2, max_nodes=3)
SETTINGS = KubernetesSettings(namespace="training", accelerators={"example.com/card": 2})


@pytest.fixture
def rendered(tmp_path):
    attempt = Attempt.begin(tmp_path / "checkpoints" / "run" / "candidate", {})
    return attempt, manifests(attempt, SHAPE, SETTINGS, tmp_path, "tasks.train_worker")


@pytest.mark.parametrize("version", ["1.29", "1.33"])
def test_manifests_follow_the_published_schema(rendered, version):
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in rendered[1]:
        validate(document, version, strict=True)
        broken = {**document, "spec": {**document["spec"], "completion": 1}}
        with pytest.raises(Exception, match="completion"):
            validate(broken, version, strict=True)


def test_every_pod_runs_the_agent_and_finds_the_first_one(rendered, tmp_path):
    attempt, (service, job) = rendered
    name = job_name(attempt)
    assert len(name) <= 63 - len("-999")
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (3, 3)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command = container["command"]
    assert f"--rdzv-endpoint={name}-0.{name}.training.svc:29400" in command
    assert {"--nnodes=2:3", "--nproc-per-node=2", "--local-addr=$(POD_IP)"} <= set(command)
    assert command[-1] == str(attempt.job / "job.json")
    # A pod is `NAME-INDEX.SUBDOMAIN`: subdomain, service and selector must agree.
    assert pod["subdomain"] == service["metadata"]["name"] == name
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert variables["TAILTOWER_ATTEMPT"] == "1"
    assert variables["OMP_NUM_THREADS"] == "3"
    assert container["resources"]["limits"]["example.com/card"] == "2"
    assert container["volumeMounts"][0]["mountPath"] == str(tmp_path)


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """A kubectl that notes its arguments and answers with what the test put into a file."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        f'case "$2" in get) cat {tmp_path}/answer ;; esac\n[ ! -e {tmp_path}/broken ]\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    (tmp_path / "answer").touch()
    return tmp_path


def conditions(*met):
    return json.dumps({"status": {"conditions": [{"type": t, "status": "True"} for t in met]}})


def test_a_job_is_applied_once_and_its_state_is_what_kubernetes_says(kubectl):
    launcher = KubernetesLauncher(SETTINGS, kubectl)
    folder = kubectl / "job"
    assert launcher.status(folder) is JobStatus.ABSENT
    launcher.submit(folder, SHAPE)
    attempt = newest(folder)
    assert attempt is not None
    written = list(yaml.safe_load_all((attempt.folder / MANIFEST).read_text()))
    assert written == manifests(attempt, SHAPE, SETTINGS, kubectl, "tasks.train_worker")
    for answer, status in (
        (conditions(), JobStatus.RUNNING),
        ("{}", JobStatus.RUNNING),
        (conditions("Complete"), JobStatus.SUCCEEDED),
        (conditions("Failed"), JobStatus.FAILED),
        ("", JobStatus.FAILED),
    ):
        (kubectl / "answer").write_text(answer)
        assert launcher.status(folder) is status
    (kubectl / "answer").write_text(conditions())
    launcher.submit(folder, SHAPE)
    launcher.cancel(folder)
    calls = (kubectl / "calls").read_text().splitlines()
    assert [call.split()[1] for call in calls].count("apply") == 1
    name = job_name(attempt)
    assert calls[-1].startswith(f"--namespace=training delete job/{name} service/{name}")


def test_a_kubectl_that_fails_is_worth_a_retry(kubectl):
    launcher = KubernetesLauncher(SETTINGS, kubectl)
    (kubectl / "broken").touch()
    with pytest.raises(ClusterError, match="kubectl apply failed"):
        launcher.submit(kubectl / "job", SHAPE)


def test_without_kubectl_the_setting_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="kubectl"):
        KubernetesLauncher(SETTINGS, tmp_path)
