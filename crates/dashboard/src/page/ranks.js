// What each rank of a run did and took: where its time went, and its resources over time.

import { h } from "./dom.js";
import { bytes, duration, number } from "./format.js";
import { tint } from "./color.js";
import { timeChart } from "./timechart.js";

/** Share of a rank's time that the others must wait for it to be named, and how much longer than for most ranks. */
const NAMED = 0.05;
const LONGER = 4;

/** Where the time of each rank went: a bar for each, all of one scale. `named` are ranks that the run warned of. */
export function phasesCard(found, named) {
  const told = found?.ranks_told;
  const phases = told?.phases?.length ? told.phases : (found?.phases ?? []).map(([name, seconds]) => [name, [seconds]]);
  const used = phases.filter(([, seconds]) => seconds.some((each) => each > 0));
  if (!used.length) return null;
  const ranks = Math.max(...used.map(([, seconds]) => seconds.length));
  const sum = (rank) => used.reduce((total, [, seconds]) => total + (seconds[rank] ?? 0), 0);
  const most = Math.max(...Array.from({ length: ranks }, (_, rank) => sum(rank)));
  const late = (rank) => told?.late?.[rank] ?? 0;
  const usual = (rank) => [...(told?.late ?? [])].filter((_, other) => other !== rank).sort((a, b) => a - b)[(ranks - 1) >> 1] ?? 0;
  const isLate = (rank) => named.has(rank) || (late(rank) > NAMED * sum(rank) && late(rank) > LONGER * usual(rank));
  const row = (_, rank) => {
    const parts = used.map(([name, seconds], index) => part(name, seconds[rank] ?? 0, most, index));
    return [h(`span${isLate(rank) ? ".late" : ".soft"}`, {}, `rank ${rank}`), h("div.bar", {}, parts),
      h("span.soft", { class: isLate(rank) ? "late" : "soft", title: "How long the others waited for it" }, late(rank) > 0.005 * sum(rank) ? `+${duration(late(rank))}` : "")];
  };
  const whole = used.reduce((total, [, seconds]) => total + seconds.reduce((a, b) => a + b, 0), 0);
  const slow = Array.from({ length: ranks }, (_, rank) => rank).filter(isLate);
  return h("section.card", { key: "phases", "data-card": "phases" }, h("h2", {}, ranks > 1 ? "Time per phase, by rank" : "Time per phase"),
    h(`div.ranks${ranks > 8 ? ".many" : ""}`, {}, Array.from({ length: ranks }, row)),
    h("div.legend", {}, used.map(([name, seconds], index) => {
      const all = seconds.reduce((a, b) => a + b, 0);
      return h("span", { "--tint": tint(index) }, h("span.dot"), `${name} ${duration(all / seconds.length)}`, h("span.soft", {}, `${((100 * all) / whole).toFixed(0)} %`));
    })),
    slow.map((rank) => h("p.late", {}, waited(rank, late(rank), sum(rank)))));
}

function part(name, seconds, most, index) {
  return h("i", { "--tint": tint(index), title: `${name} ${duration(seconds)}`, style: { width: `${(100 * seconds) / most}%` } });
}

function waited(rank, seconds, whole) {
  if (!seconds) return `The others waited for rank ${rank}`;
  return `The others waited ${duration(seconds)} for rank ${rank}, ${((100 * seconds) / whole).toFixed(0)} % of its time`;
}

/** The resources of a run's ranks over time; `show(usage)` says whether anything is known. */
export function usageCard() {
  const cpu = timeChart("CPU", (value) => `${number(value, 3)} cores`);
  const memory = timeChart("Memory", (value) => bytes(value));
  const gpu = timeChart("GPU utilization", (value) => `${number(100 * value, 2)} %`);
  const gpuMemory = timeChart("GPU memory in use", (value) => bytes(value));
  const late = timeChart("Time that others waited", (value) => `${number(100 * value, 2)} %`);
  const charts = [cpu, memory, gpu, gpuMemory, late];
  const root = h("section.card.usage", { "data-card": "usage" }, h("h2", {}, "Resources of each rank over time"), h("div.cards", {}, charts.map((chart) => chart.root)));
  return {
    root,
    show(usage) {
      if (!usage?.seconds?.length) return false;
      const isLate = usage.late.some((column) => column.some((value) => value > 0.01));
      // What no rank knows has no chart: GPUs of a run on CPUs.
      const shown = [[cpu, usage.cpu], [memory, usage.memory], [gpu, usage.gpu_utilization], [gpuMemory, usage.gpu_memory], [late, isLate ? usage.late : []]];
      for (const [chart, columns] of shown) chart.root.hidden = !columns?.length;
      requestAnimationFrame(() => {
        for (const [chart, columns] of shown) if (columns?.length) chart.draw(usage.seconds, columns);
      });
      return true;
    },
  };
}
