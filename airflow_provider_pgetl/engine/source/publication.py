"""The publications of a pipeline: creation, reconciliation with what is declared, checks, removal.

A managed publication belongs to the pipeline alone: its comment is the pipeline's stamp. A publication with another
comment, or none, is not changed. There are always two, created together and before any slot: the second sends inserts
and truncates of tables that are declared `insert_only`. Up to version 17 a stream fails on a publication that did not
exist yet at the position that it reads, so that the second could not be added later.

All changes are one transaction. It is judged before, and again when the server has parsed the row filters, and commits
nothing that would make an application's UPDATE or DELETE fail. A table whose share stays the same keeps its membership
(the pg_publication_rel row's OID), by which a gap in what was published is detected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psycopg

from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.model.errors import (
    ErrorKind,
    Finding,
    PgetlError,
    Severity,
    classify,
    refuse,
)
from airflow_provider_pgetl.engine.model.tables import quote_identifier
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.matching import Candidate
from airflow_provider_pgetl.engine.source.published import (
    GENERATED_COLUMNS_SINCE,
    Member,
    Publication,
    read_publications,
)
from airflow_provider_pgetl.engine.source.publishing_rules import (
    judge_declaration,
    judge_foreign_publication,
    judge_member,
)

CHANGES = frozenset({"insert", "update", "delete", "truncate"})
INSERTS = frozenset({"insert", "truncate"})

_LOCK_SECONDS = 10


def publication_names(spec: PipelineSpec) -> tuple[str, ...]:
    """The publications that the pipeline's streams request."""
    if not spec.source.manage_publication:
        return (spec.publication,)
    return spec.publication, inserts_name(spec)


def inserts_name(spec: PipelineSpec) -> str:
    return f"{spec.publication}_inserts"


def stamp(pipeline: str, instance: str | None) -> str:
    """The comment on a managed publication. Without an instance, it is one that no publication has."""
    return f"pgetl {pipeline} {instance or '?'}"


def prepare_publication(
    connection: Connection, spec: PipelineSpec, instance: str, candidates: Sequence[Candidate]
) -> tuple[Publication, ...]:
    """Makes the publications send what is declared, or raises and has changed nothing."""
    if not spec.source.manage_publication:
        refuse(judge_unmanaged(connection, spec, candidates))
        return read_publications(connection, publication_names(spec))
    with _transaction(connection):
        return _reconcile(connection, spec, instance, candidates)


def foresee_publication(
    connection: Connection, spec: PipelineSpec, instance: str | None, candidates: Sequence[Candidate]
) -> tuple[Publication, ...]:
    """The publications as `prepare_publication` would leave them, tried in a transaction that is rolled back: only the
    server can tell how it reads a row filter."""
    if not spec.source.manage_publication:
        return prepare_publication(connection, spec, instance or "", candidates)
    with _transaction(connection) as transaction:
        foreseen = _reconcile(connection, spec, instance, candidates)
        transaction.force_rollback = True
    return foreseen


def try_publication(
    connection: Connection, spec: PipelineSpec, instance: str | None, candidates: Sequence[Candidate]
) -> list[Finding]:
    """What `prepare_publication` would refuse."""
    if not spec.source.manage_publication:
        return list(judge_unmanaged(connection, spec, candidates))
    known = list(judge_managed(connection, spec, instance, candidates))
    if any(finding.severity == "error" for finding in known):
        return known
    try:
        foresee_publication(connection, spec, instance, candidates)
    except PgetlError as error:
        severity: Severity = "warning" if error.transient else "error"
        known.append(Finding(error.message, error.remedy, severity, error.table))
    return known


