"""Secrets of the local Airflow: made at the first start, readable by their owner only."""

from __future__ import annotations

import base64
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.local_stack.errors import StackError

ADMIN = "admin"


@dataclass(frozen=True)
class Credentials:
    """What the processes of one Airflow share.

    Attributes:
        secret_key: Signs sessions of the web server.
        jwt_secret: Signs the tokens of users and of running tasks; HS512 wants 64 bytes.
        fernet_key: Encrypts connections in the database.
    """

    secret_key: str
    jwt_secret: str
    fernet_key: str


def ensure_credentials(airflow_home: Path) -> Credentials:
    """Reads the secrets of an Airflow home, after making them if it has none.

    Raises:
        StackError: The file is damaged.
    """
    path = airflow_home / "secrets.json"
    fresh = Credentials(
        secret_key=secrets.token_urlsafe(48),
        jwt_secret=secrets.token_urlsafe(64),
        fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
    )
    _write_once(path, json.dumps(asdict(fresh)))
    try:
        return Credentials(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise StackError(
            "the secrets of the local Airflow cannot be read",
            where=str(path),
            fix="delete this file; new ones are made at the next start",
        ) from error


def ensure_password_file(airflow_home: Path) -> Path:
    """The password file of Airflow's simple auth manager, with a random admin password."""
    path = password_file(airflow_home)
    _write_once(path, json.dumps({ADMIN: secrets.token_urlsafe(12)}) + "\n")
    return path


def password_file(airflow_home: Path) -> Path:
    """Where the passwords are kept."""
    return airflow_home / "passwords.json"


def read_password(path: Path) -> str:
    """The admin's password.

    Raises:
        StackError: There is none.
    """
    try:
        return str(json.loads(path.read_text())[ADMIN])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StackError(
            "the password of the local Airflow cannot be read",
            where=str(path),
            fix="delete this file; a new password is made at the next start",
        ) from error


def _write_once(path: Path, content: str) -> None:
    """Creates a file that only its owner can read, unless it is there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Written aside and then renamed: a kill never leaves half a secret under the final name.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as stream:
        stream.write(content)
    temporary.replace(path)
