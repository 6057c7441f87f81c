"""Drives the page of `ddprun serve` and `ddprun report --html` in headless Chromium and Firefox.

    python tests/browser/page.py target/debug/ddprun EMPTY_FOLDER [SCREENSHOTS]

Needs playwright (1.49 or newer) and Chromium: its own, or `chromium` in the PATH.
"""

import os
import re
import shutil
import subprocess
import time

from playwright.sync_api import expect, sync_playwright

import audit
import firefox
import living
import pictures
from harness import DDPRUN, FOLDER, PHONE, PLAIN, SHOTS, WIDE, Server, opened, png, shot, status, unharmed
from runs import Run, many, sweep

HOSTILE = '<img src=x onerror="window.hacked=1">"\'&</script><script>window.hacked=2</script>'
EXPERIMENT = """schema = 1
[experiment]
name = "trained"
[model]
name = "mlp"
hidden = [8]
[data]
name = "shapes"
classes = 2
train_per_class = 64
val_per_class = 8
image_size = 16
num_workers = 1
[train]
epochs = 100000
batch_size = 8
global_batch_size = 16
[distributed]
devices = 2
[logging]
every = "100 steps"
"""


def refuses_strangers(server):
    assert status(server.root + "/") == 403
    assert status(server.root + "/api/overview") == 403
    assert status(server.root + "/?token=" + "0" * 64) == 403
    assert status(server.address) == 303
    assert status(server.address, Host="evil.example") == 403
    cookie = f"ddprun-{server.root.rsplit(':', 1)[1]}={server.address.split('token=')[1]}"
    assert status(server.root + "/api/overview", Cookie=cookie) == 200
    assert status(server.root + "/api/overview", Cookie=cookie, Host="evil.example") == 403
    assert status(server.root + "/api/log?id=../../etc&rank=0", Cookie=cookie) == 404
    assert status(server.root + "/api/image?id=a&evaluation=0&sample=0", Cookie=cookie) == 404


