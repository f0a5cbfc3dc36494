"""The engine without Airflow: the command `pgetl`, whose subcommands are the functions of `app`.

    app ──▶ session (file, pipeline, signals) ──▶ engine.pipeline's verbs ──▶ reports
                                                                               │
    terminal ◀── board (what has been reported, as one picture) ◀──────────────┤
    lines (plain, JSON) ◀──────────────────────────────────────────────────────┘

Nothing here decides anything about replication. Modules of the engine that connect to servers are imported when a verb
needs them, so that help, versions and errors in the pipeline file are shown at once.
"""


def main() -> None:
    """The entry point of `pgetl`; exits with the code that `error_messages` documents."""
    from airflow_provider_pgetl.cli.app import app

    app(prog_name="pgetl")
