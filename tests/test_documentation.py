"""What README and docs say is so: keys and defaults are the code's, examples are read, links lead somewhere, and the
privileges suffice."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_provider_pgetl import ReplicationDag
from airflow_provider_pgetl.cli.app import app
from airflow_provider_pgetl.engine.config.pipeline_file import read_pipeline_file
from airflow_provider_pgetl.engine.config.spec import (
    CopySpec,
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    SparkSpec,
    StreamSpec,
    TableSpec,
    TransformationSpec,
    TransformSpec,
)
from airflow_provider_pgetl.engine.model.quantities import parse_size
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REFERENCE = (ROOT / "docs" / "reference" / "pipeline-file.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
PRIVILEGED = (ROOT / "docs" / "reference" / "privileges.md").read_text(encoding="utf-8")
LAKE = (ROOT / "docs" / "how-to" / "lake-on-s3.md").read_text(encoding="utf-8")

# -- the reference of the pipeline file -------------------------------------------------------------------------------

SECTIONS = {
    "[[table]]": TableSpec,
    "[source]": SourceSpec,
    "[destination]": DestinationSpec,
    "[spark]": SparkSpec,
    "[copy]": CopySpec,
    "[stream]": StreamSpec,
    "[[transform]]": TransformSpec,
    "[transformation]": TransformationSpec,
}
# What a file says in another form than the declaration.
OPTIONS = {"options"}
TOP = {"id": "required", "tables": "`[]`", "exclude": "`[]`"}


def documented(section: str) -> dict[str, str]:
    """The keys of a section with their defaults, as written."""
    _, _, rest = REFERENCE.partition(f"\n## {section}\n" if section == "Top level" else f"\n## `{section}`\n")
    body = rest.partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", body, re.MULTILINE))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_a_section_is_documented_with_its_default(section: str) -> None:
    known = {field.name: field for field in fields(SECTIONS[section]) if field.name not in OPTIONS}
    written = documented(section)
    assert written.keys() == known.keys()
    for name, field in known.items():
        if field.default is MISSING:
            assert written[name] == "required"
        else:
            assert default_of(written[name]) == field.default, name


def default_of(text: str) -> object:
    value = text.strip("`")
    if re.fullmatch(r'"\d+[KMG]iB"', value):
        return parse_size(value.strip('"'))
    plain: dict[str, object] = {"none": None, "true": True, "false": False, "[]": ()}
    return plain[value] if value in plain else int(value) if value.isdigit() else value.strip('"')


def test_the_top_level_is_documented() -> None:
    sections = {"table", "source", "destination", "spark", "copy", "stream", "transform", "transformation"}
    beside = {field.name for field in fields(PipelineSpec)} - sections - {"state_uri", "owner", "adopt"}
    assert documented("Top level") == TOP
    assert beside == TOP.keys()
    assert documented("[state]").keys() == {"uri"}


@pytest.mark.parametrize("text", [README, REFERENCE, LAKE], ids=["README", "reference", "lake"])
def test_the_examples_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(blocks(text, "toml")[0])
    assert read_pipeline_file(path).spec.id == "shop"


def test_every_command_is_in_the_reference() -> None:
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    commands |= {str(group.name) for group in app.registered_groups}
    assert set(re.findall(r"^\| `pgetl (\w+)[ `]", COMMANDS, re.MULTILINE)) == commands


def test_the_reference_says_what_the_code_does() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "generate_reference.py"))
    for path, text, wanted in script["pages"]():
        assert text == wanted, f"{path.name}: run python scripts/generate_reference.py"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# -- the code that is named -------------------------------------------------------------------------------------------

FOR_MAINTAINERS = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "architecture.md",
    *(ROOT / "docs" / "decisions").glob("*.md"),
    ROOT / "docs" / "explanation.md",
]
PACKAGE = ROOT / "airflow_provider_pgetl"


@pytest.mark.parametrize("page", FOR_MAINTAINERS, ids=lambda page: page.name)
def test_modules_that_are_named_are_there(page: Path) -> None:
    """``engine/wal/stream`` and ``tests/chaos`` are paths, ``errors.DIRECTIVES`` a module of the engine or the
    package, with what is in it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`([\w./*]+)`", text):
        if "/" in name:
            path = name.removesuffix("/").removesuffix(".py")
            assert any(_is_there(root, path) for root in (PACKAGE, PACKAGE / "engine", ROOT)), name
        elif "." in name and "*" not in name and name.partition(".")[0] in PACKAGES:
            assert _is_defined(name.removesuffix(".py").split(".")), name


PACKAGES = {path.stem for folder in (PACKAGE, PACKAGE / "engine") for path in folder.glob("[!_.]*")}


def _is_there(root: Path, path: str) -> bool:
    return (root / path).exists() or bool(list(root.glob(f"{path}.*")))


