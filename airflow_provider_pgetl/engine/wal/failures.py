"""Why a stream did not start, or ended: from what the server said to a `PgetlError` of the right kind.

A kind follows from SQLSTATE and from when it came, never from the words of a message, which may be in any language.
"""

from __future__ import annotations

from psycopg import pq

from airflow_provider_pgetl.engine.errors import (
    REFUSED_BY_SOURCE,
    TOO_LARGE_TO_SEND,
    ErrorKind,
    PgetlError,
    classify,
    is_too_large_to_send,
)

_UNDEFINED_OBJECT = "42704"
_OBJECT_IN_USE = "55006"
_NOT_IN_PREREQUISITE_STATE = "55000"
_INSUFFICIENT_PRIVILEGE = "42501"


def field(result: pq.abc.PGresult, name: pq.DiagnosticField) -> str | None:
    value = result.error_field(name)
    return value.decode(errors="replace") if value is not None else None


def sqlstate(result: pq.abc.PGresult) -> str | None:
    return field(result, pq.DiagnosticField.SQLSTATE)


def _said(result: pq.abc.PGresult) -> str:
    parts = (field(result, pq.DiagnosticField.MESSAGE_PRIMARY), field(result, pq.DiagnosticField.MESSAGE_DETAIL))
    # libpq's own errors have no fields.
    words = " ".join(f"{part.strip().rstrip('.')}." for part in parts if part)
    return words or f"{result.error_message.decode(errors='replace').strip().rstrip('.')}."


def not_started(slot: str, result: pq.abc.PGresult, known: tuple[bool, str | None, str | None] | None) -> PgetlError:
    """START_REPLICATION was refused. `known` is the slot as the server has it: in this database, plugin, WAL status."""
    state, said = sqlstate(result), _said(result)
    if state == _OBJECT_IN_USE:
        return PgetlError(ErrorKind.SLOT_IN_USE, f"The slot {slot} is in use. The server said: {said}")
    wrong = _wrong_with_slot(known)
    if wrong and state != _INSUFFICIENT_PRIVILEGE:
        return PgetlError(ErrorKind.SLOT_LOST, f"The replication slot {slot} {wrong}.")
    kind = ErrorKind.PREFLIGHT if state == _NOT_IN_PREREQUISITE_STATE else classify(state)
    return PgetlError(kind, f"The slot {slot} could not be streamed from. The server said: {said}")


def _wrong_with_slot(known: tuple[bool, str | None, str | None] | None) -> str | None:
    if known is None:
        return "does not exist"
    of_this_database, plugin, wal_status = known
    if plugin != "pgoutput" or not of_this_database:
        return "is not ours: it was made for another database or plugin"
    return "was invalidated: the WAL that it needs is gone" if wal_status == "lost" else None


def ended(slot: str, publications: tuple[str, ...], result: pq.abc.PGresult | None) -> PgetlError:
    """The stream broke off. Without an error the server ended it of itself, as it does when it shuts down."""
    if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
        return PgetlError(ErrorKind.CONNECTION, f"The server ended the stream of slot {slot}; it is shutting down.")
    state, said = sqlstate(result), _said(result)
    if state == _UNDEFINED_OBJECT:
        return publication_missing(slot, publications, said)
    message = f"The stream of slot {slot} ended. The server said: {said}"
    if is_too_large_to_send(said):
        return PgetlError(ErrorKind.PREFLIGHT, message, remedy=TOO_LARGE_TO_SEND)
    if classify(state) is ErrorKind.VALUE:  # of the source's own: no destination has seen it
        return PgetlError(ErrorKind.PREFLIGHT, message, remedy=REFUSED_BY_SOURCE)
    return PgetlError(classify(state), message)


class PublicationMissing(PgetlError):
    """A publication did not exist when the change at hand was made: however often it is asked, the slot never comes
    beyond that, though the publication may be there again."""


def publication_missing(slot: str, publications: tuple[str, ...], said: str) -> PublicationMissing:
    """Such changes are lost to this stream."""
    names = " or ".join(publications)
    message = f"The slot {slot} has come to changes made while the publication {names} did not exist."
    return PublicationMissing(ErrorKind.SLOT_LOST, f"{message} They are lost to it. The server said: {said}")


def skipped_publication(slot: str, publications: tuple[str, ...], notice: pq.abc.PGresult) -> PgetlError | None:
    """From version 18 on a missing publication is but a warning, and its changes are silently left out."""
    warning = field(notice, pq.DiagnosticField.SEVERITY_NONLOCALIZED) == "WARNING"
    if not warning or sqlstate(notice) != _NOT_IN_PREREQUISITE_STATE:
        return None
    return publication_missing(slot, publications, _said(notice))


def broken(slot: str, error: Exception) -> PgetlError:
    """The connection itself failed, on either side."""
    said = str(error).strip().splitlines()
    return PgetlError(
        ErrorKind.CONNECTION, f"The connection of slot {slot} broke: {said[0] if said else 'no reason given'}."
    )
