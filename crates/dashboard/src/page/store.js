// What the page shows, in one place; parts of the page are told when it changes.

import { filter } from "./filter.js";
import { overview } from "./source.js";

/** Runs that are ticked unless somebody says otherwise: the newest of those that the filter leaves. */
export const NEWEST = 50;

/** The view's state. What `KEPT` names stands in the address, so that a page can be reloaded, kept and sent. */
export const state = {
  overview: { runs: [], sweeps: [], unread: 0, problems: [], folder: "", now: 0, version: 0 },
  byId: new Map(),
  /** Ids of the runs that have changed last; null for all. */
  fresh: null,
  test: null,
  tab: "curves",
  filter: "",
  /** `{base: "newest" | "all" | "none", on, off}`: ids beside the base. */
  ticks: { base: "newest", on: new Set(), off: new Set() },
  x: "step",
  logX: false,
  logY: false,
  outliers: false,
  smooth: 0,
  group: "",
  color: "run",
  colorBy: "",
  zoom: null,
  zoomY: {},
  focus: null,
  hot: null,
  sweep: "",
  sort: { key: "started", down: true },
  columns: null,
  /** Sweeps whose trials are folded away in lists, or shown where there are many. */
  folds: new Set(),
};

const text = { write: (value) => value ?? "", read: (word) => word };
const flag = { write: String, read: (word) => word === "true" };
const json = { write: JSON.stringify, read: (word) => JSON.parse(word) };
const KEPT = {
  tab: text, filter: text, x: text, logX: flag, logY: flag, outliers: flag, smooth: { write: String, read: (word) => Number(word) || 0 },
  group: text, color: text, colorBy: text, focus: text, sweep: text, zoom: json, zoomY: json, columns: json,
  sort: { write: ({ key, down }) => `${down ? "-" : ""}${key}`, read: (word) => ({ key: word.replace(/^-/, ""), down: word.startsWith("-") }) },
  ticks: {
    write: ({ base, on, off }) => [base, ...[...on].map((id) => `+${id}`), ...[...off].map((id) => `-${id}`)].join("\n"),
    read: (word) => {
      const [base, ...ids] = word.split("\n");
      const of = (sign) => new Set(ids.filter((id) => id[0] === sign).map((id) => id.slice(1)));
      return { base: ["all", "none"].includes(base) ? base : "newest", on: of("+"), off: of("-") };
    },
  },
};
const usual = Object.fromEntries(Object.keys(KEPT).map((key) => [key, state[key]]));
const usualWords = Object.fromEntries(Object.keys(KEPT).map((key) => [key, KEPT[key].write(usual[key])]));
const listeners = [];
let lists = null;

/** Tells `listener` which keys have changed. */
export const subscribe = (listener) => listeners.push(listener);

/** Changes the state. Another tab, sweep or run there is a step that the browser's Back undoes. */
export function set(patch) {
  const isElsewhere = ["tab", "sweep"].some((key) => key in patch && patch[key] !== state[key]) || (state.tab === "run" && "focus" in patch && patch.focus !== state.focus);
  apply(patch);
  if (Object.keys(patch).some((key) => key in KEPT)) keep(isElsewhere);
}

function apply(patch) {
  Object.assign(state, patch);
  if ("filter" in patch) state.test = filter(state.filter).test;
  if (["overview", "filter", "ticks"].some((key) => key in patch)) lists = null;
  for (const listener of listeners) listener(new Set(Object.keys(patch)));
}

function keep(isElsewhere) {
  const words = new URLSearchParams();
  for (const [key, { write }] of Object.entries(KEPT)) {
    const word = write(state[key]);
    if (word !== usualWords[key] && word !== "" && word !== "null") words.set(key, word);
  }
  const address = words.size ? `#${words}` : location.pathname + location.search;
  if (isElsewhere) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** Takes up what the address says. */
export function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const patch = { ...usual };
  for (const [key, { read }] of Object.entries(KEPT)) {
    try {
      if (words.has(key)) patch[key] = read(words.get(key));
    } catch {
      // A broken address shows what is usual.
    }
  }
  apply(patch);
}

