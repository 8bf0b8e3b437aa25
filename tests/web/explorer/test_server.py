"""The explorer and servers that are busy, slow or gone."""

from gumbeltree.analysis.trace import trace
from tests.ports import reserved_port
from tests.web.explorer.visit import (
    Visit,
    card,
    expect,
    expect_tree,
    needs_browser,
    sentence,
    serving,
    tree,
    wait_until,
)

pytestmark = needs_browser


def test_retries_when_the_server_is_busy(browser, address, sst):
    visit = Visit(browser, address)
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    refused = []

    def refuse_once(route):
        if refused:
            route.continue_()
        else:
            refused.append(route)
            route.fulfill(status=503, headers={"Retry-After": "1"}, json={"detail": "busy"})

    page.route("**/api/parse", refuse_once)
    sentence(page).fill("very bad .")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "very bad ."))
    assert len(refused) == 1
    expect(page.locator("#away")).to_be_hidden()
    visit.close("503")


def test_errors_are_shown_on_the_card(browser, address):
    visit = Visit(browser, address)
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    error = {"detail": "texts.0: <b>no</b>"}
    page.route("**/api/parse", lambda route: route.fulfill(status=422, json=error))
    sentence(page).fill("very bad .")
    expect(card(page, "sst2-100d").locator(".hint")).to_have_text("texts.0: <b>no</b>")
    expect(page.locator("svg.tree")).to_have_count(0)
    page.unroute("**/api/parse")
    sentence(page).fill("very good .")
    expect(page.locator("svg.tree")).to_have_count(1)
    visit.close("422")


def test_late_responses_are_dropped(visit, sst):
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    late = []

    def hold(route):
        if "slow" in (route.request.post_data or ""):
            late.append(route)
        else:
            route.continue_()

    page.route("**/api/parse", hold)
    sentence(page).fill("a slow one .")
    wait_until(page, lambda: late)
    sentence(page).fill("a fast one .")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "a fast one ."))
    late[0].fulfill(json={"results": []})
    page.wait_for_timeout(200)
    expect_tree(tree(page, "sst2-100d"), trace(sst, "a fast one ."))


def test_a_hung_server_is_reported(visit, sst):
    # the clock of the page goes on, and the test can put it forward
    visit.page.clock.install()
    page = visit.open(text="good .", model="sst2-100d")
    # any later response would show that the server is there
    expect(page.locator(".neighbours li").first).to_be_visible()
    held = []
    page.route("**/api/parse", lambda route: held.append(route))
    sentence(page).fill("not good .")
    wait_until(page, lambda: held)
    page.clock.run_for(3000)
    expect(page.locator("svg.tree")).to_have_count(0)
    expect(page.locator("#away")).to_contain_text("not responding")
    # the banner stays while the reader goes on typing
    sentence(page).fill("not very good .")
    wait_until(page, lambda: "not very good" in held[-1].request.post_data)
    for _ in range(10):
        page.clock.run_for(100)
        assert page.locator("#away").is_visible()
    held[-1].continue_()
    expect_tree(tree(page, "sst2-100d"), trace(sst, "not very good ."))
    expect(page.locator("#away")).to_be_hidden()


def test_a_hung_server_that_refuses_further_requests_is_not_connected(browser, address, sst):
    visit = Visit(browser, address)
    visit.page.clock.install()
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator(".neighbours li").first).to_be_visible()
    stuck, refusing, refused = [], [], []

    def respond(route):
        if refusing:
            refused.append(route)
            route.fulfill(status=503, headers={"Retry-After": "1"}, json={"detail": "busy"})
        else:
            stuck.append(route)

    page.route("**/api/*", respond)
    sentence(page).fill("not good .")
    wait_until(page, lambda: stuck)
    page.clock.run_for(3000)
    expect(page.locator("#away")).to_be_visible()
    refusing.append(True)
    sentence(page).fill("not very good .")

    def refused_again():
        page.clock.run_for(100)
        assert page.locator("#away").is_visible()
        return len(refused) > 5

    # one per second, for longer than a request that was cancelled counts
    wait_until(page, refused_again)
    assert page.locator("#toast").text_content() == ""
    page.unroute("**/api/*")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "not very good ."))
    expect(page.locator("#away")).to_be_hidden()
    expect(page.locator("#toast")).to_have_text("Connected")
    visit.close("503")


def test_no_sampled_trees_of_an_older_sentence(visit):
    page = visit.open(text="not bad .", model="sst2-100d", heat=1)
    expect(page.locator("svg.heat")).to_have_count(1)

    def hold(route):
        """Respond to all requests but those for sampled trees."""
        if '"samples":100' not in route.request.post_data:
            route.continue_()

    page.route("**/api/parse", hold)
    sentence(page).fill("not good .")
    panel = card(page, "sst2-100d").get_by_role("region", name="Sampled trees")
    expect(panel).to_have_text("Sampling 100 trees…")
    expect(tree(page, "sst2-100d").locator(".word")).to_have_count(3)
    expect(page.locator("svg.heat")).to_have_count(0)


def test_reconnects_to_a_restarted_server(browser, sst):
    with reserved_port() as port:
        with serving({"sst2-100d": sst}, port) as address:
            visit = Visit(browser, address)
            page = visit.open(text="good .")
            expect(page.locator("svg.tree")).to_have_count(1)
            # the last request is answered before the server stops
            expect(page.locator(".neighbours li").first).to_be_visible()
            expect(page.locator("#away")).to_be_hidden()
        sentence(page).fill("not very good .")
        expect(page.locator("#away")).to_contain_text("not responding")
        # no old tree for a new sentence
        expect(page.locator("svg.tree")).to_have_count(0)
        expect(card(page, "sst2-100d").locator(".verdict")).to_have_text("Waiting for the server…")
        with serving({"sst2-100d": sst}, port):
            expect(page.locator("#away")).to_be_hidden()
            expect_tree(tree(page, "sst2-100d"), trace(sst, "not very good ."))
            visit.close("ERR_CONNECTION")
