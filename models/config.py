"""Settings of a model and of its training; each field is documented where it is declared.

Light on purpose (pydantic only): schedulers and command lines read it without torch.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """Base of all settings: unknown keys are refused, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class EmbeddingTableSettings(Settings):
    """One embedding table, shared by every feature that names it."""

    dim: int = Field(default=64, ge=4, le=1024, multiple_of=4)
    """Width of a row."""
    dtype: Literal["fp32", "fp16"] = "fp32"
    """Storage type of the weights; the optimizer state stays fp32."""
    sharding: Literal[
        "auto", "table_wise", "row_wise", "column_wise", "table_row_wise", "data_parallel"
    ] = "auto"
    """How the table is spread over ranks; `auto` leaves it to TorchRec's planner. A table may also
    say `gradient_sharding: true`, which means `column_wise`."""
    column_width: int | None = Field(default=None, ge=4, multiple_of=4)
    """`column_wise` only: columns in each of the parts into which the table is cut, whatever the
    number of ranks; by default about a quarter of `dim`. `rowwise_adagrad` keeps one number a row
    in each part."""

    @model_validator(mode="before")
    @classmethod
    def _gradient_sharding_is_an_alias(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("gradient_sharding"), bool):
            return data
        settings = {key: value for key, value in data.items() if key != "gradient_sharding"}
        by_columns = data["gradient_sharding"]
        given = settings.get("sharding", "column_wise" if by_columns else "auto")
        if by_columns != (given == "column_wise"):
            raise ValueError(
                f"gradient_sharding: {str(by_columns).lower()} contradicts sharding: {given}"
            )
        return {**settings, "sharding": given}

    @model_validator(mode="after")
    def _columns_fit(self) -> EmbeddingTableSettings:
        if self.column_width is None:
            return self
        if self.sharding != "column_wise":
            raise ValueError("column_width is for sharding: column_wise")
        if self.dim % self.column_width:
            raise ValueError(f"column_width: {self.column_width} does not divide dim: {self.dim}")
        return self

    @property
    def part_width(self) -> int:
        """Columns of a part: all of them, unless the table is cut into columns."""
        if self.sharding != "column_wise":
            return self.dim
        if self.column_width is not None:
            return self.column_width
        widths = range(4, max(4, self.dim // 4) + 1, 4)
        return max(width for width in widths if self.dim % width == 0)


RECENT_COUNT = "recent_count"
"""Column of the corpus with the interactions of an item, weighted by age for `model.prior`."""

#: Columns of the examples that no feature may be named after.
RESERVED_NAMES = frozenset(
    [
        "user",
        "user_id",
        "item",
        "item_id",
        "title",
        "timestamp",
        "weight",
        "seen",
        "targets",
        "train_count",
        RECENT_COUNT,
    ]
)


class FeatureSettings(Settings):
    """One input of a tower."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Name of the feature; for attributes, the column in the items or users table."""
    table: str = ""
    """Embedding table that its codes index; a numeric feature has none."""
    kind: Literal["id", "list", "history", "neighbours", "numeric"] = "id"
    """`id`: one ID. `list`: any number of IDs. `history`: the user's last items before the
    event. `neighbours`: the items that most often come with this one, by the train users of both,
    as far as they own a row; for the item tower. `numeric`: a number, normalised by mean and
    deviation of the training data; a missing one counts as the mean."""
    pooling: Literal["mean", "sum", "attention"] = "mean"
    """How the elements of a list, a history or neighbours become one vector."""
    max_length: int = Field(default=50, ge=1, le=10_000)
    """How many of the last items a history keeps, and how many neighbours an item has."""

    @model_validator(mode="after")
    def _name_is_free(self) -> FeatureSettings:
        if self.name in RESERVED_NAMES:
            raise ValueError(f"'{self.name}' is a column of the examples: choose another name")
        if self.name == "history" and self.kind != "history":
            raise ValueError("only a feature of kind history may be named 'history'")
        if self.kind == "numeric" and self.table:
            raise ValueError("a numeric feature has no table: its number is the tower's input")
        if self.kind != "numeric" and not self.table:
            raise ValueError(f"a feature of kind {self.kind} needs a table")
        return self


class TowerSettings(Settings):
    """One tower: its features and the MLP above their concatenated vectors."""

    features: tuple[FeatureSettings, ...] = Field(min_length=1)
    """Inputs, in the order of concatenation."""
    hidden: tuple[int, ...] = (128,)
    """Widths of the hidden layers; empty for none."""

    @property
    def coded(self) -> tuple[FeatureSettings, ...]:
        """Features whose codes index a table."""
        return tuple(f for f in self.features if f.kind != "numeric")

    @property
    def numeric(self) -> tuple[FeatureSettings, ...]:
        """Features that are numbers; they stand behind the others in the tower's input."""
        return tuple(f for f in self.features if f.kind == "numeric")

    @model_validator(mode="after")
    def _has_a_table(self) -> TowerSettings:
        if not self.coded:
            raise ValueError("a tower needs at least one feature with a table")
        return self


class PriorSettings(Settings):
    """What an item's popularity adds to its score, whoever asks."""

    strength: float = Field(default=1.0, ge=0, le=2)
    """Recent share of the interactions, to this power, that multiplies the item's probability."""
    trend: float = Field(default=0.0, ge=0, le=2)
    """Power of the recent share over the share of all interactions, as a further factor: 1 moves
    a model of the whole window to its end."""
    half_life_days: float | None = Field(default=None, gt=0)
    """Age at which an interaction counts half, measured from the first test day, or with
    `data.split` from the end of the last day with rows `train`; a short one follows trends. None
    counts all alike."""


class ModelSettings(Settings):
    """A two-tower model."""

    user: TowerSettings
    """The user tower."""
    item: TowerSettings
    """The item tower."""
    dim: int = Field(default=64, ge=4, le=1024)
    """Width of the vectors that both towers produce."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """`cosine` normalises both vectors; `dot` does not."""
    temperature: float = Field(default=0.07, gt=0, le=10)
    """Divides the logits of the loss."""
    prior: PriorSettings | None = None
    """Popularity added to the scores when items are recommended; None for none. The losses do not
    know of it."""

    @model_validator(mode="after")
    def _history_belongs_to_users(self) -> ModelSettings:
        if any(f.kind == "history" for f in self.item.features):
            raise ValueError("a history feature belongs to the user tower")
        if any(f.kind == "neighbours" for f in self.user.features):
            raise ValueError("a neighbours feature belongs to the item tower")
        return self


class LossSettings(Settings):
    """A loss over in-batch and sampled negatives."""

    kind: Literal["softmax", "bce", "ccl"] = "softmax"
    """`softmax`: cross entropy of the own item against all negatives. `bce`: binary cross entropy
    of each pair. `ccl`: cosine contrastive loss (SimpleX, CIKM 2021); needs `similarity: cosine`
    and takes no temperature."""
    logq: Literal["off", "standard", "corrected"] = "standard"
    """Correction for the sampling probability of a negative; `standard` subtracts log q from
    every logit (Yi et al., RecSys 2019), `corrected` leaves the positive out of the sum that it
    is compared with (arXiv 2507.09331). For `bce` and `ccl` both weigh negatives by 1 / q."""
    logq_alpha: float = Field(default=1.0, ge=0, le=2)
    """Strength of the correction: q is taken to this power."""
    negatives: Literal["tfidf", "uniform", "popularity"] | None = "tfidf"
    """Distribution of the extra sampled negatives (mixed negative sampling)."""
    num_negatives: int = Field(default=512, ge=0)
    """Extra negatives a micro-batch, shared by its examples; 0 for in-batch negatives only."""
    pool: Literal["micro_batch", "macro_batch"] = "micro_batch"
    """Which examples are negatives of each other. Accumulation alone leaves it at the
    micro-batch; `macro_batch` takes those of the whole optimizer step, at the memory of one
    micro-batch and the time of a second forward pass (GradCache, Gao et al., RepL4NLP 2021)."""
    bank: int = Field(default=0, ge=0)
    """Latest draws whose item vectors stay negatives for the next batches, as they were then,
    without gradient (cross-batch memory, Wang et al., CVPR 2020); 0 for none."""
    mask_known: bool = True
    """Whether items of the user's history, and of the user's other examples in the batch, are no
    negatives of theirs. Repeats of the own item never are."""
    negative_weight: float = Field(default=1.0, gt=0)
    """`bce` and `ccl`: weight of the mean over the negatives against the positive."""
    margin: float = Field(default=0.4, ge=-1, le=1)
    """`ccl`: cosine up to which a negative costs nothing."""
    chunk: int | None = Field(default=None, ge=1)
    """Rows of the matrix of scores formed at once, which bounds the memory of the loss; by default
    as many as a core's cache holds, or a quarter of a GiB on an accelerator."""


class OptimizerSettings(Settings):
    """Optimizers of the towers (dense) and of the tables (sparse: only touched rows move)."""

    dense: Literal["adagrad", "adam", "sgd"] = "adagrad"
    """Optimizer of the towers."""
    sparse: Literal["rowwise_adagrad", "adagrad", "adam", "sgd"] = "rowwise_adagrad"
    """Optimizer of the tables. `rowwise_adagrad` keeps one number a row; `adam` is lazy, as
    PyTorch's `SparseAdam`, and on CPUs needs tables with `sharding: data_parallel`."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the dense parameters."""
    sparse_lr_scale: float = Field(default=10.0, gt=0)
    """The tables learn at `learning_rate × sparse_lr_scale`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which both learning rates rise linearly from zero."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Upper limit of the norm of the whole gradient of a step, towers and tables together, after
    accumulation; a longer one is shortened to it. None for no limit."""
    accumulator_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor of Adagrad's accumulators at the start of every epoch but the first of a new model.
    Below 1, steps do not die out however many days a model goes on learning."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the accumulator."""


class ValidationSettings(Settings):
    """Recall on events of the window, measured while the model trains."""

    users: int = Field(default=1000, ge=0)
    """Train users whose last event is held out of the training to measure recall on; the start of
    a training says how many examples these are. 0 for no validation."""
    max_share: float = Field(default=0.01, gt=0, le=0.5)
    """Largest share of the training examples that is held out."""
    k: int = Field(default=20, ge=1)
    """Cut-off of the recall."""
    every: int | None = Field(default=None, ge=1)
    """Macro-batches between two measurements; by default as often as `time_share` allows."""
    time_share: float = Field(default=0.02, gt=0, le=1)
    """Largest share of the training's time that is spent on measuring, where neither `every` nor
    the end of an epoch or of the training asks for it."""


class EarlyStoppingSettings(Settings):
    """Whether the best epoch, by the recall of the validation, is the result."""

    patience: int | None = Field(default=None, ge=1)
    """Epochs without a better recall after which the training stops; the weights of the best
    epoch are the result. None trains all epochs and takes the last one's."""


class WarmStartSettings(Settings):
    """Whether a training continues from an earlier model."""

    model: Literal["none", "champion", "latest"] = "none"
    """`champion`: the model that is served when the run is resolved. `latest`: the newest candidate
    of an earlier run, promoted or not. Where there is none, or it has seen a test day of this
    run, the training starts anew, as it always does with `none`."""
    examples: Literal["new", "window"] = "new"
    """`new`: only events of the days that the earlier model has not been trained on. `window`:
    all events of the window again."""
    reinitialise: tuple[str, ...] = ()
    """Tables that start anew, although the earlier model has them. A table whose `dim`, `dtype`,
    `vocabulary.hashes` or `vocabulary.seed` changed is refused unless it is named here."""
    reinitialise_towers: bool = False
    """Whether the towers start anew; needed when `model.dim` or a tower's `hidden` changed."""


class TrainingSettings(Settings):
    """How long, in which portions and on how many ranks a model is trained."""

    epochs: int = Field(default=3, ge=1)
    """Passes over the window's examples."""
    batch_size: int = Field(default=256, ge=2)
    """Examples in a micro-batch, over all ranks."""
    accumulate: int = Field(default=1, ge=1)
    """Micro-batches in a macro-batch: one exact optimizer step. Small data wants many steps; with
    much data on many ranks, 16 exchange each row once for 16 micro-batches."""
    nproc: int = Field(default=1, ge=1)
    """Ranks on each node; with `launch.kind: local`, on this machine."""
    table_ranks: int | None = Field(default=None, ge=1)
    """Over how many ranks, the first ones, tables are spread; by default all of them. Fewer ranks
    hold whole tables, or columns of them, not rows."""
    communication: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Type in which ranks exchange rows of the tables and their gradients. `fp16` sends gradients
    as `bf16` all the same: many are too small for it. Towers are exchanged in fp32."""
    rank_memory: ByteSize | None = Field(default=None, ge=1)
    """Memory that a rank may use (`16GiB`); by default its share of what is free when the training
    starts. A training that needs more is refused before its first step."""
    checkpoint_every: int = Field(default=200, ge=1)
    """Macro-batches between two checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """How many of the newest checkpoints are kept."""
    log_every: int = Field(default=10, ge=1)
    """Macro-batches between two reports of loss and throughput."""
    read_ahead: int = Field(default=2, ge=0)
    """Macro-batches prepared in the background while the model computes; 0 reads in turn."""
    checkpoint_activations: bool = False
    """Whether the towers' inner activations are computed again in the backward pass instead of
    kept: less memory for some time."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Type that the towers' layers of the candidate compute in. `auto`: a short one where an
    accelerator has one, `fp32` on CPUs, which only emulate them. `fp16` scales the loss, and skips
    a step whose gradient overflows. Weights and the loss stay in fp32."""
    trace_steps: int = Field(default=0, ge=0, le=100)
    """Macro-batches recorded by `torch.profiler`, after the first ones of a run; the trace becomes
    an artifact. 0 for none."""
    max_restarts: int = Field(default=2, ge=0)
    """How often torch elastic restarts the ranks after a failure inside one job."""
    threads: int | None = Field(default=None, ge=1)
    """Compute threads of a rank; by default the cores divided by the ranks."""
    seed: int = Field(default=42, ge=0)
    """Seed of initialisation, shuffling and sampling."""
    loss: LossSettings = LossSettings()
    """The loss."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """The optimizers."""
    validation: ValidationSettings = ValidationSettings()
    """Recall while the model trains."""
    early_stopping: EarlyStoppingSettings = EarlyStoppingSettings()
    """Choice of the epoch."""
    warm_start: WarmStartSettings = WarmStartSettings()
    """Continuing from an earlier model; only the candidate does."""

    @model_validator(mode="after")
    def _stopping_needs_validation(self) -> TrainingSettings:
        if self.early_stopping.patience is not None and self.validation.users == 0:
            raise ValueError("early_stopping.patience needs validation.users of at least 1")
        return self


class WarmStart(Settings):
    """The earlier model that a training job continues from."""

    bundle: str
    """Local folder of its bundle."""
    state: str | None
    """Local folder of its optimizer state; None to start without."""
    moves: dict[str, str]
    """Tables that are continued, and the file that says where their rows come from (see
    `models/row_moves.py`)."""
    fresh_tables: tuple[str, ...] = ()
    """Tables that the earlier model has, and that start anew."""
    fresh_towers: bool = False
    """Whether the towers start anew."""


class TrainJob(Settings):
    """Everything a training process reads; written as JSON beside its output.

    All locations are local paths or `pyarrow.fs`/fsspec URLs.
    """

    kind: Literal["two_tower", "traditional"]
    """`two_tower` is the product; `traditional` the plain-PyTorch baseline with full tables."""
    train_files: tuple[str, ...]
    """Parquet shards of training examples (columns: see `models/batch.py`)."""
    corpus_file: str
    """Parquet file of the item corpus; the row number is the item's index."""
    negatives_file: str | None
    """Alias table of the sampled negatives; None when the loss uses none."""
    validation_file: str | None = None
    """Users to validate on, with the columns of test users; by default the last events of some
    train users are held out of the training."""
    table_rows: dict[str, int]
    """Rows of each embedding table, padding and buckets included."""
    table_hashes: dict[str, int]
    """Codes for each element of a table's features (1, or 2 with double hashing)."""
    num_users: int
    """Users in the training examples (`user` column is in `[0, num_users)`)."""
    user_id_table: str | None = None
    """Table of the user IDs, which the traditional baseline replaces by a full one; by default
    the table of the first `id` feature of the user tower."""
    item_id_table: str | None = None
    """Table of the item IDs, likewise; by default the table of the first `id` feature of the
    item tower."""
    tables: dict[str, EmbeddingTableSettings]
    """The embedding tables."""
    model: ModelSettings
    """The model."""
    training: TrainingSettings
    """The training."""
    warm_start: WarmStart | None = None
    """What the training continues from; None for a new model."""
    since_us: int | None = None
    """Examples before this time, in microseconds since 1970, are not trained on."""
    checkpoint_dir: str
    """Where checkpoints live; a job that finds one there resumes from it."""
    output_dir: str
    """Local folder for the trained weights; complete when `weights.json` is in it."""
    digest: str
    """Digest of the inputs and settings; a checkpoint of another digest is refused."""
    peer_timeout_seconds: float = 1800.0
    """How long a rank waits for another before it takes it for lost."""
