"""Reports as one HTML page that needs nothing else: no network, no other file."""

from onnxfix.report.render.html.page import render_html

__all__ = ["render_html"]
