"""Settings of what starts the ranks of a training.

Light on purpose (pydantic only), as `tasks/config.py`, which has them as its section `launch`.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from models.config import Settings

_RANGE = re.compile(r"^(\d+)(?::(\d+))?$")


class KubernetesSettings(Settings):
    """Where `launch.kind: kubernetes` puts its pods."""

    image: str = "tailtower:latest"
    """Image with this version of tailtower and its lock."""
    namespace: str = "default"
    """Namespace of the job."""
    lake_claim: str = "tailtower-lake"
    """Persistent volume claim (ReadWriteMany) that holds the lake; it is mounted at the lake's
    path in every pod."""
    cpu: str = "4"
    """CPUs of a pod."""
    memory: str = "16Gi"
    """Memory of a pod."""
    accelerators: dict[str, int] = Field(default={})
    """Extended resources of a pod, by the name that the cluster gives them."""
    port: int = Field(default=29400, ge=1024, le=65535)
    """Port of the rendezvous on the first pod."""


class LaunchSettings(Settings):
    """What starts the ranks of the candidate; baselines of one process run on one node."""

    kind: Literal["local", "dask", "kubernetes"] = "local"
    """`local`: on this machine. `dask`: a torch elastic agent on each node of the cluster at
    `dask.scheduler`. `kubernetes`: an Indexed Job (untested on a real cluster)."""
    nodes: str = Field(default="1", json_schema_extra={"pattern": _RANGE.pattern})
    """Number of nodes, or `MIN:MAX`: training starts with `MIN` and takes in nodes that come
    later, up to `MAX`. Each node runs `training.nproc` ranks."""
    peer_timeout_seconds: float = Field(default=120.0, ge=5)
    """How long a rank waits for another before it takes that one's node for lost, and training
    goes on without it from the last checkpoint. Longer than any pause of a healthy node."""
    join_seconds: int = Field(default=15, ge=1)
    """How long nodes beyond `MIN` are waited for whenever ranks are arranged anew."""
    kubernetes: KubernetesSettings = KubernetesSettings()
    """For `kind: kubernetes`."""

    @field_validator("nodes", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _is_a_range(self) -> LaunchSettings:
        match = _RANGE.match(self.nodes)
        if match is None or not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(f"nodes: '{self.nodes}' is no number of nodes and no MIN:MAX")
        if self.kind == "local" and self.max_nodes > 1:
            raise ValueError("nodes: kind local has one node; its ranks are training.nproc")
        return self

    @property
    def min_nodes(self) -> int:
        """Fewest nodes that training runs on."""
        return int(self.nodes.partition(":")[0])

    @property
    def max_nodes(self) -> int:
        """Most nodes that training runs on."""
        return int(self.nodes.rpartition(":")[2])


class ClusterSettings(Settings):
    """Ranks as the configuration of a parameter server counts them.

    There are no servers here: the ranks that train hold the tables as well.
    """

    worker_num: int = Field(ge=1)
    """Ranks that train: on this machine with `launch.kind: local`, else spread over nodes with
    `training.nproc` ranks each."""
    ps_num: int | None = Field(default=None, ge=1)
    """Over how many of these ranks tables are spread; by default all of them."""

    @model_validator(mode="after")
    def _servers_are_workers(self) -> ClusterSettings:
        if self.ps_num is not None and self.ps_num > self.worker_num:
            raise ValueError(
                f"ps_num: tables are spread over ranks that train, of which there are only "
                f"{self.worker_num}"
            )
        return self


def spread_over_ranks(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a pipeline in which `cluster` has been written out.

    Args:
        settings: As they were read; anything wrong in them is left for the models to refuse.

    Raises:
        ValueError: `cluster` contradicts the settings that it stands for.
    """
    try:
        cluster = ClusterSettings.model_validate(settings.get("cluster"))
    except ValueError:
        return settings
    training, launch = dict(settings.get("training") or {}), dict(settings.get("launch") or {})
    if launch.get("kind", "local") == "local":
        expected: dict[str, tuple[dict[str, Any], str, object]] = {
            "training.nproc": (training, "nproc", cluster.worker_num)
        }
    else:
        ranks = training.get("nproc") or 1
        nodes, left = divmod(cluster.worker_num, ranks)
        if left:
            raise ValueError(
                f"cluster.worker_num: {cluster.worker_num} ranks do not fill nodes of "
                f"training.nproc: {ranks}"
            )
        expected = {"launch.nodes": (launch, "nodes", str(nodes))}
    if cluster.ps_num is not None:
        expected["training.table_ranks"] = (training, "table_ranks", cluster.ps_num)
    for name, (section, key, value) in expected.items():
        given = section.setdefault(key, value)
        if str(given) != str(value):
            raise ValueError(f"{name}: {given} contradicts `cluster`, which means {value}")
    return {**settings, "training": training, "launch": launch}
