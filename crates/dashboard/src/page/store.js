// What the page shows, in one place; parts of the page are told when it changes.

import { overview } from "./source.js";

/** The view's state. `words` of it are kept in the address, so that a page can be reloaded. */
export const state = {
  overview: { runs: [], sweeps: [], unread: 0, problems: [], folder: "", now: 0 },
  byId: new Map(),
  hidden: new Set(),
  tab: "curves",
  filter: "",
  pattern: null,
  x: "step",
  logX: false,
  logY: false,
  smooth: 0,
  group: "",
  color: "run",
  colorBy: "",
  zoom: null,
  focus: null,
  hot: null,
  sweep: "",
  sort: { key: "started", down: true },
};

const KEPT = { tab: "curves", filter: "", x: "step", logX: false, logY: false, smooth: 0, group: "", color: "run", colorBy: "", focus: null, sweep: "" };
const listeners = [];

/** Tells `listener` which keys have changed. */
export const subscribe = (listener) => listeners.push(listener);

/** Changes the state. */
export function set(patch) {
  Object.assign(state, patch);
  if ("filter" in patch) state.pattern = compiled(state.filter);
  if (Object.keys(patch).some((key) => key in KEPT)) keep();
  for (const listener of listeners) listener(new Set(Object.keys(patch)));
}

/** A regular expression, or null for an empty or an unfinished one. */
export function compiled(text) {
  try {
    return text ? new RegExp(text, "i") : null;
  } catch {
    return null;
  }
}

/** Whether `text` is a regular expression. */
export const isPattern = (text) => !text || compiled(text) !== null;

function keep() {
  const words = new URLSearchParams();
  for (const [key, usual] of Object.entries(KEPT)) {
    if (state[key] !== usual && state[key] !== "" && state[key] !== null) words.set(key, String(state[key]));
  }
  history.replaceState(null, "", words.size ? `#${words}` : location.pathname + location.search);
}

/** Takes up what the address says. */
export function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const patch = {};
  for (const [key, usual] of Object.entries(KEPT)) {
    const word = words.get(key);
    if (word === null) continue;
    patch[key] = typeof usual === "boolean" ? word === "true" : typeof usual === "number" ? Number(word) || 0 : word;
  }
  set(patch);
}

/** Reads runs and sweeps anew. */
export async function reload() {
  const found = await overview();
  state.byId = new Map(found.runs.map((run) => [run.id, run]));
  const names = new Map();
  const count = (word) => names.set(word, (names.get(word) ?? 0) + 1);
  for (const run of found.runs) [run.name, brief(run)].forEach(count);
  for (const run of found.runs) {
    run.label = labelOf(run, names);
    run.words = searchable(run);
  }
  set({ overview: found });
}

/** What a run is called on the page: no longer than it must be to be told from the others. */
function labelOf(run, names) {
  if (run.sweep) return `${run.sweep}/${run.run}`;
  if (names.get(run.name) === 1) return run.name;
  return names.get(brief(run)) === 1 ? brief(run) : `${run.name} ${run.run}`;
}

/** With the end of its id, which is drawn at random. */
const brief = (run) => `${run.name} ${run.run.split("-").at(-1)}`;

const searchable = (run) =>
  [run.id, run.state, ...run.tags, ...Object.entries(run.config).map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`)].join("\n");

/** The runs that the filter leaves, newest first. */
export const listed = () => state.overview.runs.filter((run) => !state.pattern || state.pattern.test(run.words));

/** The runs whose curves are drawn. */
export const drawn = () => listed().filter((run) => !state.hidden.has(run.id));

/** Keys of the configuration in which the runs differ, those that most of them have first. */
export function differing(runs) {
  const keys = new Map();
  runs.forEach((run, index) => {
    for (const [key, value] of Object.entries(run.config)) {
      const text = JSON.stringify(value);
      const known = keys.get(key);
      if (!known) keys.set(key, { text, count: 1, differs: index > 0 });
      else {
        known.count += 1;
        if (known.text !== text) known.differs = true;
      }
    }
  });
  return [...keys].filter(([, { differs, count }]) => differs || count < runs.length).sort(([a, one], [b, other]) => other.count - one.count || a.localeCompare(b)).map(([key]) => key);
}

/** Every metric, the monitored ones first, then validation, test, training and the rest. */
export function metrics(runs) {
  const names = new Set(runs.flatMap((run) => run.series));
  const monitored = new Set(runs.map((run) => run.monitor?.metric));
  const place = (name) => (monitored.has(name) ? 0 : name.startsWith("val/") ? 1 : name.startsWith("train/") ? 2 : name.startsWith("test/") ? 3 : 4);
  return [...names].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
}
