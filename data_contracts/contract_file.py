"""Reads an ODCS file and validates it with the standard's own JSON schema.

Every complaint names the file and the line. The standard's pydantic model is not used: it accepts
misspelt nested keys, which the JSON schema refuses.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from data_contracts.errors import ContractFileError

API_VERSION = "v3.1.0"


class _TextDates(yaml.SafeLoader):
    """Leaves dates and times as text, as the JSON schema expects them."""


_TextDates.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class ContractFile:
    """The content of a contract file, valid ODCS, with the line of every key.

    Args:
        path: The YAML file.

    Raises:
        ContractFileError: The file cannot be read, or is not valid ODCS v3.1.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ContractFileError(
                f"cannot read the contract: {error}",
                where=str(path),
                fix="give the path of an ODCS YAML file",
            ) from error
        try:
            self._root = yaml.compose(text, Loader=_TextDates)
            # A subclass of the safe loader: it builds plain values only.
            self.content: dict[str, Any] = yaml.load(text, Loader=_TextDates)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            raise ContractFileError(
                f"not valid YAML: {getattr(error, 'problem', None) or error}",
                where=f"{path}:{mark.line + 1}" if mark else str(path),
                fix="correct the YAML",
            ) from error
        if not isinstance(self.content, dict):
            raise ContractFileError(
                "the file holds no contract", where=str(path), fix="write ODCS v3.1 YAML"
            )
        self._refuse_repeated_keys(self._root)
        self._validate()

    def where(self, location: Sequence[str | int]) -> str:
        """File, line and key of a place in the content."""
        key = ".".join(str(part) for part in location)
        return f"{self.path}:{self._line(location)}" + (f" key {key}" if key else "")

    def error(self, what: str, location: Sequence[str | int], fix: str) -> ContractFileError:
        """An error at a place in the content."""
        return ContractFileError(what, where=self.where(location), fix=fix)

    def unknown(
        self, name: str, known: Sequence[str], location: Sequence[str | int], kind: str = "key"
    ) -> ContractFileError:
        """An error that proposes the nearest known name."""
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        fix = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(known))}"
        return self.error(f"unknown {kind} '{name}'", location, fix)

    def _line(self, location: Sequence[str | int]) -> int:
        """Line of the deepest node on the way to the location."""
        node = self._root
        line = 1
        for part in location:
            if isinstance(node, yaml.MappingNode):
                found = [pair for pair in node.value if pair[0].value == str(part)]
                if not found:
                    break
                line = found[0][0].start_mark.line + 1
                node = found[0][1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
        return line

    def _refuse_repeated_keys(self, node: yaml.Node | None) -> None:
        # YAML readers keep the last of two equal keys without a word.
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                if key.value in seen:
                    raise ContractFileError(
                        f"key '{key.value}' is given twice",
                        where=f"{self.path}:{key.start_mark.line + 1}",
                        fix="keep one of them",
                    )
                seen.add(key.value)
                self._refuse_repeated_keys(value)
        elif isinstance(node, yaml.SequenceNode):
            for child in node.value:
                self._refuse_repeated_keys(child)

    def _validate(self) -> None:
        # First, because another version has another schema and the errors would mislead.
        version = self.content.get("apiVersion")
        if version != API_VERSION:
            raise self.error(
                f"the contract's apiVersion is {version!r}", ["apiVersion"], f"use {API_VERSION}"
            )
        # The deepest of the errors in the first place that has one is the one to read.
        errors = sorted(
            _leaves(_validator().iter_errors(self.content)),
            key=lambda error: (self._line(list(error.absolute_path)), -len(error.absolute_path)),
        )
        if errors:
            raise self._explain(errors[0])

    def _explain(self, error: Any) -> ContractFileError:
        location = list(error.absolute_path)
        if error.validator in ("unevaluatedProperties", "additionalProperties"):
            known = set(_known_keys(error.schema, _schema()))
            for name in error.instance:
                if name not in known:
                    return self.unknown(name, sorted(known), [*location, name])
        if error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return self.error(
                f"key '{missing[0]}' is missing", location, "add it: the standard asks for it"
            )
        if error.validator == "oneOf":
            choices = [name for part in error.validator_value for name in part.get("required", [])]
            if choices:
                return self.error(
                    "exactly one of several keys must be given",
                    location,
                    f"give one of {', '.join(choices)}",
                )
        return self.error(
            f"not valid ODCS {API_VERSION}: {error.message}", location, "see the standard"
        )


@cache
def _schema() -> dict[str, Any]:
    """JSON schema of ODCS v3.1, from the standard's own package."""
    file = resources.files("open_data_contract_standard") / "schema.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema


@cache
def _validator() -> Any:
    from jsonschema import Draft201909Validator

    return Draft201909Validator(_schema())


def _leaves(errors: Iterator[Any]) -> Iterator[Any]:
    """Errors with those inside `allOf`, `if` and `$ref` in place of their parents."""
    for error in errors:
        # The branches of oneOf/anyOf are alternatives: only their parent is true for sure.
        if error.context and error.validator not in ("oneOf", "anyOf"):
            yield from _leaves(iter(error.context))
        else:
            yield error


def _known_keys(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    """All keys that an object's schema names, following references and combinations."""
    yield from schema.get("properties", {})
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        yield from _known_keys(root["$defs"][name], root)
    for combined in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(combined, ()):
            yield from _known_keys(part, root)
    for branch in ("then", "else"):
        if branch in schema:
            yield from _known_keys(schema[branch], root)
