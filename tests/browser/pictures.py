"""Compares pictures of the page with kept ones: where its parts are, their colours, and its light and dark.

Fonts differ between machines, so no pixels are compared: of each view the places of its parts, their
colours, how much its first chart has drawn, and its brightness in coarse cells stand in
`pictures.json`. `KEEP=1` writes the file anew, after a change of the page that is meant; look at the
screenshots then.
"""

import base64
import json
import os

KEPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pictures.json")
LOOKS = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "has_touch": True},
}
TABS = ["Curves", "Table", "Compare", "Sweep", "Run"]
# What differs more than this is another page: pixels of a place, share of a chart, levels of 16, cells.
MAX_SHIFT, MAX_FACTOR, MAX_MEAN, MAX_CELLS = 40, 2.5, 0.7, 0.05
# The same of a colour, of 255 in each of red, green, blue and cover.
MAX_COLOR = 6

MEASURE = """async (picture) => {
    const box = (element) => {
        const { x, y, width, height } = element.getBoundingClientRect();
        return [x, y, width, height].map(Math.round);
    };
    const boxes = {};
    for (const name of [".top", ".list", ".view", ".tabs", ".tools", ".panel", ".scroll", ".card", ".drawing", ".usage"]) {
        const element = [...document.querySelectorAll(name)].find((each) => each.offsetParent !== null || each.ownerSVGElement === null && each.getClientRects().length);
        if (element) boxes[name] = box(element);
    }
    const one = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (color) => {
        one.clearRect(0, 0, 1, 1);
        one.fillStyle = color === "none" ? "transparent" : color;
        one.fillRect(0, 0, 1, 1);
        return [...one.getImageData(0, 0, 1, 1).data].map((level) => level.toString(16).padStart(2, "0")).join("");
    };
    const colors = {};
    for (const name of ["body", ".top", ".list", ".row", ".swatch", ".tabs [aria-selected=true]", ".panel", ".card", ".step", ".drawing circle", ".curve", ".bar i"]) {
        const element = document.querySelector(name);
        if (!element || !element.getClientRects().length) continue;
        const { color, backgroundColor, stroke, fill } = getComputedStyle(element);
        colors[name] = [color, backgroundColor, stroke, fill].map(rgba).join(" ");
    }
    const inked = (canvas) => {
        if (!canvas) return 0;
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let i = 3; i < data.length; i += 4) count += data[i] > 60;
        return count / (data.length / 4);
    };
    const image = new Image();
    image.src = "data:image/png;base64," + picture;
    await image.decode();
    const [columns, rows] = image.width > image.height ? [48, 30] : [20, 42];
    const small = document.createElement("canvas");
    [small.width, small.height] = [columns, rows];
    const context = small.getContext("2d");
    context.imageSmoothingQuality = "high";
    // In two steps, so that each cell is the mean of all its pixels.
    context.drawImage(await createImageBitmap(image, { resizeWidth: columns, resizeHeight: rows, resizeQuality: "high" }), 0, 0);
    const { data } = context.getImageData(0, 0, columns, rows);
    const cells = [];
    for (let row = 0; row < rows; row += 1) {
        let line = "";
        for (let column = 0; column < columns; column += 1) {
            const at = 4 * (row * columns + column);
            line += Math.min(15, Math.floor((0.3 * data[at] + 0.59 * data[at + 1] + 0.11 * data[at + 2]) / 16)).toString(16);
        }
        cells.push(line);
    }
    return { boxes, colors, inked: Number(inked(document.querySelector(".panel canvas.lines, .timechart canvas.lines")).toFixed(4)), cells };
}"""


def measured(browser, opened, address, focus, shot):
    """What each view looks like."""
    views = {}
    for look, options in LOOKS.items():
        page = opened(browser, address + focus, **options)
        for tab in TABS:
            page.get_by_role("tab", name=tab).click()
            page.mouse.move(2, 2)
            page.wait_for_timeout(700)
            name = f"{look}-{tab.lower()}"
            picture = page.screenshot()
            # The page itself may load no picture from elsewhere: an empty one measures.
            views[name] = page.evaluate(MEASURE, base64.b64encode(picture).decode())
            shot(page, name)
        page.context.close()
    return views


def differences(kept, now):
    """How two views differ, in words."""
    found = []
    for name in sorted(set(kept["boxes"]) | set(now["boxes"])):
        before, after = kept["boxes"].get(name), now["boxes"].get(name)
        if before is None or after is None:
            found.append(f"{name}: {before} is {after}")
        elif max(abs(a - b) - MAX_SHIFT - 0.1 * abs(a) for a, b in zip(before, after)) > 0:
            found.append(f"{name}: {before} is at {after}")
    for name in sorted(set(kept["colors"]) | set(now["colors"])):
        before, after = kept["colors"].get(name), now["colors"].get(name)
        if before is None or after is None:
            found.append(f"colours of {name}: {before} is {after}")
        elif max(abs(a - b) for a, b in zip(bytes.fromhex(before), bytes.fromhex(after))) > MAX_COLOR:
            found.append(f"text, background, stroke and fill of {name}: {before} is {after}")
    before, after = kept["inked"], now["inked"]
    if not before / MAX_FACTOR <= after <= max(before * MAX_FACTOR, 1e-9):
        found.append(f"the first chart has drawn {after}, not {before} of its pixels")
    pairs = [(int(a, 16), int(b, 16)) for one, other in zip(kept["cells"], now["cells"]) for a, b in zip(one, other)]
    mean = sum(abs(a - b) for a, b in pairs) / len(pairs)
    far = sum(abs(a - b) > 4 for a, b in pairs) / len(pairs)
    if mean > MAX_MEAN or far > MAX_CELLS or len(kept["cells"]) != len(now["cells"]):
        found.append(f"its brightness differs by {mean:.2f} levels of 16, much in {100 * far:.1f} % of it")
    return found


def compare(browser, opened, address, focus, shot):
    """All views beside the kept ones."""
    views = measured(browser, opened, address, focus, shot)
    if os.environ.get("KEEP"):
        with open(KEPT, "w", encoding="utf-8") as file:
            json.dump(views, file, indent=0)
            file.write("\n")
    with open(KEPT, encoding="utf-8") as file:
        kept = json.load(file)
    wrong = [f"{name}: {what}" for name in kept for what in differences(kept[name], views[name])]
    assert not wrong, "the page looks different (KEEP=1 keeps it so):\n" + "\n".join(wrong)
    blank = [name for name in views if name.endswith("-curves") and views[name]["inked"] < 0.005]
    assert not blank, blank
    # The comparison sees what it should: another view, the other theme, one colour.
    assert differences(kept["light-curves"], views["light-table"])
    assert differences(kept["light-run"], views["dark-run"])
    other = json.loads(json.dumps(kept["light-sweep"]))
    other["colors"][".step"] = other["colors"][".swatch"]
    assert len(differences(other, kept["light-sweep"])) == 1
