"""Embedding tables spread over the ranks by TorchRec, read and updated by unique row.

TorchRec pools; here every bag holds one row, so what comes back is the rows themselves. That
route is several times faster in the backward pass than TorchRec's un-pooled collection, and one
exchange serves a whole macro-batch.

On CPUs rows are read and moved where TorchRec keeps them, and exchanged by `RowExchange`: that
costs about half of what TorchRec's kernels for bags of any length take, and sends no padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    KernelConfig,
    PlannerError,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.sharding_plan import column_wise
from torchrec.distributed.types import Awaitable, CommOp, QuantizedCommCodecs, ShardingPlan
from torchrec.modules.embedding_configs import DataType

from models import collectives
from models.config import EmbeddingTableSettings, OptimizerSettings
from models.device import local_world_size
from models.errors import ModelError
from models.initial import initial_rows
from models.memory_estimate import Placement, TableShard, column_holders
from models.row_exchange import Piece, RowExchange
from models.row_optimizers import ACCUMULATOR
from models.step_load import StepLoad, Traffic
from models.table_parts import TablePart

_OPTIMIZERS = {
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "adam": EmbOptimType.ADAM,
    "sgd": EmbOptimType.EXACT_SGD,
}
_DATA_TYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16}
# Of the gradients of a mean over a macro-batch, many are below what fp16 can hold.
_EXCHANGED_AS = {
    "fp32": (None, torch.float32),
    "fp16": (torch.float16, torch.bfloat16),
    "bf16": (torch.bfloat16, torch.bfloat16),
}
_RESERVED_MEMORY = 0.2  # share of each rank's memory that the planner leaves to everything else


class ShardedTables(nn.Module):
    """Tables of which every rank holds a part.

    The optimizer is fused into the backward pass: each touched row is updated once a macro-batch.
    Gradients are summed over ranks, not averaged: the loss is already
    divided by the weight of the whole macro-batch.

    Args:
        tables: Settings by name.
        rows: Rows by table.
        optimizer: Which optimizer, learning rate and eps.
        seed: Seed of the initial rows.
        device: This rank's device.
        ranks: Over how many ranks, the first ones, they are spread; by default over all.
        communication: Type in which rows and gradients travel between ranks.
        memory: Bytes that tables may fill on each rank; by default the planner guesses.
        check: Called, on every rank, with where the parts will be, before memory is taken.

    Raises:
        ModelError: TorchRec's planner found no way to spread the tables, or the device has no
            such optimizer.
    """

    def __init__(
        self,
        tables: Mapping[str, EmbeddingTableSettings],
        rows: Mapping[str, int],
        optimizer: OptimizerSettings,
        seed: int,
        device: torch.device,
        ranks: int | None = None,
        communication: str = "fp32",
        memory: int | None = None,
        check: Callable[[Placement], None] = lambda _: None,
    ) -> None:
        super().__init__()
        if optimizer.sparse == "adam" and device.type == "cpu":
            raise ModelError(
                "tables spread over CPUs have no Adam: choose another "
                "training.optimizer.sparse, or `sharding: data_parallel` for every table"
            )
        self._names = sorted(tables)
        self._device = device
        self._learning_rate = optimizer.learning_rate * optimizer.sparse_lr_scale
        self._adagrad = "adagrad" in optimizer.sparse
        set_gradient_division(False)
        collection = EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    embedding_dim=tables[name].dim,
                    num_embeddings=rows[name],
                    feature_names=[name],
                    pooling=PoolingType.SUM,
                    data_type=_DATA_TYPES[tables[name].dtype],
                )
                for name in self._names
            ],
        )
        sharder = _Sharder(
            fused_params={
                "optimizer": _OPTIMIZERS[optimizer.sparse],
                "learning_rate": self._learning_rate,
                "eps": optimizer.eps,
            },
            qcomm_codecs_registry=_codecs(communication),
        )
        holder = _Holder(collection)
        plan = _agree_on_plan(holder, sharder, tables, device, ranks, memory)
        placement = _placement_of(plan)
        check(placement)
        self._traffic = Traffic(placement, rows, self._names, device)
        self.load: StepLoad | None = None
        """What the last fetch asked of each rank; None where nothing is exchanged."""
        self._model = DistributedModelParallel(
            holder, device=device, plan=plan, sharders=[sharder], init_data_parallel=False
        )
        self.sharding: dict[str, str] = _sharding_of(plan)
        """How each table is spread."""
        self._factor = 1.0
        self._fill(tables, seed)
        self._exchange = self._exchange_in_place(optimizer, communication)
        self.exchanged: Sequence[str] = () if collectives.world_size() == 1 else self._names
        """Tables whose rows travel between ranks, in the order of `StepLoad.bytes`."""

    def fetch(self, unique: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of every table, attached to the graph that updates them.

        Args:
            unique: Row numbers by table, without repetition; every table, on every rank.
                Further tables are ignored.

        Returns:
            Rows by table, `[len(unique), dim]`.
        """
        if self._exchange is not None:
            if self.exchanged:
                _, self.load = self._traffic.announce(unique)
            return self._exchange.fetch(unique)
        counts = [unique[name].numel() for name in self._names]
        # Bags of one: tables with fewer rows, and ranks with fewer rows, end in empty bags.
        stride, load = self._traffic.announce(unique)
        self.load = load if self.exchanged else None
        lengths = torch.zeros(len(counts), stride, dtype=torch.int64, device=self._device)
        for line, count in zip(lengths, counts, strict=True):
            line[:count] = 1
        features = KeyedJaggedTensor(
            keys=self._names,
            values=torch.cat([unique[name] for name in self._names]),
            lengths=lengths.flatten(),
        )
        pooled = self._model(features)
        if isinstance(pooled, Awaitable):
            pooled = pooled.wait()
        if not torch.is_grad_enabled():
            self.uncount_fetch()
        return {name: pooled[name][:count] for name, count in zip(self._names, counts, strict=True)}

    @torch.no_grad()
    def uncount_fetch(self) -> None:
        """Takes back that the last fetch counts as a step, because no update follows it.

        Adam's kernels count the steps of their bias correction when rows are looked up.
        """
        if self._exchange is not None:
            return
        for module in self._model.modules():
            for name in ("iter", "iter_cpu"):
                counter = getattr(module, name, None)
                if isinstance(counter, Tensor):
                    counter.sub_(1)

    @torch.no_grad()
    def update(self, rows: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Sends gradients of the rows of the last fetch through the tables: the one sparse update.

        Args:
            rows: What `fetch` returned.
            gradients: Gradient of each row, `[len(unique), dim]`.
        """
        if self._exchange is not None:
            self._exchange.update(gradients, self._learning_rate * self._factor)
            return
        names = self._names
        torch.autograd.backward([rows[n] for n in names], [gradients[n] for n in names])

    def set_rate(self, factor: float) -> None:
        """From now on learns at `factor` times the learning rate."""
        self._factor = factor
        for group in self._model.fused_optimizer.param_groups:
            group["lr"] = self._learning_rate * factor
        # The kernels take over a new rate only here; the step itself is in the backward pass.
        self._model.fused_optimizer.step()

    @torch.no_grad()
    def decay_accumulators(self, factor: float) -> None:
        """Multiplies Adagrad's accumulators by a factor; other optimizers have none."""
        if self._adagrad:
            for part in self.local_state():
                part.mul_(factor)

    def local_weights(self) -> list[Tensor]:
        """This rank's parts of the tables."""
        return [shard.tensor for _, weight in self._weights() for shard in weight.local_shards()]

    def local_state(self) -> list[Tensor]:
        """This rank's parts of the optimizer state."""
        return [
            shard.tensor
            for table in self._model.fused_optimizer.state_dict()["state"].values()
            for value in table.values()
            for shard in value.local_shards()
        ]

    def parts(self) -> Iterator[TablePart]:
        """This rank's parts of the tables, with their optimizer state, sharing its memory."""
        states: dict[str, dict[str, Any]] = {name: {} for name in self._names}
        for table in self._model.fused_optimizer.state_dict()["state"].values():
            for key, value in table.items():
                # What Adam's kernels count of the steps is not among the state.
                if self._adagrad:
                    states[key.rpartition(".")[0]][ACCUMULATOR] = value
        for name, sharded in self._weights():
            for number, shard in enumerate(sharded.local_shards()):
                row, column = shard.metadata.shard_offsets
                state = {k: v.local_shards()[number].tensor for k, v in states[name].items()}
                yield TablePart(name, shard.tensor, row, column, state)

    def checkpoint_state(self) -> dict[str, Any]:
        """Weights and optimizer state as sharded tensors by flat names, for `Checkpoints`."""
        state = dict(self._model.state_dict())
        for table in self._model.fused_optimizer.state_dict()["state"].values():
            state |= {f"optimizer.{name}": value for name, value in table.items()}
        return state

    def full_tables(self) -> Iterator[tuple[str, Tensor]]:
        """Each table's name and whole weight `[rows, dim]` on the first rank (empty elsewhere).

        A collective: every rank must consume it.
        """
        for name, sharded in self._weights():
            first, metadata = collectives.rank() == 0, sharded.metadata()
            whole = (
                torch.empty(metadata.size, dtype=metadata.tensor_properties.dtype)
                if first
                else None
            )
            if collectives.world_size() == 1:
                assert whole is not None
                for shard in sharded.local_shards():
                    _window(whole, shard.metadata).copy_(shard.tensor)
            else:
                sharded.gather(dst=0, out=whole)
            yield name, torch.empty(0) if whole is None else whole

    def _weights(self) -> Iterator[tuple[str, Any]]:
        state = self._model.state_dict()
        for name in self._names:
            yield name, state[f"collection.embedding_bags.{name}.weight"]

    def _exchange_in_place(
        self, optimizer: OptimizerSettings, communication: str
    ) -> RowExchange | None:
        """What reads and moves rows where they are; None where TorchRec's kernels do."""
        if self._device.type != "cpu":
            return None
        pieces, types = [], {}
        for name, sharded in self._weights():
            metadata = sharded.metadata()
            types[name] = metadata.tensor_properties.dtype
            for shard in metadata.shards_metadata:
                (row, column), (height, width) = shard.shard_offsets, shard.shard_sizes
                if height:
                    pieces.append(Piece(shard.placement.rank(), name, row, column, height, width))
        rows_as, gradients_as = _EXCHANGED_AS[communication]
        return RowExchange(pieces, self.parts(), types, optimizer, rows_as, gradients_as)

    @torch.no_grad()
    def _fill(self, tables: Mapping[str, EmbeddingTableSettings], seed: int) -> None:
        for name, sharded in self._weights():
            for shard in sharded.local_shards():
                first, height = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
                rows = initial_rows(name, tables[name].dim, seed, first, first + height)
                left, width = shard.metadata.shard_offsets[1], shard.metadata.shard_sizes[1]
                shard.tensor.copy_(rows[:, left : left + width])


class _Holder(nn.Module):
    """Gives the collection a name, as TorchRec's planner expects."""

    def __init__(self, collection: EmbeddingBagCollection) -> None:
        super().__init__()
        self.collection = collection

    def forward(self, features: KeyedJaggedTensor) -> Any:
        return self.collection(features)


class _Sharder(EmbeddingBagCollectionSharder):
    """Offers row-wise on CPUs too, where TorchRec supports it but does not list it."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["table_wise", "row_wise", "column_wise", "table_row_wise"]


def _agree_on_plan(
    model: _Holder,
    sharder: EmbeddingBagCollectionSharder,
    tables: Mapping[str, EmbeddingTableSettings],
    device: torch.device,
    ranks: int | None,
    memory: int | None,
) -> ShardingPlan:
    """Plans on the first rank; an error there reaches all ranks instead of stopping them.

    A table is kept whole where it fits: the pooled exchange of a row-wise table grows with the
    number of ranks. Where nothing fits, there is a plan all the same, for whoever checks memory to
    say what is missing.
    """
    # A world that has shrunk may be smaller than what was asked for.
    size = min(ranks or collectives.world_size(), collectives.world_size())
    # TorchRec cuts rows for all ranks of a world alike.
    by_rows = size == collectives.world_size()
    asked = [name for name, t in tables.items() if "row_wise" in t.sharding]
    if asked and not by_rows:
        raise ModelError(
            f"training.table_ranks: {size} of {collectives.world_size()} ranks cannot hold the "
            f"rows of {', '.join(sorted(asked))}: choose table_wise or column_wise"
        )
    capacity = "hbm_cap_bytes"
    if device.type == "cpu":
        capacity = "ddr_cap_bytes"
        # The planner leaves room in an accelerator's memory only.
        memory = memory and int(memory * (1 - _RESERVED_MEMORY))

    def attempt(automatic: Sequence[str], limit: int | None) -> ShardingPlan:
        topology = TopologyFactory.create_topology(
            TrainerConfig(
                world_size=size,
                local_world_size=min(local_world_size(), size),
                **({} if limit is None else {capacity: limit}),
            ),
            kernel_config=KernelConfig(compute_device=device.type),
        )
        constraints = {
            name: ParameterConstraints(
                sharding_types=list(automatic) if t.sharding == "auto" else [t.sharding],
                compute_kernels=["fused"],
                # The same parts at any number of ranks: where the optimizer keeps a number a row
                # and part, ranks would else decide what is learned, and no checkpoint would fit
                # another number of them.
                min_partition=t.part_width if t.sharding == "column_wise" else None,
            )
            for name, t in tables.items()
        }
        planner = EmbeddingShardingPlanner(
            topology=topology,
            constraints=constraints,
            storage_reservation=FixedPercentageStorageReservation(_RESERVED_MEMORY),
        )
        found = planner.plan(model, [sharder])
        # The planner does not know which tables are hot: it would put all parts of one on the
        # rank that has least of the others.
        for name, holders in column_holders(tables, size).items():
            found.plan["collection"][name] = column_wise(holders, compute_kernel="fused")(
                model.collection.embedding_bags[name].weight,
                min(local_world_size(), size),
                size,
                device.type,
                sharder,
            )
        return found

    whole, either = ["table_wise"], ["table_wise", "row_wise"]
    attempts: list[tuple[Sequence[str], int | None]] = [(whole, memory)]
    if by_rows:
        attempts.append((either, memory))
    if memory is not None:
        attempts.append((either if by_rows else whole, None))

    def plan() -> ShardingPlan:
        for automatic, limit in attempts:
            try:
                return attempt(automatic, limit)
            except PlannerError as failure:
                error = failure
            except Exception as failure:
                raise _no_plan(size, failure) from failure
        raise _no_plan(size, error) from error

    return collectives.first_decides(plan)


def _no_plan(ranks: int, error: Exception) -> ModelError:
    return ModelError(f"the embedding tables cannot be spread over {ranks} ranks: {error}")


def _codecs(communication: str) -> dict[str, QuantizedCommCodecs] | None:
    """What turns rows and gradients into a short type for the exchange, for both kinds of it."""
    if communication == "fp32":
        return None
    # Of the gradients of a mean over a macro-batch, many are below what fp16 can hold.
    codecs = get_qcomm_codecs(QCommsConfig(CommType(communication), CommType.BF16))
    operations = CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL, CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER
    return {operation.name: codecs for operation in operations}


def _placement_of(plan: ShardingPlan) -> dict[str, list[TableShard]]:
    return {
        name: [
            TableShard(shard.placement.rank(), *shard.shard_sizes)
            for shard in parameter.sharding_spec.shards
        ]
        for module in plan.plan.values()
        for name, parameter in module.items()
    }


def _sharding_of(plan: ShardingPlan) -> dict[str, str]:
    return {
        name: str(parameter.sharding_type)
        for module in plan.plan.values()
        for name, parameter in module.items()
    }


def _window(whole: Tensor, metadata: Any) -> Tensor:
    row, column = metadata.shard_offsets
    height, width = metadata.shard_sizes
    return whole[row : row + height, column : column + width]
