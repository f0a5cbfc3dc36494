"""The features that a table's protocol lists, and how it comes to have those that its columns or its files need.

A table of an older protocol lists none: its versions mean some. Once it lists features it must list those as well. None
of delta-rs' own ways to raise a protocol is exact: a feature that is added makes an end of those that came with the
version before, and a property that is set demands `variantType`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import TableFeatures
from deltalake.schema import Field

from airflow_provider_pgetl.engine.destinations.delta.types import needs_zoneless

READERS_LISTED, FEATURES_LISTED = 3, 7  # the protocol's versions from which it lists features
WITH_FEATURES = {"delta.minWriterVersion": str(FEATURES_LISTED)}
_ALWAYS = (("appendOnly", TableFeatures.AppendOnly), ("invariants", TableFeatures.Invariants))
_SINCE = {
    2: _ALWAYS,
    3: (("checkConstraints", TableFeatures.CheckConstraints),),
    4: (("changeDataFeed", TableFeatures.ChangeDataFeed), ("generatedColumns", TableFeatures.GeneratedColumns)),
}
_COLUMN_MAPPING, _READERS_MAP_COLUMNS = "columnMapping", 2
_VECTORS, _ENABLED = "deletionVectors", "delta.enableDeletionVectors"


def lacking(protocol: Any, fields: Sequence[Field]) -> list[TableFeatures]:
    """The features that a table with these columns is to list, and does not. A table that lists its features lists all
    of them: also those that its version has meant until now, and those that a creation has left out, without which
    Spark cannot open it."""
    known = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    lists = protocol.min_writer_version >= FEATURES_LISTED
    if not lists and not needs_zoneless(fields):
        return []
    wanted = list(_ALWAYS) if lists else _meant_by(protocol.min_writer_version)
    if needs_zoneless(fields):
        wanted.append(("timestampNtz", TableFeatures.TimestampWithoutTimezone))
    return [feature for name, feature in wanted if name not in known]


def _meant_by(writer_version: int) -> list[tuple[str, TableFeatures]]:
    """The features of a version that lists none."""
    return [one for since, features in _SINCE.items() if since <= writer_version for one in features]


def properties_of(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = metadata.get("configuration") or {}
    return found


def with_vectors(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The actions by which files of a table may come to have deletion vectors; none where they may already. One that
    lists no features yet lists from now on those that its version has meant."""
    actions: list[dict[str, Any]] = []
    if _VECTORS not in (protocol.get("writerFeatures") or ()):
        actions.append({"protocol": _raised(protocol)})
    if str(properties_of(metadata).get(_ENABLED, "")).lower() != "true":
        configuration = {**properties_of(metadata), _ENABLED: "true"}
        actions.append({"metaData": {**metadata, "configuration": configuration}})
    return actions


def _raised(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """With deletion vectors. Of a reader's version that lists no features, column mapping is what it has meant."""
    maps_columns = protocol["minReaderVersion"] == _READERS_MAP_COLUMNS
    readers = protocol.get("readerFeatures") or ([_COLUMN_MAPPING] if maps_columns else [])
    writers = protocol.get("writerFeatures")
    if writers is None:
        writers = [name for name, _ in _meant_by(protocol["minWriterVersion"])]
    writers = [*writers, *(name for name in readers if name not in writers)]
    return {
        "minReaderVersion": READERS_LISTED,
        "minWriterVersion": FEATURES_LISTED,
        "readerFeatures": [*readers, _VECTORS],
        "writerFeatures": [*writers, _VECTORS],
    }
