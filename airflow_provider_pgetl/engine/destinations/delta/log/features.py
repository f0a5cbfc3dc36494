"""The table features in a table's protocol, and how to add those that its columns or its files need.

A table with an older protocol lists no features: its version implies some. Once it lists features, it must list those
as well. None of delta-rs' own ways to raise a protocol is exact: adding a feature drops the features that the version
before implied, and setting a property makes the protocol require `variantType`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import TableFeatures
from deltalake.schema import Field

from airflow_provider_pgetl.engine.destinations.delta.types import needs_zoneless

READERS_LISTED, FEATURES_LISTED = 3, 7  # the versions from which a protocol lists features
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
    """Returns the features that a table with these columns must list, but does not. A table that lists features must
    list all of them: also those that its version has implied until now, and those that were left out at its creation,
    without which Spark cannot open the table."""
    known = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    lists = protocol.min_writer_version >= FEATURES_LISTED
    if not lists and not needs_zoneless(fields):
        return []
    wanted = list(_ALWAYS) if lists else _meant_by(protocol.min_writer_version)
    if needs_zoneless(fields):
        wanted.append(("timestampNtz", TableFeatures.TimestampWithoutTimezone))
    return [feature for name, feature in wanted if name not in known]


def _meant_by(writer_version: int) -> list[tuple[str, TableFeatures]]:
    """Returns the features that a version implies which lists none."""
    return [one for since, features in _SINCE.items() if since <= writer_version for one in features]


def properties_of(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = metadata.get("configuration") or {}
    return found


def with_vectors(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the actions that allow the files of a table to have deletion vectors; none if they are allowed already. A
    table that lists no features yet will list those that its version has implied."""
    actions: list[dict[str, Any]] = []
    if _VECTORS not in (protocol.get("writerFeatures") or ()):
        actions.append({"protocol": _raised(protocol)})
    if str(properties_of(metadata).get(_ENABLED, "")).lower() != "true":
        configuration = {**properties_of(metadata), _ENABLED: "true"}
        actions.append({"metaData": {**metadata, "configuration": configuration}})
    return actions


def _raised(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the protocol with deletion vectors added. A reader version without a list of features implies column
    mapping, if it is version 2."""
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
