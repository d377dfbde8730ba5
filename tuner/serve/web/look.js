// @ts-check
// The style of figures on a light and on a dark page; the dashboard imports this module and report.html contains it.

/** @typedef {import("./api.js").Figure} Figure */

// Plotly's button that uploads a chart is removed, so that no data of an experiment leaves the page.
const MODE_BAR = { displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
  modeBarButtonsToRemove: ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d", "toImage"],
  modeBarButtonsToAdd: [saver("png"), saver("svg")] };
const BEYOND = "beyond"; // marks for values beyond a clipped axis
const HAS_WEBGL = Boolean(document.createElement("canvas").getContext("webgl"));

// On paper: colours of the light page, and a width and height that fit one page of A4 and of US letter.
const PAPER = { width: 690, most: 900, usual: 400 };
let isPrinting = false;
/** @type {Map<HTMLElement, () => void>} */
const redraws = new Map();

/** @param {boolean} printing */
function redrawAll(printing) {
  isPrinting = printing;
  document.documentElement.toggleAttribute("data-printing", printing);
  for (const [node, redraw] of redraws) if (node.offsetWidth) redraw();
}

window.addEventListener("beforeprint", () => redrawAll(true));
window.addEventListener("afterprint", () => redrawAll(false));

// Plotly's own `responsive` misses a figure that is hidden while its place gets another width.
const widths = new ResizeObserver((entries) => {
  for (const { target, contentRect: { width } } of entries) {
    const drawn = /** @type {any} */ (target)._fullLayout;
    if (drawn && width && !isPrinting && Math.abs(drawn.width - width) > 1) Plotly.Plots.resize(target);
  }
});

/** What the page adds to each figure: `data` may change the traces that are drawn or saved as an image, and `drawn` is
 * called with its node. */
export const additions = {
  /** @type {(data: Figure["data"]) => Figure["data"]} */ data: (data) => data,
  /** @type {(node: HTMLElement) => void} */ drawn: () => {},
};
/** @typedef {(layout: Figure["layout"], data: Figure["data"]) => void} Change */

const isDark = () => !isPrinting && matchMedia("(prefers-color-scheme: dark)").matches;

/** Reverses a colour scale on a dark page, so that the best value always gets the colour that contrasts most.
 * @template {{[name: string]: any}} Part @param {Part} part of a figure: a colour axis, a trace or its markers
 * @returns {Part} */
const contrasting = (part) => ("reversescale" in part && isDark() ? { ...part, reversescale: !part.reversescale } : part);

/** Whether the user wants to see the values that clipped axes leave out. */
function showsAll() {
  const isComparing = document.getElementById("compare")?.hidden === false;
  const box = document.getElementById(isComparing ? "compare-outliers" : "all-values");
  return box instanceof HTMLInputElement && box.checked;
}

/** Shows the description of a figure in words below it.
 * @param {HTMLElement} node @param {string} text */
function describe(node, text) {
  const id = `${node.id}-text`;
  let line = document.getElementById(id);
  if (!line) {
    line = Object.assign(document.createElement("p"), { id, className: "figure-text" });
    (node.closest(".scroll") ?? node).after(line);
  }
  node.setAttribute("role", "figure");
  if (text) node.setAttribute("aria-labelledby", id);
  if (line.textContent !== text) line.textContent = text;
  line.hidden = !text;
}

/** Gives a figure its place on the page: its height and its description. What is below it does not move once it is drawn.
 * @param {HTMLElement} node @param {Figure} figure */
export function place(node, { layout }) {
  describe(node, layout.meta?.text ?? "");
  node.style.height = layout.height ? `${layout.height}px` : "";
}

/** Draws a figure into a node. The user's zoom is kept while `revision` stays the same.
 * @param {HTMLElement} node @param {Figure} figure @param {string} revision
 * @param {Change} change may change both before they are drawn */
