"""Protects: HTTP answers are those of the model, bad requests get a clear 4xx, and a new champion
takes over without a failed request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from tasks.errors import ConfigError
from tasks.gate import same_answer
from tasks.promotion import POINTER, write_pointer
from tasks.rollback import roll_back
from tasks.run_spec import ModelReference
from tasks.serving.bundles import bundle_folder, served_path, trained_model
from tasks.serving.by_id import RecommenderById
from tasks.serving.server.app import create_app
from tasks.serving.server.champion_watch import ChampionWatch
from tests.tasks.serving.category_days import CategoryDay
from tests.tasks.small_runs import TwoDays, make_config, make_two_days


@contextmanager
def _serving(watch: ChampionWatch) -> Iterator[httpx.Client]:
    """A client of a real server on a free port."""
    server = uvicorn.Server(uvicorn.Config(create_app(watch), log_level="warning"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        port = listening.getsockname()[1]
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                _wait_for(client)
                yield client
        finally:
            server.should_exit = True
            thread.join()


def _wait_for(client: httpx.Client) -> None:
    for _ in range(500):
        try:
            client.get("/health")
            return
        except httpx.TransportError:
            threading.Event().wait(0.02)
    raise AssertionError("the server does not answer")


@pytest.fixture(scope="module")
def client(two_days: TwoDays) -> Iterator[httpx.Client]:
    with _serving(ChampionWatch(two_days.config, 60.0)) as found:
        yield found


@pytest.fixture(scope="module")
def offline(two_days: TwoDays) -> RecommenderById:
    spec = two_days.second
    return RecommenderById(bundle_folder(spec.lake(), trained_model(spec, "candidate")))


def _ids(answer: dict[str, Any]) -> list[str]:
    return [item["item_id"] for item in answer["items"]]


def _scores(answer: dict[str, Any]) -> list[float]:
    return [item["score"] for item in answer["items"]]


@pytest.mark.parametrize("user", ["u00", "u07", "u21", "nobody"])
def test_a_user_gets_what_the_model_says(
    client: httpx.Client, offline: RecommenderById, user: str
) -> None:
    wanted = offline.answer(user, 7)
    answer = client.get("/recommendations", params={"user_id": user, "k": 7}).json()
    # Items that share all rows have one vector, and a product of it may end in another last bit.
    assert same_answer(_ids(answer), _scores(answer), wanted.items, wanted.scores)
    assert answer["origin"] == wanted.origin
    assert answer["known_user"] == (user != "nobody")


def test_a_batch_answers_in_order(client: httpx.Client, offline: RecommenderById) -> None:
    requests = [
        {"history": ["i01", "i05", "no such item"], "k": 4},
        {"user_id": "u03", "attributes": {"country": "b"}, "k": 3},
        {"user_id": "u03", "k": 5, "exclude_seen": False},
        {},
    ]
    answers = client.post("/recommendations", json={"requests": requests}).json()["answers"]
    wanted = [
        offline.answer(k=4, history=["i01", "i05", "no such item"]),
        offline.answer("u03", 3, attributes={"country": "b"}),
        offline.answer("u03", 5, exclude_seen=False),
        offline.answer(),
    ]
    for answer, one in zip(answers, wanted, strict=True):
        assert same_answer(_ids(answer), _scores(answer), one.items, one.scores)
    assert answers[0]["unknown_history"] == ["no such item"]
    assert [answer["origin"] for answer in answers] == ["history", "user", "user", "popularity"]


def test_only_the_candidates_are_answered(client: httpx.Client, offline: RecommenderById) -> None:
    chosen = ["i05", "i17", "?", "i02"]
    wanted = offline.answer("u03", 9, candidates=chosen)
    asked: dict[str, Any] = {"user_id": "u03", "k": 9, "candidates": chosen}
    answer = client.get("/recommendations", params=asked).json()
    assert same_answer(_ids(answer), _scores(answer), wanted.items, wanted.scores)
    assert set(_ids(answer)) == {"i05", "i17", "i02"}
    assert answer["unknown_candidates"] == 1
    posted = client.post("/recommendations", json={"requests": [asked]}).json()
    assert posted["answers"] == [answer]


def test_a_batch_counts_what_is_unknown(client: httpx.Client) -> None:
    requests = [
        {"user_id": "nobody"},
        {"user_id": "u01", "history": ["i01", "?"], "candidates": ["i02", "!", "-"]},
        {},
    ]
    found = client.post("/recommendations", json={"requests": requests}).json()
    assert (found["unknown_users"], found["unknown_items"]) == (1, 3)


def test_an_attribute_filters_by_text_and_by_json(category_day: CategoryDay) -> None:
    spec = category_day.spec
    bundle = trained_model(spec, "candidate")
    model = ModelReference(version="1", run_id=spec.run_id, day=spec.day, bundle=bundle.path)
    write_pointer(spec.config, model, bundle)
    with _serving(ChampionWatch(spec.config, 60.0)) as client:
        asked: dict[str, Any] = {"user_id": "u03", "k": 50}
        where = ["colour=red", "colour=blue"]
        found = client.get("/recommendations", params={**asked, "where": where}).json()
        colours = {category_day.colour[item] for item in _ids(found)}
        assert colours == {"red", "blue"}
        body = {"requests": [{**asked, "where": {"colour": ["red", "blue"]}}]}
        assert client.post("/recommendations", json=body).json()["answers"] == [found]
        for wrong, message in (("colour", "pattern"), ("size=1", "no attribute 'size'")):
            answer = client.get("/recommendations", params={"where": wrong})
            assert answer.status_code == 422
            assert message in answer.text


def test_items_are_found_by_title_and_id(client: httpx.Client) -> None:
    found = client.get("/items", params={"query": "title I0"}).json()
    assert {item["item_id"] for item in found} <= {f"i{n:02d}" for n in range(10)}
    assert [i["train_count"] for i in found] == sorted(
        (i["train_count"] for i in found), reverse=True
    )
    assert client.get("/items", params={"query": "i03"}).json()[0]["item_id"] == "i03"
    assert len(client.get("/items", params={"limit": 3}).json()) == 3
    assert client.get("/items", params={"query": "[(*"}).json() == []


def test_health_names_the_model(client: httpx.Client, two_days: TwoDays) -> None:
    found = client.get("/health").json()
    assert (found["status"], found["version"], found["day"]) == ("serving", "2", "2026-01-04")
    assert found["run_id"] == two_days.second.run_id
    assert found["items"] > 0
    assert found["users"] > 0


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"k": 0}, "greater than or equal to 1"),
        ({"k": 1001}, "less than or equal to 1000"),
        ({"user": "u01"}, "Extra inputs"),
        ({"attributes": {"age": 3}}, "reads no attribute 'age'; it reads: country, interests"),
        ({"history": "i01"}, "valid"),
        ({"user_id": "x" * 600}, "at most 512"),
    ],
)
def test_a_bad_request_says_what_is_wrong(
    client: httpx.Client, request_: dict[str, Any], message: str
) -> None:
    answer = client.post("/recommendations", json={"requests": [request_]})
    assert answer.status_code == 422
    assert message in answer.text


def test_bodies_and_batches_have_limits(client: httpx.Client) -> None:
    assert client.post("/recommendations", json={"requests": []}).status_code == 422
    many: dict[str, Any] = {"requests": [{}] * 257}
    assert client.post("/recommendations", json=many).status_code == 422
    huge = client.post("/recommendations", content=b"x" * ((4 << 20) + 1))
    assert huge.status_code == 413
    assert client.post("/recommendations", content=b"{").status_code == 422
    assert client.get("/nothing").status_code == 404


def test_metrics_count_answers_and_unknown_ids(two_days: TwoDays) -> None:
    with _serving(ChampionWatch(two_days.config, 60.0)) as client:
        client.get("/recommendations", params={"user_id": "nobody"})
        client.get("/recommendations", params={"history": ["i01", "?", "!"]})
        client.get("/recommendations", params={"k": 0})
        text = client.get("/metrics").text
    lines = set(text.splitlines())
    assert 'tailtower_answers_total{origin="history"} 1.0' in lines
    assert 'tailtower_unknown_ids_total{kind="user"} 1.0' in lines
    assert 'tailtower_unknown_ids_total{kind="item"} 2.0' in lines
    assert 'tailtower_unknown_ids_total{kind="candidate"} 0.0' in lines
    counted = 'tailtower_request_seconds_count{method="GET",path="/recommendations",status='
    assert counted + '"200"} 2.0' in lines
    assert counted + '"422"} 1.0' in lines
    assert any(line.startswith("tailtower_model_info{") and 'version="2"' in line for line in lines)


def test_the_page_asks_only_this_server(client: httpx.Client) -> None:
    page = client.get("/").text
    assert "<title>Tailtower</title>" in page
    assert "http://" not in page
    assert "https://" not in page


def test_a_swap_fails_no_request_and_answers_with_one_model(
    tmp_path: Path, mlflow_uri: str
) -> None:
    days = make_two_days(tmp_path / "lake", mlflow_uri)
    watch = ChampionWatch(days.config, 0.02)
    versions: list[str] = []
    statuses: set[int] = set()
    stop = threading.Event()
    with _serving(watch) as client:

        def ask() -> None:
            batch = {"requests": [{"user_id": f"u{n:02d}"} for n in range(8)]}
            while not stop.is_set():
                answer = client.post("/recommendations", json=batch)
                statuses.add(answer.status_code)
                names = {one["model"] for one in answer.json()["answers"]}
                assert len(names) == 1
                versions.extend(names)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            roll_back(days.config, reason="odd", by="ada")
            for _ in range(500):
                if watch.swaps:
                    break
                threading.Event().wait(0.02)
        finally:
            stop.set()
            asking.join()
        assert client.get("/health").json()["version"] == "1"
    assert statuses == {200}
    assert watch.swaps == 1
    assert versions[0] == "version 2 of 2026-01-04"


@pytest.mark.faults
def test_a_champion_that_does_not_load_leaves_the_one_before(
    tmp_path: Path, mlflow_uri: str
) -> None:
    days = make_two_days(tmp_path / "lake", mlflow_uri)
    lake = days.first.lake()
    watch = ChampionWatch(days.config, 60.0)
    served = lake.open_published(served_path(days.first.run_id))
    weights = bundle_folder(lake, served) / "item_vectors.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    roll_back(days.config, reason="odd", by="ada")
    watch.look()
    watch.look()
    assert (watch.served.version, watch.failures, watch.swaps) == ("2", 1, 0)
    lake.write_text(POINTER, "{}")
    watch.look()
    assert (watch.served.version, watch.failures) == ("2", 2)


def test_without_a_champion_there_is_nothing_to_serve(tmp_path: Path) -> None:
    config = make_config(tmp_path / "lake", f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(ConfigError, match="nothing is served yet"):
        ChampionWatch(config, 60.0)
