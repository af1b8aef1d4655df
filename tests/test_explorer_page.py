"""The explorer's page in a real browser: Debian's Chromium, without a screen."""

import importlib.util
import re
from importlib import resources
from pathlib import Path

import explored
import pytest
import served
import tiny

from serving.explorer import server
from serving.explorer.options import ExplorerOptions

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
VIEWS = ("caption", "search", "photographs", "inside")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed: the extra `test` brings it")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no browser at {CHROMIUM}: install Debian's package chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = explored.write_photographs(tmp_path_factory.mktemp("photographs") / "folder")
    (folder / "<img src=x onerror=hacked()>.png").write_bytes(tiny.picture(1))
    return folder


@pytest.fixture(scope="module")
def options(searchable_models, folder):
    return ExplorerOptions(model=str(searchable_models / "mrnn"), photos=str(folder), port=0)


@pytest.fixture(scope="module")
def explorer(options, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("home")))
        explorer = server.create_explorer(options)
        served.wait_for(lambda: explorer.state()["photographs"]["photographs"] == 10)
        yield explorer
        explorer.close()


@pytest.fixture(scope="module")
def address(explorer, options):
    with explored.page(explorer, options) as address:
        yield address


@pytest.fixture
def open_page(browser):
    """Opens pages; at the end none of them may have failed or broken the policy."""
    contexts, problems = [], []

    def open_one(address: str, **settings):
        contexts.append(browser.new_context(**settings))
        page = contexts[-1].new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on(
            "console",
            lambda message: "Content Security" in message.text and problems.append(message.text),
        )
        page.goto(address)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not problems


@pytest.fixture
def page(open_page, address):
    return open_page(address)


def picture(colour: int, name: str = "picture.png") -> dict:
    return {"name": name, "mimeType": "image/png", "buffer": tiny.picture(colour)}


def upload(page, file: dict) -> None:
    page.locator("#file").set_input_files([file])


def captions(page) -> list[str]:
    """The captions of the picture, when they are there."""
    page.locator("#captions[aria-busy=false] .captions li").first.wait_for()
    lines = page.locator(".captions .sentence").all()
    return [line.get_attribute("aria-label") for line in lines]


def names(page) -> list[str]:
    return page.locator("#results .name").all_text_contents()


def wait_for_best(page, word: str) -> None:
    page.locator(f"#results li:first-child .name[title*='{word}']").wait_for()


def test_a_picture_is_captioned_and_the_link_shows_it_again(page, open_page, explorer):
    assert "What does the model see?" in page.locator("#drop").inner_text()
    upload(page, picture(0))
    said = captions(page)
    assert said[0] == explorer.captioner.caption(tiny.picture(0))[0].text and "red" in said[0]
    red = page.locator(".captions li:first-child .word", has_text=re.compile("^red$")).first
    shade = float(red.evaluate("word => word.style.getPropertyValue('--evidence')"))
    assert shade > 0.05 and "evidence +" in red.get_attribute("title")
    page.locator("#order span", has_text="Reranked").click()
    page.locator(".figures", has_text="consensus").first.wait_for()
    again = open_page(page.url)
    assert captions(again) and again.locator(".figures", has_text="consensus").count()
    assert again.locator("input[value=after]").is_checked()


def test_a_picture_can_be_dropped_and_pasted(page):
    for event, colour, property in (("drop", 1, "dataTransfer"), ("paste", 2, "clipboardData")):
        page.evaluate(
            """([event, property, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], "a.png", {type: "image/png"}));
                const made = new Event(event, {bubbles: true, cancelable: true});
                Object.defineProperty(made, property, {value: data});
                document.body.dispatchEvent(made);
            }""",
            [event, property, list(tiny.picture(colour))],
        )
        page.locator(f".captions .word >> text={tiny.COLOURS[colour]}").first.wait_for()


def test_another_word_is_chosen_and_the_sentence_goes_on(page, open_page):
    upload(page, picture(0))
    captions(page)
    first = page.locator(".captions li:first-child")
    words = first.locator(".word").all_text_contents()
    word = first.locator(".word", has_text=re.compile("^red$")).first
    word.hover()
    page.locator("[role=menuitem]", has_text="green").wait_for()
    word.click()
    page.locator("[role=menuitem]", has_text="green").click()
    beginning = " ".join([*words[: words.index("red")], "green"])
    assert page.locator("#beginning").input_value().strip() == beginning
    page.locator(f".captions li:first-child [aria-label^='{beginning}']").wait_for()
    assert all(text.startswith(beginning) for text in captions(page))
    again = open_page(page.url)
    assert captions(again) == captions(page)
    again.locator("#beginning").fill("there is a")
    again.locator(".captions li:first-child [aria-label^='there is a']").wait_for()
    assert "text=there+is+a" in again.url


