"""`pgetl transform`: values that were encrypted come back, by whoever has the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_provider_pgetl.cli.app import app
from airflow_provider_pgetl.engine.config.transformers import Encrypt
from airflow_provider_pgetl.engine.transform.keyed import Key
from tests.engine.transform.columns import transform

FILE = """\
id = "shop"
tables = ["public.people"]
[source]
uri = "env:SOURCE"
[destination]
type = "memory"
{more}
"""
SECRET = "a key that is long enough"


def decrypt(
    folder: Path, lines: str, *options: str, more: str = '[transformation]\nkey = "env:KEY"'
) -> tuple[int, str]:
    path = folder / "shop.toml"
    path.write_text(FILE.format(more=more))
    result = CliRunner().invoke(app, ["transform", "decrypt", str(path), *options], input=lines)
    return result.exit_code, result.output


def test_what_was_encrypted_is_decrypted_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", SECRET)
    values = transform("text", Encrypt(), ["Ada", "Löve"], key=Key(SECRET))
    assert decrypt(tmp_path, "\n".join(map(str, values))) == (0, "Ada\nLöve\n")
    assert decrypt(tmp_path, f"{values[0]}\nwhat is this\n") == (1, "Ada\n\n")
    monkeypatch.setenv("OTHER", SECRET[::-1])
    assert decrypt(tmp_path, f"{values[0]}\n", "--key", "env:OTHER") == (1, "\n")


def test_without_a_key_nothing_is_decrypted(tmp_path: Path) -> None:
    code, output = decrypt(tmp_path, "x\n", more="")
    assert code == 2
    assert "has no key of its transformers" in output
    code, output = decrypt(tmp_path, "x\n", "--key", "hunter2")
    assert code == 2
    assert "hunter2" not in output
