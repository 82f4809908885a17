"""Markup: what a model's names hold stays text."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape

from onnxfix.place import Place
from onnxfix.report.render.html.render import render_html
from onnxfix.report.report import Finding, Report

NASTY = "</script><img src=x onerror=alert(1)>\"'&\x1b[2J\u202e\udcff"


def test_control_and_direction_characters_and_lone_surrogates_are_spelled_out() -> None:
    page = render_html([Report("\x1b\u202e\udcff", "check", "trt11")])
    assert "<h1>\\x1b\\u202e\\xff</h1>" in page


def test_names_of_a_model_cannot_leave_their_place() -> None:
    finding = Finding(NASTY, NASTY, "warning", Place((NASTY,), NASTY, "Conv", NASTY), NASTY, NASTY)
    page = render_html([Report(NASTY, "check", "trt11", findings=(finding,))], [(NASTY, NASTY)], [NASTY])
    page.encode("utf-8")
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.count("</script>") == page.count("<script>") == 1


def test_the_policy_allows_this_style_and_script_and_no_other() -> None:
    page = render_html([])
    policy = unescape(re.findall('Content-Security-Policy" content="(.*?)"', page)[0])
    assert policy.startswith("default-src 'none'; ")
    for kind in ("style", "script"):
        (inside,) = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    links = re.findall(r"<[^>]+\s(?:src|srcset|href|action|data|poster)=\"([^\"]*)", page)
    assert links
    assert all(link.startswith("#") for link in links)
