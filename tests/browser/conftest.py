"""A browser in front of a local stack that works on a tiny pipeline."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.local_stack import commands
from tasks.local_stack.airflow_client import AirflowClient
from tasks.local_stack.state import StackInfo, load_stack_info
from tests.browser.live_stack import prepare

SIZE = {"width": 1440, "height": 900}
PATIENCE_MS = 60_000
KEEP = "TAILTOWER_BROWSER_ROOT"
"""Folder of a stack that is left running, so that a second round finds its runs."""
SCREENSHOTS = "TAILTOWER_SCREENSHOTS"


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackInfo]:
    """Airflow and MLflow with the real DAGs and a few days of small logs."""
    kept = os.environ.get(KEEP)
    root = Path(kept) if kept else tmp_path_factory.mktemp("screens")
    root.mkdir(parents=True, exist_ok=True)
    running = load_stack_info(root)
    if running is not None and running.complete:
        yield running
        return
    settings = prepare(root)
    yield commands.up(settings)
    if not kept:
        commands.down(settings)


@pytest.fixture(scope="session")
def airflow(stack: StackInfo) -> Iterator[AirflowClient]:
    """The REST API, to know when something that was started in a page is over."""
    with AirflowClient.of_stack(stack) as client:
        client.wait_for_dag("daily_retrain")
        yield client


@pytest.fixture(scope="session")
def page(stack: StackInfo) -> Iterator[Any]:
    """A page of a headless Chromium that is logged in to Airflow."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no Chromium (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium,
            # Root in a container has no user namespaces to make a sandbox of.
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        context = browser.new_context(viewport=SIZE, timezone_id="UTC", locale="en-US")
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE_MS)
        opened.goto(stack.airflow_url)
        opened.locator("input[name=username]").fill(stack.username)
        opened.locator("input[name=password]").fill(stack.password)
        opened.get_by_role("button", name="Sign in").click()
        opened.wait_for_url(re.compile(r"^https?://[^/]+/(?!auth/)"))
        yield opened
        browser.close()


@pytest.fixture(scope="session")
def shoot(page: Any) -> Callable[..., Path]:
    """Saves a picture of the page, once it has come to rest."""
    folder = Path(os.environ.get(SCREENSHOTS) or "var/screenshots")
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str, height: int = SIZE["height"], rest_ms: int = 1500) -> Path:
        if height != SIZE["height"]:
            page.set_viewport_size({**SIZE, "height": height})
        page.wait_for_timeout(rest_ms)
        path = folder / f"{name}.png"
        page.screenshot(path=path)
        page.set_viewport_size(SIZE)
        return path

    return take
