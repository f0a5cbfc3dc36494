"""Which tables a declaration means, given what is there.

Pure. A partitioned table is matched by its root, and its leaves belong to it. A name written out wins over a pattern
that covers it. What a pattern covers but logical replication cannot follow (views, foreign and unlogged tables) is
passed over; the same thing written out is an error, because somebody meant it. Findings carry, as `table`, the
declaration's own words, by which its line can be found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from airflow_provider_pgetl.engine.config import TableSpec
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.source.findings import Finding
from airflow_provider_pgetl.engine.source.patterns import Pattern
from airflow_provider_pgetl.engine.source.relations import Relation
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
        return Pattern.parse(self.spec.destination).literal if self.spec.destination else self.table


@dataclass(frozen=True, slots=True)
class Matching:
    """The tables in order of their names, and what was wrong. With errors among the findings, not to be used."""

    matches: tuple[Match, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Declared:
    spec: TableSpec
    pattern: Pattern


def match(
    specs: Sequence[TableSpec],
    exclude: Sequence[str],
    relations: Sequence[Relation],
    reserved: frozenset[str] = RESERVED_SCHEMAS,
) -> Matching:
    """Hold declarations against relations. Relations in `reserved` schemas are not there for it."""
    declared, bad = _parse(specs)
    excluded, bad_exclusions = _parse([TableSpec(text) for text in exclude])
    present = {relation.name: relation for relation in relations if relation.name.schema not in reserved}
    findings = [*bad, *bad_exclusions, *_repeated(declared)]
    chosen: dict[TableName, Match] = {}
    for one in (one for one in declared if not one.pattern.wildcard):
        findings += _take_named(one, present, excluded, chosen)
    named = frozenset(chosen)
    for one in (one for one in declared if one.pattern.wildcard):
        findings += _take_pattern(one, present, excluded, chosen, named)
    findings += _idle_exclusions(excluded, present)
    matches = tuple(chosen[name] for name in sorted(chosen))
    return Matching(matches, (*findings, *_shared_destinations(matches)))


def _parse(specs: Iterable[TableSpec]) -> tuple[list[_Declared], list[Finding]]:
    declared, findings = [], []
    for spec in specs:
        try:
            declared.append(_Declared(spec, Pattern.parse(spec.name)))
            if spec.destination:
                Pattern.parse(spec.destination)
        except PgetlError as error:
            findings.append(Finding(error.message, error.remedy, table=spec.name))
            declared = [one for one in declared if one.spec is not spec]
    return declared, findings


def _repeated(declared: Sequence[_Declared]) -> Iterator[Finding]:
    named = Counter(one.pattern.literal for one in declared if not one.pattern.wildcard)
    for name, times in named.items():
        if times > 1:
            yield Finding(f"{name} is declared {times} times.", "Declare it once.", table=str(name))


def _take_named(
    one: _Declared,
    present: Mapping[TableName, Relation],
    excluded: Sequence[_Declared],
    chosen: dict[TableName, Match],
) -> Iterator[Finding]:
    name = one.pattern.literal
    relation = present.get(name)
    if relation is None:
        yield _missing(one, present)
    elif not relation.replicable:
        yield _unsuitable(one, relation)
    elif contrary := _covering(name, excluded):
        problem = f"{name} is declared, and excluded by {contrary.spec.name!r}."
        yield Finding(problem, "Take away one of the two.", table=one.spec.name)
    else:
        chosen.setdefault(name, Match(relation, one.spec))


def _take_pattern(
    one: _Declared,
    present: Mapping[TableName, Relation],
    excluded: Sequence[_Declared],
    chosen: dict[TableName, Match],
    named: frozenset[TableName],
) -> Iterator[Finding]:
    if one.spec.destination:
        problem = f"The pattern {one.spec.name} has one destination, {one.spec.destination}, for all it matches."
        yield Finding(problem, "Declare the table by its own name, or drop `destination`.", table=one.spec.name)
        return
    covered = [relation for name, relation in present.items() if one.pattern.matches(name)]
    wanted = [relation for relation in covered if relation.replicable and not _covering(relation.name, excluded)]
    if not wanted:
        yield _nothing(one, covered, present)
    for relation in wanted:
        if relation.name in named:
            continue
        earlier = chosen.setdefault(relation.name, Match(relation, one.spec))
        if _options(earlier.spec) != _options(one.spec):
            yield _contradiction(relation.name, earlier.spec, one.spec)
    yield from (_passed_over(relation) for relation in covered if _unlogged_table(relation))


def _covering(name: TableName, patterns: Sequence[_Declared]) -> _Declared | None:
    return next((one for one in patterns if one.pattern.matches(name)), None)


def _unlogged_table(relation: Relation) -> bool:
    return relation.persistence == "unlogged" and relation.root is None


def _options(spec: TableSpec) -> TableSpec:
    return replace(spec, name="")


# -- sentences --------------------------------------------------------------------------------------------------------


def _missing(one: _Declared, present: Mapping[TableName, Relation]) -> Finding:
    name = one.pattern.literal
    remedy = _did_you_mean(str(name), present) or "Correct the name, or create the table first."
    return Finding(f"There is no table {name} in the source.", remedy, table=one.spec.name)


def _unsuitable(one: _Declared, relation: Relation) -> Finding:
    if relation.root is not None and relation.kind in ("table", "partitioned table"):
        problem = f"{relation.name} is a partition of {relation.root}."
        return Finding(problem, f"Declare {relation.root}; its partitions belong to it.", table=one.spec.name)
    problem = f"{relation.name} is no table that can be followed but {_article(relation.description)}."
    return Finding(problem, _instead(relation), table=one.spec.name)


def _instead(relation: Relation) -> str:
    if relation.persistence == "unlogged":
        return f"Its changes are not in the WAL: `ALTER TABLE {relation.name.sql} SET LOGGED`, or take it out."
    return "Declare the tables that it shows instead, or take it out."


def _nothing(one: _Declared, covered: Sequence[Relation], present: Mapping[TableName, Relation]) -> Finding:
    problem = f"The pattern {one.spec.name} matches no table."
    if any(relation.replicable for relation in covered):
        return Finding(problem, "All that it covers is excluded; take it out.", table=one.spec.name)
    if covered:
        kinds = ", ".join(sorted({"partition" if one.root else one.description for one in covered}))
        return Finding(problem, f"It covers only what cannot be followed by itself ({kinds}).", table=one.spec.name)
    remedy = _did_you_mean(one.spec.name, present) or _schemas(present)
    return Finding(problem, remedy, table=one.spec.name)


def _contradiction(name: TableName, earlier: TableSpec, later: TableSpec) -> Finding:
    problem = f"{name} is matched by {earlier.name} and by {later.name}, which ask for different things."
    return Finding(problem, "Declare it by its own name, which wins over patterns.", table=later.name)


def _passed_over(relation: Relation) -> Finding:
    problem = f"{relation.name} is unlogged and is left out: its changes are not in the WAL."
    remedy = f"`ALTER TABLE {relation.name.sql} SET LOGGED` if it is to be replicated, or exclude it."
    return Finding(problem, remedy, "warning", table=str(relation.name))


def _idle_exclusions(excluded: Sequence[_Declared], present: Mapping[TableName, Relation]) -> Iterator[Finding]:
    for one in excluded:
        if not any(one.pattern.matches(name) for name in present):
            remedy = _did_you_mean(one.spec.name, present) or "Correct it, or take it out."
            yield Finding(f"The exclusion {one.spec.name} matches nothing.", remedy, "warning", table=one.spec.name)


def _shared_destinations(matches: Sequence[Match]) -> Iterator[Finding]:
    counted = Counter(one.destination for one in matches)
    for destination, times in counted.items():
        if times > 1:
            names = ", ".join(str(one.table) for one in matches if one.destination == destination)
            problem = f"{names} all go to {destination}."
            yield Finding(problem, "Give each a `destination` of its own.", table=str(destination))


def _did_you_mean(text: str, present: Mapping[TableName, Relation]) -> str | None:
    names = {str(name).casefold(): str(name) for name, relation in present.items() if relation.replicable}
    close = get_close_matches(text.casefold(), names, n=3, cutoff=0.75)
    return f"Did you mean {' or '.join(names[one] for one in close)}?" if close else None


def _schemas(present: Mapping[TableName, Relation]) -> str:
    schemas = sorted({name.schema for name, relation in present.items() if relation.replicable})
    return f"There are tables in {', '.join(schemas)}." if schemas else "The source has no table at all."


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