def publish_anew(connection: Connection, spec: PipelineSpec, instance: str, candidates: Sequence[Candidate]) -> None:
    """Takes these tables out of the pipeline's publications, as far as they are there, and adds them. All others stay.
    A publication that the pipeline does not manage, or that does not exist, stays as it is."""
    if not spec.source.manage_publication:
        return
    refuse(judge_managed(connection, spec, instance, candidates))
    present = {one.name: one for one in read_publications(connection, publication_names(spec))}
    oids = {one.match.relation.oid for one in candidates}
    with _transaction(connection):
        for name, chosen, _ in _shares(spec, candidates):
            publication, members = quote_identifier(name), present[name].members if name in present else {}
            if gone := [member.table.sql for oid, member in members.items() if oid in oids]:
                connection.execute(f"ALTER PUBLICATION {publication} DROP TABLE {', '.join(gone)}".encode())
            if chosen and name in present:
                connection.execute(f"ALTER PUBLICATION {publication} ADD TABLE {_listed(chosen)}".encode(), binary=True)


def drop_publications(connection: Connection, spec: PipelineSpec, instance: str) -> tuple[str, ...]:
    """Drops the publications with the pipeline's stamp; returns their names."""
    ours = [
        publication
        for publication in read_publications(connection, publication_names(spec))
        if publication.comment == stamp(spec.id, instance)
    ]
    with _transaction(connection):
        for publication in ours:
            connection.execute(f"DROP PUBLICATION {quote_identifier(publication.name)}".encode())
    return tuple(publication.name for publication in ours)


def judge_unmanaged(connection: Connection, spec: PipelineSpec, candidates: Sequence[Candidate]) -> Iterator[Finding]:
    found = read_publications(connection, publication_names(spec))
    if not found:
        problem = f"There is no publication {spec.publication}, and `manage_publication` is false."
        yield Finding(problem, "Create it, or let pgetl do so with `manage_publication = true`.")
        return
    version = connection.info.server_version
    for candidate in candidates:
        member = found[0].members.get(candidate.match.relation.oid)
        listed = member is not None and member.columns is not None
        sent = version < GENERATED_COLUMNS_SINCE or found[0].generated or listed
        yield from judge_declaration(candidate, version, stored_are_sent=sent)
    yield from judge_foreign_publication(found[0], candidates)


def judge_managed(
    connection: Connection, spec: PipelineSpec, instance: str | None, candidates: Sequence[Candidate]
) -> Iterator[Finding]:
    """Judges what is known without a trial: to whom the publications belong, and the properties of the tables."""
    found = read_publications(connection, publication_names(spec))
    yield from _judge_stamps(found, spec, instance)
    if len(found) < len(publication_names(spec)):
        yield from _judge_creation(connection)
    members = {oid for publication in found for oid in publication.members}
    for candidate in candidates:
        if candidate.match.relation.oid not in members and not candidate.access.owned:
            yield _not_owned(candidate, connection.info.user)
        yield from judge_declaration(candidate, connection.info.server_version)


# -- changing ---------------------------------------------------------------------------------------------------------


def _reconcile(
    connection: Connection, spec: PipelineSpec, instance: str | None, candidates: Sequence[Candidate]
) -> tuple[Publication, ...]:
    refuse(judge_managed(connection, spec, instance, candidates))
    names = publication_names(spec)
    present = {one.name: one for one in read_publications(connection, names)}
    version = connection.info.server_version
    # The publication of all changes is altered first: a table that becomes `insert_only` leaves it before it is added
    # to the other, and so is in both at no moment.
    with _filters_blamed(connection, candidates):
        for name, chosen, actions in _shares(spec, candidates):
            for statement in plan(name, present.get(name), chosen, actions, version, stamp(spec.id, instance)):
                connection.execute(statement.encode(), binary=True)  # one statement, whatever a filter says
    made = read_publications(connection, names)
    members = {oid: member for publication in made for oid, member in publication.members.items()}
    refuse(finding for one in candidates for finding in judge_member(one, members[one.match.relation.oid]))
    return made


@contextmanager
def _filters_blamed(connection: Connection, candidates: Sequence[Candidate]) -> Iterator[None]:
    """Finds the row filter that the server refuses. A statement names many tables, and the server's refusal of a filter
    names none: then each table's filter is tried alone."""
    try:
        with connection.transaction():
            yield
    except psycopg.Error as error:
        if not classify(error.sqlstate).transient:
            for candidate in candidates:
                _try_filter(connection, candidate)
        raise


