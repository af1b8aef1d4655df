"""Takes the screenshots of the explorer in docs/: real photographs, the packaged model, Chromium.

    python docs/screenshots.py [FOLDER]

The photographs are those that ship with scikit-image. It needs playwright and Debian's chromium.
"""

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

import PIL.Image
import skimage.data
from playwright.sync_api import Page, sync_playwright

from serving.explorer import server
from serving.explorer.options import ExplorerOptions

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
PHOTOGRAPHS = (
    "astronaut", "camera", "chelsea", "coffee", "rocket", "stereo_motorcycle", "grass", "brick",
    "gravel", "moon", "hubble_deep_field", "clock",
)  # fmt: skip
DESKTOP, PHONE = {"width": 1120, "height": 700}, {"width": 375, "height": 760}


def main(output: Path) -> None:
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["XDG_DATA_HOME"] = str(home)
        photos = home / "photographs"
        photos.mkdir()
        for name in PHOTOGRAPHS:
            pixels = getattr(skimage.data, name)()
            pixels = pixels[0] if isinstance(pixels, tuple) else pixels  # of two eyes, the left
            PIL.Image.fromarray(pixels).convert("RGB").save(photos / f"{name}.jpg", quality=92)
        address = stack.enter_context(explored(ExplorerOptions(photos=str(photos), port=0)))
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=CHROMIUM, args=ARGUMENTS
        )
        stack.callback(browser.close)

        def page(**settings) -> Page:
            context = browser.new_context(**({"viewport": DESKTOP} | settings))
            return stack.enter_context(contextlib.closing(context)).new_page()

        def shoot(shown: Page, name: str) -> None:
            shown.wait_for_timeout(500)
            shown.screenshot(path=output / f"{name}.png")

        light = page()
        light.goto(f"{address}/#caption?picture=photo:chelsea.jpg")
        light.get_by_role("button", name="laying").first.click()
        light.get_by_role("menuitem").first.wait_for()
        shoot(light, "explorer")
        light.goto(f"{address}/#search")
        light.locator("#query").press_sequentially("a cup of coffee on a table", delay=30)
        light.locator(".scores .word").first.wait_for()
        shoot(light, "explorer-search")
        dark = page(color_scheme="dark")
        dark.goto(f"{address}/#inside?word=dog")
        dark.locator("#nearest li").first.wait_for()
        shoot(dark, "explorer-inside")
        phone = page(viewport=PHONE, device_scale_factor=1.5, has_touch=True, is_mobile=True)
        phone.goto(f"{address}/#caption?picture=photo:coffee.jpg&text=a+cup")
        phone.locator(".captions li").first.wait_for()
        shoot(phone, "explorer-phone")


@contextlib.contextmanager
def explored(options: ExplorerOptions):
    """The address of an explorer, whose photographs are indexed."""
    explorer = server.create_explorer(options)
    while explorer.state()["photographs"]["photographs"] < len(PHOTOGRAPHS):
        time.sleep(0.1)
    try:
        with server.in_thread(explorer, options) as address:
            yield address
    finally:
        explorer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent))
