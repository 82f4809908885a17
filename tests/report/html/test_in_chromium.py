"""The HTML report in a headless Chromium: nothing is loaded, nothing is wrong, and it can be read and used."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnxfix.diagnosis.records import DepthError, Diagnosis, Histogram, OutputComparison
from onnxfix.options import RunOptions, Verification
from onnxfix.place import Place
from onnxfix.proof.compare.tolerance import ErrorHistogram
from onnxfix.report.findings import Box, Neighborhood, Picture, Wire
from onnxfix.report.render.html.render import render_html
from onnxfix.report.report import Finding, Report
from onnxfix.verbs.applying import apply
from support.paths import ROOT
from support.patience import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name))), None)
"""The browser; None where there is none."""
ABSENT = f"no browser: none of {', '.join(NAMES)} is installed"
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-pipe", "--window-size=1280,900",
)  # fmt: skip
#: The browser reads from its descriptor 3 and writes to 4.
_RENUMBER = """import fcntl, os, sys
read, write = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3])
os.dup2(read, 3), os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])"""


class Page:
    """One page. ``events`` are all messages of the browser's that were no replies."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                found: dict[str, Any] = reply["result"]
                return found
            self.events.append(reply)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._reader, 1 << 20)
            assert read, "the browser has ended"
            self._buffer += read
        first, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        return found

    def open(self, path: Path) -> None:
        """Load a file, and wait until it is there."""
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key as a person does: Enter and space open what has the focus."""
        text = {"Enter": "\r", "Tab": "", "Escape": ""}.get(key, key)
        codes = {"Enter": 13, "Tab": 9, "Escape": 27}
        code = codes.get(key, ord(key.upper()) if len(key) == 1 else 0)
        for kind in ("keyDown", "keyUp"):
            down = {"text": text} if kind == "keyDown" and text else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **down)

    def prefer(self, **features: str) -> None:
        """Media features, such as ``prefers_color_scheme="dark"``."""
        some = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", features=some)

    def screenshot(self, **clip: float) -> bytes:
        """What is shown as PNG."""
        more: Mapping[str, Any] = {"clip": {"scale": 1, **clip}} if clip else {}
        return base64.b64decode(self.send("Page.captureScreenshot", format="png", **more)["data"])

    def complaints(self) -> list[str]:
        """What the console has: errors, warnings, and exceptions."""
        self.run("new Promise((done) => setTimeout(done, 50))")
        found = []
        for event in self.events:
            values = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(values["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                found.append(values["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(str(values["args"]))
        return found

    def requests(self) -> list[str]:
        """The addresses of everything that was asked for."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent]


