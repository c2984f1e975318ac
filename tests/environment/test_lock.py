"""How the locks are compiled."""

from __future__ import annotations

from pathlib import Path

from environment import lock

SETTINGS = """\
:env:.find-links='/wheels/mine'
global.find-links='/wheels/other'
global.index-url='https://index.example/simple'
global.timeout='60'
"""


def test_pips_index_settings_reach_uv():
    assert lock.index_options(SETTINGS, with_find_links=True) == [
        "--find-links",
        "/wheels/mine",
        "--index-url",
        "https://index.example/simple",
    ]


def test_the_cuda_lock_never_sees_local_wheels():
    assert "--find-links" not in lock.compile_command(Path("uv"), "gpu", SETTINGS)
    assert "--find-links" in lock.compile_command(Path("uv"), "cpu", SETTINGS)


def test_build_labels_are_stripped_and_comments_kept():
    text = "torch==2.13.0+cpu   # via x\npandas==3.1.1  # via a+b\n"
    assert (
        lock.without_local_versions(text) == "torch==2.13.0   # via x\npandas==3.1.1  # via a+b\n"
    )
