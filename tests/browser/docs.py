"""Makes the pictures of docs/dashboard.md.

    python tests/browser/docs.py target/debug/ddprun EMPTY_FOLDER docs/dashboard
"""

import math
import os
import shutil

from playwright.sync_api import sync_playwright

from harness import FOLDER, SHOTS, PHONE, Server, opened, png
from runs import Run, sweep

SIZE = {"viewport": {"width": 1040, "height": 620}, "color_scheme": "light"}
MOST = 150_000


def runs(logs):
    """Three rates with two seeds each, a run that goes on, and a sweep."""
    picture = png(os.path.join(FOLDER, "cat.png"))
    for number, lr in enumerate([0.1, 0.1, 0.03, 0.03, 0.3]):
        run = Run(logs, "resnet18", number, lr=lr, total=400)
        for _ in range(8):
            run.train(50).tell(gpus=True)
        run.straggle().finish()
    sweep(logs, 16)
    run = Run(logs, "resnet50", 700, lr=0.05)
    for _ in range(13):
        run.train(50).tell(gpus=True)
    run.log(0, [f"epoch {epoch}: val/loss {0.3 + math.exp(-epoch):.4f}" for epoch in range(1, 7)]).evaluate(picture, FOLDER)
    return logs, run


def main():
    logs, run = runs(os.path.join(FOLDER, "logs"))
    with sync_playwright() as playwright, Server(".", cwd=logs) as server:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = opened(browser, server.address + "#filter=resnet&smooth=0.4", **SIZE)
        page.wait_for_timeout(1500)
        box = page.locator(".panel canvas.over").first.bounding_box()
        page.mouse.move(box["x"] + 0.45 * box["width"], box["y"] + 0.6 * box["height"])
        save(page, "curves")
        page.goto(page.url.split("#")[0] + f"#tab=run&focus=resnet50%2F{run.id}")
        page.reload()
        page.wait_for_timeout(1500)
        save(page, "run")
        page.goto(page.url.split("#")[0] + "#tab=sweep")
        page.reload()
        page.wait_for_timeout(1000)
        save(page, "sweep")
        page.context.close()
        page = opened(browser, server.address + "#filter=resnet&smooth=0.4", **{**PHONE, "viewport": {"width": 390, "height": 720}})
        page.wait_for_timeout(1500)
        save(page, "phone")
        browser.close()


def save(page, name):
    page.wait_for_timeout(300)
    path = os.path.join(SHOTS, f"{name}.png")
    os.makedirs(SHOTS, exist_ok=True)
    page.screenshot(path=path)
    assert os.path.getsize(path) <= MOST, (path, os.path.getsize(path))


main()
