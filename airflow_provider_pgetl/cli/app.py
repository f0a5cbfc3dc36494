"""The commands. Each reads its arguments, asks one verb of the pipeline, and shows the answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_provider_pgetl import __version__
from airflow_provider_pgetl.cli.board import next_words, phase_words, table_words
from airflow_provider_pgetl.cli.demo import ReplicateTo
from airflow_provider_pgetl.cli.demo import demo as run_demo
from airflow_provider_pgetl.cli.error_messages import ErrorMessages, exit_code_of
from airflow_provider_pgetl.cli.session import (
    CommandSession,
    LogFormat,
    Manner,
    progress_watcher,
    session,
    stop_on_signals,
)
from airflow_provider_pgetl.engine.model.errors import TABLE_ERRORED, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import parse_table, written

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.model.errors import Finding
    from airflow_provider_pgetl.engine.model.phases import TableState
    from airflow_provider_pgetl.engine.model.tables import TableName

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Until(StrEnum):
    CAUGHT_UP = "caught-up"


File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="The pipeline file; or airflow:DAG, airflow:DAG/GROUP for a DAG's.", show_default=False
    ),
]
Table = Annotated[str, typer.Argument(metavar="TABLE", help="schema.table; awkward parts in double quotes.")]
Format = Annotated[
    LogFormat | None, typer.Option("--log-format", help="How to write what happens.", show_default=False)
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more; tracebacks of errors.")]
UntilOption = Annotated[
    Until | None, typer.Option("--until", help="caught-up: end when all that is committed now has arrived.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


_WATCH_SECONDS = 2.0
_CLEAR = "\x1b[H\x1b[2J"


def _show_version(wanted: bool) -> None:
    """Answers before any command is looked at."""
    if wanted:
        typer.echo(f"pgetl {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def pgetl(
    context: typer.Context,
    version: Version = False,
    log_format: Format = None,
    verbose: Verbose = False,
) -> None:
    """Replicate tables of a Postgres database: consistent parallel copies, then every change.

    Exit codes: 0 done, 1 failed, 2 bad use or pipeline file, 3 preflight failed, 4 a table is Errored.
    """
    del version  # its callback has answered already
    context.obj = Manner().refined(log_format, verbose)


@app.command()
def check(context: typer.Context, file: File, log_format: Format = None, verbose: Verbose = False) -> None:
    """Look whether the pipeline could run: source, state and destination. Changes no data."""
    from airflow_provider_pgetl.cli.lines import check_words
    from airflow_provider_pgetl.engine.model.errors import errors_of

    with session(file, _manner(context, log_format, verbose)) as asked:
        findings = asked.pipeline.check()
        for finding in findings:
            _show_finding(asked, finding)
        errors = errors_of(findings)
        asked.answer("checked", f"{file}: {check_words(errors)}.", errors=len(errors), findings=len(findings))
    raise typer.Exit(exit_code_of(errors))


@app.command()
def run(
    context: typer.Context,
    file: File,
    until: UntilOption = None,
    log_format: Format = None,
    verbose: Verbose = False,
) -> None:
    """Copy what is not copied yet and follow the source, until stopped by Ctrl-C or SIGTERM."""
    with session(file, _manner(context, log_format, verbose), progress_watcher) as asked:
        with stop_on_signals(asked.watcher.say) as stop:
            outcome = asked.pipeline.run(until_caught_up=until is Until.CAUGHT_UP, stop=stop)
            stopped = stop.is_set()
        code = asked.close_with(outcome, stopped=stopped)
    raise typer.Exit(code)


@app.command()
def merge(context: typer.Context, file: File, log_format: Format = None, verbose: Verbose = False) -> None:
    """Merge what has landed beside Delta tables into them, by Spark: for pipelines with merge = "spark"."""
    with session(file, _manner(context, log_format, verbose), progress_watcher) as asked:
        with stop_on_signals(asked.watcher.say) as stop:
            result = asked.pipeline.merge(stop=stop)
            stopped = stop.is_set()
        code = asked.close_merge(result, stopped=stopped)
    raise typer.Exit(code)


@app.command()
def copy(context: typer.Context, file: File, log_format: Format = None, verbose: Verbose = False) -> None:
    """Copy every table once from a snapshot. No slot is left, so that nothing can follow from there.

    The publication stays, for the next copy or run; `destroy` drops it.
    """
    with session(file, _manner(context, log_format, verbose), progress_watcher) as asked:
        with stop_on_signals(asked.watcher.say) as stop:
            outcome = asked.pipeline.copy(stop=stop)
            stopped = stop.is_set()
        code = asked.close_with(outcome, stopped=stopped)
    raise typer.Exit(code)


@app.command()
def status(
    context: typer.Context,
    file: File,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every two seconds, until Ctrl-C.")] = False,
    log_format: Format = None,
    verbose: Verbose = False,
) -> None:
    """Show where each table is. Source and destination need not be up."""
    with session(file, _manner(context, log_format, verbose)) as asked:
        if not watch:
            _show_status(asked, as_json)
            return
        with stop_on_signals(_say_nothing) as stop:
            while not stop.is_set():
                if sys.stdout.isatty():
                    typer.echo(_CLEAR, nl=False)
                _show_status(asked, as_json)
                stop.wait(_WATCH_SECONDS)


def _say_nothing(text: str) -> None:
    """Ctrl-C is how a watch ends: nothing is worth saying of it."""


def _show_status(asked: CommandSession, as_json: bool) -> None:
    from airflow_provider_pgetl.cli.lines import status_lines

    found = asked.with_remedies(asked.pipeline.status())
    if as_json or asked.manner.as_json:
        said = found.as_json()
        said["warnings"] = [*map(asked.error_messages.with_file, said["warnings"])]
        typer.echo(json.dumps(said, ensure_ascii=False, indent=None if asked.manner.as_json else 2))
    else:
        typer.echo("\n".join(map(asked.error_messages.with_file, status_lines(found))))


@app.command()
def top(
    context: typer.Context,
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    log_format: Format = None,
    verbose: Verbose = False,
) -> None:
    """Show the pipeline on the terminal, again every two seconds: what is wrong, the last hour of the stream, every
    table. Ctrl-C ends it."""
    from rich.console import Console

    from airflow_provider_pgetl.cli.top import print_top, show_top

    with session(file, _manner(context, log_format, verbose)) as asked:
        console = Console()
        if once or not console.is_terminal:
            print_top(asked, console)
            return
        with stop_on_signals(_say_nothing) as stop:
            show_top(asked, stop, console)


@app.command()
def schema(
    context: typer.Context,
    file: File,
    table: Table,
    as_json: AsJson = False,
    log_format: Format = None,
    verbose: Verbose = False,
) -> None:
    """Show the versions of a table's schema since it was copied: from which position on, when, what was altered."""
    from airflow_provider_pgetl.cli.lines import schema_lines

    with ErrorMessages(_manner(context, log_format, verbose).as_json, verbose).told():
        name = parse_table_argument(table)
    with session(file, _manner(context, log_format, verbose)) as asked:
        versions, state = asked.pipeline.schema_versions(name), asked.pipeline.state(name)
        if as_json or asked.manner.as_json:
            said = [one.as_json() for one in versions]
            typer.echo(json.dumps(said, ensure_ascii=False, indent=None if asked.manner.as_json else 2))
        else:
            typer.echo("\n".join(schema_lines(versions, state)))


