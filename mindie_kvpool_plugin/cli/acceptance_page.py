"""The report as one page of HTML that needs nothing else: to be mailed, printed and kept."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mindie_kvpool_plugin.check.messages import Language, words

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h3 { font-size: 1rem }
h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; width: 100% }
td { padding: .25rem .5rem; vertical-align: top; overflow-wrap: anywhere }
td:first-child { white-space: nowrap; width: 8rem; font-weight: 600 } tr { border-bottom: 1px solid #eee }
.passed td:first-child { color: #18794e } .failed td:first-child { color: #b42318 }
.not_possible td:first-child { color: #8a6100 }
.fix { color: #555; margin: .15rem 0 0 1rem } figure { margin: 1rem 0 } svg { max-width: 100%; height: auto }
"""


def page(
    document: Mapping[str, Any], sections: Mapping[str, Sequence[str]], plots: Sequence[tuple[str, str]], lang: Language
) -> str:
    """The whole page.

    Args:
        document: the report as it is told to programs.
        sections: of the page, and the probes below each.
        plots: (name, SVG).
        lang: of headings; the lines have theirs.
    """
    title = html.escape(f"{words('acceptance.heading', lang)}: {document['host']}")
    body = "\n".join(_body(document, sections, plots, lang))
    return (
        f'<!DOCTYPE html>\n<html lang="{lang}"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _body(
    document: Mapping[str, Any], sections: Mapping[str, Sequence[str]], plots: Sequence[tuple[str, str]], lang: Language
) -> Iterator[str]:
    facts = f"{document['config']} · {document['began']} · mindie-kvpool-plugin {document['version']}"
    yield f"<p>{html.escape(facts)}</p>"
    yield f'<p class="{document["result"]}"><strong>{html.escape(document["summary"])}</strong></p>'
    for name, svg in plots:
        caption = html.escape(words(f"acceptance.plot.{name}", lang))
        yield f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"
    for section, probes in sections.items():
        lines = [line for line in document["lines"] if line["probe"] in probes]
        if lines:
            yield f"<h2>{html.escape(words(f'acceptance.section.{section}', lang))}</h2>"
            for probe in dict.fromkeys(line["probe"] for line in lines):
                yield f"<h3>{html.escape(words(f'doctor.title.{probe}', lang))}</h3>"
                yield from _table([line for line in lines if line["probe"] == probe], lang)


def _table(lines: Sequence[Mapping[str, Any]], lang: Language) -> Iterator[str]:
    yield "<table>"
    for line in lines:
        advice = html.escape(f"{words('report.hint', lang)}: {line['fix']}")
        hint = f'<p class="fix">{advice}</p>' if line["fix"] else ""
        word = html.escape(words(f"acceptance.result.{line['result']}", lang))
        yield f'<tr class="{line["result"]}"><td>{word}</td><td>{html.escape(line["text"])}{hint}</td></tr>'
    yield "</table>"
