"""The report in browsers: it draws, answers, says nothing on the console and asks no host.

All pages are looked at in Chromium, some in Firefox. Pictures of each stay in `screenshots/`, for people to look at.
"""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from commands import invoke
from simnet import scenarios
from simnet.report import figures
from simnet.report.html import POINTS, report
from test_report import HOSTILE, joined, summary_of, weather_driven

pytestmark = pytest.mark.browser

SHIPPED = sorted(path.stem for path in Path(scenarios.__file__).parent.glob("*.yaml"))
SCREENSHOTS = Path(__file__).parents[1] / "screenshots"
# Browsers ask their makers for updates and lists by themselves.
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
VIEWS = [(width, scheme) for width in (1400, 390) for scheme in ("light", "dark")]


def chromium(playwright):
    """The system's Chromium, or else Playwright's own; without either, tests fail."""
    own = shutil.which("chromium")
    return playwright.chromium.launch(executable_path=own, args=["--no-sandbox", "--disable-gpu", *QUIET])


def firefox(playwright):
    """The same of Firefox. The system's is driven by WebDriver BiDi, which tells no request for a file."""
    own = shutil.which("firefox-esr") or shutil.which("firefox")
    return playwright.firefox.launch(**({"channel": "moz-firefox", "executable_path": own} if own else {}))


@pytest.fixture(scope="module")
def browsers():
    """Browsers by name, launched when they are first asked for."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = {}

        def of(name):
            if name not in launched:
                launched[name] = {"chromium": chromium, "firefox": firefox}[name](playwright)
            return launched[name]

        yield of
        for one in launched.values():
            one.close()


@pytest.fixture(scope="module")
def browser(browsers):
    return browsers("chromium")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Paths of reports by name, made when they are first asked for."""
    folder = tmp_path_factory.mktemp("pages")

    def of(name):
        path = folder / name / "report.html"
        if path.exists():
            return path
        path.parent.mkdir()
        if name in SHIPPED:
            arguments = ("run", name, "--set", "job.iterations=6", "--out", str(path.parent))
            assert invoke(*arguments).exit_code == 0
        else:
            path.write_text(MADE_UP[name](), encoding="utf-8")
        return path

    return of


def hostile():
    """A report whose names try to be code, ends of scripts, or whole pages."""
    names = [
        *HOSTILE,
        "</script><script>document.title = 'taken'</script>",
        "<!--<script>",
        "\u2028\u2029",
        "__proto__",
    ]
    own = weather_driven(60, policies=len(names))
    made = {name: one.assign(choice=[name, "b"] * 30) for name, one in zip(names, own.values(), strict=True)}
    summary = summary_of(**made)
    setting = {"model": names[0], "workers": "8", "density": "1 %"}
    return report(summary, figures.render(joined(made)), names[7], joined(made), setting)


def long():
    """A report of so many iterations that they are thinned."""
    made = weather_driven(3 * POINTS)
    return report(summary_of(**made), [], "", joined(made))


def one():
    """A report of one policy and one iteration, on a network of which nothing is known."""
    nothing = pd.DataFrame(weather_driven(1)["p0"]).assign(bandwidth_Bps=float("nan"), latency_s=float("nan"))
    return report(summary_of(p=nothing), [], "", nothing.assign(policy="p"))


MADE_UP = {"hostile": hostile, "long": long, "one": one}


def until(page, expression, argument=None):
    """Wait until an expression holds; Playwright's own way evaluates text in the page, which its policy forbids."""
    for _ in range(200):
        if page.evaluate(expression, argument):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within 10 s: {expression}")


class Visit:
    """A page that is open, with what its console said and what was asked for."""

    def __init__(self, browser, path, width, scheme):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page, self.said, self.asked = context.new_page(), [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.address = path.as_uri()
        self.page.goto(self.address)
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.page.context.close()

    def check(self):
        """Nothing was said, nobody was asked, and nothing is wider than the window."""
        assert self.said == []
        assert {url for url in self.asked if not url.startswith("data:")} <= {self.address}
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def texts(self, selector):
        """Return the texts of elements."""
        return self.page.locator(selector).all_inner_texts()

    def readout(self):
        """Return the cells of the iterations under the cursor."""
        return [re.split(r"\t", row) for row in self.texts("#under tbody tr")]

    def chart(self, number=0):
        """Return the place of a chart that is linked, once it is in view."""
        over = self.page.locator("#charts .u-over").nth(number)
        over.scroll_into_view_if_needed()
        return over.bounding_box()

    def hover(self, share, number=0):
        """Move the mouse to a place along a chart."""
        box = self.chart(number)
        self.page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)

    def painted(self):
        """Return how many colours there are in each chart."""
        return self.page.evaluate(
            """[...document.querySelectorAll('#charts canvas')].map((canvas) => new Set(new Uint32Array(
            canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size)"""
        )


@pytest.mark.parametrize(("name", "view"), [("quickstart", 0), ("hostile", 3)])
def test_a_report_is_drawn_and_answers(browser, pages, name, view):
    answers(browser, pages(name), name, *VIEWS[view])


# Each in one view: what a report shows and how it is laid out hardly depend on each other.
@pytest.mark.parametrize(("number", "name"), list(enumerate([*SHIPPED, *MADE_UP])))
def test_every_report_is_drawn_and_answers(browser, pages, number, name):
    answers(browser, pages(name), name, *VIEWS[number % len(VIEWS)])


