"""Progress on a terminal: pieces of work that go on at a time share the one live display."""

import io
import threading

import pytest
from rich.console import Console

from tasks import progress


@pytest.fixture
def terminal(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(progress, "console", console)
    return console


def test_two_threads_show_their_bars_at_the_same_time(terminal):
    both = threading.Barrier(2, timeout=30)
    failed = []

    def work(name):
        try:
            with progress.progress(name, 3) as ticker:
                both.wait()
                ticker.advance(3)
                both.wait()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("users", "items")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    shown = terminal.file.getvalue()
    assert all(name in shown for name in ("users", "items"))


def test_the_display_ends_with_the_last_bar_and_starts_again(terminal):
    def fail(name):
        with progress.progress(name, 2):
            raise RuntimeError

    for name in ("first", "second"):
        with pytest.raises(RuntimeError):
            fail(name)
    # Another live display can only begin when none is left behind.
    with terminal.status("free"):
        pass
    assert all(name in terminal.file.getvalue() for name in ("first", "second"))
