// The end of a rank's log, which grows in place: what is selected and where one reads stay.

import { button, choice, fill, h, refill } from "./dom.js";
import { bytes } from "./format.js";
import { log } from "./source.js";

const LINES = 300;
/** Pixels from the end within which the log follows what is written. */
const NEAR_END = 24;

/** The log of a run; `show(run, ranks, isNew)` reads it. */
export function logCard() {
  const head = h("div.tools");
  const more = h("p.soft");
  const text = h("pre");
  const place = h("div.log", { tabindex: 0, role: "log", "aria-label": "Log", "aria-live": "off" }, text);
  const root = h("section.card", { "data-card": "log" }, h("h2", {}, "Log"), head, more, place);
  let [id, rank, words, isOnly] = [null, 0, "", false];
  let lines = [];
  let asked = 0;

  function tools(ranks) {
    refill(head, choice("Rank", ranks.map((each) => [String(each), String(each)]), String(rank), (next) => {
      rank = Number(next);
      read(true);
    }), h("input", { key: "words", type: "text", value: words, placeholder: "search", "aria-label": "Search in the log", oninput: (event) => {
      words = event.target.value;
      mark();
    } }), h("label", { key: "only" }, h("input", { type: "checkbox", checked: isOnly, onchange: (event) => {
      isOnly = event.target.checked;
      mark();
    } }), "matching lines only"), h("span.soft", { key: "hits", "aria-live": "polite" }, hits()), button("to the end", () => {
      place.scrollTop = place.scrollHeight;
    }, { key: "end" }));
  }

  const isHit = (line) => words !== "" && line.toLowerCase().includes(words.toLowerCase());
  const hits = () => (words ? `${lines.filter(isHit).length} matching` : "");
  let known = [];

  function mark() {
    [...text.children].forEach((element, index) => look(element, lines[index]));
    tools(known);
  }

  function look(element, line) {
    element.classList.toggle("hit", isHit(line));
    element.hidden = isOnly && words !== "" && !isHit(line);
  }

  async function read(isNew) {
    const turn = (asked += 1);
    const said = await log(id, rank, LINES).catch((error) => ({ lines: [error.message], size: 0 }));
    if (turn !== asked) return;
    const isAtEnd = isNew || place.scrollTop + place.clientHeight > place.scrollHeight - NEAR_END;
    const kept = isNew ? 0 : overlap(lines, said.lines);
    if (!kept) fill(text);
    else for (let gone = lines.length - kept; gone > 0; gone -= 1) text.firstChild.remove();
    for (const line of said.lines.slice(kept)) {
      const element = h("span", {}, `${line}\n`);
      look(element, line);
      text.append(element);
    }
    lines = said.lines;
    const cut = said.size > lines.join("\n").length + lines.length;
    fill(more, cut && `The last ${lines.length} lines of ${bytes(said.size)}.`);
    more.hidden = !cut;
    tools(known);
    if (isAtEnd) place.scrollTop = place.scrollHeight;
  }

  return {
    root,
    show(run, ranks) {
      known = ranks;
      const isNew = id !== run.id;
      id = run.id;
      if (isNew || !ranks.includes(rank)) rank = ranks[0];
      tools(ranks);
      read(isNew);
    },
  };
}

/** How many lines at the end of `before` are the first of `now`. */
function overlap(before, now) {
  for (let first = 0; first < before.length; first += 1) {
    const count = before.length - first;
    if (count <= now.length && before[first] === now[0] && before.slice(first).every((line, index) => line === now[index])) return count;
  }
  return 0;
}