def _try_filter(connection: Connection, candidate: Candidate) -> None:
    """Raises if the server cannot use the table's row filter. The trial is rolled back."""
    words = candidate.match.spec.where
    if words is None:
        return
    complaint = f"The row filter of {candidate.table}, {words!r}, cannot be used"
    with (
        server_errors(complaint, str(candidate.table)),
        suppress(psycopg.errors.InsufficientPrivilege),
        connection.transaction(force_rollback=True),
    ):
        connection.execute(f'CREATE PUBLICATION "pgetl probe" FOR TABLE {_entry(candidate)}'.encode(), binary=True)


def _shares(
    spec: PipelineSpec, candidates: Sequence[Candidate]
) -> Iterator[tuple[str, Sequence[Candidate], frozenset[str]]]:
    yield spec.publication, [one for one in candidates if one.key_needed], CHANGES
    yield inserts_name(spec), [one for one in candidates if not one.key_needed], INSERTS


def plan(
    name: str,
    present: Publication | None,
    wanted: Sequence[Candidate],
    actions: frozenset[str],
    version: int,
    comment: str,
) -> list[str]:
    """The statements that give one publication its options and tables; none if nothing is to be changed."""
    publication = quote_identifier(name)
    options = _options(actions, version)
    if present is None:
        tables = f" FOR TABLE {_listed(wanted)}" if wanted else ""
        return [
            f"CREATE PUBLICATION {publication}{tables} WITH ({options})",
            f"COMMENT ON PUBLICATION {publication} IS {_literal(comment)}",
        ]
    repairs = [] if _as_made(present, actions, version) else [f"ALTER PUBLICATION {publication} SET ({options})"]
    return repairs + _plan_tables(publication, present.members, {one.match.relation.oid: one for one in wanted})


def _plan_tables(publication: str, present: Mapping[int, Member], wanted: Mapping[int, Candidate]) -> list[str]:
    kept = {oid: (present[oid], one) for oid, one in wanted.items() if oid in present}
    if any(_only_server_can_compare(*pair) for pair in kept.values()):
        return [f"ALTER PUBLICATION {publication} SET TABLE {_listed(list(wanted.values()))}"]
    changed = {oid for oid, pair in kept.items() if not _same_share(*pair)}
    gone = [member.table for oid, member in present.items() if oid not in kept or oid in changed]
    new = [one for oid, one in wanted.items() if oid not in kept or oid in changed]
    statements = []
    if gone:
        statements.append(f"ALTER PUBLICATION {publication} DROP TABLE {', '.join(f'ONLY {one.sql}' for one in gone)}")
    if new:
        statements.append(f"ALTER PUBLICATION {publication} ADD TABLE {_listed(new)}")
    return statements


def _only_server_can_compare(member: Member, candidate: Candidate) -> bool:
    """Whether both have a filter, with different texts. SET TABLE compares them parsed, and keeps the entry of an equal
    one."""
    declared = candidate.match.spec.where
    return declared is not None and member.row_filter is not None and member.row_filter != declared


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _same_share(member: Member, candidate: Candidate) -> bool:
    spec = candidate.match.spec
    return set(member.columns or ()) == set(spec.columns) and (member.row_filter is None) == (spec.where is None)


def _listed(candidates: Sequence[Candidate]) -> str:
    return ", ".join(_entry(candidate) for candidate in candidates)


def _entry(candidate: Candidate) -> str:
    """The table as a publication's statement names it. With ONLY, because tables that inherit from this one are tables
    of their own. Partitions are included with their root all the same."""
    spec = candidate.match.spec
    columns = f" ({', '.join(quote_identifier(name) for name in spec.columns)})" if spec.columns else ""
    where = f" WHERE ({spec.where})" if spec.where is not None else ""
    return f"ONLY {candidate.table.sql}{columns}{where}"


def _options(actions: frozenset[str], version: int) -> str:
    options = f"publish = '{', '.join(sorted(actions))}', publish_via_partition_root = true"
    return options + (", publish_generated_columns = stored" if version >= GENERATED_COLUMNS_SINCE else "")


