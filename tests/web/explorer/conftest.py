"""Fixtures: the packaged models, their server and a browser."""

import pytest

import gumbeltree

# so that failures show the values
pytest.register_assert_rewrite("tests.web.explorer.visit")


@pytest.fixture(scope="session")
def sst():
    return gumbeltree.load("sst2-100d")


@pytest.fixture(scope="session")
def snli():
    return gumbeltree.load("snli-100d")


@pytest.fixture(scope="session")
def address(sst, snli):
    from tests.web.explorer.visit import serving

    with serving({"sst2-100d": sst, "snli-100d": snli}) as address:
        yield address


@pytest.fixture(scope="package")
def browser():
    # until the driver stops, its event loop keeps other tests from running one of their own
    from tests.web.explorer.visit import CHROMIUM, playwright

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, address):
    from tests.web.explorer.visit import Visit

    visit = Visit(browser, address)
    yield visit
    visit.close()
