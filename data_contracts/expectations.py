"""Great Expectations on frames: one context in the process, validation definitions re-used.

Great Expectations is imported (seconds) when the first suite is built.
"""

from __future__ import annotations

import itertools
import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_names = itertools.count()


@dataclass(frozen=True)
class Expectation:
    """One expectation on a column of a frame.

    Attributes:
        key: Names the expectation in the outcome.
        kind: Class of `great_expectations.expectations`.
        arguments: Its arguments, without the column.
    """

    key: str
    kind: str
    column: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a frame's values did.

    Attributes:
        unexpected: Number of values that break the expectation; nulls are not looked at.
        sample: Some of them.
        rows: Numbers of their rows, at most as many as the sample's limit.
    """

    unexpected: int
    sample: tuple[object, ...]
    rows: tuple[int, ...]


class FrameValidation:
    """A suite of expectations that is run on any number of frames.

    Args:
        expectations: The expectations; their keys must differ.
        sample: Unexpected values that are kept of each.
    """

    def __init__(self, expectations: Sequence[Expectation], *, sample: int = 5) -> None:
        gx, context, batch = _library()
        name = f"suite-{next(_names)}"
        suite = gx.ExpectationSuite(name=name)
        # Great Expectations keeps one of equal expectations; rules that differ in their bound only
        # share it.
        self._keys: dict[str, list[str]] = {}
        first: dict[str, str] = {}
        for expectation in expectations:
            content = repr((expectation.kind, expectation.column, expectation.arguments))
            key = first.setdefault(content, expectation.key)
            self._keys.setdefault(key, []).append(expectation.key)
            if key != expectation.key:
                continue
            kind = getattr(gx.expectations, expectation.kind)
            meta = {"key": expectation.key}
            suite.add_expectation(
                kind(column=expectation.column, meta=meta, **expectation.arguments)
            )
        suite = context.suites.add(suite)
        self._definition = context.validation_definitions.add(
            gx.ValidationDefinition(name=name, data=batch, suite=suite)
        )
        self._format = {"result_format": "SUMMARY", "partial_unexpected_count": sample}

    def data_docs(self, frame: pd.DataFrame) -> str:
        """The page of Great Expectations' Data Docs about a frame, as HTML."""
        from great_expectations.render import renderer, view

        # The names are not in the modules' __all__, and the functions have no types.
        pages: Any = renderer
        views: Any = view
        content = pages.ValidationResultsPageRenderer().render(self._validate(frame))
        return str(views.DefaultJinjaPageView().render(content))

    def _validate(self, frame: pd.DataFrame) -> Any:
        with warnings.catch_warnings():
            # pandas takes a group in a pattern for a wish to extract it.
            warnings.filterwarnings("ignore", "This pattern is interpreted", UserWarning)
            return self._definition.run(
                batch_parameters={"dataframe": frame}, result_format=self._format
            )

    def run(self, frame: pd.DataFrame) -> dict[str, Outcome]:
        """Checks a frame; the outcome of each expectation by its key.

        Raises:
            RuntimeError: An expectation could not be evaluated; nothing passes silently.
        """
        result = self._validate(frame)
        outcomes: dict[str, Outcome] = {}
        for entry in result.results:
            key = entry.expectation_config.meta["key"]
            if "unexpected_count" not in entry.result:
                raise RuntimeError(
                    f"Great Expectations could not evaluate {entry.expectation_config.type} on "
                    f"{entry.expectation_config.kwargs.get('column')}: {entry.exception_info}"
                )
            outcome = Outcome(
                int(entry.result["unexpected_count"]),
                tuple(entry.result["partial_unexpected_list"]),
                tuple(entry.result.get("partial_unexpected_index_list") or ()),
            )
            outcomes |= dict.fromkeys(self._keys[key], outcome)
        return outcomes


@cache
def _library() -> tuple[Any, Any, Any]:
    """Great Expectations, this process's context, and a batch that is a whole frame."""
    # Read at import: a validation must not call home.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    # After another library has set up logging, the import writes hundreds of INFO lines.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        # It imports modules that Python has deprecated; nobody here can do anything about it.
        warnings.simplefilter("ignore", DeprecationWarning)
        import great_expectations as gx
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    context = gx.get_context(
        mode="ephemeral",
        project_config=DataContextConfig(
            progress_bars=ProgressBarsConfig(globally=False),
            # Otherwise every process leaves a temporary folder for pages that nobody builds.
            store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        ),
    )
    asset = context.data_sources.add_pandas("frames").add_dataframe_asset("frame")
    return gx, context, asset.add_batch_definition_whole_dataframe("whole frame")
