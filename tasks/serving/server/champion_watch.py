"""The champion in memory: loaded whole, then swapped in, whenever another one is served."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from models.errors import ModelError
from tasks.config import PipelineConfig
from tasks.errors import ConfigError, TailtowerError
from tasks.lake import Lake
from tasks.progress import log
from tasks.promotion import POINTER, read_pointer
from tasks.serving.bundles import bundle_folder, served_bundle
from tasks.serving.by_id import RecommenderById
from tasks.serving.described import DescribedRecommender


@dataclass(frozen=True)
class Served:
    """A model that answers.

    Attributes:
        model: The model; nothing of it is read from disk any more.
        version: Its version in the registry.
        run_id: Run that trained it.
        day: Day it was tested on.
        digest: Digest of the bundle that is open.
    """

    model: DescribedRecommender
    version: str
    run_id: str
    day: str
    digest: str


class ChampionWatch:
    """Follows the pointer in the lake.

    A request keeps the model that it began with, so a swap disturbs none. A new champion that
    cannot be loaded is logged and counted, and the one before goes on answering.

    Args:
        config: The pipeline.
        seconds: Pause between two looks at the pointer.

    Raises:
        ConfigError: Nothing is served yet.
        ModelError: The champion's bundle is damaged.
    """

    def __init__(self, config: PipelineConfig, seconds: float) -> None:
        self._lake = Lake(config.lake)
        self._seconds = seconds
        self._stop = threading.Event()
        self._failed: str | None = None
        self.failures = 0
        """Champions that could not be loaded."""
        self.swaps = 0
        """Champions that took the place of another."""
        first = self._load()
        if first is None:
            raise ConfigError(
                "nothing is served yet",
                where=f"{self._lake.url}/{POINTER}",
                fix="train a model with `tailtower run`",
            )
        self.served = first
        """The model that answers."""

    def follow(self) -> None:
        """Looks for new champions until `stop`; for a thread of its own."""
        while not self._stop.wait(self._seconds):
            self.look()

    def stop(self) -> None:
        """Ends `follow`."""
        self._stop.set()

    def look(self) -> None:
        """Swaps the champion in that the pointer names, if it is another one."""
        try:
            fresh = self._load()
        except (TailtowerError, ModelError, OSError, ValueError, KeyError) as error:
            if str(error) != self._failed:
                self.failures += 1
                log("serve.not_loaded", error=str(error), still=self.served.version)
            self._failed = str(error)
            return
        self._failed = None
        if fresh is not None:
            log("serve.champion", version=fresh.version, day=fresh.day, before=self.served.version)
            self.served = fresh
            self.swaps += 1

    def _load(self) -> Served | None:
        """The champion; None when it is the one that answers, or when there is none."""
        pointer = read_pointer(self._lake)
        if pointer is None:
            return None
        now = getattr(self, "served", None)
        digest = pointer.get("served_digest") or pointer["digest"]
        if now is not None and (now.version, now.digest) == (pointer["version"], digest):
            return None
        bundle = served_bundle(self._lake, pointer)
        model = RecommenderById(bundle_folder(self._lake, bundle))
        model.read_all()
        name = f"version {pointer['version']} of {pointer['day']}"
        return Served(
            DescribedRecommender(model, name),
            version=pointer["version"],
            run_id=pointer["run_id"],
            day=pointer["day"],
            digest=digest,
        )
