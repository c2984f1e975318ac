"""What the server takes and gives, with its limits; OpenAPI is made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.serving.described import Recommendations

MOST_ITEMS = 1000
MOST_REQUESTS = 256
LONGEST_HISTORY = 10_000
MOST_CANDIDATES = 10_000
LONGEST_ID = 512

_Id = int | Annotated[str, Field(max_length=LONGEST_ID)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Request(_Body):
    """Whom to recommend to: a user, a history, or both."""

    user_id: _Id | None = Field(default=None, description="The user's ID, as in the logs.")
    history: tuple[_Id, ...] | None = Field(
        default=None,
        max_length=LONGEST_HISTORY,
        description="The user's last items, oldest first; replaces what the model knows.",
    )
    attributes: dict[str, _Id | tuple[_Id, ...] | float | None] | None = Field(
        default=None, description="Attributes of the user; replace what the model knows."
    )
    candidates: tuple[_Id, ...] | None = Field(
        default=None,
        max_length=MOST_CANDIDATES,
        description="The items that may be answered; all of them when it is left out.",
    )
    where: dict[str, _Id | tuple[_Id, ...]] | None = Field(
        default=None,
        description="Values of the items' attributes: each must have its value, or one of them.",
    )
    k: int = Field(default=10, ge=1, le=MOST_ITEMS, description="How many items.")
    exclude_seen: bool = Field(default=True, description="Leave out what the user has taken.")


class Batch(_Body):
    """Several requests at once."""

    requests: tuple[Request, ...] = Field(min_length=1, max_length=MOST_REQUESTS)


class Refused(BaseModel):
    """Why a request got no answer."""

    detail: str | list[dict[str, Any]] = Field(
        description="A sentence, or what is wrong with each field."
    )


class Answers(_Body):
    """Answers of one model, in the order of the requests."""

    answers: tuple[Recommendations, ...]
    unknown_users: int = Field(description="Requests with a user that the model does not know.")
    unknown_items: int = Field(
        description="Items of histories and candidates that the model does not know."
    )

    @classmethod
    def of(cls, answers: Sequence[Recommendations]) -> Answers:
        """The answers, and what they say about unknown IDs."""
        return cls(
            answers=tuple(answers),
            unknown_users=sum(a.user_id is not None and not a.known_user for a in answers),
            unknown_items=sum(len(a.unknown_history) + a.unknown_candidates for a in answers),
        )


class Item(_Body):
    """An item of the corpus."""

    item_id: int | str
    title: str | None
    train_count: int = Field(description="Interactions that the model was trained on.")


class Health(_Body):
    """The model that answers."""

    status: str
    version: str
    day: str
    run_id: str
    items: int
    users: int
