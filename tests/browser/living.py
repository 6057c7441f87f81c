"""The page while things change: runs that go on, a server that starts again, runs that are deleted, a thousand of them."""

import os
import re
import shutil
import stat
import statistics
import time

from playwright.sync_api import expect

from harness import FOLDER, WIDE, Server, opened, shot, unharmed
from runs import Run, many

# Time of a hover and bytes of an update that are felt, at a thousand ticked runs.
HOVER_MS, UPDATE_BYTES = 50, 50_000
HOVER = """async () => {
    const over = document.querySelector(".panel canvas.over");
    const { left, top, width, height } = over.getBoundingClientRect();
    const times = [];
    for (let i = 0; i < 40; i += 1) {
        const [clientX, clientY] = [left + width * (0.2 + 0.015 * i), top + height * (0.3 + 0.01 * i)];
        const began = performance.now();
        over.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY, bubbles: true }));
        // What is asked for now is drawn before the next picture.
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
        times.push(performance.now() - began);
    }
    over.dispatchEvent(new PointerEvent("pointerleave"));
    return times;
}"""


def updated(page, change):
    """Makes a change and waits until the page has taken it up."""
    with page.expect_response(lambda answer: "api/overview" in answer.url, timeout=10000):
        change()
    page.wait_for_timeout(250)


def everything(browser, server, logs, run):
    page = opened(browser, server.address, timezone_id="Asia/Tokyo", **WIDE)
    stays(page, run)
    tells(page, logs)
    addresses(page, logs)
    unharmed(page)
    page.context.close()


def stays(page, run):
    """What somebody holds stays in their hand while numbers come in."""
    slider = page.get_by_label("Smoothing")
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, middle)
    page.mouse.down()
    for share in [0.4, 0.6, 0.8]:
        updated(page, lambda: run.train(5))
        page.mouse.move(box["x"] + box["width"] * share, middle, steps=3)
        assert abs(float(slider.input_value()) - share) < 0.12, (share, slider.input_value())
    page.mouse.up()
    slider.fill("0")
    focused = "document.activeElement.getAttribute('aria-label')"
    for place in [page.get_by_label("Group"), page.locator(".row[data-run] .swatch").first]:
        place.focus()
        before = page.evaluate(focused)
        updated(page, lambda: run.train(5))
        assert page.evaluate(focused) == before, before
    # The log: read in the middle with some of it selected, it stays; read at its end, it follows.
    run.log(0, [f"line {number}" for number in range(120)])
    page.locator(f'.row[data-run$="{run.id}"] .name').click()
    page.keyboard.press("5")
    log = page.locator('[data-card="log"] .log')
    expect(log).to_contain_text("line 119")
    assert log.evaluate("place => place.scrollHeight - place.scrollTop - place.clientHeight") < 4
    updated(page, lambda: run.train(5).log(0, ["at the end"]))
    assert log.evaluate("place => place.scrollHeight - place.scrollTop - place.clientHeight") < 30
    log.evaluate("""place => {
        place.scrollTop = 200;
        getSelection().selectAllChildren([...place.querySelectorAll("span")].find((line) => line.textContent.endsWith(" line 20\\n")));
    }""")
    log.focus()
    updated(page, lambda: run.train(5).log(0, ["after it"]))
    expect(log).to_contain_text("after it")
    assert log.evaluate("place => place.scrollTop") == 200
    assert page.evaluate("getSelection().toString()").strip().endswith("line 20")
    assert page.evaluate("document.activeElement.className") == "log", "and the tab went on around it"
    expect(page.locator(".facts").first).to_contain_text(f"{run.step} of")
    # A run has its curves on its own tab, and they live.
    expect(page.locator(".panel canvas.over").first).to_be_visible()
    # A brush over all ticked runs, while it is dragged.
    page.keyboard.press("Escape")
    page.keyboard.press("4")
    page.get_by_role("combobox", name="Sweep").select_option("runs")
    grip = page.locator(".grip").last
    grip.scroll_into_view_if_needed()
    box = grip.bounding_box()
    page.mouse.move(box["x"] + 16, box["y"] + box["height"] * 0.95)
    page.mouse.down()
    page.mouse.move(box["x"] + 16, box["y"] + box["height"] * 0.7, steps=3)
    updated(page, lambda: run.train(20))
    page.mouse.move(box["x"] + 16, box["y"] + box["height"] * 0.4, steps=3)
    page.mouse.up()
    off = page.locator(".curve.off").count()
    assert 0 < off < page.locator(".curve").count()
    high = page.locator('.brush[visibility="visible"]').bounding_box()["height"]
    assert high > 0.4 * box["height"], "it began where it was begun"
    updated(page, lambda: run.train(20))
    expect(page.locator('.brush[visibility="visible"]')).to_have_count(1)
    expect(page.get_by_text(re.compile(r"\d+ of \d+ trials $"))).to_be_visible()
    page.get_by_role("button", name="no brush").click()
    page.get_by_role("combobox", name="Sweep").select_option("tune")
    expect(page.locator('[data-card="best"]')).to_contain_text("Best: trial 10")
    expect(page.locator("circle.pruned").first).to_be_attached()
    # The table of trials: the best first; a click on a head sorts, another turns it round.
    trials = page.locator('[data-card="trials"]')
    expect(trials.locator("tbody tr").first).to_have_attribute("data-trial", "10")
    for first in ["1", "12"]:
        trials.get_by_role("button", name="trial", exact=True).click()
        expect(trials.locator("tbody tr").first).to_have_attribute("data-trial", first)
    page.keyboard.press("1")


