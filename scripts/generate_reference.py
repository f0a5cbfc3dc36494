"""Writes what the reference has from the code: arguments of classes, options of commands, kinds of errors.

    python scripts/generate_reference.py

A generated part stands between two comments in its page. `tests/test_documentation.py` fails where a page is not what
this would write.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

import airflow_provider_pgetl
from airflow_provider_pgetl.cli.app import app
from airflow_provider_pgetl.engine.config.transformers import TRANSFORMERS
from airflow_provider_pgetl.engine.model.errors import DIRECTIVES

DOCS = Path(__file__).parents[1] / "docs"
_PARAMETER = re.compile(r"^:param (\w+): (.*?)(?=^:param |^\S|\Z)", re.MULTILINE | re.DOTALL)
_RETRIES = {
    "in_place": "yes, with back-off, and no table changes its phase",
    "timed": "yes: the table is rolled back after some time",
    "copy": "yes: the table is copied again after some time",
    "manual": "no: after the remedy, roll the table back",
    "none": "no",
}


# -- DAG classes ------------------------------------------------------------------------------------------------------


def classes() -> str:
    order = ["ReplicationDag", "ReplicationTaskGroup", "Table", "Postgres", "DeltaLake", "CustomDestination"]
    order += [name for name in airflow_provider_pgetl.__all__ if name not in order]
    return "\n\n".join(_class(name, getattr(airflow_provider_pgetl, name)) for name in order)


def _class(name: str, found: Any) -> str:
    text = inspect.getdoc(found) or ""
    described = {name: " ".join(words.split()) for name, words in _PARAMETER.findall(text)}
    summary = _markdown(" ".join(text.partition("\n\n")[0].split()).rstrip(":."))
    return f"### {name}\n\n{summary}.\n\n{_arguments(found, described)}"


def _arguments(found: Any, described: Mapping[str, str]) -> str:
    known = {name: each for name, each in inspect.signature(found).parameters.items() if name in described}
    lines = [f"| `{name}` | {_default(known.get(name))} | {_cell(words)} |" for name, words in described.items()]
    return "\n".join(["| argument | default | |", "|---|---|---|", *lines])


def _default(parameter: inspect.Parameter | None) -> str:
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return "required"
    value = parameter.default
    if value is ...:
        return "by `until`"
    if value.__class__.__name__ == "timedelta":
        return f'`"{int(value.total_seconds() // 3600)}h"`'
    if isinstance(value, str):
        return f'`"{value}"`'
    if "<factory>" in repr(value):
        return "`{}`"
    kind = value.__class__.__name__
    return f"`{kind}()`" if kind in airflow_provider_pgetl.__all__ else f"`{value!r}`"


def _markdown(text: str) -> str:
    return text.replace("``", "`")


def _cell(text: str) -> str:
    text = _markdown(text).replace("|", "\\|")
    return text[:1].upper() + text[1:]


# -- commands ---------------------------------------------------------------------------------------------------------


_EVERYWHERE = ("log_format", "verbose")


def commands() -> str:
    group: Any = typer.main.get_command(app)
    return "\n\n".join(_command(name, each) for name, each in _commands(group))


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from _commands(each, f"{name} ")
        else:
            yield f"{before}{name}", each


def _command(name: str, command: Any) -> str:
    summary = " ".join((command.help or "").partition("\n\n")[0].split())
    arguments = [each.metavar for each in command.params if _is_argument(each)]
    options = [_option(each) for each in command.params if not _is_argument(each) and each.name not in _EVERYWHERE]
    table = ["", "| option | default | |", "|---|---|---|", *options] if options else []
    usage = " ".join(["pgetl", name, *arguments])
    return "\n".join([f"### pgetl {name}", "", f"    {usage}", "", summary, *table])


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    value = getattr(option.default, "value", option.default)
    default = "none" if value is None or option.is_flag else f"`{value}`"
    return f"| {names} | {default} | {option.help} |"


# -- transformers -----------------------------------------------------------------------------------------------------


def transformers() -> str:
    return "\n\n".join(_transformer(each) for each in TRANSFORMERS.values())


def _transformer(cls: Any) -> str:
    text = inspect.getdoc(cls) or ""
    described = {name: " ".join(words.split()) for name, words in _PARAMETER.findall(text)}
    summary = _markdown(" ".join(re.split(r"\n\n:param|^:param", text, maxsplit=1)[0].split()))
    families = "all types" if cls.families is None else ", ".join(sorted(cls.families))
    lines = [f"### {cls.use}", "", summary, "", f"`{cls.__name__}` in a DAG; for {families}."]
    if described:
        lines += ["", _arguments(cls, described).replace("| argument |", "| option |")]
    return "\n".join(lines)


# -- errors -----------------------------------------------------------------------------------------------------------


def errors() -> str:
    lines = [
        f"| `{kind.value}` | {_RETRIES[each.retry]} | {each.exit_code} | {_cell(each.remedy)} |"
        for kind, each in DIRECTIVES.items()
    ]
    return "\n".join(["| kind | tried again by itself | exit code | what to do |", "|---|---|---|---|", *lines])


# -- pages ------------------------------------------------------------------------------------------------------------

PARTS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "classes": ("reference/dag.md", classes),
    "options": ("reference/commands.md", commands),
    "errors": ("how-to/errors.md", errors),
    "transformers": ("reference/transformers.md", transformers),
}


def pages() -> Iterator[tuple[Path, str, str]]:
    """Yields each page: its path, its text, and the text that it should have."""
    for name, (page, written) in PARTS.items():
        path = DOCS / page
        text = path.read_text(encoding="utf-8")
        begin, end = f"<!-- generated: {name} -->\n", "\n<!-- end -->"
        before, found, rest = text.partition(begin)
        assert found, f"{page} has no {begin}"
        yield path, text, f"{before}{begin}\n{written()}\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    for path, _, wanted in pages():
        path.write_text(wanted, encoding="utf-8")