def _is_defined(parts: Sequence[str]) -> bool:
    """Whether the first parts are a module, and the others are in it."""
    for length in range(len(parts), 0, -1):
        for root in (PACKAGE / "engine", PACKAGE):
            path = root.joinpath(*parts[:length])
            if length == len(parts) and path.is_dir():
                return True
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.exists():
                    text = file.read_text(encoding="utf-8")
                    return all(re.search(rf"\b{part}\b", text) for part in parts[length:])
    return False


# -- examples and links -----------------------------------------------------------------------------------------------

EXAMPLES = [
    pytest.param(block, id=f"{path.stem}-{number}")
    for path in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("block", EXAMPLES)
def test_an_example_is_python_and_imports_what_there_is(block: str) -> None:
    tree = ast.parse(block)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("airflow_provider_pgetl"):
            module = importlib.import_module(node.module)
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_whole_dags_of_the_docs_are_made() -> None:
    """Those that stand for themselves: README, tutorial, lake, and the first of the reference."""
    for page in (README, (ROOT / "docs" / "tutorial.md").read_text(), LAKE):
        made: dict[str, object] = {}
        exec(compile(blocks(page, "python")[0], "shop.py", "exec"), made)
        assert isinstance(made["shop"], ReplicationDag)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", outside, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if not target.startswith(("http:", "https:")):
            path = (page.parent / target) if target else page
            assert path.exists(), link
            assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), link


def test_the_site_is_built(tmp_path: Path) -> None:
    """Strictly: a link or an anchor that leads nowhere, or a page that is in no menu, is an error, but for --quiet."""
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", tmp_path / "site"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert 'href="tutorial/"' in home
    assert (tmp_path / "site" / "contributing" / "index.html").exists()


# -- privileges -------------------------------------------------------------------------------------------------------

PRIVILEGES = {block.partition("\n")[0].removeprefix("-- "): block for block in blocks(PRIVILEGED, "sql")}


@pytest.fixture
def databases_of_the_docs(databases: Databases) -> Iterator[Databases]:
    for database in databases:
        database.execute("revoke all on schema public from public")
        database.execute(f'revoke all on database "{database.name}" from public')
    tables = "create table customers (id int primary key); create table orders (id int primary key, amount numeric)"
    databases.source.execute(f"create role shop_owner; {tables}; insert into orders values (1, 2.50)")
    databases.source.execute("alter table customers owner to shop_owner; alter table orders owner to shop_owner")
    databases.source.execute("grant all on schema public to shop_owner")
    yield databases
    forget_roles(databases)


def forget_roles(databases: Databases) -> None:
    for role in ("pgetl", "shop_owner"):
        for database in databases:
            if database.execute("select 1 from pg_roles where rolname = %s", [role]):
                database.execute(f"drop owned by {role} cascade")
        databases.source.execute(f"drop role if exists {role}")


def grant(what: str, database: Database, name: str) -> str:
    """What the docs say, for this database; the URI of the role that it makes."""
    statements = PRIVILEGES[what].replace(f"DATABASE {name}", f'DATABASE "{database.name}"')
    if database.execute("select 1 from pg_roles where rolname = 'pgetl'"):
        statements = re.sub("CREATE ROLE pgetl .*;", "", statements)
    database.execute(re.sub("--.*", "", statements))
    return database.server.uri(database.name, user="pgetl", password="choose one")


@pytest.mark.spark
@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_the_privileges_suffice_for_a_run(databases_of_the_docs: Databases, tmp_path: Path) -> None:
    source, destination = databases_of_the_docs
    uris = {
        "PGETL_SOURCE_URI": grant("source", source, "shop"),
        "PGETL_DESTINATION_URI": grant("destination", destination, "copy"),
    }
    assert_it_runs(tmp_path, blocks(README, "toml")[0], uris, destination)


@pytest.mark.spark
@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_the_privileges_of_a_reader_suffice_for_a_run(databases_of_the_docs: Databases, tmp_path: Path) -> None:
    source, destination = databases_of_the_docs
    uris = {
        "PGETL_SOURCE_URI": grant("source, reading only", source, "shop"),
        "PGETL_DESTINATION_URI": grant("destination", destination, "copy"),
        "PGETL_STATE_URI": grant("state", destination, "state"),
    }
    text = blocks(README, "toml")[0].replace("[source]", "[source]\nmanage_publication = false")
    assert_it_runs(tmp_path, f'{text}\n[state]\nuri = "env:PGETL_STATE_URI"\n', uris, destination)


def assert_it_runs(folder: Path, text: str, uris: dict[str, str], destination: Database) -> None:
    """With Spark, as a person would run it."""
    path = folder / "shop.toml"
    path.write_text(text)
    said = CliRunner().invoke(app, ["check", str(path)], env=uris)
    assert said.exit_code == 0, said.output
    said = CliRunner().invoke(app, ["run", str(path), "--until", "caught-up"], env=uris)
    assert (said.exit_code, "Stopped." in said.output) == (0, False), said.output
    assert destination.execute("select id, amount::text from public.orders") == [(1, "2.50")], said.output