def saved(page, act):
    """The text of a file that a click saves."""
    with page.expect_download() as download:
        act()
    with open(download.value.path(), "rb") as file:
        return download.value.suggested_filename, file.read()


def tells(page, logs):
    """Outliers, files, groups, times, and a run whose tags cannot be read."""
    spike = Run(logs, "spike", 7).train(1000)
    row = "1000,10,,,,,,,280.0,0.1,,,,,,,\n"
    with open(os.path.join(spike.folder, "metrics.csv"), "r+", encoding="utf-8") as file:
        text = file.read().splitlines(keepends=True)
        file.seek(0)
        file.write("".join(row if line.startswith("1000,10,,,,,,,") else line for line in text))
        file.truncate()
    spike.write("tags.json", "{ no json")
    page.locator("#filter").fill("spike|plain")
    panel = page.locator('[data-metric="val/loss"]')
    marked = panel.get_by_role("button", name="1 beyond")
    expect(marked).to_be_visible(timeout=10000)
    shot(page, "curves-outlier")
    marked.click()
    expect(panel.get_by_role("button", name="leave out")).to_be_visible()
    panel.get_by_role("button", name="leave out").click()
    row = page.locator(f'.row[data-run$="{spike.id}"]')
    expect(row.locator(".bad")).to_have_attribute("title", re.compile("tags.json"))
    expect(page.locator(".problems")).not_to_contain_text("tags.json")
    name, text = saved(page, panel.get_by_role("button", name="Save val/loss as CSV").click)
    lines = text.decode().splitlines()
    assert name == "val-loss.csv" and lines[0] == "run,step,val/loss" and len(lines) == 21 and "280" in text.decode(), lines[:3]
    name, picture = saved(page, panel.get_by_role("button", name="Save val/loss as PNG").click)
    assert name == "val-loss.png" and picture[1:4] == b"PNG" and len(picture) > 5000
    panel.get_by_role("button", name="Table of val/loss").click()
    expect(panel.locator("tbody tr")).to_have_count(10)
    panel.get_by_role("button", name="Table of val/loss").click()
    # Groups have a legend, in the colours of list and lines.
    page.locator("#filter").fill("")
    page.get_by_label("Group").select_option("optimizer.lr")
    legend = page.locator(".legend")
    expect(legend).to_contain_text("0.1")
    colours = page.evaluate("""() => [[...document.querySelectorAll(".legend > span")].find((each) => each.textContent.startsWith("0.1 "))?.querySelector("line"),
        document.querySelector('.row[data-run^="plain/"] .swatch')].map((each) => each.style.getPropertyValue("--tint") || each.closest("[style]").style.getPropertyValue("--tint"))""")
    assert colours[0] == colours[1], colours
    page.get_by_label("Group").select_option("")
    # One clock: that of the reader, in table and tab.
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    begun = page.locator('tr[data-run^="plain/"] td').nth(3).inner_text()
    assert begun == "2026-11-20 22:07", begun
    # Columns can be chosen, and the file has them.
    page.locator(".chooser summary").click()
    page.get_by_label("Search for columns").fill("last update")
    page.get_by_label("last update", exact=True).check()
    expect(page.get_by_role("columnheader", name="last update")).to_be_attached()
    page.locator(".chooser summary").click()
    name, text = saved(page, page.locator(".tools").get_by_role("button", name="CSV").click)
    lines = text.decode().splitlines()
    assert name == "runs.csv" and lines[0].startswith("run,state,started") and "last update" in lines[0] and len(lines) > 18
    page.locator('tr[data-run^="plain/"] .link').press("Enter")
    expect(page.locator(".facts").first).to_contain_text(begun)
    page.keyboard.press("1")
    shutil.rmtree(spike.folder)
    expect(row).to_have_count(0, timeout=10000)