export function drawInto(node, figure, revision, change = () => {}) {
  const style = getComputedStyle(document.documentElement);
  const [text, line, muted, back] = ["--text", "--line", "--muted", "--back"].map((name) => style.getPropertyValue(name));
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: muted, automargin: true, exponentformat: "e" };
  const clear = "rgba(0,0,0,0)";
  const look = { paper_bgcolor: clear, plot_bgcolor: clear, font: { color: text, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: back, bordercolor: muted, font: { color: text }, align: "left" },
    modebar: { bgcolor: clear, color: muted, activecolor: text } };
  /** @type {Figure["layout"]} */
  const layout = { margin: { l: 60, r: 16, t: 12, b: 44 }, ...figure.layout, ...look, uirevision: revision + (showsAll() ? " whole" : "") };
  const { clipped } = figure.layout.meta ?? {};
  place(node, figure);
  for (const name of Object.keys(figure.layout)) {
    if (/^[xy]axis\d*$/.test(name)) layout[name] = { ...axis, ...figure.layout[name] };
  }
  if (layout.coloraxis) layout.coloraxis = contrasting(layout.coloraxis);
  if (clipped && showsAll()) {
    const { range, ...whole } = layout[clipped.axis];
    layout[clipped.axis] = { ...whole, title: { text: clipped.title } };
  }
  const data = additions.data(figure.data).filter(({ meta }) => meta !== BEYOND || !showsAll()).map((trace) => ({ ...contrasting(trace),
    ...(trace.marker && { marker: contrasting(trace.marker) }),
    ...(trace.error_x && { error_x: { color: text, ...trace.error_x } }),
    type: !HAS_WEBGL && trace.type === "scattergl" ? "scatter" : trace.type }));
  change(layout, data);
  redraws.set(node, () => drawInto(node, figure, revision, change));
  if (isPrinting) {
    const height = layout.height ? Math.min(layout.height, PAPER.most) : Math.min(node.offsetHeight, PAPER.usual);
    Object.assign(layout, { width: PAPER.width, height });
    node.style.height = `${height}px`;
  }
  Plotly.react(node, data, layout, MODE_BAR);
  widths.unobserve(node); // the observer looks again: Plotly draws a figure that it has drawn before in the old width
  widths.observe(node);
  additions.drawn(node);
}

/** Empties all figures: the page will show another experiment. */
export function emptyFigures() {
  for (const node of redraws.keys()) Plotly.react(node, [], {}, MODE_BAR);
  redraws.clear();
}

/** Draws a figure again as it was last drawn.
 * @param {HTMLElement} node */
export function drawAgain(node) {
  redraws.get(node)?.();
}

/** Returns the name of a figure's file; the page's title may begin with the search's progress.
 * @param {HTMLElement} node */
export const fileOf = (node) => `${document.title.replace(/^\d+( of \d+)? |: tuner$/g, "")}-${node.id}`;

/** Saves a figure as it is shown, with its selected trials, on the page's background: its own is transparent.
 * @param {HTMLElement} node @param {"png" | "svg"} format */
export function saveImage(node, format) {
  const { data, layout, _fullLayout: size } = /** @type {any} */ (node);
  if (!data) return;
  const back = getComputedStyle(document.documentElement).getPropertyValue("--back");
  const marks = node.querySelector("canvas.selection-layer"), { l, t, w, h } = size._size;
  const images = marks instanceof HTMLCanvasElement ? [{ source: marks.toDataURL(), xref: "paper", yref: "paper", x: -l / w, y: 1 + t / h,
    sizex: size.width / w, sizey: size.height / h, sizing: "stretch", layer: "above" }] : [];
  const showlegend = layout.meta?.legend ?? layout.showlegend; // a page may show a legend of its own
  Plotly.downloadImage({ data: additions.data(data), layout: { ...layout, images, showlegend, paper_bgcolor: back, plot_bgcolor: back } },
    { format, filename: fileOf(node), width: size.width, height: size.height, scale: format === "png" ? 2 : 1 });
}

/** A figure's own button that saves it.
 * @param {"png" | "svg"} format */
function saver(format) {
  const name = `save as ${format.toUpperCase()}`;
  return { name, title: name, icon: Plotly.Icons.camera, click: (/** @type {HTMLElement} */ node) => saveImage(node, format) };
}
