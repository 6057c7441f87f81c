// Elements from plain words: text never becomes markup here, so a hostile name stays a name.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "path", "line", "polyline", "circle", "rect", "text", "g", "title"]);

/** `h("td.number", { title }, "1.5")`: an element with classes, properties and children. */
export function h(what, props = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** Replaces what is in `element`. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((child) => child !== undefined && child !== null && child !== false));
}

/** Calls `work` once before the next picture, however often it is asked to. */
export function soon(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

/** A select with `options` (`[value, label]`). */
export function choice(label, options, value, change) {
  const select = h("select", { "aria-label": label, onchange: (event) => change(event.target.value) },
    options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return h("label", {}, label, select);
}

/** Buttons of which one is pressed. */
export function segments(label, options, value, change) {
  return h("span.segments", { role: "group", "aria-label": label }, options.map(([key, text, title]) =>
    h("button", { type: "button", title, "aria-pressed": String(key === value), onclick: () => change(key) }, text)));
}

/** A box to tick. */
export function tick(label, checked, change, title) {
  return h("label", { title }, h("input", { type: "checkbox", checked, onchange: (event) => change(event.target.checked) }), label);
}
