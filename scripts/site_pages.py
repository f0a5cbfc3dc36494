"""Hooks of mkdocs: the files at the top of the repository become pages of the site.

README.md is its home page, so that nothing is written twice. Links between these files and the pages in `docs` are
those of the repository, where GitHub shows them; here they are rewritten to those of the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    of_site = {page: name for name, page in PAGES.items()}
    place = page.file.src_uri
    written = of_site.get(place, f"docs/{place}")
    return _LINK.sub(lambda found: _address(found[1], written, place), markdown)


def _address(link: str, written: str, place: str) -> str:
    """Returns a relative link of the file `written` as one of the page `place`."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(written), link))
    target = PAGES.get(target, target.removeprefix("docs/"))
    return posixpath.relpath(target, posixpath.dirname(place) or ".")
