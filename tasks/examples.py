"""Step: makes the training examples, the test users and the item corpus."""

from __future__ import annotations

from typing import Any

from tasks.contract_examples import check_examples
from tasks.lake import Output, Published
from tasks.longtail.example_inputs import ExampleInputs, gather_inputs
from tasks.longtail.storage import storage_errors
from tasks.run_spec import RunSpec, StepResult


def run(spec: RunSpec) -> StepResult:
    """Makes the examples unless they are there.

    Returns:
        Output `examples`; facts: its train rows, users, items, test users and the shares of test
        events with an item or a user that the training has not seen.

    Raises:
        UpstreamError: An earlier step has not finished.
        ContractError: The examples break their own contract; they are not published.
        DataError: A column that a feature needs is missing or of the wrong kind, or a training
            event happened on a test day.
        ClusterError: The Dask cluster failed.
        LakeError: The lake cannot be written, or files changed while they were read.
    """
    inputs = gather_inputs(spec)
    with storage_errors(spec.lake()):
        published = _build(spec, inputs)
    meta = published.manifest.meta
    facts = {name: meta[name] for name in _FACTS}
    return StepResult.of("examples", {"examples": published}, **facts)


_FACTS = (
    "train_rows",
    "num_users",
    "num_items",
    "test_users",
    "unseen_item_share",
    "unseen_user_share",
    "dropped_rows",
)


def _build(spec: RunSpec, inputs: ExampleInputs) -> Published:
    lake = spec.lake()

    def write(output: Output) -> None:
        # Polars, Dask and torch are imported only when there is something to make.
        from tasks.longtail.build_examples import build_examples

        meta: dict[str, Any] = build_examples(output, inputs, spec.config.dask)
        check_examples(lake, f"{output.path}/train", spec.config.data, spec.day)
        output.meta.update(meta)

    return lake.build("examples", spec.day, write, inputs=inputs.digests, settings=inputs.settings)
