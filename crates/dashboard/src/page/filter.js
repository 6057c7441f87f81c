// What somebody types to find runs: words, regular expressions and comparisons. Pure.

import { shown } from "./format.js";

const COMPARED = /^([^<>!=\s]+?)(<=|>=|!=|<|>)(-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?%?)$/i;
const ACTS = {
  "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "!=": (a, b) => a !== b,
};

/** A regular expression, or null for an empty or an unfinished one. */
export function compiled(text) {
  try {
    return text ? new RegExp(text, "i") : null;
  } catch {
    return null;
  }
}

/**
 * `resnet lr<0.01 val/loss<0.3`: each word must fit. `{test, problem}`: a function of a run, null where there is nothing to
 * look for, and what is wrong with the text.
 */
export function filter(text) {
  const tests = [];
  let problem = "";
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    const compared = word.match(COMPARED);
    if (compared) {
      const [, name, sign, limit] = compared;
      const value = limit.endsWith("%") ? Number(limit.slice(0, -1)) / 100 : Number(limit);
      tests.push((run) => {
        const known = quantity(run, name);
        return typeof known === "number" && ACTS[sign](known, value);
      });
      continue;
    }
    const pattern = compiled(word);
    if (pattern) tests.push((run) => pattern.test(words(run)));
    else problem = `“${word}” is no regular expression yet`;
  }
  if (problem || !tests.length) return { test: null, problem };
  return { test: (run) => tests.every((test) => test(run)), problem };
}

/** The number that a run has under a name: a key of its configuration (the end of it is enough), its best value of a metric, its length. */
function quantity(run, name) {
  if (name in run.config) return run.config[name];
  const end = `.${name}`;
  const key = Object.keys(run.config).find((known) => known.endsWith(end) && typeof run.config[known] === "number");
  if (key !== undefined) return run.config[key];
  const metric = run.metrics[name];
  if (metric) return run.monitor?.metric === name ? metric[run.monitor.mode] : metric.last;
  return ["step", "epoch", "seconds"].includes(name) ? run[name] : undefined;
}

/** The text of a run that patterns are looked for in; made when it is first needed. */
export function words(run) {
  run.words ??= [run.id, run.state, ...run.tags, ...Object.entries(run.config).map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`)].join("\n");
  return run.words;
}

/** The value of a run that it is grouped or coloured by. */
export function valueOf(run, key, pattern) {
  if (key === "pattern") {
    const found = compiled(pattern)?.exec(words(run));
    return found ? (found[1] ?? found[0]) : "no match";
  }
  if (key === "run") return run.id;
  if (key === "state" || key === "name" || key === "sweep") return run[key] ?? "none";
  return shown(run.config[key]) || "none";
}
