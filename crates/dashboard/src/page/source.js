// Where the page's numbers come from: the server that watches a folder, or the page itself
// (`ddprun report --html`). The forms of the answers are documented in `crates/dashboard/src/lib.rs`.

/** The numbers inside this page; null where a server has them. */
export const inside = (() => {
  const element = document.getElementById("data");
  return element ? JSON.parse(element.textContent) : null;
})();

/** Why nothing came, in words that say what to do. */
export class Trouble extends Error {
  constructor(words, isShut) {
    super(words);
    this.isShut = isShut;
  }
}

const SHUT = "The server has another token now: open the address that ddprun serve has printed.";
const GONE = "The server does not answer: is ddprun serve running? This page goes on by itself when it does.";

async function ask(path, query = {}) {
  const words = new URLSearchParams(query).toString();
  const answer = await fetch(`api/${path}${words ? `?${words}` : ""}`, { cache: "no-store" }).catch(() => {
    throw new Trouble(GONE, false);
  });
  if (answer.status === 403) throw new Trouble(SHUT, true);
  if (!answer.ok) throw new Trouble((await answer.text()) || answer.statusText, false);
  return answer.json();
}

/** Characters of a request for some runs; where they are more, all runs are asked for. */
const MAX_WORDS = 6000;

/** `1-3,7` for runs with these keys; nothing where that is too long. */
function some(runs) {
  const keys = runs.map((run) => run.key).sort((a, b) => a - b);
  const parts = [];
  for (const key of keys) {
    const last = parts.at(-1);
    if (last && last[1] === key - 1) last[1] = key;
    else parts.push([key, key]);
  }
  const text = parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join();
  return text.length < MAX_WORDS ? { runs: text } : {};
}

/** Runs and sweeps that have changed after `version`; all for 0. */
export const overview = (version) => (inside ? Promise.resolve(inside.overview) : ask("overview", { since: version }));

/** The points of a metric of `runs`: `{run: {step, mean, low, high}}`. */
export async function series(metric, runs, points, from, to) {
  if (inside) return inside.series[metric] ?? {};
  const range = from === undefined ? {} : { from: Math.floor(from), to: Math.ceil(to) };
  return (await ask("series", { metric, points, ...range, ...some(runs) })).runs;
}

/** When each of `runs` was where: `{run: [[step, seconds]]}`. */
export const timelines = (runs) => (inside ? Promise.resolve(inside.timelines) : ask("timelines", some(runs)));

/** Everything about one run. */
export const details = (id) => (inside ? Promise.resolve(inside.details[id]) : ask("run", { id }));

/** The last lines of a rank's log. */
export async function log(id, rank, lines) {
  if (inside) return inside.details[id]?.logs[rank] ?? { lines: [], size: 0 };
  return ask("log", { id, rank, lines });
}

/** Time between two attempts to find the server again. */
const RETRY = 1500;

/** Calls `read` when files change and when the server is back, and `report` with what goes wrong; null when all is well. */
export function watch(read, report) {
  if (inside) return;
  let events = null;
  let [isReading, isStale] = [false, false];

  async function refresh() {
    // One at a time; a page that nobody looks at waits.
    isStale = true;
    if (isReading || document.hidden) return;
    isReading = true;
    try {
      while (isStale && !document.hidden) {
        isStale = false;
        await read();
      }
      report(null);
      if (!events) listen();
    } catch (trouble) {
      report(trouble);
      events?.close();
      events = null;
      setTimeout(refresh, RETRY);
    } finally {
      isReading = false;
    }
  }

  function listen() {
    events = new EventSource("api/events");
    events.onmessage = refresh;
    // Why, a question tells.
    events.onerror = () => {
      events?.close();
      events = null;
      setTimeout(refresh, RETRY / 3);
    };
  }

  document.addEventListener("visibilitychange", () => !document.hidden && isStale && refresh());
  refresh();
}
