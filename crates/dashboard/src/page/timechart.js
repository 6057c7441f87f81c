// A small chart of a quantity of each rank over the time of a run.

import { button, fill, h } from "./dom.js";
import { chart } from "./chart.js";
import { tint } from "./color.js";
import { saveCsv, savePng } from "./export.js";
import { duration } from "./format.js";
import { nearest } from "./grid.js";

/** A chart; `draw(seconds, columns)` shows a line for each rank, `form` says a value in words. */
export function timeChart(title, form) {
  const note = h("span.note");
  let [seconds, columns] = [[], []];
  const lines = () => columns.map((y, rank) => ({ id: `rank ${rank}`, name: `rank ${rank}`, slot: rank, x: seconds, y }));
  const plot = chart(title, {
    hover: (near, place) => say(place ? place.value : null),
    follow: say,
  }, "ranks");
  plot.root.classList.add("low");
  const root = h("div.timechart", { "data-chart": title }, h("header", {}, h("h3", {}, title), note, h("span.panel-tools", {},
    button("CSV", () => saveCsv(title, [["seconds", ...columns.map((_, rank) => `rank ${rank}`)], ...seconds.map((at, index) => [at, ...columns.map((column) => column[index])])]), { "aria-label": `Save ${title} as CSV` }),
    button("PNG", () => savePng(title, plot, lines()), { "aria-label": `Save ${title} as PNG` }))), plot.root);

  function draw(newSeconds, newColumns) {
    [seconds, columns] = [newSeconds, newColumns];
    plot.draw({ lines: lines(), from: 0, to: seconds.at(-1) || 1, sayX: duration, sayY: form, isTime: true, room: (low, high) => [0, (high || 1) * 1.08], isWhole: true });
    plot.describe(`${title} of ${columns.length} rank${columns.length === 1 ? "" : "s"} over time; left and right read its points`);
    say(null);
  }

  /** The values under the pointer, or the last ones: of each of a few ranks, else the lowest and the highest. */
  function say(at) {
    const index = at === null ? seconds.length - 1 : nearest(seconds, at);
    const now = columns.map((column, rank) => ({ rank, value: column[index] })).filter(({ value }) => value !== null && value !== undefined);
    const listed = now.length > 4 ? [...now].sort((a, b) => a.value - b.value).filter((_, place) => place === 0 || place === now.length - 1) : now;
    fill(note, now.length > 0 && [at !== null && h("span", {}, duration(seconds[index])), listed.map(({ rank, value }) => h("span", { "--tint": tint(rank) }, h("span.dot"), `rank ${rank} ${form(value)}`))]);
  }

  return { root, draw };
}
