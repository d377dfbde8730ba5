// @ts-check
// Selection in figures: a layer over each figure shows the selected and pinned trials, and clicks and drags choose them.
// Plotly draws nothing anew for a selection, because it takes up to a second for 10,000 trials. For hidden trials, Plotly
// draws the figures that show them again.

import { plain } from "./dom.js";
import { shown } from "./experiment.js";
import { additions, drawAgain } from "./look.js";
import { choice, select, subscribe } from "./selection.js";

/** @typedef {import("./api.js").Figure["data"][number]} Trace */
/** @typedef {import("./selection.js").Trials} Trials */
/** @typedef {{left: number, top: number, right: number, bottom: number}} Box */
/** @typedef {(i: number) => number} Place */
/** The points of a trace on the screen. `shape` says what connects or surrounds them; lines connect points of one trial.
 * `axes` are the horizontal places of parallel coordinates, of which each line has `axes.length` vertical places.
 * @typedef {object} Marks
 * @property {"points" | "lines" | "steps" | "bars" | "parallel"} shape
 * @property {(string | null)[]} trials
 * @property {Place} x
 * @property {Place} y
 * @property {Place} from where a bar starts
 * @property {number} half of a bar's height
 * @property {number[]} axes
 * @property {(i: number, axis: number) => number} at
 * @property {string | null} own the trace's colour, if its figure tells the pinned trials apart by colour
 * @property {Box} box in which the trace is visible */

const VEIL = 0.72; // opacity of the page's colour over trials that are not selected
const CLICK = 10; // pixels from a point or line at which a click still means it
const MOVED = 5; // pixels after which a click is a drag
const AHEAD = "300px"; // figures are updated this far from the screen

/** @type {Set<HTMLElement>} */
const figures = new Set();
/** Figures that show an earlier selection, and whether Plotly must draw them again for it.
 * @type {Map<HTMLElement, boolean>} */
const stale = new Map();
/** @type {Set<HTMLElement>} */
const close = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) close[isIntersecting ? "add" : "delete"](/** @type {HTMLElement} */ (target));
  update();
}, { rootMargin: AHEAD });

/** Updates the figures close to the screen. Plotly draws one of them in each frame, because it takes up to a second for all. */
function update() {
  for (const node of [...close].filter((each) => stale.get(each) === false)) {
    stale.delete(node);
    paint(node);
  }
  const node = [...close].find((each) => stale.has(each));
  if (!node) return;
  stale.delete(node);
  drawAgain(node); // which paints it, too
  requestAnimationFrame(() => setTimeout(update));
}

/** Draws figures again: those close to the screen now, the others when they come there.
 * @param {HTMLElement[]} nodes */
export function redraw(nodes) {
  for (const node of nodes) stale.set(node, true);
  update();
}

subscribe((now, before) => {
  for (const node of figures) stale.set(node, stale.get(node) || now.hidden !== before.hidden);
  update();
});

// --- the traces of figures -------------------------------------------------------------------------------------------

/** @type {WeakMap<any[], any[]>} */
const names = new WeakMap();
/** Returns the trials of a trace as the tables name them: figures have escaped texts.
 * @param {any[]} escaped @returns {(string | null)[]} */
function trialsOf(escaped) {
  let known = names.get(escaped);
  if (!known) names.set(escaped, known = escaped.map((trial) => (typeof trial === "string" ? plain(trial) : trial)));
  return known;
}

const LISTS = ["x", "y", "text", "base", "customdata"]; // of a trace: one value for each point
const LOOKS = ["color", "size", "symbol", "opacity"]; // of marks: one value for all points, or one for each

additions.data = (data) => {
  const { hidden } = choice.now;
  return hidden.size ? data.map((trace) => (Array.isArray(trace.customdata) ? withoutHidden(trace, hidden) : trace)) : data;
};

