// A chart of lines on canvases: axes and lines are drawn when they change, and what follows the pointer on a sheet above them.
// A chart knows numbers and colours, and nothing of runs.

import { h, soon } from "./dom.js";
import { dashOf, ink, tint } from "./color.js";
import { logTicks, nearest, rangeOf, roundTicks, timeTicks } from "./grid.js";

const PAD = { left: 54, right: 12, top: 8, bottom: 24 };
const FONT = "11px system-ui, sans-serif";
/** Pixels within which a line is near the pointer. */
const NEAR = 26;
/** Lines that have a mark at each point at most, and the room that a mark needs. */
const MAX_MARKED = 24;
const MARK_ROOM = 14;

/** All charts whose pointers move together, by group. */
const groups = new Map();

/**
 * A chart. `draw({lines, from, to, ...})` shows lines `{id, slot, x, y, faint, low, high}` over x. `acts`: `hover(near, place)`
 * with the lines near the pointer, `zoom({x, y})`, `reset()`, `hot(id)`, `pick(id)`.
 */
export function chart(label, acts = {}, group = "runs") {
  const sheets = ["back", "lines", "over"].map((name) => h(`canvas.${name}`, name === "over" ? { role: "img", tabindex: 0, "aria-label": label } : { "aria-hidden": "true" }));
  const [back, front, over] = sheets;
  const root = h("div.plot", {}, sheets);
  let model = null;
  let frame = null;
  let hot = null;
  let cursor = null;
  let from = null;

  const size = () => ({ width: Math.max(root.clientWidth, 140), height: Math.max(root.clientHeight, 90) });

  function pen(sheet) {
    const { width, height } = size();
    const ratio = window.devicePixelRatio || 1;
    if (sheet.width !== Math.round(width * ratio) || sheet.height !== Math.round(height * ratio)) [sheet.width, sheet.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const context = sheet.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  /** Places of numbers in the drawing. */
  function measure() {
    const { width, height } = size();
    const isLog = Boolean(model.logY);
    const known = model.y ? { low: model.y[0], high: model.y[1], above: 0, below: 0 } : rangeOf(model.lines, model.from, model.to, isLog, model.isWhole);
    let [low, high] = [known.low ?? 0, known.high ?? 1];
    if (!model.y && model.room) [low, high] = model.room(low, high);
    else if (!model.y) [low, high] = roomy(low, high, isLog, model.limits);
    const left = PAD.left, right = width - PAD.right, top = PAD.top, bottom = height - PAD.bottom;
    const logX = model.logX && model.from > 0;
    const [x0, x1] = logX ? [Math.log(model.from), Math.log(model.to)] : [model.from, model.to];
    const logY = isLog && low > 0;
    const [y0, y1] = logY ? [Math.log(low), Math.log(high)] : [low, high];
    const spanX = x1 - x0 || 1;
    const spanY = y1 - y0 || 1;
    const px = (x) => left + (((logX ? Math.log(x) : x) - x0) / spanX) * (right - left);
    const py = (y) => bottom - (((logY ? Math.log(y) : y) - y0) / spanY) * (bottom - top);
    const back = (place, start, end, first, span, isPower) => {
      const value = first + ((place - start) / (end - start)) * span;
      return isPower ? Math.exp(value) : value;
    };
    return { width, height, left, right, top, bottom, low, high, logX, logY, px, py, known,
      toX: (place) => back(place, left, right, x0, spanX, logX), toY: (place) => back(place, bottom, top, y0, spanY, logY) };
  }

  function axes() {
    const context = pen(back);
    const { left, right, top, bottom, px, py } = frame;
    const across = Math.max(2, Math.floor((right - left) / 84));
    const up = Math.max(2, Math.floor((bottom - top) / 38));
    const xs = frame.logX ? logTicks(model.from, model.to, across) : model.isTime ? timeTicks(model.from, model.to, across) : roundTicks(model.from, model.to, across, model.isWholeX);
    const ys = frame.logY ? logTicks(frame.low, frame.high, up) : roundTicks(frame.low, frame.high, up);
    context.font = FONT;
    context.lineWidth = 1;
    context.strokeStyle = ink("grid");
    context.beginPath();
    for (const tick of xs) {
      const x = Math.round(px(tick)) + 0.5;
      context.moveTo(x, top);
      context.lineTo(x, bottom);
    }
    for (const tick of ys) {
      const y = Math.round(py(tick)) + 0.5;
      context.moveTo(left, y);
      context.lineTo(right, y);
    }
    context.stroke();
    context.fillStyle = ink("soft");
    context.textBaseline = "top";
    for (const tick of xs) {
      const words = model.sayX(tick);
      const wide = context.measureText(words).width / 2;
      context.textAlign = "center";
      context.fillText(words, Math.min(Math.max(px(tick), left + wide - 20), frame.width - wide - 1), bottom + 6);
    }
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const tick of ys) context.fillText(model.sayY(tick), left - 6, py(tick));
  }

  function clip(context) {
    context.beginPath();
    context.rect(frame.left - 3, frame.top - 3, frame.right - frame.left + 6, frame.bottom - frame.top + 6);
    context.clip();
  }

  function trace(context, line) {
    const { x, y } = line;
    const { px, py, logY } = frame;
    let first = nearest(x, model.from) - 1;
    if (first < 0) first = 0;
    let isOpen = false;
    context.beginPath();
    for (let i = first; i < x.length; i += 1) {
      const value = y[i];
      if (value === null || !Number.isFinite(value) || (logY && value <= 0)) isOpen = false;
      else if (isOpen) context.lineTo(px(x[i]), py(value));
      else {
        context.moveTo(px(x[i]), py(value));
        isOpen = true;
      }
      if (x[i] > model.to) break;
    }
    context.stroke();
  }

  function drawLine(context, line, width) {
    context.globalAlpha = line.faint ?? 1;
    context.strokeStyle = context.fillStyle = tint(line.slot);
    context.lineWidth = line.faint ? 1 : width;
    context.setLineDash(dashOf(line.slot));
    context.lineJoin = "round";
    if (line.low) band(context, line);
    trace(context, line);
    context.setLineDash([]);
    if (!line.faint) marks(context, line);
    context.globalAlpha = 1;
  }

  function band(context, line) {
    const { px, py } = frame;
    const clean = line.x.map((x, index) => [x, line.low[index], line.high[index]]).filter(([, low]) => low !== null && !(frame.logY && low <= 0));
    if (!clean.length) return;
    context.globalAlpha = 0.16;
    context.beginPath();
    clean.forEach(([x, , high], index) => context[index ? "lineTo" : "moveTo"](px(x), py(high)));
    clean.reverse().forEach(([x, low]) => context.lineTo(px(x), py(low)));
    context.fill();
    context.globalAlpha = 1;
  }

  /** Points that stand alone or apart are marked, by dashes' shapes; what is beyond the range has an arrow at the edge. */
  function marks(context, line) {
    const { x, y } = line;
    const { px, py, top, bottom, left, right } = frame;
    const shape = Math.floor(line.slot / 8) % 4;
    const inside = x.length && (px(x[x.length - 1]) - px(x[0])) / x.length;
    const isRoomy = x.length < 3 || (inside > MARK_ROOM && model.lines.length <= MAX_MARKED);
    for (let i = 0; i < x.length; i += 1) {
      const value = y[i];
      if (value === null || x[i] < model.from || x[i] > model.to) continue;
      const [cx, cy] = [px(x[i]), py(value)];
      if (cy < top - 1 || cy > bottom + 1) {
        if (cx >= left && cx <= right) arrow(context, cx, cy < top ? top : bottom, cy < top ? 1 : -1);
      } else if (isRoomy || ((i === 0 || y[i - 1] === null) && (i === x.length - 1 || y[i + 1] === null))) mark(context, shape, cx, cy, 2.6);
    }
  }

  function lines() {
    const context = pen(front);
    context.save();
    clip(context);
    const width = model.lines.length <= 2 ? 1.9 : model.lines.length > 100 ? 1 : 1.5;
    for (const line of model.lines) drawLine(context, line, width);
    context.restore();
  }

  /** Line, point and guide of the pointer. */
  function overlay() {
    if (!frame) return;
    const context = pen(over);
    const { left, right, top, bottom, px, py } = frame;
    const line = model.lines.find((each) => each.id === hot && !each.faint);
    front.style.opacity = line && model.lines.length > 1 ? 0.22 : 1;
    context.save();
    clip(context);
    if (line) drawLine(context, line, 2.2);
    if (cursor && cursor.x >= left && cursor.x <= right) {
      context.strokeStyle = ink("faint");
      context.setLineDash([3, 3]);
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(Math.round(cursor.x) + 0.5, top);
      context.lineTo(Math.round(cursor.x) + 0.5, bottom);
      context.stroke();
      context.setLineDash([]);
    }
    for (const { line: of, index } of cursor?.near ?? []) {
      const value = of.y[index];
      const [cx, cy] = [px(of.x[index]), Math.min(Math.max(py(value), top), bottom)];
      context.fillStyle = tint(of.slot);
      context.strokeStyle = ink("paper");
      context.lineWidth = 1.5;
      mark(context, Math.floor(of.slot / 8) % 4, cx, cy, of === line ? 4.6 : 3.6);
      context.stroke();
    }
    if (from && cursor?.box) {
      context.fillStyle = ink("accent");
      context.globalAlpha = 0.16;
      const { x0, x1, y0, y1 } = cursor.box;
      context.fillRect(x0, y0, x1 - x0, y1 - y0);
      context.globalAlpha = 1;
    }
    context.restore();
  }

  const overlays = soon(overlay);

  function draw(next) {
    model = { sayX: String, sayY: String, ...next };
    redraw();
  }

  function redraw() {
    if (!model || !root.isConnected || !root.clientWidth) return;
    frame = measure();
    axes();
    lines();
    overlay();
    acts.drawn?.(frame.known);
  }

  const redraws = soon(redraw);
  new ResizeObserver(redraws).observe(root);

  /** The points near a place, the nearest line first. */
  function around(x, y) {
    const value = frame.toX(x);
    const found = [];
    for (const line of model.lines) {
      if (line.faint || !line.x.length) continue;
      const [first, last] = [line.x[0], line.x[line.x.length - 1]];
      if (value < first && frame.px(first) - x > NEAR) continue;
      if (value > last && x - frame.px(last) > NEAR) continue;
      let index = nearest(line.x, value);
      while (index > 0 && line.y[index] === null) index -= 1;
      if (line.y[index] === null || line.y[index] === undefined) continue;
      const cy = frame.py(line.y[index]);
      const away = Number.isFinite(cy) ? Math.abs(Math.min(Math.max(cy, frame.top), frame.bottom) - y) : Infinity;
      found.push({ line, index, away });
    }
    return found.sort((a, b) => a.away - b.away);
  }

  function follow(x, y) {
    if (!frame) return;
    const near = around(x, y);
    const isNear = near.length && near[0].away < NEAR;
    cursor = { x, near: near.slice(0, 9), box: from && box(x, y) };
    const id = isNear && !from ? near[0].line.id : null;
    if (id !== hot) {
      hot = id;
      acts.hot?.(id);
    }
    acts.hover?.(from ? [] : near, { x, y, value: frame.toX(x) });
    overlays();
    for (const other of groups.get(group)) if (other !== me) other.guide(frame.toX(x));
  }

  function leave() {
    cursor = null;
    acts.hover?.([], null);
    if (hot !== null) {
      hot = null;
      acts.hot?.(null);
    }
    overlays();
    for (const other of groups.get(group)) if (other !== me) other.guide(null);
  }

  /** What is dragged over: all of the height where the drag is level, all of the width where it is upright. */
  function box(x, y) {
    const { left, right, top, bottom } = frame;
    const [wide, high] = [Math.abs(x - from.x), Math.abs(y - from.y)];
    const isX = acts.zoom && wide >= 8 && wide * 4 > high;
    const isY = acts.zoom && high >= 24 && high * 2 > wide;
    if (!isX && !isY) return null;
    const order = (a, b, low, top) => [Math.max(Math.min(a, b), low), Math.min(Math.max(a, b), top)];
    const [x0, x1] = isX ? order(x, from.x, left, right) : [left, right];
    const [y0, y1] = isY ? order(y, from.y, top, bottom) : [top, bottom];
    return { x0, x1, y0, y1, isX, isY };
  }

  const place = (event) => {
    const { left, top } = over.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  over.addEventListener("pointermove", (event) => follow(...place(event)));
  over.addEventListener("pointerleave", () => !from && leave());
  over.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button !== 0 || !frame) return;
    const [x, y] = place(event);
    from = { x, y };
    over.setPointerCapture(event.pointerId);
  });
  over.addEventListener("pointerup", (event) => {
    if (!from) return;
    const [x, y] = place(event);
    const chosen = box(x, y);
    const isClick = Math.hypot(x - from.x, y - from.y) < 4;
    from = null;
    if (chosen) {
      acts.zoom({ x: chosen.isX ? [frame.toX(chosen.x0), frame.toX(chosen.x1)] : null, y: chosen.isY ? [frame.toY(chosen.y1), frame.toY(chosen.y0)] : null });
    } else if (isClick && hot !== null) acts.pick?.(hot);
    follow(x, y);
  });
  over.addEventListener("pointercancel", () => {
    from = null;
    leave();
  });
  over.addEventListener("dblclick", () => acts.reset?.());
  // Left and right go from point to point, up and down from line to line.
  over.addEventListener("keydown", (event) => {
    const side = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const shown = model?.lines.filter((line) => !line.faint && line.x.length) ?? [];
    if (!side || !shown.length || !frame) return;
    event.preventDefault();
    event.stopPropagation();
    let at = shown.findIndex((line) => line.id === hot);
    at = at < 0 ? 0 : (at + side[1] + shown.length) % shown.length;
    const line = shown[at];
    const now = cursor ? nearest(line.x, frame.toX(cursor.x)) : side[0] < 0 ? line.x.length : -1;
    let index = now + side[0];
    while (line.y[index] === null) index += side[0] || 1;
    index = Math.min(Math.max(index, 0), line.x.length - 1);
    hot = line.id;
    acts.hot?.(hot);
    const [x, y] = [frame.px(line.x[index]), frame.py(line.y[index])];
    cursor = { x, near: [{ line, index, away: 0 }] };
    acts.hover?.(cursor.near, { x, y, value: line.x[index] });
    over.setAttribute("aria-label", `${label}: ${line.name}, ${model.sayX(line.x[index])}: ${model.sayY(line.y[index])}`);
    overlays();
  });
  over.addEventListener("blur", () => cursor && leave());

  const me = {
    root,
    draw,
    redraw: redraws,
    /** Brings out a line. */
    highlight(id) {
      if (hot === id) return;
      hot = id;
      overlays();
    },
    guide(value) {
      if (!frame || (value === null && !cursor)) return;
      cursor = value === null ? null : { x: frame.px(value), near: [] };
      acts.follow?.(value);
      overlays();
    },
    describe: (words) => over.setAttribute("aria-label", words),
    sheets: [back, front],
    size,
  };
  if (!groups.has(group)) groups.set(group, new Set());
  groups.get(group).add(me);
  me.forget = () => groups.get(group).delete(me);
  return me;
}

