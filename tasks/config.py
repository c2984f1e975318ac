"""The pipeline's settings: one YAML file is one pipeline.

Each field is documented where it is declared; `tailtower config` prints the whole reference.
Light on purpose (pydantic only), because every process of a run reads it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from datetime import date
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import ByteSize, Field, model_validator

from models.config import EmbeddingTableSettings, ModelSettings, Settings, TrainingSettings
from models.serving_settings import ServingSettings
from tasks.launch_settings import ClusterSettings, LaunchSettings, spread_over_ranks


class TrackingSettings(Settings):
    """Where runs and models are recorded."""

    uri: str | None = None
    """MLflow tracking URI. By default `MLFLOW_TRACKING_URI`, else the stack that `tailtower up`
    started, else an SQLite file under `var/`."""
    experiment: str = "tailtower"
    """MLflow experiment of the daily runs."""
    model_name: str = "tailtower"
    """Registered model whose alias `champion` is served."""


class DaskTlsSettings(Settings):
    """Certificates for a scheduler at `tls://…`; both sides show one that the authority signed."""

    ca: str | None = None
    """PEM file of the authority that signed the cluster's certificates. Without these three,
    Dask's own settings count (`distributed.comm.tls.*`)."""
    cert: str | None = None
    """PEM file of the client's certificate."""
    key: str | None = None
    """PEM file of the key to `cert`."""

    @model_validator(mode="after")
    def _all_or_none(self) -> DaskTlsSettings:
        given = [name for name in ("ca", "cert", "key") if getattr(self, name) is not None]
        if 0 < len(given) < 3:
            raise ValueError(f"give ca, cert and key together, not only {', '.join(given)}")
        return self


class DaskSettings(Settings):
    """Where counting and example building run."""

    scheduler: str | None = None
    """Address of a running scheduler (`tls://…`; `tcp://…` on this machine); by default a cluster
    on this machine that lives as long as the step. Its workers must reach the lake by the same
    URL."""
    tls: DaskTlsSettings = DaskTlsSettings()
    """Certificates for a scheduler at `tls://…`."""
    allow_unencrypted: bool = False
    """Whether a scheduler on another machine may be reached without TLS. Whoever can reach such
    a scheduler runs any code on its workers: only for a network that nobody else is on."""
    workers: int = Field(default=2, ge=1)
    """Worker processes of the cluster on this machine."""
    memory_limit: str = "2GiB"
    """Memory limit of one worker of the cluster on this machine."""
    workers_timeout_seconds: float = Field(default=120.0, gt=0)
    """How long a step waits for a scheduler, and for a worker when the cluster has none, before
    it gives up. A cluster that starts its workers on demand may need more."""
    batch_bytes: ByteSize = Field(default=ByteSize(64 << 20), ge=1 << 10, validate_default=True)
    """Bytes of ID columns that a counting task reads at once (`64MiB`, or a number). Its memory
    is a few times this, whatever the size of the files; smaller batches are slower."""

    @model_validator(mode="after")
    def _encrypted(self) -> DaskSettings:
        if self.scheduler is None or self.allow_unencrypted or _is_safe(self.scheduler):
            return self
        raise ValueError(
            f"scheduler {self.scheduler} is on another machine and not encrypted: whoever can "
            "reach it runs code on its workers. Give the cluster certificates and its tls:// "
            "address, or set allow_unencrypted: true for a network that nobody else is on"
        )