def colours(page):
    return page.evaluate("""() => Object.fromEntries([...document.querySelectorAll(".row[data-run]")].map((row) =>
        [row.dataset.run, row.querySelector(".swatch").style.getPropertyValue("--tint")]))""")


def addresses(page, logs):
    """What is shown stands in the address; Back leads back; a run that is gone is said to be gone."""
    doomed = Run(logs, "doomed", 8).train(50).finish()
    rows = page.locator(".row[data-run]")
    row = page.locator('.row[data-run^="doomed/"]')
    expect(row).to_be_visible(timeout=10000)
    before = colours(page)
    another = Run(logs, "another", 9).train(20).finish()
    expect(page.locator('.row[data-run^="another/"]')).to_be_visible(timeout=10000)
    after = colours(page)
    assert all(after[run] == colour for run, colour in before.items() if run in after), "a new run colours no other"
    page.get_by_role("button", name="untick all").click()
    for index in [0, 3]:
        rows.nth(index).locator(".swatch").click()
    page.keyboard.press("2")
    page.get_by_role("columnheader", name="val/loss").get_by_role("button").click()
    page.keyboard.press("1")
    panel = page.locator(".panel").first
    box = panel.locator("canvas.over").bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 84, box["y"] + 160, steps=4)
    page.mouse.up()
    expect(page.get_by_text("Reset zoom")).to_be_visible()
    ticked = page.locator(".row[data-run]:not(.unticked)")
    expect(ticked).to_have_count(2)
    address = page.url
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    expect(ticked).to_have_count(2)
    expect(page.get_by_text("Reset zoom")).to_be_visible()
    assert page.url == address
    page.keyboard.press("2")
    expect(page.get_by_role("columnheader", name="val/loss")).to_have_attribute("aria-sort", "descending")
    # Back.
    row.locator(".name").click()
    page.keyboard.press("5")
    expect(page.locator("h1")).to_have_text(re.compile("doomed"))
    page.go_back()
    expect(page.get_by_role("tab", name="Table")).to_have_attribute("aria-selected", "true")
    page.go_forward()
    expect(page.locator("h1")).to_have_text(re.compile("doomed"))
    # Gone, under the open page and under its address.
    shutil.rmtree(doomed.folder)
    expect(page.get_by_text("This run is not there any more")).to_be_visible(timeout=10000)
    page.reload()
    expect(page.get_by_text("This run is not there any more")).to_be_visible(timeout=10000)
    shot(page, "run-gone")
    shutil.rmtree(another.folder)
    page.goto(page.url.split("#")[0] + "#")
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")


