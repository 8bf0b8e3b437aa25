"""Measure the explorer's page in a browser: time from typing to the tree, layout shift, size.

Needs playwright and chromium on the path; run it on an idle machine:

    python benchmarks/explorer_speed.py
"""

import shutil
import statistics
import time

from explorer_pictures import start
from playwright.sync_api import sync_playwright

# 19 words
START = "A boy in a red coat is feeding pigeons in the square while an old man plays chess with"
SHIFT = """
window.shift = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) shift += one.value;
}).observe({ type: "layout-shift", buffered: true });
"""
# milliseconds from the event until the frame that shows the last word
TYPE = """(text) => new Promise((done) => {
  const area = document.getElementById("text");
  const began = performance.now();
  const seen = new MutationObserver(() => {
    const words = [...document.querySelectorAll("svg.tree .word text")];
    if (words.at(-1)?.textContent !== text.split(" ").at(-1)) return;
    seen.disconnect();
    requestAnimationFrame(() => done(performance.now() - began));
  });
  seen.observe(document.getElementById("cards"), { childList: true, subtree: true });
  area.value = text;
  area.dispatchEvent(new Event("input", { bubbles: true }));
})"""
SIZE = "performance.getEntriesByType('resource').reduce((sum, one) => sum + one.{}BodySize, 0)"


def main() -> None:
    process, address = start()
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport={"width": 1366, "height": 768})
            page.add_init_script(SHIFT)
            page.goto(address)
            page.wait_for_selector(".neighbours li")
            print(f"layout shift {page.evaluate('shift'):.4f}")
            sent, full = (page.evaluate(SIZE.format(kind)) for kind in ("encoded", "decoded"))
            print(f"files and responses {sent:,} bytes, uncompressed {full:,}")
            took = []
            for number in range(20):
                took.append(page.evaluate(TYPE, f"{START} him{number}"))
                time.sleep(0.5)
            tail = sorted(took)[-2]
            print(
                f"typing to tree, 20 words: median {statistics.median(took):.0f} ms, "
                f"second highest of {len(took)} {tail:.0f} ms"
            )
            browser.close()
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
