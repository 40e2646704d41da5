"""The demo used in headless Chromium, at desktop and phone width: `make test-space`.

    python tests/hub/space_in_a_browser.py SCREENSHOTS MODEL [MODEL ...]

Needs gradio, playwright and Debian's chromium, so it has an environment of its own. The models are published folders,
together with all five heads of the demo; trained or not. Every tab is used, then given wrong input, which must show
one line and leave no traceback in the server's log.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

from playwright.sync_api import Locator, Page, expect, sync_playwright

APP = Path(__file__).resolve().parents[2] / "recipes" / "space" / "app.py"
WIDTHS = {"desktop": (1280, 1000), "phone": (390, 844)}
PATIENCE = 60_000  # ms; a model's first use loads it
MODEL = "Model: a folder or an id on the Hub"
INPUTS = {
    "Mask": {"Text with [MASK]": "paris is the [MASK] of france ."},
    "Classify": {"Text": "a film that never lets you go ."},
    "Entities": {"Text": "marie curie worked in paris ."},
    "Questions": {"Passage": "marie curie worked in paris .", "Question": "where did she ?"},
    "Next": {"First sentence": "marie curie worked in paris .", "Second sentence": "paris is the capital of france ."},
}
BUTTONS = {
    "Mask": "Guess the word", "Classify": "Classify", "Entities": "Find entities", "Questions": "Answer",
    "Next": "Does it follow?",
}  # fmt: skip
WRONG = (
    ("Mask", {"Text with [MASK]": "no blank here"}, r"Write \[MASK\] once"),
    ("Mask", {"Text with [MASK]": "  "}, "a field is empty"),
    ("Classify", {"Text": "film " * 600}, "tokens; this model reads at most"),
    ("Questions", {"Question": ""}, "a field is empty"),
)


@contextmanager
def served(models: list[str], log: Path) -> Iterator[str]:
    """The demo as a process; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "GRADIO_SERVER_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    with log.open("w") as out:
        server = subprocess.Popen([sys.executable, str(APP), *models], env=environment, stdout=out, stderr=out)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, server)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(300):
        assert server.poll() is None, "the demo ended by itself"
        try:
            urlopen(url, timeout=5)
            return
        except OSError:
            time.sleep(1)
    raise TimeoutError(url)


def open_tab(page: Page, tab: str) -> Locator:
    """Chooses a tab, which may be behind the button for more; its panel."""
    page.get_by_role("tabpanel").filter(visible=True).wait_for()
    button = page.get_by_role("tab", name=tab, exact=True)
    if button.is_visible():
        button.click()
    else:
        page.locator(".overflow-menu > button").click()
        page.locator(".overflow-dropdown button", has_text=tab).click()
    panel = page.get_by_role("tabpanel").filter(visible=True).filter(has=page.get_by_role("button", name=BUTTONS[tab]))
    panel.wait_for()
    return panel


def use(page: Page, tab: str, fields: dict[str, str]) -> Locator:
    """Fills a tab's fields and presses its button; its panel."""
    panel = open_tab(page, tab)
    for label, value in fields.items():
        panel.get_by_label(label, exact=True).fill(value)
    panel.get_by_role("button", name=BUTTONS[tab]).click()
    return panel


def wait_for_answer(panel: Locator) -> str:
    """Waits until a panel shows an answer; the panel's text."""
    panel.get_by_test_id("label-output-value").or_(panel.locator(".textfield")).first.wait_for()
    panel.page.wait_for_timeout(500)  # the bars grow
    return re.sub(r"\s+", " ", panel.inner_text())


def wait_for_message(panel: Locator, message: str) -> None:
    """Waits for a message in place of an answer."""
    panel.get_by_text("⚠️").wait_for()
    expect(panel.get_by_text("⚠️")).to_have_text(re.compile(message), timeout=PATIENCE)
    assert not panel.get_by_test_id("label-output-value").filter(visible=True).count(), "an old answer stays"


def check_wrong_models(page: Page, other: str) -> None:
    """A model without the head, and one that does not exist."""
    for name, message in ((other, "cannot do this; take a"), ("nowhere/nothing", "neither a folder here nor an id")):
        wait_for_message(use(page, "Mask", {MODEL: name, **INPUTS["Mask"]}), message)


def check_width(page: Page) -> None:
    """Nothing sticks out at the side."""
    wide, room = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= room, f"the page is {wide} wide, the screen {room}"


def class_of(model: str) -> str:
    """The class in a folder's config.json."""
    return str(json.loads(Path(model, "config.json").read_text())["architectures"][0])


def main(screenshots: Path, models: list[str]) -> None:
    screenshots.mkdir(parents=True, exist_ok=True)
    log = screenshots / "server.log"
    browser_path = shutil.which("chromium")
    assert browser_path, "chromium is not installed"
    classifier = next(model for model in models if class_of(model).endswith("ForSequenceClassification"))
    asked: set[str] = set()  # hosts
    with served(models, log) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, (width, height) in WIDTHS.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(PATIENCE)
            page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
            page.goto(url)
            for tab, fields in INPUTS.items():
                sys.stdout.write(f"{name}: {wait_for_answer(use(page, tab, fields))[:200]}\n")
                check_width(page)
                page.screenshot(path=screenshots / f"{name}-{tab.lower()}.png", full_page=True)
            for tab, fields, message in WRONG:
                wait_for_message(use(page, tab, fields), message)
                page.screenshot(path=screenshots / f"{name}-message.png")
            check_wrong_models(page, classifier)
        browser.close()
    assert asked == {urlsplit(url).netloc}, f"the page asked other hosts: {sorted(asked)}"
    assert "Traceback" not in log.read_text(), f"the server's log has a traceback: {log}"
    sys.stdout.write("every tab answered, every wrong input was answered by a message\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