def restarted(browser):
    """A page outlives its server; one with another token says what to do."""
    logs = os.path.join(FOLDER, "restarted")
    Run(logs, "first", 0).train(100).finish()
    os.environ["DDPRUN_CACHE"] = os.path.join(FOLDER, "cache")
    with Server(logs) as server:
        page = opened(browser, server.address, **WIDE)
        port, address = server.port, server.address
    secret = os.path.join(FOLDER, "cache", "secret")
    assert stat.S_IMODE(os.stat(secret).st_mode) == 0o600
    trouble = page.locator("#trouble")
    expect(trouble).to_contain_text("does not answer", timeout=10000)
    expect(page.locator("#live")).to_have_text("offline")
    shot(page, "offline")
    Run(logs, "second", 1).train(100).finish()
    with Server(logs, port=port) as server:
        assert server.address == address, "the same token"
        expect(page.locator("#live")).to_have_text("live", timeout=10000)
        expect(trouble).to_be_hidden()
        expect(page.locator('.row[data-run^="second/"]')).to_be_visible()
    token = os.path.join(FOLDER, "serve.token")
    with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write("ab" * 32 + "\n")
    with Server(logs, "--token-file", token, port=port):
        expect(trouble).to_contain_text("another token", timeout=10000)
        expect(page.locator("#live")).to_have_text("not let in")
    del os.environ["DDPRUN_CACHE"]
    assert [text for text in page.wrong if "Failed to load resource" not in text] == []
    page.context.close()


def quiet(page):
    """Waits until all that was asked for has been answered."""
    last, since = None, time.monotonic()
    while time.monotonic() - since < 3:
        now = page.evaluate("performance.setResourceTimingBufferSize(5000) ?? performance.getEntriesByType('resource').length")
        if now != last:
            last, since = now, time.monotonic()
        page.wait_for_timeout(200)


def thousand(browser, count=int(os.environ.get("BROWSER_RUNS", "1000"))):
    """A thousand ticked runs: only those in sight are in the list, a hover and an update cost little."""
    folder = os.path.join(FOLDER, "thousand")
    many(folder, count, 400)
    live = Run(folder, "lives", count + 1).train(100)
    with Server(folder) as server:
        page = opened(browser, server.address, **WIDE)
        head = page.locator(".list-head")
        expect(head).to_contain_text(f"{count + 1} runs", timeout=600000)
        expect(head).to_contain_text("50 drawn")
        assert page.locator(".row").count() < 60
        page.wait_for_timeout(1500)
        page.locator("#filter").press("Escape")
        page.get_by_role("button", name="untick all").click()
        page.get_by_role("button", name="tick all").click()
        expect(head).not_to_contain_text("drawn")
        quiet(page)
        shot(page, "thousand")
        times = page.evaluate(HOVER)
        hover = statistics.median(times)
        answers = []
        page.on("requestfinished", lambda request: answers.append((request.url, request.sizes()["responseBodySize"])))
        began = time.monotonic()
        for _ in range(5):
            updated(page, lambda: live.train(5))
        page.wait_for_timeout(1500)
        rounds = max(1, sum("overview" in url for url, _ in answers))
        update = sum(size for _, size in answers) / rounds
        page.wait_for_timeout(300)
        page.locator("#filter").fill("")
        began = time.monotonic()
        page.locator("#filter").press_sequentially("model3")
        expect(head).to_contain_text(f"of {count + 1} runs")
        filtered = time.monotonic() - began
        page.keyboard.press("Escape")
        page.keyboard.press("2")
        expect(page.locator("tbody tr[data-run]").first).to_be_visible()
        assert page.locator("tbody tr").count() < 80
        shot(page, "thousand-table")
        print(f"{count} ticked runs: hover {hover:.0f} ms (most {max(times):.0f}), update {update / 1000:.1f} kB, filtered after {filtered:.2f} s")
        assert hover < HOVER_MS * float(os.environ.get("SLOWER", "1")), times
        assert update < UPDATE_BYTES, answers
        unharmed(page)
        page.context.close()