@app.command()
def rollback(
    context: typer.Context, file: File, table: Table, log_format: Format = None, verbose: Verbose = False
) -> None:
    """Take a table back to its last safe phase, from where a run goes on with it.

    Before its copy was published, and from SyncDone on (Ready too, and Errored from there), that is the beginning: the
    table is copied again. In between, the copy counts, and only the changes since are applied again.
    """
    _go_back(_manner(context, log_format, verbose), file, table, lambda asked, name: asked.pipeline.rollback(name))


@app.command()
def reset(
    context: typer.Context, file: File, table: Table, log_format: Format = None, verbose: Verbose = False
) -> None:
    """Have a table copied again. Its data stays readable in the destination until the new copy is there."""
    _go_back(_manner(context, log_format, verbose), file, table, lambda asked, name: asked.pipeline.reset(name))


@app.command()
def verify(
    context: typer.Context,
    file: File,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE…]", help="schema.table; by default all.", show_default=False)
    ] = None,
    sample: Annotated[str, typer.Option(help="How much of all keys to compare, for instance 5%.")] = "100%",
    rate: Annotated[
        float | None, typer.Option(help="Read so many rows a second at the source, at most.", show_default=False)
    ] = None,
    show: Annotated[int, typer.Option(help="Show so many rows of each table that differ.")] = 20,
    repair: Annotated[bool, typer.Option("--repair", help="Have tables that differ copied again.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Compare nothing; show what past verifications found.")] = False,
    as_json: AsJson = False,
    log_format: Format = None,
    verbose: Verbose = False,
) -> None:
    """Compare tables with the source, row by row, while both are written to: proof that they are equal.

    Only tables that are Ready are compared. Exit code 4: rows differ, or a table could not be compared.
    """
    from airflow_provider_pgetl.cli.lines import verified_lines
    from airflow_provider_pgetl.engine.pipeline import VerifyOptions

    with ErrorMessages(_manner(context, log_format, verbose).as_json, verbose).told():
        chosen = [parse_table_argument(table) for table in tables or ()]
        share = _share(sample)
        _expect_positive(rate, show)
        if last and repair:
            raise PgetlError(ErrorKind.USAGE, "--last compares nothing.", remedy="Leave out --last to repair.")
    with session(file, _manner(context, log_format, verbose)) as asked:
        if last:
            found = asked.pipeline.last_verified(chosen or None)
        else:
            options = VerifyOptions(share=share, rate=rate, shown=show)
            with stop_on_signals(asked.watcher.say) as stop:
                found = asked.pipeline.verify(chosen or None, options=options, repair=repair, stopped=stop.is_set)
        if as_json or asked.manner.as_json:
            typer.echo(json.dumps(found.as_json(), ensure_ascii=False, indent=None if asked.manner.as_json else 2))
        else:
            for line in verified_lines(found):
                typer.echo(asked.error_messages.with_file(line))
    raise typer.Exit(0 if found.is_proven else TABLE_ERRORED)


