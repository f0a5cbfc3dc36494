"""A table's schemas as they are stored: read into `TableSchema` when one is asked for, and only once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.tables import TableSchema

Versions = Mapping[Boundary, TableSchema]


class StoredVersions(Versions):
    """By the boundary from which each is valid."""

    def __init__(self, definitions: Mapping[Boundary, str]) -> None:
        """`definitions`: their JSON, each kept until it is read."""
        self._versions: dict[Boundary, str | TableSchema] = dict(definitions)

    def __getitem__(self, valid_from: Boundary) -> TableSchema:
        schema = self._versions[valid_from]
        if isinstance(schema, str):
            schema = self._versions[valid_from] = TableSchema.from_json(json.loads(schema))
        return schema

    def __iter__(self) -> Iterator[Boundary]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)
