"""A table's schemas as they are stored: read into `TableSchema` when one is asked for, and only once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.tables import TableSchema

Versions = Mapping[Boundary, TableSchema]


class StoredVersions(Versions):
    """By the boundary from which each is valid; `definitions` is their JSON."""

    def __init__(self, definitions: Mapping[Boundary, str]) -> None:
        self._definitions = definitions
        self._read: dict[Boundary, TableSchema] = {}

    def __getitem__(self, valid_from: Boundary) -> TableSchema:
        schema = self._read.get(valid_from)
        if schema is None:
            schema = self._read[valid_from] = TableSchema.from_json(json.loads(self._definitions[valid_from]))
        return schema

    def __iter__(self) -> Iterator[Boundary]:
        return iter(self._definitions)

    def __len__(self) -> int:
        return len(self._definitions)