/** @param {Trace} trace @param {Trials} hidden */
function withoutHidden(trace, hidden) {
  const trials = trialsOf(trace.customdata);
  if (!trials.some((trial) => trial !== null && hidden.has(trial))) return trace;
  const kept = trials.map((trial, i) => {
    const own = trial ?? trials[i - 1]; // a gap ends the line before it
    return own === null || own === undefined || !hidden.has(own);
  });
  /** @param {unknown} list */
  const left = (list) => (Array.isArray(list) && list.length === kept.length ? list.filter((_, i) => kept[i]) : list);
  const rest = { ...trace };
  for (const name of LISTS) if (name in rest) rest[name] = left(rest[name]);
  for (const name of ["marker", "line"]) {
    if (!rest[name]) continue;
    rest[name] = { ...rest[name] };
    for (const look of LOOKS) if (look in rest[name]) rest[name][look] = left(rest[name][look]);
  }
  if (rest.dimensions) rest.dimensions = rest.dimensions.map((/** @type {any} */ each) => ({ ...each, values: left(each.values) }));
  return rest;
}

/** Yields the points of each visible trace that shows trials.
 * @param {HTMLElement} node @returns {Generator<Marks>} */
function* marksOf(node) {
  const { data, _fullData: full, _fullLayout: layout } = /** @type {any} */ (node);
  for (const [n, trace] of (data ?? []).entries()) {
    if (!Array.isArray(trace.customdata) || full?.[n]?.visible !== true) continue;
    const none = { x: () => 0, y: () => 0, from: () => 0, half: 0, axes: [], at: () => 0, trials: trialsOf(trace.customdata),
      own: trace.meta === "pinned" ? trace.line.color : null };
    if (trace.type === "parcoords") {
      yield { ...none, shape: "parallel", ...parallelPlaces(trace, layout) };
      continue;
    }
    const x = layout[`xaxis${(trace.xaxis ?? "x").slice(1)}`], y = layout[`yaxis${(trace.yaxis ?? "y").slice(1)}`];
    if (!x?.d2p || !y?.d2p) continue;
    const box = { left: x._offset, top: y._offset, right: x._offset + x._length, bottom: y._offset + y._length };
    const own = { ...none, box, y: (/** @type {number} */ i) => box.top + y.d2p(trace.y[i]) };
    if (trace.type === "bar") {
      yield { ...own, shape: "bars", x: (i) => box.left + x.d2p(trace.base[i] + trace.x[i]),
        from: (i) => box.left + x.d2p(trace.base[i]), half: Math.abs(y.l2p(1) - y.l2p(0)) * (trace.width ?? 0.8) / 2 };
    } else {
      const lines = full[n].mode?.includes("lines") ? (trace.line?.shape === "hv" ? "steps" : "lines") : "points";
      yield { ...own, shape: lines, x: (i) => box.left + x.d2p(trace.x[i]) };
    }
  }
}

const INSET = 2; // pixels that Plotly leaves above and below the axes of parallel coordinates

/** @param {Trace} trace @param {any} layout */
function parallelPlaces(trace, layout) {
  const { l, t, w, h } = layout._size, { dimensions } = trace;
  const axes = dimensions.map((/** @type {any} */ _, /** @type {number} */ i) => l + w * i / Math.max(1, dimensions.length - 1));
  /** @param {number} i @param {number} axis */
  const at = (i, axis) => {
    const { values, range: [low, high] } = dimensions[axis];
    return t + INSET + (h - 2 * INSET) * (1 - (values[i] - low) / (high - low));
  };
  return { axes, at, box: { left: l - CLICK, top: t, right: l + w + CLICK, bottom: t + h } };
}

// --- trials that a figure does not draw ------------------------------------------------------------------------------

const LOADING = ["curves", "rung_values"]; // figures that show trials that they do not draw
const MOST_LOADED = 8; // selected trials that are loaded
/** @type {WeakMap<object, Map<string, import("./api.js").OneTrial>>} Of each experiment, the trials that are loaded. */
const loadedTrials = new WeakMap();

/** Returns the selected and pinned trials; those that are missing are loaded, and the figures painted again. */
function loadedChoice() {
  const experiment = shown.now, { selected, pinned } = choice.now;
  if (!experiment || selected.size > MOST_LOADED) return [];
  const known = loadedTrials.get(experiment) ?? new Map();
  loadedTrials.set(experiment, known);
  return [...new Set([...selected, ...pinned])].flatMap((trial) => {
    experiment.details(trial).then((answer) => {
      if (known.get(trial) === answer) return;
      known.set(trial, answer);
      for (const node of figures) if (LOADING.includes(node.id)) paint(node);
    }, () => {}); // a trial that cannot be loaded is not drawn
    return known.has(trial) ? [/** @type {import("./api.js").OneTrial} */ (known.get(trial))] : [];
  });
}

