"""Whether everybody can use the page: contrast, names, sizes, colours that all people tell apart, the keyboard alone."""

import re

from playwright.sync_api import expect

from harness import PHONE, PLAIN, WIDE, opened, shot

TABS = ["Curves", "Table", "Compare", "Sweep", "Run"]
# WCAG 2.2, level AA: contrast of text and of large text, side of what is clicked.
TEXT, LARGE, SIDE = 4.5, 3.0, 24
# The least distance of two colours in CIE Lab that people tell apart side by side, also with protanopia and deuteranopia.
APART = 20

LOOK = """() => {
    const sheet = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (color) => {
        sheet.clearRect(0, 0, 1, 1);
        sheet.fillStyle = color;
        sheet.fillRect(0, 0, 1, 1);
        return [...sheet.getImageData(0, 0, 1, 1).data].map((level) => level / 255);
    };
    const over = (top, below) => top.map((level, i) => (i === 3 ? 1 : level * top[3] + below[i] * (1 - top[3])));
    const ground = (element) => {
        const layers = [];
        for (let at = element; at; at = at.parentElement) {
            const color = rgba(getComputedStyle(at).backgroundColor);
            layers.push(color);
            if (color[3] > 0.999) break;
        }
        return layers.reverse().reduce((below, top) => over(top, below), [1, 1, 1, 1]);
    };
    const light = ([r, g, b]) => [r, g, b].map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const contrast = (a, b) => {
        const [x, y] = [light(a), light(b)].sort((m, n) => n - m);
        return (x + 0.05) / (y + 0.05);
    };
    const isSeen = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && element.getClientRects().length > 0;
    const problems = [];
    const told = new Set();
    const walker = document.createTreeWalker(document.body, 4);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement;
        if (!node.data.trim() || !isSeen(element) || element.closest(".hidden, script, dialog:not([open])")) continue;
        const style = getComputedStyle(element);
        const isDrawn = element.ownerSVGElement !== null && element.ownerSVGElement !== undefined;
        const below = ground(isDrawn ? element.ownerSVGElement.parentElement : element);
        const ratio = contrast(over(rgba(isDrawn ? style.fill : style.color), below), below);
        const size = parseFloat(style.fontSize);
        const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? LARGE : TEXT;
        const key = `${element.className} ${style.color}`;
        if (ratio < least && !told.has(key)) problems.push(`contrast ${ratio.toFixed(2)} of “${node.data.trim().slice(0, 30)}” (${element.tagName} ${element.getAttribute("class")})`);
        told.add(key);
    }
    for (const element of document.querySelectorAll("button, input, select, summary, [role=img], [role=slider], [role=tab]")) {
        if (!isSeen(element) || element.closest("dialog:not([open])")) continue;
        const words = element.getAttribute("aria-label") || element.textContent.trim() || element.labels?.[0]?.textContent.trim() || element.title;
        if (!words) problems.push(`no name: ${element.outerHTML.slice(0, 120)}`);
        if (element.getAttribute("role") === "img") continue;
        const { width, height } = (element.labels?.[0] ?? element).getBoundingClientRect();
        const isBox = element.type === "checkbox";
        if (!isBox && (Math.round(width) < SIDE || Math.round(height) < SIDE)) problems.push(`${Math.round(width)} x ${Math.round(height)}: ${words} ${element.outerHTML.slice(0, 80)}`);
    }
    for (const canvas of document.querySelectorAll("canvas")) if (!canvas.matches("[role=img][aria-label], [aria-hidden]")) problems.push("a canvas without a name");
    return problems;
}"""

PALETTE = """async () => {
    const text = await (await fetch("page.js")).text();
    const list = (name) => JSON.parse(text.match(new RegExp(`const ${name} = (\\\\[.*?\\\\]);`))[1]);
    return [[list("LIGHT"), "#ffffff"], [list("DARK"), "#161b24"]];
}"""

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB: protanopia, deuteranopia.
SIGHTS = [
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
]


