// Elements from plain words: text never becomes markup here, so a hostile name stays a name. What is
// drawn anew takes over the elements that are there, so that focus, scroll, selection and drags stay.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "path", "line", "polyline", "polygon", "circle", "rect", "text", "g", "title"]);
const wanted = (child) => child !== undefined && child !== null && child !== false;

/** `h("td.number", { title }, "1.5")`: an element with classes, properties and children. `key` tells it from its siblings. */
export function h(what, props = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  element.acts = [];
  for (const [name, value] of Object.entries(props)) {
    if (!wanted(value)) continue;
    if (name.startsWith("on")) {
      element[name] = value;
      element.acts.push(name);
    } else if (name === "key") element.key = String(value);
    else if (name === "style") for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name === "value" || name === "checked" || name === "selected" || name === "indeterminate") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(4).filter(wanted));
  return element;
}

/** Replaces what is in `element`. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(4).filter(wanted));
  settle(element);
}

/** Stands for an element that lives longer than the tree it is put into: a chart, a log. */
export function own(element) {
  const stub = document.createElement("own-element");
  stub.own = element;
  return stub;
}

/** Makes what is in `element` look like `children`; what looks alike is kept and changed. */
export function refill(element, ...children) {
  reconcile(element, children.flat(4).filter(wanted).map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
}

function settle(element) {
  for (const stub of element.querySelectorAll?.("own-element") ?? []) stub.replaceWith(stub.own);
}

function reconcile(parent, next) {
  next = next.map((child) => child.own ?? child);
  const stay = new Set(next);
  const keys = new Set(next.map((child) => child.key).filter(wanted));
  const keyed = new Map();
  for (const child of [...parent.childNodes]) {
    if (stay.has(child)) continue;
    if (!wanted(child.key)) continue;
    if (keys.has(child.key)) keyed.set(child.key, child);
    else child.remove();
  }
  let at = parent.firstChild;
  for (const child of next) {
    let old = null;
    if (child.parentNode === parent && stay.has(child) && child.isConnected) old = child;
    else if (wanted(child.key)) old = isAlike(keyed.get(child.key), child) ? keyed.get(child.key) : null;
    else if (at && !stay.has(at) && !wanted(at.key) && isAlike(at, child)) old = at;
    if (!old) {
      parent.insertBefore(child, at);
      settle(child);
      continue;
    }
    if (old === at) at = at.nextSibling;
    else parent.insertBefore(old, at);
    if (old !== child) update(old, child);
  }
  while (at) {
    const rest = at.nextSibling;
    at.remove();
    at = rest;
  }
}

const isAlike = (old, next) => Boolean(old) && old.nodeName === next.nodeName && old.key === next.key && old.type === next.type;

function update(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name, value } of next.attributes) if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of old.getAttributeNames()) {
    // A reader opens and closes details.
    if (name !== "style" && !(name === "open" && old.nodeName === "DETAILS") && !next.hasAttribute(name)) old.removeAttribute(name);
  }
  if (old.style.cssText !== next.style.cssText) old.style.cssText = next.style.cssText;
  for (const name of old.acts ?? []) old[name] = null;
  for (const name of next.acts ?? []) old[name] = next[name];
  old.acts = next.acts;
  reconcile(old, [...next.childNodes]);
  // What somebody types or drags is theirs.
  const isBusy = document.activeElement === old && !/^(checkbox|radio)$/.test(old.type);
  if (/^(INPUT|SELECT)$/.test(old.nodeName) && !isBusy) {
    if (old.value !== next.value) old.value = next.value;
    if (old.type === "checkbox") [old.checked, old.indeterminate] = [next.checked, next.indeterminate];
  }
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
  return h("label", { key: `choice ${label}` }, label, select);
}

/** Buttons of which one is pressed. */
export function segments(label, options, value, change) {
  return h("span.segments", { role: "group", "aria-label": label, key: label }, options.map(([key, text, title]) =>
    h("button", { type: "button", title, "aria-pressed": String(key === value), onclick: () => change(key) }, text)));
}

/** A box to tick. */
export function tick(label, checked, change, title) {
  return h("label", { title, key: `tick ${label}` }, h("input", { type: "checkbox", checked, onchange: (event) => change(event.target.checked) }), label);
}

/** A small button. */
export const button = (text, act, props = {}) => h("button.small", { type: "button", onclick: act, ...props }, text);

/** Rows of one height, of which only those in sight exist; `show(count, row, all)` draws `row(index)` for them. */
export function virtual(scroller, height) {
  const space = h("div.space", { role: "list" });
  scroller.append(space);
  let [count, row, isWhole] = [0, null, false];

  function draw() {
    const first = isWhole ? 0 : Math.max(0, Math.floor(scroller.scrollTop / height) - 6);
    const last = isWhole ? count : Math.min(count, Math.ceil((scroller.scrollTop + scroller.clientHeight) / height) + 6);
    space.style.height = isWhole ? "" : `${count * height}px`;
    refill(space, Array.from({ length: Math.max(0, last - first) }, (_, index) => {
      const element = row(first + index);
      element.setAttribute("aria-setsize", count);
      element.setAttribute("aria-posinset", first + index + 1);
      if (!isWhole) element.style.setProperty("top", `${(first + index) * height}px`);
      return element;
    }));
    space.classList.toggle("whole", isWhole);
  }

  const draws = soon(() => row && draw());
  scroller.addEventListener("scroll", draws);
  new ResizeObserver(draws).observe(scroller);
  return {
    show(newCount, newRow, newWhole) {
      [count, row, isWhole] = [newCount, newRow, newWhole];
      draw();
    },
    /** Brings a row into sight. */
    reveal(index) {
      const top = index * height;
      if (top < scroller.scrollTop) scroller.scrollTop = top;
      else if (top + height > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + height - scroller.clientHeight;
      draw();
    },
  };
}
