"""Random numbers that depend on what they are for, not on what was drawn before."""

from __future__ import annotations

import hashlib

import torch


def generator_for(*purpose: object) -> torch.Generator:
    """A generator seeded by its purpose, for example a seed, a name and a step."""
    name = "/".join(str(part) for part in purpose)
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