def linear(color):
    levels = [int(color[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    return [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]


def lab(rgb):
    r, g, b = (min(max(level, 0), 1) for level in rgb)
    x, y, z = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047, 0.2126 * r + 0.7152 * g + 0.0722 * b, (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    f = [t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z)]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def seen(color, sight):
    rgb = linear(color)
    return lab([sum(a * b for a, b in zip(row, rgb)) for row in sight])


def contrast(color, ground):
    light = [sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear(each))) for each in (color, ground)]
    return (max(light) + 0.05) / (min(light) + 0.05)


def colours(page):
    """Lines stand out from the paper, and each from each other for all eyes."""
    for palette, paper in page.evaluate(PALETTE):
        least = min(contrast(color, paper) for color in palette)
        assert least >= 3, (least, paper)
        pairs = [(sum((a - b) ** 2 for a, b in zip(seen(one, sight), seen(other, sight))) ** 0.5, one, other)
                 for sight in SIGHTS for at, one in enumerate(palette) for other in palette[:at]]
        assert min(pairs)[0] >= APART, min(pairs)


def keyboard(page):
    """From the tabs to a run and the points of its chart, without a pointer."""
    active = lambda: page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")
    page.locator("#filter").focus()
    page.keyboard.press("Tab")
    assert active() == "Curves", active()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Table")).to_have_attribute("aria-selected", "true")
    assert active() == "Table"
    page.keyboard.press("End")
    page.keyboard.press("Home")
    assert active() == "Curves"
    # Tab by tab through the head into the list: one row of it is reached, arrows go on.
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.row .name')"):
            break
    first = active()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    second = active()
    assert first != second and page.evaluate("document.activeElement.matches('.row.focus .name')"), (first, second)
    ticked = page.locator(".row.focus .swatch")
    before = ticked.get_attribute("aria-checked")
    page.keyboard.press("x")
    expect(ticked).not_to_have_attribute("aria-checked", before)
    page.keyboard.press("x")
    # The points of a chart.
    chart = page.locator(".panel canvas.over").first
    chart.focus()
    for key in ["ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"]:
        page.keyboard.press(key)
    expect(page.locator(".panel .tip").first).to_be_visible()
    assert re.search(r": .+, \d+: [\d.]+", chart.get_attribute("aria-label")), chart.get_attribute("aria-label")
    page.locator(".panel").first.get_by_role("button", name=re.compile("^Table of")).press("Enter")
    expect(page.locator(".panel .numbers table").first).to_be_visible()
    page.locator(".panel").first.get_by_role("button", name=re.compile("^Table of")).press("Enter")
    # A brush.
    page.keyboard.press("4")
    if page.locator(".grip").count():
        page.locator(".grip").last.focus()
        for _ in range(6):
            page.keyboard.press("ArrowDown")
        expect(page.locator(".curve.off")).not_to_have_count(0)
        page.keyboard.press("Delete")
        expect(page.locator(".curve.off")).to_have_count(0)
    # A run, by Enter in the list.
    page.keyboard.press("Escape")
    page.locator(".row.focus .name").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Run")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("1")


def everything(browser, server):
    look = LOOK.replace("LARGE", str(LARGE)).replace(": TEXT;", f": {TEXT};").replace("SIDE", str(SIDE))
    found = []
    for options in [WIDE, {**WIDE, "color_scheme": "dark"}, PHONE]:
        page = opened(browser, server.address + PLAIN, **options)
        for tab in TABS:
            page.get_by_role("tab", name=tab).click()
            page.wait_for_timeout(500)
            found += [f"{options['color_scheme']} {options['viewport']['width']} {tab}: {problem}" for problem in page.evaluate(look)]
        page.context.close()
    assert not found, "\n".join(found)
    page = opened(browser, server.address, **WIDE)
    colours(page)
    keyboard(page)
    shot(page, "keyboard")
    page.context.close()
