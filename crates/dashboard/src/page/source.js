// Where the page's numbers come from: the server that watches a folder, or the page itself
// (`ddprun report --html`). The forms of the answers are documented in `crates/dashboard/src/lib.rs`.

/** The numbers inside this page; null where a server has them. */
export const inside = (() => {
  const element = document.getElementById("data");
  return element ? JSON.parse(element.textContent) : null;
})();

async function ask(path, query = {}) {
  const words = new URLSearchParams(query).toString();
  const answer = await fetch(`api/${path}${words ? `?${words}` : ""}`, { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
  return answer.json();
}

/** All runs and sweeps. */
export const overview = () => (inside ? Promise.resolve(inside.overview) : ask("overview"));

/** The points of a metric, of all runs: `{run: {step, mean, low, high}}`. */
export async function series(metric, points, from, to) {
  if (inside) return inside.series[metric] ?? {};
  const range = from === undefined ? {} : { from: Math.floor(from), to: Math.ceil(to) };
  return (await ask("series", { metric, points, ...range })).runs;
}

/** When each run was where: `{run: [[step, seconds]]}`. */
export const timelines = () => (inside ? Promise.resolve(inside.timelines) : ask("timelines"));

/** Everything about one run. */
export const details = (id) => (inside ? Promise.resolve(inside.details[id]) : ask("run", { id }));

/** The last lines of a rank's log. */
export async function log(id, rank, lines) {
  if (inside) return inside.details[id]?.logs[rank] ?? { lines: [], size: 0 };
  return ask("log", { id, rank, lines });
}

/** Calls `changed` when files change, and `state` with whether the server answers. */
export function watch(changed, state) {
  if (inside) return;
  const events = new EventSource("api/events");
  events.onmessage = (event) => changed(JSON.parse(event.data));
  events.onopen = () => state(true);
  events.onerror = () => state(false);
}
