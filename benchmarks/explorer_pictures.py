"""Take the screenshots of the explorer for docs/explore.md.

Needs playwright, Pillow (a dependency of matplotlib) and chromium on the path:

    python benchmarks/explorer_pictures.py docs/images
"""

import io
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from gumbeltree.atomic import replace_file

LIMIT = 200_000  # bytes
VIEWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "explorer-light": (
        {"viewport": {"width": 1320, "height": 1100}, "color_scheme": "light"},
        {
            "text": "The food was wonderful, but the service was painfully slow.",
            "second": "The service was slow.",
            "model": ["sst2-100d", "snli-100d"],
            "step": 7,
        },
    ),
    "explorer-dark": (
        {"viewport": {"width": 1320, "height": 1100}, "color_scheme": "dark"},
        {
            "text": "The food was wonderful, but the service was slow.",
            "model": ["sst2-100d"],
            "heat": 1,
        },
    ),
    "explorer-phone": (
        {
            "viewport": {"width": 360, "height": 800},
            "is_mobile": True,
            "device_scale_factor": 2,
            "color_scheme": "light",
        },
        {"text": "It is not a bad film.", "model": "sst2-100d"},
    ),
}
# each picture is cropped from the first of these elements to the second
PARTS = {
    "explorer-light": ("header.top", ".cards"),
    "explorer-dark": (".stepper", ".cards"),
    "explorer-phone": ("header.top", ".trees"),
}


def start() -> tuple[subprocess.Popen[str], str]:
    """Start the explorer and return its process and address."""
    command = [sys.executable, "-u", "-m", "gumbeltree", "explore", "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://[\w.]+:\d+", line):
            return process, found.group()
    raise SystemExit("the explorer did not start")


def take(browser: Any, address: str, name: str) -> bytes:
    """Return the PNG of one view."""
    options, view = VIEWS[name]
    context = browser.new_context(reduced_motion="reduce", **options)
    page = context.new_page()
    page.goto(f"{address}/#{urlencode(view, doseq=True)}")
    # the nearest phrases of every card
    for card in page.locator("article").all():
        expect(card.locator(".neighbours li").first).to_be_visible()
    if "heat" in view:
        expect(page.locator("svg.heat").first).to_be_visible()
    first, last = (page.locator(part).bounding_box() for part in PARTS[name])
    width = options["viewport"]["width"]
    top = max(0, first["y"] - 16)
    clip = {"x": 0, "y": top, "width": width, "height": last["y"] + last["height"] - top}
    shot: bytes = page.screenshot(full_page=True, clip=clip)
    context.close()
    return shot


def smaller(shot: bytes) -> bytes:
    """Return the picture with at most 256 colours."""
    target = io.BytesIO()
    picture = Image.open(io.BytesIO(shot)).convert("RGB")
    # the default method merges rare colours, such as that of a short bar
    few = picture.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    few.save(target, "PNG", optimize=True)
    return target.getvalue()


def main() -> None:
    folder = Path(sys.argv[1])
    process, address = start()
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            for name in VIEWS:
                content = smaller(take(browser, address, name))
                if len(content) > LIMIT:
                    raise SystemExit(f"{name} has {len(content)} bytes, more than {LIMIT}")
                replace_file(folder / f"{name}.png", partial(Path.write_bytes, data=content))
                print(f"{name}.png: {len(content)} bytes")
            browser.close()
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