function mark(context, shape, x, y, r) {
  context.beginPath();
  if (shape === 0) context.arc(x, y, r, 0, 2 * Math.PI);
  else if (shape === 1) context.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
  else {
    const corners = shape === 2 ? [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]] : [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]];
    corners.forEach(([dx, dy], index) => context[index ? "lineTo" : "moveTo"](x + r * dx, y + r * dy));
    context.closePath();
  }
  context.fill();
}

function arrow(context, x, y, way) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x - 4, y + 7 * way);
  context.lineTo(x + 4, y + 7 * way);
  context.closePath();
  context.fill();
}

/** A range with some room, within what the quantity can be. */
function roomy(low, high, isLog, limits) {
  let range;
  if (isLog && low > 0) {
    const room = high / low > 1 + 1e-9 ? (high / low) ** 0.05 : 1.5;
    range = [low / room, high * room];
  } else {
    // What differs by rounding alone is drawn as the constant that it is.
    const spread = high - low > 1e-9 * Math.abs(high) ? high - low : Math.abs(high) || 1;
    range = [low - 0.06 * spread, high + 0.06 * spread];
  }
  if (!limits || range[1] - range[0] <= 0) return range;
  // A value at the limit is drawn whole.
  return [Math.max(range[0], limits[0]), Math.min(range[1], limits[1])];
}
