"""Who answers in `benchmarks.serving`: `python -m benchmarks.serving_contenders WHAT BUNDLE`.

`answer` is the user tower and the best items of one user; `search` is its second half alone, and
`faiss` the same by FAISS' flat index. One user is asked about at a time, each one timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import serve
from models import retrieval
from models.batch import UserInputs
from models.bundle import Recommender

K = 100


def main(arguments: list[str]) -> None:
    what, bundle = arguments
    torch.set_num_threads(1)
    recommender = Recommender.load(Path(bundle), verify=False)
    assert recommender.users is not None
    users = recommender.inputs(recommender.users)
    one = {"answer": _answer, "search": _search, "faiss": _faiss}[what](recommender, users)

    def work(job: dict[str, Any]) -> dict[str, Any]:
        times, items = [], []
        for user in job["users"]:
            started = time.perf_counter()
            found = one(user)
            times.append((time.perf_counter() - started) * 1000)
            if job.get("items"):
                items.append(found)
        return {"ms": times, "items": items}

    serve(work)


def _answer(recommender: Recommender, users: UserInputs) -> Callable[[int], list[int]]:
    def one(user: int) -> list[int]:
        found: list[int] = recommender.top_k(users.slice(user, user + 1), K)[0][0].tolist()
        return found

    return one


def _search(recommender: Recommender, users: UserInputs) -> Callable[[int], list[int]]:
    vectors = recommender.user_vectors(users.slice(0, 4096))

    def one(user: int) -> list[int]:
        row = user % len(vectors)
        found: list[int] = retrieval.top_k(vectors[row : row + 1], recommender.vectors, K)[0][
            0
        ].tolist()
        return found

    return one


def _faiss(recommender: Recommender, users: UserInputs) -> Callable[[int], list[int]]:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(recommender.vectors.shape[1])
    index.add(recommender.item_vectors.numpy())
    vectors = recommender.user_vectors(users.slice(0, 4096)).numpy()

    def one(user: int) -> list[int]:
        row = user % len(vectors)
        found: list[int] = index.search(vectors[row : row + 1], K)[1][0].tolist()
        return found

    return one


if __name__ == "__main__":
    main(sys.argv[1:])
