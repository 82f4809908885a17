"""A headless Chromium that tests drive by its DevTools protocol over two pipes: no driver, no port, no package."""

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
from pathlib import Path
from typing import Any

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
