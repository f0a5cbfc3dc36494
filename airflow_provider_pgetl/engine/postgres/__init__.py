"""Sessions on any PostgreSQL server: pinned settings, the meaning of errors, the COPY format, encodings."""