def test_search_while_typing(page, open_page, address):
    under_way, most = [], []
    page.on(
        "request",
        lambda r: "/api/search" in r.url and (under_way.append(r), most.append(len(under_way))),
    )
    page.on("requestfinished", lambda r: r in under_way and under_way.remove(r))
    page.goto(f"{address}/#search")
    page.locator("#results li").nth(9).wait_for()
    page.locator("#query").press_sequentially("everything is blue", delay=20)
    wait_for_best(page, "blue")
    page.locator("#query").press_sequentially(" here", delay=20)
    page.locator("#results li:first-child .scores .word", has_text="here").wait_for()
    assert page.locator("#results li").first.locator(".scores .word").count() == 4
    assert max(most) == 1 and len(most) > 3
    assert all("blue" in name for name in names(page)[:3])
    again = open_page(page.url)
    wait_for_best(again, "blue")
    assert again.locator("#query").input_value() == "everything is blue here"
    page.locator("#query").fill("qwertz ")
    page.get_by_text("The model does not know: qwertz.").wait_for()


SLOWLY = """
const fetched = window.fetch;
window.asked = 0;
window.fetch = async (...question) => {
  const answer = await fetched(...question);
  if (String(question[0]).includes("/api/search")) {
    window.asked += 1;
    await new Promise((done) => setTimeout(done, 400));
  }
  return answer;
};
"""


def test_stale_answers_are_dropped(page, address):
    page.add_init_script(SLOWLY)
    page.goto(f"{address}/#search")
    page.reload()
    page.locator("#results li").nth(9).wait_for()
    page.locator("#query").press_sequentially("everything is green", delay=30)
    page.locator(".scores .word", has_text="green").first.wait_for()
    assert 0 < page.evaluate("asked") < 8  # of 19 keys: those between were never asked


def test_similar_pictures_and_sentences(page, address):
    page.goto(f"{address}/#search?q=everything+is+red")
    wait_for_best(page, "red")
    page.locator("#results li").first.get_by_text("Similar").click()
    page.get_by_role("heading", name="Photographs like this one").wait_for()
    page.locator("#results .scores .word").first.wait_for(state="detached")
    assert all("red" in name for name in names(page)[:2])
    page.locator("#results a.open").first.click()
    assert "red" in captions(page)[0]
    assert page.locator("#near li").count() > 2
    page.locator("#sentences li", has_text="red").first.wait_for()


def test_a_broken_picture_is_told(page):
    upload(page, {"name": "broken.png", "mimeType": "image/png", "buffer": b"no picture"})
    alert = page.locator("#captions [role=alert]")
    alert.get_by_text("The picture: no image").wait_for()
    assert alert.get_by_role("button", name="Choose another picture").is_visible()
    upload(page, picture(2))
    assert "blue" in captions(page)[0]


def test_the_explorer_goes_away_and_comes_back(open_page, explorer, options):
    with explored.page(explorer, options) as address:
        page = open_page(f"{address}/#caption?picture=photo:red%25203.png")
        captions(page)
        fixed = ExplorerOptions(port=int(address.rsplit(":")[-1]))
    page.locator("#beginning").fill("everything")
    page.locator("#banner", has_text="The explorer does not answer").wait_for()
    page.locator("#captions [role=alert]").wait_for()
    with explored.page(explorer, fixed):
        page.locator("#banner").wait_for(state="hidden")
        page.locator(".captions li:first-child [aria-label^='everything']").wait_for()


