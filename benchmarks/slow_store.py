"""A file system whose every read takes as long as an object store's: `slow:///path`.

Opening a file costs one request and every read another, as a ranged GET does. The latency in
seconds is the environment variable `SLOW_STORE_LATENCY`.
"""

from __future__ import annotations

import os
import time
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

PROTOCOL = "slow"
LATENCY = "SLOW_STORE_LATENCY"


class SlowStore(LocalFileSystem):
    """The local files, late."""

    protocol = PROTOCOL

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.latency = float(os.environ.get(LATENCY, "0"))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Size and kind of a file, after a request."""
        time.sleep(self.latency)
        return super().info(path, **options)

    def _open(self, path: str, mode: str = "rb", *args: Any, **options: Any) -> Any:
        return _SlowFile(super()._open(path, mode, *args, **options), self.latency)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix(f"{PROTOCOL}://"))


class _SlowFile:
    def __init__(self, file: Any, latency: float) -> None:
        self._file = file
        self._latency = latency

    def read(self, *args: Any) -> bytes:
        time.sleep(self._latency)
        content: bytes = self._file.read(*args)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def register() -> None:
    """Makes URLs of this file system known to fsspec."""
    fsspec.register_implementation(PROTOCOL, SlowStore, clobber=True)