def clicks(page, n_runs):
    """Every tab, and what can be clicked there."""
    rows = page.locator(".row[data-run]")
    expect(rows).to_have_count(n_runs)
    panels = page.locator(".panel")
    expect(panels.first.locator("canvas.over")).to_be_visible()
    assert panels.first.get_attribute("data-metric") == "val/loss", "the monitored metric is first"
    assert drawn(page) > 500, "something is drawn"
    shot(page, "curves-light")
    # A tip and the crosshair follow the pointer.
    plot = panels.first.locator("canvas.over")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.8)
    expect(panels.first.locator(".tip")).to_be_visible()
    # The tip names the step of the point that it tells, which is not that of the pointer.
    said = panels.first.locator(".tip .x").first.inner_text()
    assert int(re.sub(r"\D", "", said)) % 100 == 0, said
    shot(page, "curves-tip")
    # A stretch that is dragged over is zoomed into, in all charts; Escape leads back.
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.6, steps=4)
    page.mouse.up()
    expect(page.get_by_text("Reset zoom")).to_be_visible()
    shot(page, "curves-zoomed")
    page.keyboard.press("Escape")
    expect(page.get_by_text("Reset zoom")).to_have_count(0)
    # The filter is a regular expression over names and configurations; a broken one is marked.
    page.keyboard.press("/")
    page.keyboard.type("optimizer.lr=0.1$")
    page.wait_for_timeout(100)
    page.locator("#filter").fill("plain|failed")
    expect(rows).to_have_count(2)
    # Numbers are compared, by the end of their key; words add up.
    page.locator("#filter").fill("lr>=0.1 state=x|plain|failed lr<1")
    expect(rows).to_have_count(1)
    page.locator("#filter").fill("lr>0.09 lr<=3 plain|failed")
    expect(rows).to_have_count(2)
    page.locator("#filter").fill("plain(")
    expect(page.locator("#filter")).to_have_attribute("aria-invalid", "true")
    page.locator("#filter").fill("")
    expect(rows).to_have_count(n_runs)
    page.keyboard.press("Escape")
    # Ticks.
    rows.first.locator(".swatch").click()
    expect(page.locator(".row[data-run].unticked")).to_have_count(1)
    rows.first.locator(".swatch").click()
    expect(page.locator(".row[data-run].unticked")).to_have_count(0)
    tools = page.locator(".tools")
    for x in ["Epoch", "Time", "Step"]:
        tools.get_by_role("button", name=x).click()
        page.wait_for_timeout(150)
        assert drawn(page) > 500, x
    page.keyboard.press("l")
    page.keyboard.press("s")
    page.wait_for_timeout(200)
    assert drawn(page) > 500
    shot(page, "curves-smooth-log")
    page.keyboard.press("l")
    tools.get_by_label("Group").select_option("name")
    page.wait_for_timeout(200)
    assert drawn(page) > 500, "groups"
    shot(page, "curves-grouped")
    tools.get_by_label("Group").select_option("")
    tools.get_by_label("Colour", exact=True).select_option("pattern")
    page.get_by_label("Pattern of colours").fill("optimizer.lr=(\\S+)")
    page.wait_for_timeout(100)
    page.keyboard.press("Escape")
    # The table.
    page.keyboard.press("2")
    expect(page.locator("tbody tr")).to_have_count(n_runs)
    head = page.get_by_role("columnheader", name="val/loss")
    head.get_by_role("button").click()
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(page.get_by_role("columnheader", name="optimizer.lr")).to_be_visible()
    shot(page, "table")
    # Differences.
    page.keyboard.press("3")
    expect(page.locator("td", has_text="optimizer.lr")).to_be_visible()
    # One row for each property of the machines.
    cores = page.locator("tr", has=page.locator("td.soft", has_text=re.compile("^cores$")))
    expect(cores).to_have_count(1)
    expect(cores.locator("td.wrap", has_text="3")).not_to_have_count(0)
    shot(page, "compare")
    # The sweep: brushing an axis leaves fewer trials.
    page.keyboard.press("4")
    expect(page.locator(".curve")).to_have_count(12)
    grip = page.locator(".grip").last.bounding_box()
    page.mouse.move(grip["x"] + 16, grip["y"] + grip["height"] * 0.95)
    page.mouse.down()
    page.mouse.move(grip["x"] + 16, grip["y"] + grip["height"] * 0.6, steps=4)
    page.mouse.up()
    left = 12 - page.locator(".curve.off").count()
    assert 0 < left < 12, left
    expect(page.get_by_text(f"{left} of 12 trials")).to_be_visible()
    expect(page.locator('[data-card="importance"]')).to_contain_text("optimizer.lr")
    # A dot for each trial in the history, and in the slice of each parameter.
    expect(page.locator('[data-card="history"] circle')).to_have_count(12)
    # The best so far of the nine that were not pruned is a line of steps: each part of it is level or upright.
    points = page.locator('[data-card="history"] .step').get_attribute("points").split()
    points = [tuple(map(float, point.split(","))) for point in points]
    parts = list(zip(points, points[1:]))
    assert all(x == to_x or y == to_y for (x, y), (to_x, to_y) in parts), points
    assert any(y != to_y for (_, y), (_, to_y) in parts) and len(points) == 18, points
    slices = page.locator('[data-card="slice"]')
    expect(slices).to_have_count(2)
    expect(slices.first.locator("circle")).to_have_count(12)
    # What the brush leaves can be ticked alone, and its curves are those that are drawn.
    page.get_by_role("button", name="tick only these").click()
    expect(page.locator(".row[data-run]:not(.unticked)")).to_have_count(left)
    page.get_by_role("button", name="untick all").click()
    page.get_by_role("button", name="tick all").click()
    expect(page.locator(".row[data-run].unticked")).to_have_count(0)
    shot(page, "sweep")
    # One run: why it failed, its log, its phases.
    page.locator("#filter").fill("failed")
    page.keyboard.press("Escape")
    rows.first.click()
    page.keyboard.press("5")
    expect(page.locator(".empty")).to_have_count(0)
    expect(page.locator(".failure")).to_contain_text("the loss is not finite")
    shot(page, "run-failed")
    page.locator("#filter").fill("plain")
    page.keyboard.press("Escape")
    rows.first.click()
    expect(page.locator('[data-card="phases"]')).to_contain_text("backward")
    expect(page.locator('[data-card="stragglers"]')).to_contain_text("8ms")
    # Each rank has a bar, and the one that the others wait for is named; resources over time.
    phases = page.locator('[data-card="phases"]')
    expect(phases.locator(".bar")).to_have_count(2)
    expect(phases).to_contain_text("for rank 1, 10 % of its time")
    usage = page.locator('[data-card="usage"]')
    expect(usage.locator("canvas.over:visible")).to_have_count(3)
    expect(page.locator('[data-chart^="GPU"]')).to_have_count(2)
    expect(page.locator('[data-chart^="GPU"]:visible')).to_have_count(0)
    expect(usage).to_contain_text("rank 1 1.5 cores")
    expect(usage).to_contain_text("rank 0 400 MB")
    log = page.locator('[data-card="log"]')
    expect(log).to_contain_text("<b>said by rank 0</b>")
    log.get_by_label("Rank").select_option("1")
    expect(log).to_contain_text("said by rank 1")
    page.keyboard.press("Escape")
    expect(page.locator(".confusion td").first).to_have_text("8")
    # Pictures by an absolute path, and by one from where the run was started; not all of them are of mistakes.
    worst = page.locator(".worst")
    expect(worst.locator("img")).to_have_count(2)
    for picture in worst.locator("img").all():
        picture.scroll_into_view_if_needed()
        expect(picture).to_have_js_property("naturalWidth", 2)
    expect(worst.locator("figure.wrong")).to_have_count(1)
    expect(page.get_by_text("1 wrong; 1 right, the least certain first")).to_be_visible()
    expect(worst.locator("figure").last).to_contain_text("dog, right")
    page.keyboard.press("t")
    page.wait_for_timeout(200)
    shot(page, "run-dark")
    page.keyboard.press("1")
    page.locator("#filter").fill("")
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    shot(page, "curves-dark")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")


