"""Which tables a declaration means, given what is there.

Pure, and given declarations that are valid in themselves. A partitioned table is matched by its root, and its leaves
belong to it. A name written out wins over a pattern that covers it. What a pattern covers but logical replication
cannot follow (views, foreign and unlogged tables) is passed over; the same thing written out is an error, because
somebody meant it. Findings are mistakes of the declaration, and carry, as `table`, its own words, by which its line can
be found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.config import TableSpec
from airflow_provider_pgetl.engine.errors import ErrorKind
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.source.relations import Relation
from airflow_provider_pgetl.engine.spelling import nearest
from airflow_provider_pgetl.engine.table_names import Pattern, parse_table
from airflow_provider_pgetl.engine.tables import TableName

RESERVED_SCHEMAS = frozenset({"pgetl"})


@dataclass(frozen=True, slots=True)
class Match:
    """A table of the source with the declaration that asked for it."""

    relation: Relation
    spec: TableSpec

    @property
    def table(self) -> TableName:
        return self.relation.name

    @property
    def destination(self) -> TableName:
        """Where it goes: its own name unless the declaration says otherwise."""
        return parse_table(self.spec.destination) if self.spec.destination else self.table


@dataclass(frozen=True, slots=True)
class Matching:
    """The tables in order of their names, and what was wrong. With errors among the findings, not to be used."""

    matches: tuple[Match, ...]
    findings: tuple[Finding, ...]


def match(
    specs: Sequence[TableSpec],
    exclude: Sequence[str],
    relations: Sequence[Relation],
    reserved: frozenset[str] = RESERVED_SCHEMAS,
) -> Matching:
    """Hold declarations against relations. Relations in `reserved` schemas are not there for it."""
    present = {relation.name: relation for relation in relations if relation.name.schema not in reserved}
    excluded = [Pattern.parse(text) for text in exclude]
    findings: list[Finding] = []
    chosen: dict[TableName, Match] = {}
    for spec in specs:
        if not spec.pattern.wildcard:
            findings += _take_named(spec, present, excluded, chosen)
    named = frozenset(chosen)
    for spec in specs:
        if spec.pattern.wildcard:
            findings += _take_pattern(spec, present, excluded, chosen, named)
    findings += _idle_exclusions(dict(zip(exclude, excluded, strict=True)), present)
    matches = tuple(chosen[name] for name in sorted(chosen))
    findings += _shared_destinations(matches)
    return Matching(matches, tuple(replace(finding, kind=ErrorKind.CONFIG) for finding in findings))


def _take_named(
    spec: TableSpec,
    present: Mapping[TableName, Relation],
    excluded: Sequence[Pattern],
    chosen: dict[TableName, Match],
) -> Iterator[Finding]:
    name = spec.pattern.literal
    relation = present.get(name)
    if relation is None:
        yield _missing(spec, present)
    elif not relation.replicable:
        yield _unsuitable(spec, relation)
    elif _covering(name, excluded):
        problem = f"{name} is declared, and excluded as well."
        yield Finding(problem, "Take away one of the two.", table=spec.name)
    else:
        chosen.setdefault(name, Match(relation, spec))


def _take_pattern(
    spec: TableSpec,
    present: Mapping[TableName, Relation],
    excluded: Sequence[Pattern],
    chosen: dict[TableName, Match],
    named: frozenset[TableName],
) -> Iterator[Finding]:
    covered = [relation for name, relation in present.items() if spec.pattern.matches(name)]
    wanted = [relation for relation in covered if relation.replicable and not _covering(relation.name, excluded)]
    if not wanted:
        yield _nothing(spec, covered, present)
    for relation in wanted:
        if relation.name in named:
            continue
        earlier = chosen.setdefault(relation.name, Match(relation, spec))
        if _options(earlier.spec) != _options(spec):
            yield _contradiction(relation.name, earlier.spec, spec)
    yield from (_passed_over(relation) for relation in covered if _silently_missed(relation, excluded))


def _covering(name: TableName, patterns: Sequence[Pattern]) -> Pattern | None:
    return next((pattern for pattern in patterns if pattern.matches(name)), None)


def _options(spec: TableSpec) -> tuple[object, ...]:
    return spec.columns, spec.where, spec.insert_only, spec.existing


def _silently_missed(relation: Relation, excluded: Sequence[Pattern]) -> bool:
    """An unlogged table looks like any other, and would be missed by nobody until it is."""
    unlogged = relation.persistence == "unlogged" and relation.root is None
    return unlogged and _covering(relation.name, excluded) is None


# -- sentences --------------------------------------------------------------------------------------------------------


def _missing(spec: TableSpec, present: Mapping[TableName, Relation]) -> Finding:
    name = spec.pattern.literal
    remedy = _did_you_mean(str(name), present) or "Correct the name, or create the table first."
    return Finding(f"There is no table {name} in the source.", remedy, table=spec.name)


def _unsuitable(spec: TableSpec, relation: Relation) -> Finding:
    if relation.root is not None and relation.kind in ("table", "partitioned table"):
        problem = f"{relation.name} is a partition of {relation.root}."
        return Finding(problem, f"Declare {relation.root}; its partitions belong to it.", table=spec.name)
    problem = f"{relation.name} is no table that can be followed but {_article(relation.description)}."
    return Finding(problem, _instead(relation), table=spec.name)


def _instead(relation: Relation) -> str:
    if relation.persistence == "unlogged":
        return f"Its changes are not in the WAL: `ALTER TABLE {relation.name.sql} SET LOGGED`, or take it out."
    return "Declare the tables that it shows instead, or take it out."


def _nothing(spec: TableSpec, covered: Sequence[Relation], present: Mapping[TableName, Relation]) -> Finding:
    problem = f"The pattern {spec.name} matches no table."
    if any(relation.replicable for relation in covered):
        return Finding(problem, "All that it covers is excluded; take it out.", table=spec.name)
    if covered:
        kinds = ", ".join(sorted({"partition" if one.root else one.description for one in covered}))
        return Finding(problem, f"It covers only what cannot be followed by itself ({kinds}).", table=spec.name)
    remedy = _did_you_mean(spec.name, present) or _schemas(present)
    return Finding(problem, remedy, table=spec.name)


def _contradiction(name: TableName, earlier: TableSpec, later: TableSpec) -> Finding:
    problem = f"{name} is matched by {earlier.name} and by {later.name}, which ask for different things."
    return Finding(problem, "Declare it by its own name, which wins over patterns.", table=later.name)


def _passed_over(relation: Relation) -> Finding:
    problem = f"{relation.name} is unlogged and is left out: its changes are not in the WAL."
    remedy = f"`ALTER TABLE {relation.name.sql} SET LOGGED` if it is to be replicated, or exclude it."
    return Finding(problem, remedy, "warning", table=str(relation.name))


def _idle_exclusions(excluded: Mapping[str, Pattern], present: Mapping[TableName, Relation]) -> Iterator[Finding]:
    for text, pattern in excluded.items():
        if not any(pattern.matches(name) for name in present):
            remedy = _did_you_mean(text, present) or "Correct it, or take it out."
            yield Finding(f"The exclusion {text} matches nothing.", remedy, "warning", table=text)


def _shared_destinations(matches: Sequence[Match]) -> Iterator[Finding]:
    counted = Counter(one.destination for one in matches)
    for destination, times in counted.items():
        if times > 1:
            names = ", ".join(str(one.table) for one in matches if one.destination == destination)
            problem = f"{names} all go to {destination}."
            yield Finding(problem, "Give each a `destination` of its own.", table=str(destination))


def _did_you_mean(text: str, present: Mapping[TableName, Relation]) -> str | None:
    meant = nearest(text, [str(name) for name, relation in present.items() if relation.replicable])
    return f"Did you mean {meant}?" if meant else None


def _schemas(present: Mapping[TableName, Relation]) -> str:
    schemas = sorted({name.schema for name, relation in present.items() if relation.replicable})
    return f"There are tables in {', '.join(schemas)}." if schemas else "The source has no table at all."


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
