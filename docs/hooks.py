"""MkDocs hooks: add the files that pages link to, and control line breaks.

Pages link to code and records by repository path, so that links also work on a code host. On the
site, some of these files are pages of their own (`PAGES`), among them the notebook with its
outputs; the others are shown verbatim under `source/`.

On narrow screens, lines must not break inside options, names and quantities, and the columns of
tables need a width that fits their contents (see stylesheets/site.css).
"""

import html
import json
import posixpath
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {
    "src/gumbeltree/ops/merge/README.md": "merge.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "docs/notebook.ipynb": "notebook.md",
}
"""Files of the repository that become pages of the site, with their names there."""

SAME = {"README.md": "index.md"}
"""Files that another page replaces."""

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
CELL = re.compile(r"<td([^>]*)>(.*?)</td>", re.DOTALL)
HEAD = re.compile(r"(?<=>)[^<]*-[^<]*(?=</th>)")
CODE = re.compile(r"(?<=<code>)[^<\n]*-[^<\n]*(?=</code>)")
# left unchanged: code blocks, inline code and tags
KEPT = re.compile(r"(<pre\b.*?</pre>|<code\b.*?</code>|<[^>]*>)", re.DOTALL)
QUANTITY = re.compile(r"(?<=\d) (?=±|%|(?:ms|kB|MB|GB|MiB|GiB)\b)|(?<=±) (?=\d)")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".sh": "sh"}


def place(uri: str) -> str:
    """Return the repository path of a page of the site."""
    homes = {name: home for home, name in PAGES.items()}
    return homes.get(uri, f"docs/{uri}")


def target(uri: str, link: str) -> str:
    """Return the target of a link in a page, as a path from the repository root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(place(uri)), link))


def name_in_site(path: str) -> str:
    """Return the path on the site of a file in the repository."""
    if path in PAGES or path in SAME:
        return PAGES.get(path) or SAME[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def shown(root: Path, path: str) -> str:
    """Return the page that shows a file or folder of the repository."""
    source = root / path
    top = f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n"
    if source.is_dir():
        rows = [f"| `{f.name}` | {f.stat().st_size:,} |" for f in sorted(source.iterdir())]
        return top + "\n".join(
            ["A folder of the repository.", "", "| file | bytes |", "|---|---:|", *rows]
        )
    content = source.read_text(encoding="utf-8").rstrip()
    # a fence longer than any in the file
    fence = "`" * (3 + max([len(run) for run in re.findall("`+", content)], default=0))
    return f"{top}{fence}{LANGUAGES.get(source.suffix, 'text')}\n{content}\n{fence}\n"


def notebook_page(notebook: dict[str, Any], name: str) -> str:
    """Return the page that shows a notebook with its outputs."""
    title, *parts = ("".join(notebook["cells"][0]["source"])).partition("\n")
    parts = [f'<p><a href="{name}" download>Download this notebook</a></p>', *parts]
    for cell in notebook["cells"][1:]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if picture := "".join(data.get("text/html") or data.get("image/svg+xml", ())):
                parts.append(f'<div class="output">{picture}</div>')
            else:
                text = "".join(output.get("text") or data["text/plain"]).rstrip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join([title, *parts])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's files that pages link to."""
    root = Path(config.config_file_path).parent
    for path, name in PAGES.items():
        content = (root / path).read_text(encoding="utf-8")
        if path.endswith(".ipynb"):
            content = notebook_page(json.loads(content), Path(path).name)
        files.append(File.generated(config, name, content=content))
    wanted = set()
    for file in files.documentation_pages():
        for _, link, _ in LINK.findall(file.content_string):
            if "://" not in link:
                path = target(file.src_uri, link)
                name = name_in_site(path)
                if name.startswith("source/") and (root / path).exists():
                    wanted.add(path)
    for path in sorted(wanted):
        name = name_in_site(path)
        files.append(File.generated(config, name, content=shown(root, path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to point to pages of the site."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown

    def in_site(found: re.Match[str]) -> str:
        before, link, after = found.groups()
        if "://" in link or link.startswith("mailto:"):
            return found[0]
        name = name_in_site(target(uri, link))
        return f"{before}{posixpath.relpath(name, posixpath.dirname(uri) or '.')}{after}"

    return LINK.sub(in_site, markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Prevent line breaks inside options, names and quantities, and fit the columns of tables."""
    pieces = KEPT.split(content)
    pieces[::2] = [QUANTITY.sub("\u00a0", text) for text in pieces[::2]]
    whole = CODE.sub(keep_words_whole, "".join(pieces))
    # the reference has white space between a default and its parenthesis
    return TABLE.sub(fit_columns, re.sub(r"(?<=</code>)\s+(?=\))", "", whole))


def keep_words_whole(text: re.Match[str]) -> str:
    """Mark the short words of a text that would break at a hyphen."""
    return re.sub(r"(?<!\S)(?=\S*-)\S{1,28}(?!\S)", r'<span class="whole">\g<0></span>', text[0])


def fit_columns(table: re.Match[str]) -> str:
    """Mark the columns of a table by their longest cell; up to two columns may wrap freely."""
    rows = table[0].split("<tr>")
    texts = [[text for _, text in CELL.findall(row)] for row in rows]
    kinds = []
    for column in zip_longest(*texts, fillvalue=""):
        longest = max(len(html.unescape(re.sub("<[^>]*>", "", text))) for text in column)
        kinds.append("whole" if longest <= 16 else "medium" if longest <= 40 else "long")
    if len(kinds) < 3:
        kinds = [kind if kind == "whole" else "" for kind in kinds]

    def marked(row: str) -> str:
        kind = iter(kinds)
        return CELL.sub(lambda cell: f'<td class="{next(kind)}"{cell[1]}>{cell[2]}</td>', row)

    return HEAD.sub(keep_words_whole, "<tr>".join(map(marked, rows)))