def drawn(page):
    """Pixels of the first chart that are not empty."""
    return page.evaluate("""() => {
        const canvas = document.querySelector(".panel canvas.lines");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let i = 3; i < data.length; i += 4) count += data[i] > 60;
        return count;
    }""")


def lives(page, run):
    """A run that goes on is seen without a reload."""
    row = page.locator(f'.row[data-run$="{run.id}"]')
    row.click()
    page.keyboard.press("5")
    for _ in range(3):
        run.train(50).tell(gpus=True)
        expect(page.locator(".facts").first).to_contain_text(f"{run.step} of 1\u202f000", timeout=4000)
    gpu, memory = (page.locator(f'[data-chart="{title}"]') for title in ["GPU utilization", "GPU memory in use"])
    expect(gpu).to_contain_text("rank 0 90 %")
    expect(gpu).not_to_contain_text("rank 1")
    expect(memory).to_contain_text("rank 1 6 GB")
    shot(page, "run-gpu")
    page.keyboard.press("1")


def trained(page, folder):
    """A run that trains is running, and killed when it was."""
    path = os.path.join(folder, "trained.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(EXPERIMENT)
    process = subprocess.Popen([DDPRUN, path], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    row = page.locator(".row", has_text="trained")
    expect(row.locator(".state")).to_have_text("running", timeout=15000)
    row.click()
    page.keyboard.press("5")
    facts = page.locator(".facts").first
    expect(facts).to_contain_text(re.compile(r"Step\d"), timeout=10000)
    before = facts.inner_text()
    expect(facts).not_to_have_text(before, timeout=5000)
    expect(page.locator('[data-card="resources"]')).to_contain_text("rank 1", timeout=5000)
    expect(page.locator('[data-card="usage"]')).to_contain_text("rank 1", timeout=8000)
    expect(page.locator('[data-card="phases"] .bar')).to_have_count(2)
    shot(page, "run-running")
    process.kill()
    process.wait()
    expect(row.locator(".state")).to_have_text("killed", timeout=8000)
    page.keyboard.press("1")


def quick(browser, folder):
    """200 runs of 100,000 points are drawn within a second."""
    many(folder, 200, 100_000)
    with Server(folder) as server:
        page = browser.new_context(**WIDE).new_page()
        page.goto("about:blank")
        began = time.monotonic()
        page.goto(server.address, wait_until="commit")
        page.wait_for_selector(".panel canvas.over")
        seconds = time.monotonic() - began
        print(f"200 runs of 100,000 points: {seconds:.2f} s to the first picture")
        head = page.locator(".list-head")
        expect(head).to_contain_text("200 runs", timeout=60000)
        print(f"all of them after {time.monotonic() - began:.2f} s")
        page.wait_for_timeout(500)
        shot(page, "many")
        began = time.monotonic()
        page.locator("#filter").fill("model3")
        expect(head).to_contain_text("29 of 200 runs")
        print(f"filtered after {time.monotonic() - began:.2f} s")
        assert seconds < float(os.environ.get("FIRST_PICTURE_SECONDS", "1")), seconds


def offline(browser, folder, n_runs):
    """The same page from one file, with no request to anywhere."""
    file = os.path.join(FOLDER, "report.html")
    subprocess.run([DDPRUN, "report", folder, "--html", file], check=True, stdout=subprocess.DEVNULL)
    page = browser.new_context(offline=True, viewport={"width": 1440, "height": 900}).new_page()
    asked = []
    page.wrong = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: said.type == "error" and page.wrong.append(said.text))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.goto("file://" + file)
    page.wait_for_selector("html[data-ready]", state="attached")
    clicks(page, n_runs)
    unharmed(page)
    asked = [url for url in asked if not url.startswith("data:")]
    assert asked == ["file://" + file], asked
    page.emulate_media(media="print")
    shot(page, "print")


def phone(browser, server):
    page = opened(browser, server.address, **PHONE)
    page.wait_for_selector(".panel canvas.over")
    shot(page, "phone-dark")
    for tab in ["Table", "Compare", "Sweep", "Run", "Curves"]:
        page.get_by_role("tab", name=tab).click()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, f"{tab} is {wide} pixels wide"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark", "as the system wishes"


def some(folder, picture, broken=True):
    logs = os.path.join(folder, "logs")
    plain = Run(logs, "plain", 1)
    for _ in range(20):
        plain.train(50).tell()
    plain.straggle().finish()
    plain.log(0, ["<b>said by rank 0</b>"]).log(1, ["said by rank 1"]).evaluate(picture, os.path.dirname(picture))
    Run(logs, "failed", 2, lr=3.0).train(40).fail("the loss is not finite").log(1, ["bad"])
    Run(logs, HOSTILE, 3, lr=0.01, extra=f"momentum = '''{HOSTILE.replace(chr(39), '')}'''\n").train(600).log(0, [HOSTILE]).finish()
    cut = Run(logs, "cut", 4, lr=0.03).train(300)
    cut.write("metrics.csv", "301,4,0.")
    cut.write("events.jsonl", '{"time":"2026')
    if broken:
        newer = Run(logs, "newer", 5)
        newer.write("events.jsonl", '{"time":"2026-11-20T13:00:00Z","step":0,"event":"started","format":99}\n')
    sweep(logs, 12)
    return logs, Run(logs, "goes_on", 6, lr=0.05).train(500)


def in_firefox():
    """The same page in Firefox, if there is one."""
    if not (shutil.which("firefox") or shutil.which("firefox-esr")):
        print("without Firefox, which is not there")
        return
    logs = os.path.join(FOLDER, "firefox")
    sweep(logs, 12)
    run = Run(logs, HOSTILE, 600).train(300)
    with Server(logs) as server:
        firefox.everything(server, run, SHOTS)


def main():
    folder = os.path.join(FOLDER, "some")
    os.makedirs(folder)
    logs, goes_on = some(folder, png(os.path.join(FOLDER, "cat.png")))
    n_runs = 5 + 12
    with sync_playwright() as playwright:
        own = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=own, args=["--no-sandbox"])
        seen, _ = some(os.path.join(FOLDER, "seen"), "cat.png", broken=False)
        # By a relative path, so that no line is longer on another machine.
        with Server(".", cwd=seen) as server:
            pictures.compare(browser, opened, server.address, PLAIN, shot)
        with Server(logs) as server:
            refuses_strangers(server)
            page = opened(browser, server.address, **WIDE)
            assert "token" not in page.url, "the token leaves the address bar"
            expect(page.locator(".problems")).to_contain_text("format 99")
            clicks(page, n_runs)
            page.keyboard.press("t")
            lives(page, goes_on)
            trained(page, folder)
            phone(browser, server)
            unharmed(page)
            living.everything(browser, server, logs, goes_on)
            audit.everything(browser, server)
        living.restarted(browser)
        offline(browser, logs, n_runs + 1)
        quick(browser, os.path.join(FOLDER, "many"))
        living.thousand(browser)
        browser.close()
        in_firefox()
    print("the page works")


main()