@app.command()
def pause(context: typer.Context, file: File, log_format: Format = None, verbose: Verbose = False) -> None:
    """Stream nothing, and begin no copy, until `resume`; whatever runs or is started meanwhile waits.

    Nothing is lost, and nothing is copied again. But the source retains its WAL for as long as that lasts.
    """
    with session(file, _manner(context, log_format, verbose)) as asked:
        asked.pipeline.pause()
        words = f"Pipeline {asked.file.spec.id} is paused; the source retains its WAL. `pgetl resume` goes on."
        asked.answer("paused", words)


@app.command()
def resume(context: typer.Context, file: File, log_format: Format = None, verbose: Verbose = False) -> None:
    """Go on where a pipeline was paused. What runs goes on by itself; where nothing runs, start it."""
    with session(file, _manner(context, log_format, verbose)) as asked:
        was_paused = asked.pipeline.resume()
        words = f"Pipeline {asked.file.spec.id} {'is resumed' if was_paused else 'was not paused'}."
        asked.answer("resumed", words, was_paused=was_paused)


@app.command()
def release(context: typer.Context, file: File, log_format: Format = None, verbose: Verbose = False) -> None:
    """Remove the owner of a pipeline: the DAG or group that prepares it next becomes its owner. Its tables stay."""
    with session(file, _manner(context, log_format, verbose)) as asked:
        owner = asked.pipeline.release()
        words = f"Pipeline {asked.file.spec.id} {'had no owner' if owner is None else f'belonged to {owner}'}."
        asked.answer("released", words, owner=owner)


@app.command()
def destroy(
    context: typer.Context, file: File, yes: Yes = False, log_format: Format = None, verbose: Verbose = False
) -> None:
    """Remove slots, the publication that pgetl made, and all state. Data in the destination stays."""
    with session(file, _manner(context, log_format, verbose)) as asked:
        _confirm(asked, yes)
        removed = asked.pipeline.destroy(asked.patience)
        for sentence in removed:
            asked.answer("removed", f"Removed: {sentence}", what=sentence)
        if not removed:
            asked.answer("nothing_left", f"Nothing is left of pipeline {asked.file.spec.id}; nothing was removed.")


@app.command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="End when source and replica have been found equal.")] = False,
    destination: Annotated[ReplicateTo, typer.Option(help="Where the shop is replicated to.")] = (ReplicateTo.DELTA),
    orders: Annotated[int, typer.Option(min=4, help="How many orders the shop has at first.")] = 60_000,
) -> None:
    """Start PostgreSQL, a shop, and Airflow on this machine, and replicate the shop, until stopped by Ctrl-C.

    Needs airflow-provider-pgetl[demo], and Java. Everything is removed at the end.
    """
    with ErrorMessages().told():
        code = run_demo(destination, once=once, orders=orders)
    raise typer.Exit(code)