@pytest.mark.parametrize(("name", "width"), [("quickstart", 390), ("hostile", 1400)])
def test_a_report_is_drawn_and_answers_in_firefox(browsers, pages, name, width):
    answers(browsers("firefox"), pages(name), name, width, "light", "-firefox")


def answers(browser, path, name, width, scheme, browsed=""):
    """Use all that a report has, and look whether it does what it should."""
    with Visit(browser, path, width, scheme) as visit:
        page = visit.page
        data = json.loads(page.locator("#data").text_content())
        names = [policy["name"] for policy in data["policies"]]
        assert min(visit.painted()) > 3
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")

        SCREENSHOTS.mkdir(exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}{browsed}.png", full_page=True)

        visit.hover(0.02)
        first = visit.readout()
        assert first
        visit.hover(0.98)
        if name != "one":
            assert visit.readout() != first

        # A policy that is filtered out leaves readout and tables.
        rows = len(visit.texts("table.sortable tbody tr:visible"))
        boxes = page.locator("fieldset:has(legend:text-is('Policies')) input")
        assert boxes.count() == len(names) == rows
        boxes.nth(0).click()
        assert len(visit.texts("table.sortable tbody tr:visible")) == rows - 1
        if rows > 1:
            visit.hover(0.02)
            assert names[0] not in [row[0].strip() for row in visit.readout()]
        boxes.nth(0).click()

        # A scheme that is filtered out leaves the charts.
        before = visit.painted()
        schemes = page.locator("fieldset:has(legend:text-is('Schemes')) input")
        for number in range(schemes.count()):
            schemes.nth(number).click()
        assert visit.painted()[0] < before[0]
        for number in range(schemes.count()):
            schemes.nth(number).click()

        # At most seven columns, of which a phone has three, and nothing has to be scrolled for.
        shown = [one for one in page.locator("table.sortable th[scope=col]").all() if one.is_visible()]
        assert len(shown) <= (3 if width < 640 else 7)
        if name == "quickstart":
            table = "document.querySelector('table.sortable')"
            assert page.evaluate(f"{table}.scrollWidth <= {table}.parentElement.clientWidth")
            assert page.evaluate(f"document.querySelector('#charts').offsetTop < {table}.offsetTop")
        for column in range(page.locator("table.sortable th[scope=col]").count()):
            heading = page.locator("table.sortable th[scope=col]").nth(column)
            if not heading.is_visible():
                continue
            keys = "[...document.querySelectorAll('table.sortable tbody tr')].map((row) => row.cells[%d].dataset.key)"
            for direction in ("ascending", "descending"):
                heading.locator("button").click()
                assert heading.get_attribute("aria-sort") == direction
                found = page.evaluate(keys % column)
                known = [key for key in found if key is not None]
                assert found[: len(known)] == known
                try:
                    order = [float(key) for key in known]
                except ValueError:
                    # The page goes by code units of UTF-16.
                    order = [key.encode("utf-16-be") for key in known]
                assert order == sorted(order, reverse=direction == "descending")

        if any(data["kept"]["policies"].values()):
            for select in page.locator("#charts select").all():
                select.select_option(index=select.locator("option").count() - 1)
            place = page.locator(".chart:has-text('workers and messages') .u-over")
            # The chart may be higher than the window: its first row is what has to be in view.
            place.evaluate("(over) => over.scrollIntoView({ block: 'start' })")
            box = place.bounding_box()
            page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 30)
            assert re.match(r".*s, worker 0: ", visit.texts(".told")[0])
            if data["kept"]["links"]:
                assert page.locator("svg.topology line").count() >= 2
                assert visit.texts("#charts .topology title")
            else:
                assert page.locator("#charts h2:text-is('Loads of links')").count() == 0

        # What is chosen by hand goes before what the system says.
        page.locator("#theme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
        visit.check()
        assert page.title() != "taken"


@pytest.mark.parametrize("width", [1400, 390])
def test_charts_zoom_together_and_go_back(browser, pages, width):
    with Visit(browser, pages("quickstart"), width, "light") as visit:
        page = visit.page

        def begins(share, number):
            visit.hover(share, number)
            return [row[1] for row in visit.readout()]

        last = begins(0.97, 0)
        box = visit.chart(1)
        page.mouse.move(box["x"] + 2, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 20, steps=4)
        page.mouse.up()
        # What was dragged in the second chart holds for the first.
        assert begins(0.97, 0) != last
        page.locator("#charts .u-over").nth(0).dblclick()
        assert begins(0.97, 2) == last
        page.get_by_role("button", name="by iteration").click()
        visit.hover(0.58)
        assert {row[1] for row in visit.readout()} == {"3"}
        visit.check()


def test_thinned_runs_say_so(browser, pages):
    with Visit(browser, pages("long"), 1400, "light") as visit:
        assert "means over 3 iterations" in visit.page.locator("#charts").inner_text()
        visit.check()


def test_without_scripts_the_page_has_its_pictures_and_its_table(browser, pages):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages("fluctuating_wan").as_uri())
    assert page.locator("figure img").count() >= 3
    assert page.locator("figure img").first.is_visible()
    assert page.locator("table.sortable tbody tr").count() >= 4
    assert "Without scripts" in page.locator("body").inner_text()
    context.close()


def test_on_paper_the_page_is_light_and_has_no_buttons(browser, pages):
    with Visit(browser, pages("quickstart"), 1400, "dark") as visit:
        visit.page.pdf(path=SCREENSHOTS / "quickstart.pdf", format="A4", print_background=True)
        visit.page.emulate_media(media="print")
        assert not visit.page.locator("#theme").is_visible()
        visit.check()
