"""Who and what exists on a day: regulars, newcomers who stay, and the one-off long tail.

Everything is a pure function of the settings and a date. A day's newcomers form a cohort that is
drawn from a generator seeded by (seed, kind, date), so any day can be rebuilt from the few cohorts
that are still alive on it, without the days before.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.demo_data.settings import DemoSettings

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

#: Newcomers who stay do so for at least and at most this many days, their first day included.
STAY_DAYS = (6, 14)
#: A one-off user or item with a second event has it this many days after its first.
SECOND_EVENT_DELAY = (0, 1, 2, 3)
SECOND_EVENT_DELAY_PROBABILITY = (0.3, 0.3, 0.2, 0.2)
#: How many of the one-off users and items have a second event.
SECOND_EVENT_PROBABILITY = 0.5

# Stream numbers keep the draws of different things independent of each other.
_STREAMS = {"user": 1, "item": 2, "user_day": 3, "item_day": 4, "events": 5}


def generator(
    settings: DemoSettings, stream: str, day: dt.date | None = None
) -> np.random.Generator:
    """Random generator of one stream, of one day if given; independent of all others."""
    ordinal = 0 if day is None else day.toordinal()
    return np.random.default_rng([settings.seed, _STREAMS[stream], ordinal])


@dataclass(frozen=True)
class Population:
    """Users or items, one entry each; all arrays have the same length ``[N]``."""

    ids: pa.StringArray
    cluster: IntArray
    """Taste cluster that the user mostly asks for, or that the item belongs to."""
    side_cluster: IntArray
    """A second taste of users; a second theme that lends items a tag."""
    weight: FloatArray
    """Relative activity or popularity, 0 for one-off entries."""
    traits: FloatArray
    """``[N, 8]`` uniform draws that titles, tags and other attributes are made from."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Population:
        """The entries at ``rows`` (indices or a mask)."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return Population(
            ids=self.ids.take(pa.array(index)),
            cluster=self.cluster[index],
            side_cluster=self.side_cluster[index],
            weight=self.weight[index],
            traits=self.traits[index],
        )

    @staticmethod
    def concatenate(parts: list[Population]) -> Population:
        """The entries of all parts, one after another."""
        return Population(
            ids=pa.concat_arrays([p.ids for p in parts]),
            cluster=np.concatenate([p.cluster for p in parts]),
            side_cluster=np.concatenate([p.side_cluster for p in parts]),
            weight=np.concatenate([p.weight for p in parts]),
            traits=np.concatenate([p.traits for p in parts]),
        )


@dataclass(frozen=True)
class Alive:
    """What is there on one day: entries that come back, and the one-off events due on it."""

    regular: Population
    """Entries that are drawn from by weight, any number of times."""
    one_off: Population
    """One entry for each one-off event of the day; an ID may appear twice."""
    newcomers: Population
    """Entries whose first day this is: they are unknown before it."""


def zipf_weights(count: int, exponent: float) -> FloatArray:
    """Zipf-Mandelbrot weights ``(rank + q) ** -exponent`` with q = 1 % of the ranks, sum 1.

    The offset keeps the first few ranks from taking everything, as in real catalogues
    (Mandelbrot 1953).
    """
    rank = np.arange(1, count + 1, dtype=np.float64)
    weights = (rank + max(1.0, 0.01 * count)) ** -exponent
    return weights / weights.sum()


def alive_on(settings: DemoSettings, kind: str, day: dt.date) -> Alive:
    """The users (``kind="user"``) or items (``kind="item"``) of a day."""
    regular = [_residents(settings, kind)]
    one_off: list[Population] = []
    newcomers: list[Population] = []
    for age in range(STAY_DAYS[1]):
        stayers, stay, passing, second_delay = _cohort(settings, kind, day - dt.timedelta(days=age))
        living = stayers.take(stay > age)
        regular.append(_aged(living, age) if kind == "item" else living)
        if age == 0:
            one_off.append(passing)
            newcomers += [stayers, passing]
        if age in SECOND_EVENT_DELAY:
            one_off.append(passing.take(second_delay == age))
    everyone = Population.concatenate(regular)
    if kind == "item":
        everyone = _drifted(everyone, settings, day)
    return Alive(
        regular=everyone,
        one_off=Population.concatenate(one_off),
        newcomers=Population.concatenate(newcomers),
    )


def _residents(settings: DemoSettings, kind: str) -> Population:
    count = settings.users if kind == "user" else settings.items
    rng = generator(settings, kind)
    number = pc.utf8_lpad(pc.cast(pa.array(np.arange(count)), pa.string()), 6, "0")
    return _draw(
        settings,
        kind,
        rng,
        ids=pc.binary_join_element_wise(kind[0], number, ""),
        weight=rng.permutation(zipf_weights(count, settings.zipf_exponent)),
    )


def _cohort(
    settings: DemoSettings, kind: str, born: dt.date
) -> tuple[Population, IntArray, Population, IntArray]:
    """Newcomers of a day: those who stay, for how long; the one-off ones, delay of their return.

    A delay of -1 means no second event.
    """
    rng = generator(settings, f"{kind}_day", born)
    staying = settings.joiners_per_day if kind == "user" else settings.releases_per_day
    share = settings.visitor_share if kind == "user" else settings.rare_item_share
    passing = round(share * settings.events_per_day / (1 + SECOND_EVENT_PROBABILITY))
    number = pc.utf8_lpad(pc.cast(pa.array(np.arange(staying + passing)), pa.string()), 5, "0")
    weight = np.zeros(staying + passing)
    # A newcomer who stays is as active as a resident of the busier half.
    residents = settings.users if kind == "user" else settings.items
    rank = rng.integers(0, max(1, residents // 2), size=staying)
    weight[:staying] = zipf_weights(residents, settings.zipf_exponent)[rank]
    people = _draw(
        settings,
        kind,
        rng,
        ids=pc.binary_join_element_wise(f"{kind[0]}{born:%Y%m%d}", number, "-"),
        weight=weight,
    )
    stay = rng.integers(STAY_DAYS[0], STAY_DAYS[1] + 1, size=staying)
    returns = rng.random(passing) < SECOND_EVENT_PROBABILITY
    delay = rng.choice(SECOND_EVENT_DELAY, size=passing, p=SECOND_EVENT_DELAY_PROBABILITY)
    index = np.arange(staying + passing)
    return (
        people.take(index[:staying]),
        stay,
        people.take(index[staying:]),
        np.where(returns, delay, -1),
    )


def _draw(
    settings: DemoSettings,
    kind: str,
    rng: np.random.Generator,
    *,
    ids: pa.Array,
    weight: FloatArray,
) -> Population:
    count = len(weight)
    if kind == "item":
        # Every cluster gets as many items as any other, and of every popularity.
        cluster = rng.permutation(np.arange(count) % settings.clusters)
    else:
        cluster = rng.choice(settings.clusters, size=count, p=_cluster_demand(settings))
    shift = rng.integers(1, settings.clusters, size=count)
    return Population(
        ids=ids,
        cluster=cluster.astype(np.int64),
        side_cluster=((cluster + shift) % settings.clusters).astype(np.int64),
        weight=weight,
        traits=rng.random((count, 8)),
    )


def _cluster_demand(settings: DemoSettings) -> FloatArray:
    """Share of users whose main taste a cluster is: some tastes are several times commoner."""
    demand = (np.arange(settings.clusters) + 3.0) ** -0.7
    return demand / demand.sum()


def _aged(items: Population, age: int) -> Population:
    # Demand for a new release peaks on its first days and halves about every four.
    return Population(
        items.ids,
        items.cluster,
        items.side_cluster,
        items.weight * 3.0 * 0.5 ** (age / 4.0),
        items.traits,
    )


def _drifted(items: Population, settings: DemoSettings, day: dt.date) -> Population:
    period = 10.0 + 30.0 * items.traits[:, 6]
    phase = 2 * np.pi * items.traits[:, 7]
    swing = np.sin(2 * np.pi * day.toordinal() / period + phase)
    return Population(
        items.ids,
        items.cluster,
        items.side_cluster,
        items.weight * np.exp(settings.drift * swing),
        items.traits,
    )