/** Reads what has changed. */
export async function reload() {
  const found = await overview(state.overview.version);
  const before = found.whole === false ? state.byId : new Map();
  const runs = new Map(before);
  const gone = found.removed ?? [];
  for (const id of gone) runs.delete(id);
  for (const run of found.runs) runs.set(run.id, run);
  const sweeps = new Map(found.whole === false ? state.overview.sweeps.map((sweep) => [sweep.id, sweep]) : []);
  for (const id of gone) sweeps.delete(id);
  for (const sweep of found.sweeps) sweeps.set(sweep.id, sweep);
  const all = found.runs.length || gone.length || found.whole !== false ? [...runs.values()].sort((a, b) => b.started - a.started || (a.id < b.id ? 1 : -1)) : state.overview.runs;
  label(all);
  state.byId = runs;
  state.fresh = found.whole === false ? new Set(found.runs.map((run) => run.id)) : null;
  const sorted = [...sweeps.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
  set({ overview: { ...found, runs: all, sweeps: sorted } });
}

function label(runs) {
  const names = new Map();
  const count = (word) => names.set(word, (names.get(word) ?? 0) + 1);
  for (const run of runs) [run.name, brief(run)].forEach(count);
  for (const run of runs) run.label = labelOf(run, names);
}

/** What a run is called on the page: no longer than it must be to be told from the others. */
function labelOf(run, names) {
  if (run.sweep) return `${run.sweep}/${run.run}`;
  if (names.get(run.name) === 1) return run.name;
  return names.get(brief(run)) === 1 ? brief(run) : `${run.name} ${run.run}`;
}

/** With the end of its id, which is drawn at random. */
const brief = (run) => `${run.name} ${run.run.split("-").at(-1)}`;

function look() {
  if (lists) return lists;
  const all = state.overview.runs;
  const listed = state.test ? all.filter(state.test) : all;
  const { base, on, off } = state.ticks;
  const isUsual = (index) => base === "all" || (base === "newest" && index < NEWEST);
  const ticked = listed.filter((run, index) => on.has(run.id) || (isUsual(index) && !off.has(run.id)));
  lists = { listed, ticked, ids: new Set(ticked.map((run) => run.id)) };
  return lists;
}

/** The runs that the filter leaves, newest first. */
export const listed = () => look().listed;

/** The runs whose curves are drawn. */
export const drawn = () => look().ticked;

/** Whether the curves of a run are drawn. */
export const isTicked = (id) => look().ids.has(id);

/** Ticks or unticks runs beside what is ticked. */
export function tickRuns(ids, isOn) {
  const [on, off] = [new Set(state.ticks.on), new Set(state.ticks.off)];
  for (const id of ids) {
    (isOn ? off : on).delete(id);
    (isOn ? on : off).add(id);
  }
  set({ ticks: { ...state.ticks, on, off } });
}

/** Ticks or unticks all runs that the filter leaves. */
export function tickAll(isOn) {
  if (state.test) tickRuns(listed().map((run) => run.id), isOn);
  else set({ ticks: { base: isOn ? "all" : "none", on: new Set(), off: new Set() } });
}

/** Ticks these runs and no other. */
export const tickOnly = (ids) => set({ ticks: { base: "none", on: new Set(ids), off: new Set() } });

/** Keys of the configuration in which the runs differ, those that most of them have first. */
export function differing(runs) {
  const keys = new Map();
  const isEqual = (a, b) => a === b || (typeof a === "object" && typeof b === "object" && JSON.stringify(a) === JSON.stringify(b));
  runs.forEach((run, index) => {
    for (const key in run.config) {
      const known = keys.get(key);
      if (!known) keys.set(key, { value: run.config[key], count: 1, differs: index > 0 });
      else {
        known.count += 1;
        if (!known.differs && !isEqual(known.value, run.config[key])) known.differs = true;
      }
    }
  });
  return [...keys].filter(([, { differs, count }]) => differs || count < runs.length).sort(([a, one], [b, other]) => other.count - one.count || a.localeCompare(b)).map(([key]) => key);
}

/** Every metric, the monitored ones first, then validation, test, training and the rest. */
export function metrics(runs) {
  const names = new Set();
  const monitored = new Set();
  for (const run of runs) {
    for (const name of run.series) names.add(name);
    if (run.monitor) monitored.add(run.monitor.metric);
  }
  const place = (name) => (monitored.has(name) ? 0 : name.startsWith("val/") ? 1 : name.startsWith("train/") ? 2 : name.startsWith("test/") ? 3 : 4);
  return [...names].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
}

/** The best value of a run's monitored metric; undefined without. */
export const bestOf = (run) => (run.monitor ? run.metrics[run.monitor.metric]?.[run.monitor.mode] ?? undefined : undefined);