def _is_safe(address: str) -> bool:
    """Whether nobody on another machine can listen to, or talk into, a connection to a scheduler.

    Dask takes an address without a protocol as `tcp://`.
    """
    protocol, _, rest = address.rpartition("://")
    if protocol in ("tls", "wss", "inproc"):
        return True
    host = urlsplit(f"//{rest}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class DataSettings(Settings):
    """Which days a run reads."""

    window_days: int = Field(default=14, ge=1, le=3650)
    """Days before the test days that are trained on."""
    test_days: int = Field(default=1, ge=1, le=366)
    """Days that are tested on, the run's day being the last; more than one for sparse data."""
    first_day: date | None = None
    """First day of the lake's interactions; by default the oldest partition found."""
    allow_gaps: bool = False
    """Whether days without a partition inside the window are skipped instead of waited for."""
    split: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Column of the interactions with `train` or `test` in every row, for data that comes with a
    split of its own. It takes the place of the cut in time and of `test_days`: every day of the
    window, the run's day being the last, is trained on and tested on, each with its own rows, and
    only the rows `train` are counted."""
    history: Literal["past", "others"] = "past"
    """`past`: a history holds the user's last items before the event. `others`: the user's other
    train items, whenever they were, in a random order that the seed decides, and never the
    event's own item; for data without times."""
    max_lag_days: int = Field(default=7, ge=0)
    """A day so much later than the newest partition is not waited for: the logs have ended."""
    validation: Literal["block", "warn", "off"] = "block"
    """What a broken blocking rule of a data contract does to the run."""
    contracts: str = "data_contracts"
    """Folder of the ODCS contracts, one file a data set."""


class VocabularySettings(Settings):
    """Which IDs of a table own a row; all others share tail buckets."""

    min_count: int = Field(default=10, ge=1)
    """Occurrences in the window from which an ID owns a row."""
    keep_count: int | None = Field(default=None, ge=0)
    """Occurrences below which an ID loses its row; by default half of `min_count`."""
    ttl_days: int | None = Field(default=None, ge=1)
    """Days without any occurrence after which an ID loses its row whatever its count."""
    max_rows: int | None = Field(default=None, ge=1)
    """At most so many IDs own a row (the most frequent ones)."""
    coverage: float | None = Field(default=None, gt=0, le=1)
    """Own rows are given to the most frequent IDs until they cover this share of occurrences."""
    decay: float = Field(default=1.0, gt=0, le=1)
    """A count of n days ago weighs `decay ** n`; 1 for plain counts."""
    tail_buckets: int = Field(default=1, ge=1)
    """Rows shared by the IDs without a row of their own; where
    bytes are scarce, a tenth of the table's rows did best."""
    hashes: Literal[1, 2] = 1
    """Bucket rows summed for a tail ID: 2 (double hashing) keeps tail IDs apart, and found no more
    of what users took."""
    seed: int = Field(default=17, ge=0)
    """Seed of the hash that picks the bucket."""

    @model_validator(mode="after")
    def _one_threshold(self) -> VocabularySettings:
        if self.max_rows is not None and self.coverage is not None:
            raise ValueError("give max_rows or coverage, not both")
        if self.keep_count is not None and self.keep_count > self.min_count:
            raise ValueError("keep_count must not exceed min_count")
        if self.hashes == 2 and self.tail_buckets < 2:
            raise ValueError("hashes: 2 needs tail_buckets of at least 2")
        return self

    @property
    def kept_from(self) -> float:
        """Count below which an ID that owns a row loses it."""
        return self.min_count / 2 if self.keep_count is None else float(self.keep_count)


class TableSettings(EmbeddingTableSettings):
    """An embedding table and the vocabulary that indexes it."""

    source: str = Field(pattern=r"^(interactions|items|users)\.[A-Za-z_][A-Za-z0-9_]*$")
    """The column whose IDs are counted, as `data set.column`."""
    vocabulary: VocabularySettings = VocabularySettings()
    """Which IDs own a row."""
    seen_once: Literal["exact", "sketch"] = "exact"
    """Where the IDs go that occur exactly once on a day. `exact`: into the day's counts, like all
    others. `sketch`: into a count-min sketch beside them (Apache DataSketches: `pip install
    tailtower[sketch]`, on Dask's workers too), which takes less space and more time. An ID then
    needs a day in the window with two occurrences to get or keep a row; with one it may be counted
    too often, never too rarely. Only for `interactions.*`."""
    sketch_confidence: float = Field(default=0.95, ge=0.5, le=0.9999)
    """`sketch` only: probability that a day without an ID does not count as one with it."""

    @model_validator(mode="after")
    def _sketches_are_for_events(self) -> TableSettings:
        if self.seen_once == "sketch" and self.dataset != "interactions":
            raise ValueError(
                "seen_once: sketch is for interactions.*; a side table names most IDs once"
            )
        return self

    @property
    def dataset(self) -> str:
        """Raw data set that holds the counted column."""
        return self.source.split(".")[0]

    @property
    def column(self) -> str:
        """The counted column."""
        return self.source.split(".")[1]

    def embedding(self) -> EmbeddingTableSettings:
        """The part that the model needs."""
        fields = EmbeddingTableSettings.model_fields
        return EmbeddingTableSettings(**{name: getattr(self, name) for name in fields})


class EvaluationSettings(Settings):
    """How models are measured on the run's day."""

    k: tuple[int, ...] = (10, 20, 50)
    """Cut-offs of recall and NDCG."""
    bootstrap_samples: int = Field(default=2000, ge=100)
    """Resamples of the users for the interval of a difference."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Level of the intervals."""


class GateSettings(Settings):
    """When a candidate becomes champion."""

    metric: str = "recall_at_20"
    """Metric whose difference decides."""
    against: tuple[Literal["champion", "popularity", "traditional"], ...] = (
        "champion",
        "popularity",
    )
    """Models that the candidate must beat by `margin`; without a champion, the others decide."""
    margin: float = -0.005
    """The lower bound of the difference must clear this. A small negative margin accepts a
    fresh model that is as good as yesterday's; against baselines the bound is at least 0."""
    min_tail_ratio: float = Field(default=0.8, ge=0)
    """Guardrail: tail recall of the candidate over the champion's; it breaks when the interval of
    the difference says that the loss is no chance."""
    min_coverage_ratio: float = Field(default=0.5, ge=0)
    """Guardrail: recommended share of the corpus over the champion's."""
    max_size_ratio: float = Field(default=2.0, gt=0)
    """Guardrail: parameters of the candidate over the champion's."""
    promote: Literal["auto", "ask", "never"] = "auto"
    """`auto` moves the alias, `ask` only proposes, `never` records the decision."""
    allow_older: bool = False
    """Whether a champion of a later day may be replaced, as after a bad day was rolled back."""


class PipelineConfig(Settings):
    """One pipeline."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    """Name of the pipeline."""
    lake: str
    """Root of the lake: a path (relative to the working folder) or a `pyarrow.fs` URL."""
    tracking: TrackingSettings = TrackingSettings()
    """Where runs and models are recorded."""
    dask: DaskSettings = DaskSettings()
    """Where counting and example building run."""
    data: DataSettings = DataSettings()
    """Which days a run reads."""
    tables: dict[str, TableSettings] = Field(min_length=2)
    """Embedding tables by name."""
    model: ModelSettings
    """The two-tower model."""
    training: TrainingSettings = TrainingSettings()
    """The training of the candidate."""
    launch: LaunchSettings = LaunchSettings()
    """What starts the ranks of the training."""
    cluster: ClusterSettings | None = None
    """Another way to say `training.nproc`, `launch.nodes` and `training.table_ranks`."""
    baselines: tuple[Literal["popularity", "traditional"], ...] = ("popularity", "traditional")
    """Models trained beside the candidate on the same examples."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """How models are measured."""
    gate: GateSettings = GateSettings()
    """When a candidate becomes champion."""
    serving: ServingSettings = ServingSettings()
    """What `publish` makes of the champion for the servers."""

    @model_validator(mode="before")
    @classmethod
    def _cluster_is_spread(cls, data: Any) -> Any:
        return spread_over_ranks(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _references_exist(self) -> PipelineConfig:
        for tower, dataset in (("user", "users"), ("item", "items")):
            names = set()
            for feature in getattr(self.model, tower).features:
                where = f"model.{tower}.features.{feature.name}"
                if feature.name in names:
                    raise ValueError(f"{where}: two features have this name")
                names.add(feature.name)
                if feature.kind == "numeric":
                    continue
                table = self.tables.get(feature.table)
                if table is None:
                    known = ", ".join(sorted(self.tables))
                    raise ValueError(f"{where}: no table '{feature.table}' (tables: {known})")
                if feature.kind in ("history", "neighbours"):
                    if table.source != self.item_table.source:
                        raise ValueError(
                            f"{where}: kind {feature.kind} reads the table of the item IDs"
                        )
                    ids = {f.table for f in self.model.item.features if f.kind == "id"}
                    if feature.kind == "neighbours" and feature.table not in ids:
                        raise ValueError(
                            f"{where}: neighbours have the vectors of an id feature of the item "
                            f"tower with the table '{feature.table}', and there is none: add one"
                        )
                elif feature.kind == "list" and table.source.startswith("interactions."):
                    raise ValueError(f"{where}: interactions.* columns are single IDs")
                elif table.dataset not in ("interactions", dataset):
                    raise ValueError(f"{where}: a {tower} feature cannot read {table.source}")
        if self.training.loss.kind == "ccl" and self.model.similarity != "cosine":
            raise ValueError(
                "training.loss.kind: ccl compares cosines: set model.similarity: cosine"
            )
        if self.launch.kind == "dask" and self.dask.scheduler is None:
            raise ValueError("launch.kind: dask needs the address of a scheduler: dask.scheduler")
        if "popularity" not in self.baselines and "popularity" in self.gate.against:
            raise ValueError("gate.against names popularity, which is not in baselines")
        if "traditional" not in self.baselines and "traditional" in self.gate.against:
            raise ValueError("gate.against names traditional, which is not in baselines")
        return self

    @property
    def item_table(self) -> TableSettings:
        """Table of the item IDs."""
        return self._table_of("interactions.item_id")

    @property
    def user_table(self) -> TableSettings:
        """Table of the user IDs."""
        return self._table_of("interactions.user_id")

    def _table_of(self, source: str) -> TableSettings:
        for table in self.tables.values():
            if table.source == source:
                return table
        raise ValueError(f"tables: none has the source {source}")

    @property
    def roles(self) -> tuple[str, ...]:
        """Models trained in one run, the candidate first."""
        return ("candidate", *self.baselines)

    @property
    def history_length(self) -> int:
        """Longest history that a feature asks for; 0 when there is none."""
        return max(
            (f.max_length for f in self.model.user.features if f.kind == "history"), default=0
        )

    def digest(self) -> str:
        """Identity of what a run computes: addresses of services do not count."""
        body = self.model_dump(
            mode="json", exclude={"lake", "dask", "launch", "cluster", "tracking"}
        )
        return digest_of(body)


def digest_of(value: object) -> str:
    """Digest of a JSON-like value, independent of the order of its keys (16 hex digits)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