@pytest.mark.timeout(900)
def test_a_server_goes_away_and_comes_back(open_page, searchable_models, folder, tmp_path):
    with served.serving(tmp_path, searchable_models) as running:
        remote = ExplorerOptions(server=running.address, photos=str(folder), port=0)
        explorer = server.create_explorer(remote)
        with explored.page(explorer, remote) as address:
            page = open_page(address)
            upload(page, picture(0))
            said = captions(page)
            running.stop()
            page.locator("#banner", has_text="no server answers").wait_for()
            port = running.address.rsplit(":")[-1]
            with served.serving(tmp_path, searchable_models, f"--port={port}"):
                page.locator("#banner").wait_for(state="hidden")
                page.locator("#beginning").fill("a")
                page.locator(".captions .typed").first.wait_for()
                page.locator("#beginning").fill("")
                page.locator(f".captions li:first-child [aria-label='{said[0]}']").wait_for()
            page.goto("about:blank")
        explorer.close()


def background(page) -> int:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


def test_light_and_dark(open_page, address):
    page = open_page(address, color_scheme="dark")
    assert background(page) < 150
    page.locator("#theme").click()
    assert background(page) > 600
    page.reload()
    assert (
        background(page) > 600 and page.locator("#theme").get_attribute("aria-pressed") == "false"
    )


@pytest.mark.parametrize("view", VIEWS)
def test_a_screen_of_375_pixels_is_enough(open_page, address, view):
    phone = {"viewport": {"width": 375, "height": 700}, "is_mobile": True, "has_touch": True}
    page = open_page(f"{address}/#{view}", **phone)
    if view == "caption":
        assert page.get_by_role("button", name="Take a photo").is_visible()
        upload(page, picture(0))
        captions(page)
        page.locator(".captions .word").nth(2).tap()
        page.locator("[role=menuitem]").first.wait_for()
        edge = page.locator("#alternatives").bounding_box()
        assert edge["x"] >= 0 and edge["x"] + edge["width"] <= 375
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def focused(page) -> str:
    return page.evaluate("document.activeElement.textContent || document.activeElement.id")


def test_the_keyboard_is_enough(page):
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    assert focused(page) and page.evaluate("document.activeElement.id") == "view"
    page.keyboard.press("/")
    page.locator("#results li").nth(9).wait_for()
    page.keyboard.type("everything is green")
    page.locator("#results .scores .word", has_text="green").first.wait_for()
    page.keyboard.press("ArrowDown")
    first = page.evaluate("document.activeElement.dataset.picture")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.picture") not in ("", first)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("s")
    page.get_by_role("heading", name="Photographs like this one").wait_for()
    page.locator("#results .open:focus").wait_for()
    page.keyboard.press("Escape")
    page.locator("#query").wait_for()
    page.locator("#results .scores .word", has_text="green").first.wait_for()
    page.locator("#query:focus").press("ArrowDown")
    page.keyboard.press("Enter")
    captions(page)
    page.locator("#beginning").focus()
    for _ in range(5):  # over the order of the captions to the first sentence
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "word":
            break
    while focused(page) != "green":
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator("[role=menuitem]:focus").wait_for()
    page.keyboard.press("Escape")
    assert page.locator("#alternatives").is_hidden() and focused(page) == "green"
    page.keyboard.press("Enter")
    page.locator("[role=menuitem]:focus").wait_for()
    while not focused(page).startswith("blue"):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator(".captions .typed").first.wait_for()
    assert page.locator("#beginning").input_value().split()[-1] == "blue"


def test_a_folder_is_chosen_on_the_page(page, folder):
    page.get_by_role("link", name="Photographs", exact=True).click()
    page.get_by_text("10 photographs can be found.").wait_for()
    page.locator("#left-out summary").click()
    page.locator("#left-out li", has_text="broken.jpg: no image").wait_for()
    page.get_by_label("Folder").fill("/etc")
    page.get_by_role("button", name="Index it").click()
    page.locator("#folder-error", has_text="The folder must lie in").wait_for()
    page.get_by_label("Folder").fill("below")
    page.get_by_role("button", name="Index it").click()
    page.get_by_text("1 photograph can be found.").wait_for()
    page.get_by_label("Folder").fill(str(folder))
    page.get_by_role("button", name="Index it").click()
    page.get_by_text("10 photographs can be found.").wait_for()


COLOUR = """async (image) => {
    await image.decode();
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.drawImage(image, 0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
}"""