/** Adds the selected and pinned trials that the curves over epochs do not draw.
 * @param {HTMLElement} node @param {Marks[]} all @returns {Marks[]} */
function withLoaded(node, all) {
  const first = all[0], [clock, metric] = (shown.now?.axis ?? "").split(/:(.*)/s), summary = shown.now?.loaded?.summary;
  if (node.id !== "curves" || !first || clock === "time") return all;
  const drawn = new Set(all.flatMap(({ trials }) => trials)), { xaxis, yaxis } = /** @type {any} */ (node)._fullLayout;
  const more = loadedChoice().filter(({ row }) => !drawn.has(row.trial)).map(({ row, metrics }) => {
    const values = metrics.map((report) => report[metric || summary?.prune_by || summary?.metric || ""]);
    return { ...first, shape: /** @type {const} */ ("lines"), trials: metrics.map(() => row.trial),
      x: (/** @type {number} */ i) => xaxis._offset + xaxis.d2p(metrics[i].epoch),
      y: (/** @type {number} */ i) => (typeof values[i] === "number" ? yaxis._offset + yaxis.d2p(values[i]) : NaN) };
  });
  return [...all, ...more];
}

/** Adds the values of selected and pinned trials at rungs that are drawn as boxes, which name no trials. The boxes of the
 * median rule have running means, which decisions do not have.
 * @param {HTMLElement} node @param {Marks[]} all @returns {Marks[]} */
function withinBoxes(node, all) {
  if (node.id !== "rung_values" || shown.now?.loaded?.summary.scheduler === "median") return all;
  const { data, _fullLayout: { xaxis, yaxis } } = /** @type {any} */ (node);
  const boxes = data.filter((/** @type {Trace} */ { type }) => type === "box").flatMap((/** @type {Trace} */ { x }) => x.map(Math.round));
  const places = new Map((xaxis?.ticktext ?? []).map((/** @type {string} */ text, /** @type {number} */ i) => [text, i]));
  const inBoxes = boxes.length ? loadedChoice().flatMap(({ decisions }) => decisions.flatMap(({ trial, rung, band, bracket, value }) => {
    const place = places.get(`${rung}`) ?? places.get(`${rung} (${bracket})`) ?? places.get(`${rung} (${band}.${bracket})`);
    return typeof value === "number" && boxes.includes(place) ? [{ trial, value, place }] : [];
  })) : [];
  if (!inBoxes.length) return all;
  const box = { left: xaxis._offset, top: yaxis._offset, right: xaxis._offset + xaxis._length, bottom: yaxis._offset + yaxis._length };
  return [...all, { shape: "points", box, trials: inBoxes.map(({ trial }) => trial), from: () => 0, half: 0, axes: [], at: () => 0,
    own: null, x: (i) => box.left + xaxis.d2p(inBoxes[i].place), y: (i) => box.top + yaxis.d2p(inBoxes[i].value) }];
}

// --- the layer over a figure -----------------------------------------------------------------------------------------

/** @type {WeakMap<HTMLElement, HTMLCanvasElement>} */
const layers = new WeakMap();

/** Returns the layer over a figure's marks and below its texts; null before Plotly has drawn the figure.
 * @param {HTMLElement} node */
function layerOf(node) {
  const marks = node.querySelector(".gl-container"), layout = /** @type {any} */ (node)._fullLayout;
  if (!marks || !layout) return null;
  let layer = layers.get(node);
  if (!layer) {
    layer = document.createElement("canvas");
    layer.className = "selection-layer";
    layer.ariaHidden = "true";
    layers.set(node, layer);
  }
  if (marks.nextSibling !== layer) marks.after(layer);
  const ratio = devicePixelRatio, width = Math.round(layout.width * ratio), height = Math.round(layout.height * ratio);
  if (layer.width !== width || layer.height !== height) {
    Object.assign(layer, { width, height });
    Object.assign(layer.style, { width: `${layout.width}px`, height: `${layout.height}px` });
  }
  return layer;
}

