// A small chart of a few quantities of each rank over the time of a run, drawn by uPlot.

import { h, fill, soon } from "./dom.js";
import { duration } from "./format.js";
import { ink, tint } from "./color.js";
import { nearest } from "./grid.js";

/** A chart; `draw(seconds, columns)` shows a line for each rank, `form` says a value in words. */
export function timeChart(title, form) {
  const plot = h("div.plot.small");
  const note = h("span.note");
  const root = h("div.timechart", { "data-chart": title }, h("header", {}, h("h3", {}, title), note), plot);
  const size = () => ({ width: Math.max(plot.clientWidth, 120), height: Math.max(plot.clientHeight, 80) });
  let chart = null;
  let shape = "";
  let data = [[]];
  new ResizeObserver(soon(() => chart?.setSize(size()))).observe(plot);

  function draw(seconds, columns) {
    data = [seconds, ...columns];
    const wanted = JSON.stringify([columns.length, seconds.length < 3, ink("ink")]);
    if (chart && wanted === shape) chart.setData(data);
    else {
      chart?.destroy();
      shape = wanted;
      chart = new uPlot(options(), data, plot);
    }
    say(chart);
  }

  function options() {
    const axis = { stroke: ink("soft"), grid: { stroke: ink("grid"), width: 1 }, ticks: { stroke: ink("line"), width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
    const many = data.length > 9;
    return {
      ...size(),
      legend: { show: false },
      focus: { alpha: 0.25 },
      cursor: { y: false, drag: { x: false, y: false }, focus: { prox: data.length > 2 ? 24 : -1 }, sync: { key: "ranks" }, points: { size: 6 } },
      scales: { x: { time: false }, y: { range: (u, low, high) => [0, (high || 1) * 1.08] } },
      axes: [
        { ...axis, space: 64, size: 28, gap: 3, values: (u, ticks) => ticks.map((tick) => duration(tick)) },
        { ...axis, space: 34, size: 58, gap: 3, values: (u, ticks) => ticks.map((tick) => form(tick)) },
      ],
      series: [{}, ...data.slice(1).map((_, rank) => ({ stroke: tint(rank), width: many ? 1 : 1.5, points: { show: data[0].length < 3 || undefined, size: 5 } }))],
      hooks: { setCursor: [say], setSeries: [say] },
    };
  }

  /** The values under the pointer, or the last ones: of each of a few ranks, else the lowest and the highest. */
  function say(u) {
    const { left } = u.cursor;
    const index = left >= 0 ? nearest(data[0], u.posToVal(left, "x")) : data[0].length - 1;
    const now = data.slice(1).map((column, rank) => ({ rank, value: column[index] })).filter(({ value }) => value !== null && value !== undefined);
    const listed = now.length > 4 ? [...now].sort((a, b) => a.value - b.value).filter((_, place) => place === 0 || place === now.length - 1) : now;
    fill(note, now.length > 0 && [left >= 0 && h("span", {}, duration(data[0][index])), listed.map(({ rank, value }) => h("span", { "--tint": tint(rank) }, h("span.dot"), `rank ${rank} ${form(value)}`))]);
  }

  return { root, draw };
}