# -- rules that transform values -------------------------------------------------------------------------------------

transforming = typer.Typer(no_args_is_help=True, help="Look at the rules that transform values on their way.")
app.add_typer(transforming, name="transform")


@transforming.command("preview")
def preview_transforms(
    context: typer.Context,
    file: File,
    table: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="schema.table; by default all with rules.", show_default=False),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=1000, help="How many rows of each table.")] = 5,
    as_json: AsJson = False,
    log_format: Format = None,
    verbose: Verbose = False,
) -> None:
    """Show rows of the source before and after their transformation. Writes nothing; shows values as they are.

    Exit code 4: the rules of a table do not fit it, or fail on a row.
    """
    from airflow_provider_pgetl.cli.previews import preview_lines

    with ErrorMessages(_manner(context, log_format, verbose).as_json, verbose).told():
        wanted = None if table is None else parse_table_argument(table)
    with session(file, _manner(context, log_format, verbose)) as asked:
        found = asked.pipeline.preview_transforms(wanted, rows)
        if as_json or asked.manner.as_json:
            said = [one.as_json() for one in found]
            typer.echo(json.dumps(said, ensure_ascii=False, indent=None if asked.manner.as_json else 2))
        else:
            for line in preview_lines(found):
                typer.echo(asked.error_messages.with_file(line))
    raise typer.Exit(TABLE_ERRORED if any(one.failure is not None for one in found) else 0)


# -- what the commands share ------------------------------------------------------------------------------------------


def _manner(context: typer.Context, log_format: LogFormat | None, verbose: bool) -> Manner:
    before: Manner = context.obj
    return before.refined(log_format, verbose)


def _go_back(manner: Manner, file: Path, text: str, verb: Callable[[CommandSession, TableName], TableState]) -> None:
    with ErrorMessages(manner.as_json, manner.verbose).told():
        table = parse_table_argument(text)
    with session(file, manner) as asked:
        state = verb(asked, table)
        phase, follows = phase_words(state), next_words(state)
        words = f"{table_words(table)} is in {phase}, generation {state.generation}. {follows}"
        asked.answer("went_back", words, table=written(table), generation=state.generation, phase=phase, next=follows)


def parse_table_argument(text: str) -> TableName:
    """Exactly one table; a mistake is one of use, not of the pipeline file."""
    try:
        return parse_table(text)
    except PgetlError as error:
        raise PgetlError(ErrorKind.USAGE, f"TABLE: {error.message}", remedy=error.remedy) from None


def _share(text: str) -> float:
    """A share of all that is there: ``5%``, ``0.05``."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise PgetlError(
            ErrorKind.USAGE, f"--sample {text} is no share of the rows.", remedy="Write, for instance, 5%."
        )
    return share


def _expect_positive(rate: float | None, show: int) -> None:
    if (rate is not None and rate <= 0) or show < 0:
        raise PgetlError(ErrorKind.USAGE, "--rate and --show are numbers of rows.", remedy="Give more than none.")


def _show_finding(asked: CommandSession, finding: Finding) -> None:
    place = asked.file.place(finding.table, finding.key)
    remedy = asked.error_messages.with_file(finding.remedy)
    words = f"{place}: {finding.severity}: {finding.problem} {remedy}".rstrip()
    asked.answer(
        "finding",
        words,
        place=place,
        severity=finding.severity,
        kind=finding.kind,
        problem=finding.problem,
        remedy=remedy,
        table=finding.table,
    )


def _confirm(asked: CommandSession, yes: bool) -> None:
    """Asks for confirmation; raises where standard input is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise PgetlError(
            ErrorKind.USAGE,
            "Standard input is no terminal, so it cannot be asked whether to destroy.",
            remedy="Give --yes if you mean it.",
        )
    question = f"Remove slots, publication and state of pipeline {asked.file.spec.id}? Its tables would be copied anew."
    if not typer.confirm(question):
        raise PgetlError(ErrorKind.USAGE, "Nothing was removed.", remedy="Answer y, or give --yes, to go on.")