/** Shows the selected and pinned trials in a figure.
 * @param {HTMLElement} node @param {Box | null} brush what the user marks with the mouse */
function paint(node, brush = null) {
  if (!brush) tellMissing(node);
  const { selected, pinned } = choice.now;
  const isNeeded = selected.size > 0 || pinned.size > 0 || brush !== null;
  if (!isNeeded && !layers.has(node)) return;
  const layer = layerOf(node), pen = layer?.getContext("2d");
  if (!layer || !pen) return;
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, layer.width, layer.height);
  if (!isNeeded) return;
  pen.scale(devicePixelRatio, devicePixelRatio);
  const style = getComputedStyle(document.documentElement);
  const [back, text, pin] = ["--back", "--text", "--pin"].map((name) => style.getPropertyValue(name));
  const all = withinBoxes(node, withLoaded(node, [...marksOf(node)]));
  if (selected.size) {
    pen.globalAlpha = VEIL;
    pen.fillStyle = back;
    const veiled = new Set();
    for (const { box, own } of all) {
      if (own || veiled.has(Object.values(box).join())) continue;
      veiled.add(Object.values(box).join());
      pen.fillRect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    }
    pen.globalAlpha = 1;
  }
  for (const marks of all) {
    pen.save();
    const { left, top, right, bottom } = marks.box;
    pen.beginPath();
    pen.rect(left, top, right - left, bottom - top);
    pen.clip();
    stroke(pen, marks, selected, marks.own ?? text, back);
    if (!marks.own) stroke(pen, marks, pinned, pin, back);
    pen.restore();
  }
  if (!brush) return;
  pen.strokeStyle = text;
  pen.setLineDash([4, 3]);
  pen.strokeRect(brush.left, brush.top, brush.right - brush.left, brush.bottom - brush.top);
  pen.setLineDash([]);
}

const OF_ALL = ["front", "curves", "parallel", "slices", "failing", "usage", "timeline", "contour"]; // figures of all trials, or of a sample

/** Says below a figure how many of the selected trials it does not draw.
 * @param {HTMLElement} node */
function tellMissing(node) {
  if (!OF_ALL.includes(node.id)) return;
  const missing = new Set(choice.now.selected);
  for (const { trials } of missing.size ? withLoaded(node, [...marksOf(node)]) : []) {
    for (const trial of missing.size ? trials : []) if (trial !== null) missing.delete(trial);
  }
  const id = `${node.id}-missing`, line = document.getElementById(id) ?? Object.assign(document.createElement("p"), { id, className: "notice" });
  if (!line.parentNode) document.getElementById(`${node.id}-text`)?.before(line);
  const text = missing.size ? `Not drawn here: ${missing.size} of the selected trials. The figure shows a sample, or they have no value for it or have not ended.` : "";
  if (line.textContent !== text) line.textContent = text;
  line.hidden = !text;
}

const FEW = 300; // points; more are drawn smaller and without a rim