@contextmanager
def browser() -> Iterator[Page]:
    """A browser with an empty profile, and its page."""
    assert PROGRAM is not None
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()
    with tempfile.TemporaryDirectory(prefix="onnxfix-chromium-", ignore_cleanup_errors=True) as profile:
        command = [sys.executable, "-c", _RENUMBER, str(to_browser), str(to_us), PROGRAM, *_OPTIONS]
        process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=(to_browser, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(to_us)
        try:
            yield Page(from_browser, from_us)
        finally:
            os.close(from_us)
            os.close(from_browser)
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason=ABSENT)]
NASTY = "</script></title><img src=x onerror=\"console.log('here')\">\"'"
CONTRAST = 4.5
"""The least contrast of text that WCAG 2.2 asks for on level AA."""
FEW = {"rungs": ("contract", "reference", "ort-cpu")}


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page about a real run, with a fix that is within tolerance only."""
    options = RunOptions(pictures=True, verification=Verification(**FEW))
    options = replace(options, fixes=replace(options.fixes, numeric=True))
    report = apply(ROOT / "fixtures" / "mixed_precision.legacy.op17.onnx", options)
    assert report.applied
    assert report.pictures
    path = tmp_path_factory.mktemp("html") / "r.html"
    path.write_text(render_html([report]), encoding="utf-8")
    return path


def shown(page: Page, path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    page.open(path)


def findings(count: int) -> Report:
    """A report with pictures at all findings."""
    made, pictures = [], []
    for number in range(count):
        place = Place((), f"node_{number}", "Mul", f"out_{number}", number)
        made.append(Finding("PRC006", "scale-after-product", "warning", place, f"the message {number}"))
        boxes = [Box("node", "Mul", f"node_{at}", ("axis = 1",), at == 4, "", 1, 2) for at in range(8)]
        wires = [Wire(at, at + 1, f"v{at}", "float[N,64]") for at in range(7)]
        pictures.append(Picture("PRC006", place, Neighborhood(tuple(boxes), tuple(wires))))
    return Report("many.onnx", "check", "trt11", findings=tuple(made), pictures=tuple(pictures))


def test_no_request_leaves_the_page_and_the_console_is_empty(page: Page, written: Path) -> None:
    page.open(written)
    assert page.complaints() == []
    assert page.requests() == [written.as_uri()]
    kept = page.run(
        """new Promise((done) => {
            addEventListener("securitypolicyviolation", (event) => done(event.blockedURI), { once: true });
            setTimeout(() => done("loaded"), 10000);
            document.body.append(Object.assign(new Image(), { src: "https://example.invalid/x.png" }));
        })"""
    )
    assert kept == "https://example.invalid/x.png"
    assert page.run("document.querySelectorAll('svg.graph').length") > 2


def test_names_of_a_model_are_text(page: Page, tmp_path: Path) -> None:
    place = Place((NASTY,), NASTY, NASTY, NASTY)
    box = Box("node", NASTY, NASTY, (NASTY,), True)
    around = Neighborhood((Box("input", NASTY), box), (Wire(0, 1, NASTY, NASTY),))
    one = Finding("GRA001", NASTY, "error", place, NASTY, NASTY, "exact", NASTY, pointer=NASTY)
    report = Report(NASTY, "check", NASTY, findings=(one,), pictures=(Picture("GRA001", place, around),))
    shown(page, tmp_path / "n.html", render_html([report], [(NASTY, NASTY)], [NASTY]))
    assert page.complaints() == []
    assert page.run("document.images.length") == 0
    assert page.run("document.querySelector('.finding .message').textContent") == NASTY
    assert page.run("document.querySelector('svg.graph .op').textContent") == NASTY


#: The text with the least contrast on what is behind it, over every element that has text of its own and is visible.
CONTRASTS = """(() => {
    const rgb = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = (color) => {
        const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = rgb(color).map((one) => linear(one / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (one) => {
        const box = one.closest("svg.graph g");
        if (box) return getComputedStyle(box.querySelector("rect")).fill;
        for (let at = one; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if (rgb(color)[3] !== 0) return color;
        }
    };
    let worst = [99, ""];
    for (const one of document.querySelectorAll("body *")) {
        const own = [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
        if (!own || !one.checkVisibility() || one.closest("title, script, dialog:not([open])")) continue;
        const style = getComputedStyle(one);
        const [a, b] = [light(one.closest("svg") ? style.fill : style.color), light(behind(one))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < worst[0]) worst = [ratio, one.outerHTML.slice(0, 200)];
    }
    return worst;
})()"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_system_s_theme_is_followed_and_all_text_is_legible(
    page: Page, written: Path, theme: str
) -> None:
    page.prefer(prefers_color_scheme=theme)
    page.open(written)
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    ground = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (ground > 200) == (theme == "light")
    ratio, where = page.run(CONTRASTS)
    assert ratio >= CONTRAST, where
    page.press("t")
    turned = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (turned > 200) == (theme == "dark")
    page.run("localStorage.clear()")


def focused(page: Page) -> Any:
    return page.run("document.activeElement.textContent.slice(0, 60)")


def test_everything_can_be_done_by_the_keyboard(page: Page, tmp_path: Path) -> None:
    report = findings(20)
    shown(page, tmp_path / "k.html", render_html([report]))
    page.press("Tab")
    assert focused(page) == "Skip to the report"
    page.press("j")
    assert "scale-after-product" in focused(page)
    assert page.run("document.querySelector('.group').open") is False
    page.press("Enter")
    assert page.run("document.querySelector('.group').open") is True
    page.press("j")
    page.press("j")
    assert "node_1" in focused(page)
    page.press("Enter")
    assert page.run("document.querySelectorAll('.finding')[1].open") is True
    page.press("k")
    assert "node_0" in focused(page)
    page.press("/")
    for letter in "node_19":
        page.press(letter)
    assert page.run("document.querySelector('[data-count]').textContent") == "1 shown"
    assert (
        page.run("[...document.querySelectorAll('.finding')].filter((one) => one.checkVisibility()).length")
        == 1
    )
    page.press("Escape")
    page.press("?")
    assert page.run("document.querySelector('dialog').open") is True
    page.press("Escape")
    assert page.run("document.querySelector('dialog').open") is False
    assert page.complaints() == []


def test_on_paper_the_lists_are_unfolded_and_the_bar_is_gone(page: Page, tmp_path: Path) -> None:
    shown(page, tmp_path / "p.html", render_html([findings(30)]))
    before = page.run("document.documentElement.scrollHeight")
    assert page.send("Page.printToPDF")["data"]
    assert page.run("document.documentElement.scrollHeight") == before
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("document.querySelector('.group').open") is True
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.run("document.querySelector('.bar').checkVisibility()") is False
    page.send("Emulation.setEmulatedMedia", media="")


def test_a_narrow_window_needs_no_scrolling_sideways(page: Page, written: Path) -> None:
    page.send("Emulation.setDeviceMetricsOverride", width=380, height=800, deviceScaleFactor=1, mobile=False)
    page.open(written)
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.run("document.documentElement.scrollWidth") <= 380
    cut = "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)"
    assert page.run(f"{cut}(document.querySelector('.matrix').parentElement)") == 0, "no check is cut off"
    page.send("Emulation.clearDeviceMetricsOverride")


def test_a_diagnosis(page: Page, tmp_path: Path) -> None:
    depths = tuple(
        DepthError(at, f"t{at}", "Add", 1e-6 * at, float("inf") if at == 7 else 1e-4) for at in range(10)
    )
    output = OutputComparison(
        "y", "float32", (8,), 8, 3, histogram=Histogram((0.0, 1.0, 2.0), (3, 5), (4, 4)),
        errors=ErrorHistogram((1e-6, 1e-5, 1e-4), (2, 1), 5),
    )  # fmt: skip
    found = Diagnosis("m.onnx", "fp16", "", "unexplained", "why", outputs=(output,), depths=depths, nodes=10)
    shown(page, tmp_path / "d.html", found.to_html())
    assert page.complaints() == []
    assert page.requests() == [(tmp_path / "d.html").as_uri()]
    assert page.run("document.querySelectorAll('#depth circle').length") == 20
    spread = (
        "[...document.querySelectorAll('#outputs svg')].map((one) => one.querySelectorAll('rect').length)"
    )
    assert page.run(spread) == [3, 4]
