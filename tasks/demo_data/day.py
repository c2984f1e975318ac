"""One synthetic day as Arrow tables: interactions, items, users, and the hidden truth.

A day is held in memory: about 150 bytes an event.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.demo_data.attributes import describe_items, describe_users
from tasks.demo_data.population import Alive, IntArray, Population, alive_on, generator
from tasks.demo_data.settings import DemoSettings

#: Probability that an event leaves the topic of its session.
OFF_TOPIC = 0.1
#: Probability that a user's next event of the day opens another session.
NEW_SESSION = 0.25
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class DemoDay:
    """Tables of one day; `*_truth` hold the taste cluster of everything that is alive on it."""

    day: dt.date
    interactions: pa.Table
    items: pa.Table
    users: pa.Table
    item_truth: pa.Table
    user_truth: pa.Table


def generate_day(settings: DemoSettings, day: dt.date) -> DemoDay:
    """Generate one UTC day; it depends on ``settings`` and ``day`` and on nothing else."""
    users, items = alive_on(settings, "user", day), alive_on(settings, "item", day)
    rng = generator(settings, "events", day)

    actors = _who(settings, users, rng)
    who = Population.concatenate([users.regular, users.one_off])
    session, start_of_session = _sessions(actors, rng)
    topic = _topics(settings, who, actors, session, rng)
    items_of_event = _which_item(items, topic, rng)
    what = Population.concatenate([items.regular, items.one_off])
    seconds = _times(session, start_of_session, rng)

    order = np.argsort(seconds, kind="stable")
    midnight = dt.datetime.combine(day, dt.time(), tzinfo=dt.UTC)
    micros = int(midnight.timestamp()) * 1_000_000 + (seconds[order] * 1e6).astype(np.int64)
    interactions = pa.table(
        {
            "user_id": who.ids.take(pa.array(actors[order])),
            "item_id": what.ids.take(pa.array(items_of_event[order])),
            "timestamp": pa.array(micros).cast(pa.timestamp("us", tz="UTC")),
            "session": pa.array(session[order]),
        }
    )
    known_users = _known(users)
    known_items = _known(items)
    return DemoDay(
        day=day,
        interactions=interactions,
        items=describe_items(known_items),
        users=describe_users(known_users),
        item_truth=_truth("item_id", known_items),
        user_truth=_truth("user_id", known_users),
    )


def _known(alive: Alive) -> Population:
    """Rows of the side table: everything that comes back, and the day's one-off newcomers.

    Regulars are written every day, as a catalogue snapshot would: so a day's partition does not
    depend on which day the log was started with.
    """
    one_off_newcomers = alive.newcomers.take(alive.newcomers.weight == 0)
    return Population.concatenate([alive.regular, one_off_newcomers])


def _truth(key: str, population: Population) -> pa.Table:
    return pa.table(
        {
            key: population.ids,
            "cluster": pa.array(population.cluster, pa.int32()),
            "side_cluster": pa.array(population.side_cluster, pa.int32()),
        }
    )


def _who(settings: DemoSettings, users: Alive, rng: np.random.Generator) -> IntArray:
    """Acting user of each event ``[E]``, sorted; one-off users come after the regular ones."""
    one_off = np.arange(len(users.one_off))
    # More one-off events than a day holds happen only with extreme shares; the rest is cut.
    one_off = rng.permutation(one_off)[: settings.events_per_day]
    regular = rng.choice(
        len(users.regular),
        size=settings.events_per_day - len(one_off),
        p=users.regular.weight / users.regular.weight.sum(),
    )
    return np.sort(np.concatenate([regular, one_off + len(users.regular)]))


def _sessions(actors: IntArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Session number of each event ``[E]`` and the first event of each session ``[S]``."""
    opens = rng.random(len(actors)) < NEW_SESSION
    opens[0] = True
    opens[1:] |= actors[1:] != actors[:-1]
    return np.cumsum(opens) - 1, np.flatnonzero(opens)


def _topics(
    settings: DemoSettings,
    who: Population,
    actors: IntArray,
    session: IntArray,
    rng: np.random.Generator,
) -> IntArray:
    """Taste cluster that each event asks for ``[E]``: mostly the topic of its session."""
    sessions = int(session[-1]) + 1
    first = np.searchsorted(session, np.arange(sessions))
    user = actors[first]
    draw = rng.random(sessions)
    # What is not focus goes to the second taste, but for a quarter that goes anywhere.
    second = settings.focus + 0.75 * (1 - settings.focus)
    anywhere = rng.integers(0, settings.clusters, size=sessions)
    topic = np.where(draw < second, who.side_cluster[user], anywhere)
    topic = np.where(draw < settings.focus, who.cluster[user], topic)
    strays = rng.random(len(actors)) < OFF_TOPIC
    return np.where(strays, rng.integers(0, settings.clusters, size=len(actors)), topic[session])


def _which_item(items: Alive, topic: IntArray, rng: np.random.Generator) -> IntArray:
    """Item of each event ``[E]``, an index into regular items followed by one-off items.

    Every one-off item gets its event, from somebody who asks for its cluster while there is one.
    """
    chosen = np.full(len(topic), -1, dtype=np.int64)
    offset = len(items.regular)
    waiting = rng.permutation(len(topic))
    waiting = waiting[: len(items.one_off)]
    unmatched_items: list[IntArray] = []
    for cluster in np.unique(items.one_off.cluster):
        due = np.flatnonzero(items.one_off.cluster == cluster)
        events = waiting[topic[waiting] == cluster]
        pairs = min(len(due), len(events))
        chosen[events[:pairs]] = due[:pairs] + offset
        unmatched_items.append(due[pairs:])
    if unmatched_items:
        left_items = np.concatenate(unmatched_items)
        left_events = waiting[chosen[waiting] < 0][: len(left_items)]
        chosen[left_events] = left_items[: len(left_events)] + offset

    for cluster in np.unique(topic):
        events = np.flatnonzero((topic == cluster) & (chosen < 0))
        shelf = np.flatnonzero(items.regular.cluster == cluster)
        weight = items.regular.weight[shelf]
        chosen[events] = shelf[rng.choice(len(shelf), size=len(events), p=weight / weight.sum())]
    return chosen


def _times(session: IntArray, first: IntArray, rng: np.random.Generator) -> np.ndarray:
    """Second of the day of each event ``[E]``: sessions start along a daily rhythm.

    Events of a session are seconds to minutes apart and stay within the day.
    """
    sessions = len(first)
    evening = rng.random(sessions) < 0.6
    start = np.where(evening, rng.normal(20.0, 2.0, sessions), rng.uniform(6.0, 24.0, sessions))
    gaps = rng.exponential(90.0, size=len(session))
    gaps[first] = 0.0
    since_first = np.cumsum(gaps)
    since_first -= since_first[first][session]
    last = np.append(first[1:], len(session)) - 1
    latest_start = _DAY_SECONDS - 1.0 - since_first[last]
    begin = np.clip((start % 24.0) * 3600.0, 0.0, None)
    begin = np.maximum(np.minimum(begin, latest_start), 0.0)
    return np.minimum(begin[session] + since_first, _DAY_SECONDS - 1e-3)