/** @param {CanvasRenderingContext2D} pen @param {Marks} marks @param {Trials} chosen @param {string} color @param {string} rim */
function stroke(pen, marks, chosen, color, rim) {
  if (!chosen.size) return;
  const { trials, shape, x, y, axes, at } = marks, lines = new Path2D(), points = new Path2D();
  const places = [];
  for (let i = 0; i < trials.length; i++) {
    const trial = trials[i];
    if (trial !== null && chosen.has(trial)) places.push(i);
  }
  const isMany = places.length > FEW, size = isMany ? 2 : shape === "points" ? 4.5 : 3;
  pen.fillStyle = color;
  for (const i of places) {
    if (shape === "bars") {
      const from = marks.from(i);
      points.rect(from, y(i) - marks.half, Math.max(3, x(i) - from), 2 * marks.half);
    } else if (shape === "parallel") {
      axes.forEach((across, axis) => lines[axis ? "lineTo" : "moveTo"](across, at(i, axis)));
    } else {
      const across = x(i), up = y(i);
      if (!Number.isFinite(across) || !Number.isFinite(up)) continue;
      if (isMany) pen.fillRect(across - size, up - size, 2 * size, 2 * size); // a path of many takes ten times as long
      else {
        points.moveTo(across + size, up);
        points.arc(across, up, size, 0, 2 * Math.PI);
      }
      if (shape === "points" || i + 1 === trials.length || !Number.isFinite(y(i + 1))) continue;
      const isSame = trials[i + 1] === trials[i];
      if (shape === "steps" || isSame) lines.moveTo(across, up);
      if (shape === "steps") lines.lineTo(x(i + 1), up);
      if (isSame) lines.lineTo(x(i + 1), y(i + 1));
    }
  }
  const width = isMany ? 1 : 2.5;
  pen.lineJoin = isMany ? "bevel" : "round";
  if (!isMany) {
    pen.strokeStyle = rim;
    pen.lineWidth = width + 2.5;
    pen.stroke(lines);
    pen.lineWidth = 3;
    pen.stroke(points);
  }
  pen.strokeStyle = color;
  pen.lineWidth = width;
  pen.stroke(lines);
  pen.fill(points);
}

// --- clicks and drags ------------------------------------------------------------------------------------------------

/** Returns the trial closest to a point of a figure; null if none is near.
 * @param {HTMLElement} node @param {number} px @param {number} py */
function trialAt(node, px, py) {
  /** @type {string | null} */
  let found = null;
  let least = CLICK;
  for (const { shape, trials, x, y, from, half, axes, at, box } of marksOf(node)) {
    if (px < box.left || px > box.right || py < box.top || py > box.bottom) continue;
    for (let i = 0; i < trials.length; i++) {
      const trial = trials[i];
      if (trial === null) continue;
      let far = Infinity;
      if (shape === "bars") {
        const start = from(i), end = Math.max(x(i), start + 3), isOn = px >= start - 2 && px <= end + 2 && Math.abs(py - y(i)) <= half;
        if (isOn) far = Math.abs(px - (start + end) / 2) / (end - start + 4); // of short bars on one another, the closest
      }
      else if (shape === "parallel") {
        const part = Math.max(0, Math.min(axes.length - 2, axes.findIndex((across) => across > px) - 1));
        far = toLine(px, py, axes[part], at(i, part), axes[part + 1], at(i, part + 1));
      } else {
        const across = x(i), up = y(i), isJoined = shape !== "points" && i + 1 < trials.length && trials[i + 1] !== null;
        far = Math.hypot(px - across, py - up);
        // A point is meant before a line beside it; a step belongs to the trial that began it.
        if (isJoined && shape === "lines" && trials[i + 1] === trial) far = Math.min(far, 1 + toLine(px, py, across, up, x(i + 1), y(i + 1)));
        if (isJoined && shape === "steps") far = Math.min(far, 1 + toLine(px, py, across, up, x(i + 1), up), 1 + toLine(px, py, x(i + 1), up, x(i + 1), y(i + 1)));
      }
      if (far < least) [least, found] = [far, trial];
    }
  }
  return found;
}

/** Returns the distance of a point from the line between two others.
 * @param {number} px @param {number} py @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 */
function toLine(px, py, x0, y0, x1, y1) {
  const dx = x1 - x0, dy = y1 - y0, length = dx * dx + dy * dy;
  const share = length ? Math.max(0, Math.min(1, ((px - x0) * dx + (py - y0) * dy) / length)) : 0;
  return Math.hypot(px - x0 - share * dx, py - y0 - share * dy);
}

/** Returns the trials with a mark in a part of a figure. A line of parallel coordinates must pass there on each axis.
 * @param {HTMLElement} node @param {Box} brush */
