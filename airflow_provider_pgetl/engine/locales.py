"""By what a database compares and folds texts: one question, for source and destination alike."""

LOCALE = """
    select concat_ws(' ', coalesce(to_jsonb(b) ->> 'datlocprovider', 'c'), b.datcollate, b.datctype,
                     coalesce(to_jsonb(b) ->> 'datlocale', to_jsonb(b) ->> 'daticulocale'))
    from pg_database b where b.datname = current_database()
"""
