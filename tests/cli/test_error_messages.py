"""Errors: one line, with the place, without the secret, with the right exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer

from airflow_provider_pgetl.cli.error_messages import ErrorMessages, passwords_of
from airflow_provider_pgetl.engine.config.pipeline_file import PipelineFile, read_pipeline_file
from airflow_provider_pgetl.engine.config.secrets import redact
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, PgetlError, refuse

URI = "postgresql://me:hunt%2Fer2@db/shop"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineFile:
    monkeypatch.setenv("SOURCE", URI)
    path = tmp_path / "shop.toml"
    path.write_text(
        'id="shop"\ntables=["public.a",\n"public.b"]\n[source]\nuri="env:SOURCE"\n[destination]\ntype="memory"'
    )
    return read_pipeline_file(path)


def told(
    error: Exception, file: PipelineFile | None = None, *, as_json: bool = False, verbose: bool = False
) -> tuple[int, str]:
    out = io.StringIO()
    with pytest.raises(typer.Exit) as caught, ErrorMessages(as_json, verbose, out, file).told():
        raise error
    return caught.value.exit_code, out.getvalue()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ErrorKind.USAGE, 2),
        (ErrorKind.CONFIG, 2),
        (ErrorKind.PREFLIGHT, 3),
        (ErrorKind.CONNECTION, 1),
        (ErrorKind.PRIVILEGE, 3),
        (ErrorKind.SLOT_LOST, 3),
        (ErrorKind.VALUE, 4),
    ],
)
def test_one_line_and_the_exit_code_of_the_kind(kind: ErrorKind, code: int) -> None:
    error = PgetlError(kind, "The thing is broken.", remedy="Mend it.")
    assert told(error) == (code, "pgetl: The thing is broken. Mend it.\n")


def test_what_the_source_finds_wrong_with_the_file_has_its_line(file: PipelineFile) -> None:
    error = PgetlError(ErrorKind.CONFIG, "There is no table public.b.", remedy="Create it.", table="public.b")
    assert told(error, file)[1] == f"pgetl: {file.path}:3: There is no table public.b. Create it.\n"


def test_commands_are_told_with_the_file_that_was_named(file: PipelineFile) -> None:
    error = PgetlError(ErrorKind.SLOT_LOST, "It is gone.", remedy="`pgetl reset FILE TABLE`, or leave FILE alone.")
    assert told(error, file)[1] == f"pgetl: It is gone. `pgetl reset {file.path} TABLE`, or leave FILE alone.\n"


def test_each_finding_has_a_line_of_its_own(file: PipelineFile) -> None:
    findings = [
        Finding("There is no table public.a.", "Create it.", table="public.a"),
        Finding("Minor version.", "Upgrade.", "warning"),
        Finding("There is no table public.b.", "Create it.", table="public.b"),
    ]
    with pytest.raises(PgetlError) as caught:
        refuse(findings)
    code, text = told(caught.value, file)
    assert code == 3
    assert text.splitlines() == [
        f"pgetl: {file.path}:2: There is no table public.a. Create it.",
        f"pgetl: {file.path}:3: There is no table public.b. Create it.",
    ]


def test_an_error_of_one_table_at_work_is_none_of_the_file(file: PipelineFile) -> None:
    error = PgetlError(ErrorKind.VALUE, "public.b holds too much.", remedy="Widen it.", table="public.b")
    assert told(error, file)[1] == "pgetl: public.b holds too much. Widen it.\n"


def test_as_json() -> None:
    code, text = told(PgetlError(ErrorKind.CONFIG, "Broken.", remedy="Mend it."), as_json=True)
    assert json.loads(text) == {
        "event": "error",
        "kind": "config",
        "message": "Broken.",
        "remedy": "Mend it.",
        "exit_code": code,
    }


def test_what_nobody_foresaw_is_told_in_one_line_too(file: PipelineFile) -> None:
    code, text = told(KeyError("a\nb"), file)
    assert code == 1
    assert text.count("\n") == 1
    assert "KeyError" in text
    assert "Traceback" not in text


def test_a_traceback_only_when_asked_for(file: PipelineFile) -> None:
    assert "Traceback" in told(KeyError("a"), file, verbose=True)[1]
    assert "Traceback" in told(PgetlError(ErrorKind.CONFIG, "Broken."), file, verbose=True)[1]
    assert "Traceback" not in told(PgetlError(ErrorKind.CONFIG, "Broken."), file)[1]


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize(
    "words",
    ["could not use {0}", "bad password hunt/er2", "spelled hunt%2Fer2", "password=hunter2", "password='hunt er2'"],
)
def test_a_secret_in_an_unforeseen_error_stays_secret(file: PipelineFile, words: str, verbose: bool) -> None:
    _, text = told(RuntimeError(words.format(URI)), file, verbose=verbose)
    assert "***" in text
    assert "er2" not in text.replace("words.format", "")


def test_leaving_is_no_error() -> None:
    for leaving in (typer.Exit(3), typer.Abort()):
        with pytest.raises(type(leaving)), ErrorMessages().told():
            raise leaving


def test_redacting_leaves_the_rest() -> None:
    assert (
        redact("at postgresql://me:pw@db:5432/shop?x=1 and env:A") == "at postgresql://***@db:5432/shop?x=1 and env:A"
    )
    assert redact("host=db password = 'a b' port=1") == "host=db password = *** port=1"
    assert (
        redact("db?token=aws-iam&aws_secret_access_key=a%2Fb&x=1") == "db?token=aws-iam&aws_secret_access_key=***&x=1"
    )
    assert redact("nothing to hide: postgresql://me@db/shop") == "nothing to hide: postgresql://me@db/shop"


def test_what_cannot_be_resolved_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    assert passwords_of(["env:NOWHERE", "postgresql:///shop"]) == frozenset()
