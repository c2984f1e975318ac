"""Titles, categories, tags and profiles that hint at the taste cluster, as real ones would."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.demo_data.population import FloatArray, IntArray, Population
from tasks.demo_data.themes import ADJECTIVES, COUNTRIES, NOUNS, THEMES

_TAGS = np.array([theme.tags for theme in THEMES], dtype=object)
_NAMES = pa.array([theme.name for theme in THEMES])
_CATEGORIES = pa.array([theme.category for theme in THEMES])
_TAG_POOL = pa.array([tag for theme in THEMES for tag in theme.tags])


def describe_items(items: Population) -> pa.Table:
    """``item_id``, ``title``, ``category`` and ``tags``: two of its theme, then one of another."""
    traits = items.traits
    words = [
        pa.array(ADJECTIVES).take(_pick(traits[:, 0], len(ADJECTIVES))),
        pa.array(NOUNS).take(_pick(traits[:, 1], len(NOUNS))),
        pc.cast(_pick(traits[:, 2], 99, first=1), pa.string()),
        _NAMES.take(pa.array(items.cluster)),
    ]
    title = pc.binary_join_element_wise(words[0], words[1], words[2], " ")
    title = pc.binary_join_element_wise(
        title, pc.binary_join_element_wise("(", words[3], ")", ""), " "
    )
    return pa.table(
        {
            "item_id": items.ids,
            "title": title,
            "category": _CATEGORIES.take(pa.array(items.cluster)),
            "tags": _tags(items, length=2 + (traits[:, 3] < 0.5)),
        }
    )


def describe_users(users: Population) -> pa.Table:
    """``user_id``, ``country``, ``interests``: one to three tags named at sign-up, or none."""
    traits = users.traits
    silent = traits[:, 3] < 0.2
    length = np.where(silent, 0, 1 + np.floor(traits[:, 2] * 3).astype(np.int64))
    return pa.table(
        {
            "user_id": users.ids,
            "country": pa.array(COUNTRIES).take(_pick(traits[:, 0], len(COUNTRIES))),
            "interests": _tags(users, length=length),
        }
    )


def _pick(draws: FloatArray, choices: int, first: int = 0) -> pa.Array:
    return pa.array(np.floor(draws * choices).astype(np.int64) + first)


def _tags(population: Population, length: IntArray) -> pa.ListArray:
    """The first ``length`` of: a tag of the cluster, another one of it, one of the side cluster."""
    per_theme = _TAGS.shape[1]
    one = np.floor(population.traits[:, 4] * per_theme).astype(np.int64)
    # A step of 1 .. per_theme - 1 never lands on the same tag again.
    step = 1 + np.floor(population.traits[:, 5] * (per_theme - 1)).astype(np.int64)
    own, side = population.cluster * per_theme, population.side_cluster * per_theme
    codes = np.stack([own + one, own + (one + step) % per_theme, side + one], axis=1)
    flat = codes[np.arange(3)[None, :] < length[:, None]]
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), _TAG_POOL.take(pa.array(flat)))
