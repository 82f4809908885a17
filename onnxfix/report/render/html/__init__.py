"""Pages as HTML: one file that needs nothing else, no network and no other file; and the cells of notebooks."""

from onnxfix.report.render.html.render import render_html

__all__ = ["render_html"]
