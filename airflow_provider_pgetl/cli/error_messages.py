"""How errors are printed, and the exit codes.

| code | |
|---|---|
| 0 | done, or stopped by SIGTERM or SIGINT |
| 1 | anything else; above all, a server cannot be reached or refuses the connection |
| 2 | wrong usage, or an error in the pipeline file |
| 3 | the preflight found what forbids a run |
| 4 | a table is Errored, or, of `check`, would be; the others finished |

docs/reference/commands.md lists the code of each kind of error; `model.errors.DIRECTIVES` defines it, for all commands
alike.

An error is one line on standard error: what it concerns, what is wrong, what to do. A traceback is printed only with
`-v`. `PgetlError` never contains a secret; other exceptions may, so passwords that the pipeline's connections resolve
to are removed from them.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TextIO

import typer

from airflow_provider_pgetl.cli.dags import is_of_airflow
from airflow_provider_pgetl.engine.config.pipeline_file import PipelineFile
from airflow_provider_pgetl.engine.config.secrets import redact, secrets_of
from airflow_provider_pgetl.engine.model.errors import TABLE_ERRORED, ErrorKind, Finding, PgetlError, findings_of
from airflow_provider_pgetl.wording import in_airflow

DONE = 0
_UNFORESEEN = 1
_FILE = re.compile(r"(?<=`pgetl )(\w+) FILE\b")


def exit_code_of(errors: Sequence[Finding]) -> int:
    """Returns the exit code of a run with these errors: that of the first one that ends the run, else that of Errored
    tables."""
    codes = [error.exit_code for error in errors]
    return next((code for code in codes if code != TABLE_ERRORED), TABLE_ERRORED if codes else DONE)


@dataclass(slots=True)
class ErrorMessages:
    """Prints errors. `file` is set once it has been read; it gives the places of what the source finds wrong."""

    as_json: bool = False
    verbose: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    file: PipelineFile | None = None

    @contextmanager
    def told(self) -> Iterator[None]:
        """Prints any error that is raised inside, and exits with its code."""
        try:
            yield
        except PgetlError as error:
            self.tell(error)
            raise typer.Exit(error.directive.exit_code) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:  # the last resort: no exception may reach the terminal unredacted
            self._tell_unforeseen(error)
            raise typer.Exit(_UNFORESEEN) from None

    def tell(self, error: PgetlError) -> None:
        self._trace(error)
        code = error.directive.exit_code
        for finding in findings_of(error):
            self.say(finding.kind, f"{self._place(finding)}{finding.problem}", finding.remedy, code)

    def say(self, kind: str, message: str, remedy: str, exit_code: int) -> None:
        remedy = self.with_file(remedy)
        if self.as_json:
            data = {"event": "error", "kind": kind, "message": message, "remedy": remedy, "exit_code": exit_code}
            self._write(json.dumps(data, ensure_ascii=False))
        else:
            self._write(f"pgetl: {message} {remedy}".rstrip())

    def with_file(self, remedy: str) -> str:
        """Returns the remedy with the file in its commands, or in the words of Airflow for a pipeline of a DAG: the
        engine has neither."""
        if self.file is None:
            return remedy
        if is_of_airflow(self.file.path):
            return in_airflow(remedy)
        path = shlex.quote(str(self.file.path))
        return _FILE.sub(lambda found: f"{found[1]} {path}", remedy)

    def _place(self, finding: Finding) -> str:
        """Returns the place in the declaration, for errors in it that only the source could reveal."""
        declared = finding.kind in (ErrorKind.CONFIG, ErrorKind.PREFLIGHT)
        if self.file is None or not declared or not (finding.key or finding.table):
            return ""
        return f"{self.file.place(finding.table, finding.key)}: "

    def _tell_unforeseen(self, error: Exception) -> None:
        self._trace(error)
        message = redact(f"unforeseen {type(error).__name__}: {error}".replace("\n", " "), self._secrets())
        self.say(ErrorKind.INTERNAL, message, "Run again with -v and report what it shows.", _UNFORESEEN)

    def _trace(self, error: Exception) -> None:
        if self.verbose:
            self._write(redact("".join(traceback.format_exception(error)), self._secrets()).rstrip())

    def _secrets(self) -> frozenset[str]:
        if self.file is None:
            return frozenset()
        spec = self.file.spec
        return passwords_of(uri for uri in (spec.source.uri, spec.state_uri, spec.destination.uri) if uri is not None)

    def _write(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


def passwords_of(references: Iterable[str]) -> frozenset[str]:
    """Returns the passwords behind references, in every spelling in which an error might quote them."""
    from airflow_provider_pgetl.engine.config.secrets import resolve

    resolved: list[str] = []
    for reference in references:
        with suppress(PgetlError):  # a reference that cannot be resolved was never used, so it reveals no password
            resolved.append(resolve(reference))
    return secrets_of(resolved)
