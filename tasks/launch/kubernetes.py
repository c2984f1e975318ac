"""Runs the ranks as an Indexed Job of Kubernetes: one pod with a torch elastic agent a node.

The manifests follow the published schema, and tests hold them to it; nobody has run them on a
cluster yet. Pods find the first one, which holds the rendezvous store, through a headless service.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from models.fence import ATTEMPT, raise_fence
from tasks.errors import ClusterError, ConfigError
from tasks.launch.agent import STOP_SECONDS, agent_command, agent_variables
from tasks.launch.attempts import Attempt, newest
from tasks.launch.processes import thread_variables
from tasks.launch.protocol import CHECKPOINTS, JOB, JobShape, JobStatus
from tasks.launch_settings import KubernetesSettings

MANIFEST = "kubernetes.yaml"
"""The manifests, in the attempt's folder."""
_INTERFACE = "eth0"
_KUBECTL_SECONDS = 120
# The pod's output belongs into the job's folder, where the step follows it.
_LOGGED = 'exec "$@" >> "$TAILTOWER_LOG$JOB_COMPLETION_INDEX.log" 2>&1'


class KubernetesLauncher:
    """An Indexed Job, submitted with `kubectl` and its current context.

    Args:
        settings: Image, namespace, volume and resources.
        lake: Folder of the lake, which every pod sees at the same path.
        worker: Module that every rank runs with `--job FOLDER/job.json`.

    Raises:
        ConfigError: There is no `kubectl`.
    """

    def __init__(
        self, settings: KubernetesSettings, lake: Path, worker: str = "tasks.train_worker"
    ) -> None:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise ConfigError(
                "launch.kind: kubernetes needs the program kubectl",
                where="PATH",
                fix="install it and choose a context, or set another launch.kind",
            )
        self._kubectl = kubectl
        self._settings = settings
        self._lake = lake
        self._worker = worker

    def submit(self, folder: Path, shape: JobShape) -> None:
        """Writes the manifests into the attempt's folder and applies them."""
        if self.status(folder) is JobStatus.RUNNING:
            return
        self.cancel(folder)
        attempt = Attempt.begin(folder, {})
        raise_fence(str(folder / CHECKPOINTS), attempt.number)
        manifest = attempt.folder / MANIFEST
        documents = manifests(attempt, shape, self._settings, self._lake, self._worker)
        manifest.write_text(yaml.safe_dump_all(documents, sort_keys=False))
        self._run("apply", "--filename", str(manifest))

    def status(self, folder: Path) -> JobStatus:
        """State of the job, from the conditions that Kubernetes reports."""
        attempt = newest(folder)
        if attempt is None:
            return JobStatus.ABSENT
        answer = self._run("get", "job", job_name(attempt), "--ignore-not-found", "--output=json")
        if not answer.strip():
            return JobStatus.FAILED
        conditions = json.loads(answer).get("status", {}).get("conditions") or []
        met = {condition["type"] for condition in conditions if condition["status"] == "True"}
        if "Complete" in met:
            return JobStatus.SUCCEEDED
        return JobStatus.FAILED if "Failed" in met else JobStatus.RUNNING

    def cancel(self, folder: Path) -> None:
        """Deletes job and service; returns when the pods are gone."""
        attempt = newest(folder)
        if attempt is not None:
            names = f"job/{job_name(attempt)}", f"service/{job_name(attempt)}"
            self._run("delete", *names, "--ignore-not-found", "--cascade=foreground", "--wait=true")

    def logs(self, folder: Path) -> tuple[Path, ...]:
        """Logs of the pods of all attempts."""
        return tuple(sorted(folder.glob("attempts/*/node-*.log")))

    def _run(self, *arguments: str) -> str:
        command = [self._kubectl, f"--namespace={self._settings.namespace}", *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_KUBECTL_SECONDS, check=True
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = error.stderr if isinstance(error.stderr, str) else ""
            raise ClusterError(
                f"kubectl {arguments[0]} failed: {said or error}",
                where=f"namespace {self._settings.namespace}",
                fix="check the context with `kubectl config current-context`",
            ) from error
        return done.stdout


def job_name(attempt: Attempt) -> str:
    """Name of an attempt's job and service: the same for every caller."""
    digest = hashlib.sha256(str(attempt.job).encode()).hexdigest()[:16]
    return f"tailtower-{digest}-{attempt.number}"


def manifests(
    attempt: Attempt, shape: JobShape, settings: KubernetesSettings, lake: Path, worker: str
) -> list[dict[str, Any]]:
    """The headless service and the Indexed Job of an attempt.

    Args:
        attempt: The attempt.
        shape: Nodes and ranks; a node is a pod.
        settings: Image, namespace, volume and resources.
        lake: Folder of the lake.
        worker: Module that every rank runs.
    """
    name = job_name(attempt)
    labels = {"app.kubernetes.io/name": "tailtower", "tailtower/job": name}
    head = {"name": name, "namespace": settings.namespace, "labels": labels}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": head,
        "spec": {
            # Headless: the name of a pod is its address, before it is ready, too.
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"tailtower/job": name},
            "ports": [{"name": "rendezvous", "port": settings.port}],
        },
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": head,
        "spec": {
            "completionMode": "Indexed",
            "completions": shape.max_nodes,
            "parallelism": shape.max_nodes,
            "backoffLimit": shape.max_restarts * shape.max_nodes,
            "template": {
                "metadata": {"labels": labels},
                "spec": _pod(attempt, shape, settings, lake, worker),
            },
        },
    }
    return [service, job]


def _pod(
    attempt: Attempt, shape: JobShape, settings: KubernetesSettings, lake: Path, worker: str
) -> dict[str, Any]:
    name = job_name(attempt)
    command = agent_command(
        shape,
        worker=worker,
        job_file=attempt.job / JOB,
        run=name,
        endpoint=f"{name}-0.{name}.{settings.namespace}.svc:{settings.port}",
        local_address="$(POD_IP)",
        python="python",
        hosts_store=None,
    )
    variables = {
        **agent_variables(),
        **(thread_variables(shape.threads, shape.ranks_per_node) if shape.threads else {}),
        "GLOO_SOCKET_IFNAME": _INTERFACE,
        ATTEMPT: str(attempt.number),
        "TAILTOWER_LOG": str(attempt.node_log("")).removesuffix(".log"),
    }
    resources = {
        "cpu": settings.cpu,
        "memory": settings.memory,
        **{resource: str(count) for resource, count in settings.accelerators.items()},
    }
    return {
        "subdomain": name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(STOP_SECONDS) + 5,
        "containers": [
            {
                "name": "agent",
                "image": settings.image,
                "command": ["/bin/sh", "-c", _LOGGED, "sh", *command],
                "env": [
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    *({"name": key, "value": value} for key, value in variables.items()),
                ],
                "resources": {"requests": resources, "limits": resources},
                "volumeMounts": [
                    {"name": "lake", "mountPath": str(lake)},
                    {"name": "memory", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "lake", "persistentVolumeClaim": {"claimName": settings.lake_claim}},
            # Ranks of one pod exchange tensors there; a container's own is 64 MiB.
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
