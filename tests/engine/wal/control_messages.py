"""An encoder of keepalives and control messages, written from the protocol's documentation and not from our decoder."""

from __future__ import annotations

import struct

from airflow_provider_pgetl.engine.wal.pgoutput import (
    Begin,
    Commit,
    Keepalive,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    TruncateMessage,
    Type,
)
from tests.engine.changes.pgoutput import xlog_data

IDENTITY_LETTERS = {"default": b"d", "index": b"i", "full": b"f", "nothing": b"n"}


def encode(message: Message) -> bytes:
    if isinstance(message, Keepalive):
        reply = b"\1" if message.reply_requested else b"\0"
        return b"k" + uint64(message.position.lsn) + int64(message.server_time) + reply
    return xlog_data(_pgoutput(message))


def _pgoutput(message: Message) -> bytes:
    match message:
        case Begin():
            return b"B" + uint64(message.commit_lsn) + int64(message.commit_time) + uint32(message.xid)
        case Commit():
            return b"C\0" + uint64(message.commit_lsn) + uint64(message.end.lsn) + int64(message.commit_time)
        case Relation():
            return _relation(message)
        case Type():
            return b"Y" + uint32(message.oid) + _schema(message.schema) + text(message.name)
        case Origin():
            return b"O" + uint64(message.commit_lsn) + text(message.name)
        case LogicalMessage():
            flags = b"\1" if message.transactional else b"\0"
            content = int32(len(message.content)) + message.content
            return b"M" + flags + uint64(message.lsn) + text(message.prefix) + content
        case TruncateMessage():
            options = (1 if message.cascade else 0) + (2 if message.restart_identity else 0)
            oids = b"".join(uint32(oid) for oid in message.relations)
            return b"T" + int32(len(message.relations)) + bytes([options]) + oids
    raise AssertionError(message)


def _relation(relation: Relation) -> bytes:
    name = _schema(relation.table.schema) + text(relation.table.name)
    head = b"R" + uint32(relation.oid) + name + IDENTITY_LETTERS[relation.identity]
    columns = b"".join(
        (b"\1" if column.key else b"\0") + text(column.name) + uint32(column.type) + int32(column.modifier)
        for column in relation.columns
    )
    return head + struct.pack("!h", len(relation.columns)) + columns


def _schema(name: str) -> bytes:
    """The documentation: "Namespace (empty string for pg_catalog)"."""
    return text("" if name == "pg_catalog" else name)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def uint64(value: int) -> bytes:
    return struct.pack("!Q", value)


def int64(value: int) -> bytes:
    return struct.pack("!q", value)


def uint32(value: int) -> bytes:
    return struct.pack("!I", value)


def int32(value: int) -> bytes:
    return struct.pack("!i", value)