function trialsIn(node, { left, top, right, bottom }) {
  /** @type {Set<string>} */
  const found = new Set();
  for (const { shape, trials, x, y, from, half, axes, at, box } of marksOf(node)) {
    if (right < box.left || left > box.right || bottom < box.top || top > box.bottom) continue;
    const brushed = axes.flatMap((across, axis) => (across >= left && across <= right ? [axis] : []));
    for (let i = 0; i < trials.length; i++) {
      const trial = trials[i];
      if (trial === null) continue;
      let isIn = false;
      if (shape === "parallel") isIn = brushed.length > 0 && brushed.every((axis) => at(i, axis) >= top && at(i, axis) <= bottom);
      else if (shape === "bars") isIn = x(i) >= left && from(i) <= right && y(i) + half >= top && y(i) - half <= bottom;
      else isIn = x(i) >= left && x(i) <= right && y(i) >= top && y(i) <= bottom;
      if (isIn) found.add(trial);
    }
  }
  return [...found];
}

/** Whether a drag selects trials. Otherwise it zooms, except in parallel coordinates, which have no zoom.
 * @type {{isOn: boolean}} */
export const brushing = { isOn: false };
/** @type {{node: HTMLElement, x: number, y: number, isBrush: boolean, isMoved: boolean} | null} */
let pressed = null;

/** @param {HTMLElement} node @param {MouseEvent} event */
function placeIn(node, { clientX, clientY }) {
  const { left, top } = node.querySelector(".svg-container")?.getBoundingClientRect() ?? node.getBoundingClientRect();
  return { x: clientX - left, y: clientY - top };
}

/** Whether a point is where a figure shows trials.
 * @param {HTMLElement} node @param {number} x @param {number} y */
function isOver(node, x, y) {
  return [...marksOf(node)].some(({ box }) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom);
}

/** @param {HTMLElement} node @param {PointerEvent} event */
function press(node, event) {
  pressed = null;
  const { x, y } = placeIn(node, event), { target } = event;
  if (event.button !== 0 || !(target instanceof Element) || target.closest(".modebar, .legend") || !isOver(node, x, y)) return;
  const isParallel = /** @type {any} */ (node).data[0]?.type === "parcoords";
  pressed = { node, x, y, isMoved: false, isBrush: brushing.isOn || (isParallel && event.pointerType === "mouse") };
}

/** @param {number} x @param {number} y @returns {Box} */
const boxTo = (x, y) => ({ left: Math.min(x, pressed?.x ?? x), right: Math.max(x, pressed?.x ?? x),
  top: Math.min(y, pressed?.y ?? y), bottom: Math.max(y, pressed?.y ?? y) });

window.addEventListener("pointermove", (event) => {
  if (!pressed) return;
  const { x, y } = placeIn(pressed.node, event);
  pressed.isMoved ||= Math.hypot(x - pressed.x, y - pressed.y) > MOVED;
  if (pressed.isBrush && pressed.isMoved) paint(pressed.node, boxTo(x, y));
}, { capture: true });
window.addEventListener("pointerup", (event) => {
  if (!pressed) return;
  const { node, isBrush, isMoved } = pressed, { x, y } = placeIn(node, event);
  const isAdded = event.shiftKey || event.ctrlKey || event.metaKey, brush = boxTo(x, y);
  pressed = null;
  if (!isMoved) {
    const trial = trialAt(node, x, y);
    if (trial !== null) select([trial], isAdded);
  } else if (isBrush) {
    const trials = trialsIn(node, brush);
    if (trials.length) select(isAdded ? [...choice.now.selected, ...trials] : trials);
    paint(node);
  }
}, { capture: true });
window.addEventListener("pointercancel", () => {
  if (pressed?.isBrush) paint(pressed.node);
  pressed = null;
}, { capture: true });

additions.drawn = (node) => {
  const has = /** @type {any} */ (node).data?.some((/** @type {Trace} */ trace) => Array.isArray(trace.customdata) || trace.type === "box");
  node.classList.toggle("linked", Boolean(has));
  stale.delete(node);
  if (figures.has(node)) return;
  figures.add(node);
  observer.observe(node);
  const figure = /** @type {any} */ (node);
  for (const event of ["plotly_afterplot", "plotly_relayouting", "plotly_restyle"]) figure.on(event, () => paint(node));
  node.addEventListener("pointerdown", (event) => press(node, event), { capture: true });
  for (const name of ["mousedown", "touchstart"]) { // else Plotly would zoom, or brush an axis by itself
    node.addEventListener(name, (event) => { if (pressed?.isBrush) event.stopPropagation(); }, { capture: true });
  }
};