def test_a_file_of_the_same_name_in_another_folder_is_another_picture(page, explorer, folder):
    def wait_for_colour(selector: str, channel: int) -> None:
        def is_strongest() -> bool:  # the page looks at its state every few seconds
            colours = page.locator(selector).evaluate(COLOUR)
            return colours.index(max(colours)) == channel

        served.wait_for(is_strongest)

    for channel in (0, 2):
        (folder / "below" / str(channel)).mkdir()
        (folder / "below" / str(channel) / "same.png").write_bytes(tiny.picture(channel))
    try:
        for channel in (0, 2):
            page.get_by_role("link", name="Photographs", exact=True).click()
            page.get_by_label("Folder").fill(f"below/{channel}")
            page.get_by_role("button", name="Index it").click()
            page.get_by_text("1 photograph can be found.").wait_for()
            served.wait_for(lambda c=channel: explorer.folder().endswith(f"/{c}"))
            page.get_by_role("link", name="Caption", exact=True).click()
            page.locator("#suggested img").wait_for()
            wait_for_colour("#suggested img", channel)
            page.get_by_role("link", name="Search", exact=True).click()
            page.locator("#results img").wait_for()
            wait_for_colour("#results img", channel)
            page.locator("#results a.open").click()
            page.locator(f".captions .word >> text={tiny.COLOURS[channel]}").first.wait_for()
            wait_for_colour("#picture", channel)
    finally:
        explorer.photographs.begin(str(folder))
        for channel in (0, 2):
            (folder / "below" / str(channel) / "same.png").unlink()
        served.wait_for(lambda: explorer.state()["photographs"]["photographs"] == 10)


def test_an_error_of_the_folder_is_hidden_when_it_is_over(page, explorer):
    photographs = explorer.photographs
    photographs.stop()
    photographs._error = "The disk is full."
    page.get_by_role("link", name="Photographs", exact=True).click()
    page.locator("#folder-error", has_text="The disk is full.").wait_for()
    photographs._error = ""
    page.locator("#folder-error").wait_for(state="hidden")
    photographs.go_on()


def test_an_unknown_view_and_a_show_that_throws(page, address):
    page.goto(f"{address}/#toString")
    page.locator("#caption").wait_for()
    shown = page.evaluate("""async () => {
        const { Latest } = await import("/latest.js");
        addEventListener("unhandledrejection", (event) => event.preventDefault());
        const shown = [];
        const latest = new Latest(async (value) => value, (value) => {
            if (!value) throw new Error("it cannot be drawn");
            shown.push(value);
        });
        for (const value of [0, 1]) {
            latest.want(value);
            await new Promise((done) => setTimeout(done, 50));
        }
        return shown;
    }""")
    assert shown == [1]


def test_hostile_names_and_queries_stay_texts(page, address):
    page.goto(f"{address}/#search")
    page.locator("#results").get_by_text("<img src=x onerror=hacked()>.png").wait_for()
    page.locator("#query").fill("<script>hacked()</script> red ")
    page.get_by_text("The model does not know: script, hacked, script.").wait_for()
    page.goto(f"{address}/#inside?word=<img src=x onerror=hacked()>")
    page.get_by_text("The model does not know the word").wait_for()
    assert page.locator("img[src=x]").count() == page.locator("main script").count() == 0


@pytest.fixture(scope="module")
def axe():
    if importlib.util.find_spec("axe_playwright_python") is None:
        pytest.skip("axe-core is not installed: the extra `test` brings axe-playwright-python")
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", [*VIEWS, "search?q=everything+is+red", "picture", "menu"])
def test_axe_finds_no_serious_problem(open_page, address, axe, view, scheme):
    is_picture = view in ("picture", "menu")
    place = "caption?picture=photo:red%25203.png" if is_picture else view
    page = open_page(f"{address}/#{place}", color_scheme=scheme, reduced_motion="reduce")
    if is_picture:
        captions(page)
        page.locator("#sentences li").first.wait_for()
    if view == "menu":
        page.locator(".captions .word").nth(1).click()
        page.locator("[role=menuitem]:focus").wait_for()
    page.wait_for_load_state("networkidle") if not is_picture else page.wait_for_timeout(300)
    page.evaluate(axe)
    found = page.evaluate("axe.run()")
    assert found["passes"]
    serious = [
        (each["id"], each["impact"], [node["html"] for node in each["nodes"]])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical", "moderate")
    ]
    assert not serious


def test_nothing_comes_from_another_host(page, address):
    hosts = set()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    for view in VIEWS:
        page.goto(f"{address}/#{view}")
        page.wait_for_timeout(300)
    assert hosts == {address.split("/")[2]}