def _as_made(present: Publication, actions: frozenset[str], version: int) -> bool:
    generated = present.generated or version < GENERATED_COLUMNS_SINCE
    return present.actions == actions and present.via_root and generated


# -- findings ---------------------------------------------------------------------------------------------------------


def _judge_stamps(found: Sequence[Publication], spec: PipelineSpec, instance: str | None) -> Iterator[Finding]:
    foreign = [publication for publication in found if publication.comment != stamp(spec.id, instance)]
    yield from _not_ours(foreign, spec)
    for publication in found:
        if publication not in foreign and not publication.owned:
            problem = f"The publication {publication.name} belongs to the role {publication.owner}."
            yield Finding(problem, "Connect as that role or a member of it.")


def _not_ours(foreign: Sequence[Publication], spec: PipelineSpec) -> Iterator[Finding]:
    """One finding for the two publications of another store: they are created and dropped together, and so are its
    slots."""
    stores: dict[str, list[str]] = {}
    for publication in foreign:
        words = (publication.comment or "").split()
        if words[:1] == ["pgetl"] and len(words) == 3:
            stores.setdefault(f"{words[1]}_{words[2]}", []).append(publication.name)
        else:
            yield _made_by_others(publication, spec)
    for store, names in stores.items():
        pipeline, _, instance = store.rpartition("_")
        yield _of_another_store(pipeline, instance, names)


def _of_another_store(pipeline: str, instance: str, names: Sequence[str]) -> Finding:
    listed = ", ".join(names)
    problem = f"The publication {listed} belongs to pipeline {pipeline!r} of another state store (instance {instance})."
    slots = f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '_{instance}_'"
    remedy = (
        f"Point [state] uri at that store, or give this pipeline another id; if that store is gone for good: "
        f"DROP PUBLICATION {', '.join(map(quote_identifier, names))}; {slots};"
    )
    return Finding(problem, remedy)


def _made_by_others(publication: Publication, spec: PipelineSpec) -> Finding:
    problem = f"The publication {publication.name} exists and was not made for pipeline {spec.id!r}."
    remedy = (
        f"DROP PUBLICATION {quote_identifier(publication.name)}, so that pgetl can make its own; "
        "or use it as it is with `manage_publication = false`; or name another publication."
    )
    return Finding(problem, remedy)


def _judge_creation(connection: Connection) -> Iterator[Finding]:
    with server_errors("Privileges could not be read"):
        row = connection.execute(_MAY_CREATE).fetchone()
    if row and not row[0]:
        problem = f"The role {row[1]} may not create a publication in the database {row[2]}."
        remedy = (
            f"GRANT CREATE ON DATABASE {quote_identifier(row[2])} TO {quote_identifier(row[1])}, "
            "or create it yourself and set `manage_publication = false`."
        )
        yield Finding(problem, remedy)


def _not_owned(candidate: Candidate, role: str) -> Finding:
    problem = f"Only the owner of {candidate.table} may add it to a publication."
    remedy = (
        f"Make {role} a member of its owner {candidate.access.owner}, "
        "or publish it yourself and set `manage_publication = false`."
    )
    return Finding(problem, remedy, table=str(candidate.table))


@contextmanager
def _transaction(connection: Connection) -> Iterator[psycopg.Transaction]:
    """A transaction with a lock timeout, as ALTER PUBLICATION waits for VACUUM; a refusal of the server is a preflight
    error."""
    try:
        with server_errors("The publication could not be changed"), connection.transaction() as transaction:
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'".encode())
            yield transaction
    except PgetlError as error:
        if error.transient or error.kind is ErrorKind.PREFLIGHT:
            raise
        what = "the declaration of the table" if error.table is None else "its `where`"
        remedy = error.remedy if error.kind is ErrorKind.PRIVILEGE else f"Correct {what}."
        raise PgetlError(ErrorKind.PREFLIGHT, error.message, remedy=remedy, table=error.table) from error


_MAY_CREATE = """
select has_database_privilege(current_database(), 'CREATE'), current_user::text, current_database()::text
"""
