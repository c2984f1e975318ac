"""The HTTP application: recommendations, health, metrics, and a page to try it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Response
from fastapi import Request as HttpRequest
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from tasks.serving.by_id import attributes_of
from tasks.serving.described import Recommendations
from tasks.serving.item_filter import parse_where
from tasks.serving.server.champion_watch import ChampionWatch, Served
from tasks.serving.server.measures import Measures
from tasks.serving.server.schema import (
    LONGEST_HISTORY,
    LONGEST_ID,
    MOST_CANDIDATES,
    MOST_ITEMS,
    Answers,
    Batch,
    Health,
    Item,
    Refused,
    Request,
)

LARGEST_BODY = 4 << 20

_Id = Annotated[str, Query(max_length=LONGEST_ID)]
_Condition = Annotated[str, Query(max_length=LONGEST_ID, pattern="^[^=]+=")]
_REFUSED = (
    (400, "A body that is no text"),
    (411, "A body without its length"),
    (413, "A body that is too long"),
    (422, "A request that is wrong, or does not fit the model"),
)


def create_app(watch: ChampionWatch) -> FastAPI:
    """The application; it follows the champion from its start to its end.

    Args:
        watch: The champion.
    """
    measures = Measures(watch)

    @asynccontextmanager
    async def following(_app: FastAPI) -> AsyncIterator[None]:
        thread = threading.Thread(target=watch.follow, name="champion", daemon=True)
        thread.start()
        yield
        watch.stop()

    app = FastAPI(
        title="Tailtower",
        summary="Recommendations of the champion.",
        description="Unknown users are served from their history, and without one from popularity.",
        lifespan=following,
        responses={status: {"model": Refused, "description": why} for status, why in _REFUSED},
    )

    @app.middleware("http")
    async def limit_and_measure(
        request: HttpRequest, go_on: Callable[[HttpRequest], Awaitable[Response]]
    ) -> Response:
        size = request.headers.get("content-length", "0")
        if not size.isdigit() or int(size) > LARGEST_BODY:
            return JSONResponse(
                {"detail": f"a body has a Content-Length of at most {LARGEST_BODY} bytes"}, 413
            )
        if request.method == "POST" and "content-length" not in request.headers:
            return JSONResponse({"detail": "a body needs a Content-Length"}, 411)
        with measures.timed(request.method) as outcome:
            response = await go_on(request)
            route = request.scope.get("route")
            outcome.path = getattr(route, "path", "unknown")
            outcome.status = response.status_code
        return response

    @app.get(
        "/recommendations",
        summary="Items for one user or one history",
        response_model=Recommendations,
    )
    def recommend_one(
        user_id: _Id | None = None,
        history: Annotated[list[_Id] | None, Query(max_length=LONGEST_HISTORY)] = None,
        k: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 10,
        exclude_seen: bool = True,
        candidates: Annotated[list[_Id] | None, Query(max_length=MOST_CANDIDATES)] = None,
        where: Annotated[
            list[_Condition] | None,
            Query(max_length=100, description="`attribute=value` of the items"),
        ] = None,
    ) -> Response:
        """Without a user and a history, the most popular items."""
        conditions = parse_where(where or ())
        request = Request(
            user_id=user_id,
            history=None if history is None else tuple(history),
            candidates=None if candidates is None else tuple(candidates),
            where={name: tuple(values) for name, values in conditions.items()} or None,
            k=k,
            exclude_seen=exclude_seen,
        )
        return _as_json(_answer(watch.served, request, measures))

    @app.post("/recommendations", summary="Items for many users at once", response_model=Answers)
    def recommend_many(batch: Batch) -> Response:
        """All answers come from the same model."""
        served = watch.served
        return _as_json(Answers.of([_answer(served, one, measures) for one in batch.requests]))

    @app.get("/items", summary="Items by a part of their title or by their ID")
    def find_items(
        query: Annotated[str, Query(max_length=LONGEST_ID)] = "",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> list[Item]:
        """The ones with the most interactions first."""
        model = watch.served.model
        return [
            Item(item_id=item, title=title, train_count=count)
            for item, title, count in model.find_items(query, limit)
        ]

    @app.get("/health", summary="Which model answers")
    def health() -> Health:
        """Answers as soon as a model is loaded."""
        served = watch.served
        by_id = served.model.model
        return Health(
            status="serving",
            version=served.version,
            day=served.day,
            run_id=served.run_id,
            items=by_id.recommender.num_items,
            users=len(by_id.user_ids),
        )

    @app.get("/metrics", response_class=PlainTextResponse, summary="Metrics for Prometheus")
    def metrics() -> Response:
        """Requests, seconds, origins of answers, unknown IDs, the model's version."""
        return Response(generate_latest(measures.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> str:
        return files("tasks.serving.server").joinpath("page.html").read_text()

    return app


def _as_json(answer: BaseModel) -> Response:
    """An answer as it is: FastAPI would check every item of it again."""
    return Response(answer.model_dump_json(), media_type="application/json")


def _answer(served: Served, request: Request, measures: Measures) -> Recommendations:
    known = attributes_of(served.model.model.recommender.bundle)
    unknown = sorted(set(request.attributes or ()) - known.keys())
    if unknown:
        raise HTTPException(
            422,
            f"the model reads no attribute '{unknown[0]}'; it reads: {', '.join(known) or 'none'}",
        )
    try:
        found = served.model.recommend(
            request.user_id,
            request.k,
            history=request.history,
            attributes=request.attributes,  # type: ignore[arg-type]
            exclude_seen=request.exclude_seen,
            candidates=request.candidates,
            where=request.where,
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise HTTPException(422, f"the request does not fit the model: {error}") from error
    measures.answered(found)
    return found
