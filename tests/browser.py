"""The headless browser that looks at pages, where there is one."""

import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@contextmanager
def opened(path, width: int, scheme: str = "light", media: str = "screen"):
    """A page that shows the file, and a list that takes what it complains of and what it asks the network for."""
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next((program for program in map(shutil.which, NAMES) if program), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.emulate_media(media=media, color_scheme=scheme)
            complaints = []
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: complaints.append(request.url))
            page.goto(path.as_uri())
            # the file itself
            complaints.remove(path.as_uri())
            yield page, complaints
        finally:
            browser.close()
