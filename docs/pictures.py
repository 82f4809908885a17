"""Makes the pictures of docs/images: ``python docs/pictures.py [NAME...]``.

Terminals show what a command prints in a terminal of so many columns; the site's pages are those of build/site (run
docs/website.py before). A headless Chromium draws both; the program is looked for as chromium, chromium-browser and
google-chrome. The pictures are committed, and nothing tests that they are of today.
"""

from __future__ import annotations

import html
import io
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
IMAGES = DOCS / "images"
MOST_BYTES = 150 * 1024
_DARK = ["#383c44", "#f0696e", "#7ec678", "#deba62", "#69a5f0", "#ca8ae4", "#58c4cc", "#dde0e5"]
_BRIGHT = ["#7d8491", "#fa8285", "#96d890", "#eecc7a", "#88bafa", "#d8a0f0", "#78d6dc", "#ffffff"]
_GROUND, _TEXT = "#181b20", "#dde0e5"


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


_THEME = TerminalTheme(_rgb(_GROUND), _rgb(_TEXT), [*map(_rgb, _DARK)], [*map(_rgb, _BRIGHT)])
_PAGE = """\
<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #fff; }}
figure {{ margin: 12px; display: inline-block; border-radius: 10px; background: #181b20; color: #dde0e5;
  box-shadow: 0 2px 10px rgba(0, 0, 0, .35); padding: 12px 18px 16px; }}
i {{ display: inline-block; width: 11px; height: 11px; border-radius: 50%; margin-right: 7px; }}
pre {{ font: 13px/1.38 "DejaVu Sans Mono", monospace; margin: 10px 0 0; width: {columns}ch; }}
</style><figure><i style="background:#f0696e"></i><i style="background:#deba62"></i><i style="background:#7ec678"></i>
<pre>{body}</pre></figure>"""


@dataclass(frozen=True)
class Terminal:
    """Commands, run one after another in a folder that has a link to ``fixtures``; ``quiet`` ones are not shown."""

    columns: int
    commands: tuple[str, ...]
    quiet: tuple[str, ...] = ()
    lines: int = 200


@dataclass(frozen=True)
class Page:
    """A page of the built site, in a window."""

    path: str
    width: int = 1280
    height: int = 860
    dark: bool = False


_APPLY = ("onnxfix apply fixtures/misread/decoder.onnx -o fixed.onnx",)
_CHECK = ("onnxfix check fixtures/vit_fp16.legacy.op16.onnx",)
_REPAIR = ("onnxfix apply fixtures/vit_fp16.legacy.op16.onnx -o fixed.onnx --numeric-fixes",)
PICTURES: dict[str, Terminal | Page] = {
    "apply-100": Terminal(100, _APPLY),
    "check-80": Terminal(80, _CHECK),
    "check-120": Terminal(120, _CHECK),
    "apply-80": Terminal(80, _REPAIR),
    "apply-120": Terminal(120, _REPAIR),
    "site-home": Page("index.html", height=700),
    "site-rules": Page("docs/rules/messages.html"),
    "site-commands": Page("docs/reference/commands.html"),
    "site-python": Page("docs/reference/python.html"),
    "site-tutorial": Page("docs/tutorials/misimport.html"),
    "site-rule": Page("docs/rules/PRC001.html", height=640),
}


def main() -> int:
    """Make the pictures that are named, or all."""
    names = sys.argv[1:] or list(PICTURES)
    large = []
    address = served(ROOT / "build" / "site")
    for name in names:
        picture = PICTURES[name]
        target = IMAGES / f"{name}.png"
        if isinstance(picture, Page):
            draw(f"{address}/{picture.path}", target, picture.width, picture.height, picture.dark)
        else:
            text = "\n".join(shown(picture))
            with tempfile.TemporaryDirectory() as folder:
                page = Path(folder) / "page.html"
                page.write_text(
                    _PAGE.format(columns=picture.columns, body=drawn(text, picture.columns)), "utf-8"
                )
                rows = text.count("\n") + 1
                draw(page.as_uri(), target, round(picture.columns * 7.83) + 62, round(rows * 17.94) + 78)
        large += [name] if target.stat().st_size > MOST_BYTES else []
        sys.stdout.write(f"{target.relative_to(ROOT)}: {target.stat().st_size // 1024} KiB\n")
    for name in large:
        sys.stderr.write(f"{name}: more than {MOST_BYTES // 1024} KiB\n")
    return int(bool(large))


def served(folder: Path) -> str:
    """The address of a web server for a folder: the site's search does not work from disk."""
    handler = partial(_Silent, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


class _Silent(SimpleHTTPRequestHandler):
    """A web server that prints no line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def shown(picture: Terminal) -> list[str]:
    """Prompts and outputs, with the styles of a terminal."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(ROOT / "fixtures", Path(folder) / "fixtures")
        for command in picture.quiet:
            printed(command, Path(folder), picture.columns)
        parts = []
        for command in picture.commands:
            output = printed(command, Path(folder), picture.columns)
            parts += [
                f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m",
                *output.splitlines()[: picture.lines],
                "",
            ]
    return parts[:-1]


def printed(command: str, folder: Path, columns: int) -> str:
    """What a command prints on a terminal."""
    name, *arguments = command.split()
    assert name == "onnxfix", name
    master, slave = pty.openpty()
    paths = os.pathsep.join([str(ROOT), str(ROOT / "rules"), os.environ.get("PYTHONPATH", "")])
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "LINES")}
    running = subprocess.Popen(
        [sys.executable, "-m", "onnxfix", *arguments],
        cwd=folder,
        env={
            **kept,
            "PYTHONPATH": paths,
            "COLUMNS": str(columns),
            "TERM": "xterm-256color",
            "PYTHONUTF8": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=subprocess.DEVNULL,
    )
    os.close(slave)
    pieces = []
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    running.wait()
    os.close(master)
    return b"".join(pieces).decode("utf-8").replace("\r\n", "\n")


def drawn(text: str, columns: int) -> str:
    """Text with a terminal's styles as HTML."""
    console = Console(
        record=True, width=columns + 1, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in text.split("\n"):
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
    return console.export_html(theme=_THEME, inline_styles=True, code_format="{code}").rstrip("\n")


def draw(address: str, target: Path, width: int, height: int, dark: bool = False) -> None:
    """A page as a picture.

    Raises:
        RuntimeError: there is no Chromium, or it made none.
    """
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise RuntimeError("pictures need a Chromium")
    target.parent.mkdir(exist_ok=True)
    target.unlink(missing_ok=True)
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--virtual-time-budget=4000",
    ]
    options += ["--blink-settings=preferredColorScheme=0"] if dark else []
    subprocess.run(
        [program, *options, f"--window-size={width},{height}", f"--screenshot={target}", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    if not target.exists():
        raise RuntimeError(f"no picture of {html.unescape(address)}")


if __name__ == "__main__":
    sys.exit(main())
