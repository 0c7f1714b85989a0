// Line charts and small bars, drawn at the size they are shown at: smoothed, zoomed and read by pointer or keys.

import { h, svg, number } from "/static/dom.js";

const LEFT = 50, RIGHT = 14, TOP = 10, BOTTOM = 24;
const DRAG = 6;

// Six colours; the seventh line has the first one again, and dashes.
export function colour(place) {
  return `c${place % 6}${place >= 6 ? " dashed" : ""}`;
}

// Round numbers 1, 2 or 5 times a power of ten apart; `whole` never goes below 1.
export function ticks(low, high, most = 5, whole = false) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const base = Math.max(10 ** Math.floor(Math.log10(span / most)), whole ? 1 : 0);
  const step = [1, 2, 5, 10].map((scale) => base * scale).find((size) => span / size <= most);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step);
  return found;
}

function padded(low, high) {
  if (low === 0 && high === 0) return [-0.06, 1.06];
  const room = high > low ? 0.06 * (high - low) : Math.abs(low) * 0.1 || 1;
  return [low - room, high + room];
}

function span(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return [low, high];
}

// --- smoothing: one setting for all charts, kept for the next visit

let smoothing = Math.min(Math.max(Number(localStorage.getItem("smoothing")) || 0, 0), 0.98);
const painters = new Set();

// Exponential mean over steps; the weights of the first points add up to 1, so that it does not start at 0.
export function smoothed(steps, values, weight) {
  if (!weight) return values;
  let total = 0, mass = 0;
  return values.map((value, n) => {
    const kept = n ? weight ** Math.max(steps[n] - steps[n - 1], 1) : 0;
    total = total * kept + value;
    mass = mass * kept + 1;
    return total / mass;
  });
}

export function smoothingControl() {
  const shown = h("output", {}, smoothing ? smoothing.toFixed(2) : "off");
  const slider = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: smoothing, "aria-label": "Smoothing of the curves" });
  slider.addEventListener("input", () => {
    smoothing = Number(slider.value);
    localStorage.setItem("smoothing", String(smoothing));
    shown.textContent = smoothing ? smoothing.toFixed(2) : "off";
    for (const paint of painters) paint();
  });
  return h("p", { class: "smoothing" }, h("label", {}, "smoothing ", slider, " ", shown),
    h("span", { class: "quiet hint" }, "drag over a chart to zoom; with the keyboard: + − 0 and ← →"));
}

// --- zoom: kept by chart, so that a live page that is drawn again stays where it was

const zooms = new Map();

// lines: [{name, steps, values}], with low and high where a line has a band; options: bars [{step, low, high}], range, dots, height, onpick, axis (what x counts: step)
export function lineChart(title, lines, options = {}) {
  const drawn = lines.map((line, place) => ({ ...line, place })).filter((line) => line.steps.length > 0);
  const holder = h("div", { class: "canvas" });
  const readout = h("span", { class: "readout", "aria-live": "polite" });
  const reset = h("button", { type: "button", class: "reset", hidden: true, onclick: () => zoom(null) }, "reset zoom");
  const figure = h("figure", { class: "chart" },
    h("figcaption", {}, h("span", { class: "title" }, title), readout, reset),
    holder,
    drawn.length > 1 && h("p", { class: "legend" }, drawn.map((line) => h("span", { class: `key ${colour(line.place)}` }, line.name))));
  if (!drawn.length) {
    holder.append(h("p", { class: "empty" }, "nothing yet"));
    return figure;
  }
  const bars = options.bars || [];
  const whole = span(drawn.flatMap((line) => [line.steps[0], line.steps[line.steps.length - 1]]));
  const name = `${location.pathname}${location.search} ${title || drawn[0].name}`;
  const state = { width: 0, range: zooms.get(name) || whole, cursor: null };

  function zoom(range) {
    let [first, last] = range || whole;
    first = Math.max(Math.min(first, last), whole[0]);
    last = Math.min(Math.max(last, range ? range[0] : last), whole[1]);
    if (last - first < 1) return;
    state.range = [first, last];
    if (first === whole[0] && last === whole[1]) zooms.delete(name); else zooms.set(name, state.range);
    paint();
  }
  function paint() {
    if (!state.width) return;
    const had = document.activeElement === holder.firstChild;
    const picture = draw(title, drawn, bars, options, state, whole);
    listen(picture, state, options, readout, drawn, zoom);
    holder.replaceChildren(picture);
    reset.hidden = !zooms.has(name);
    if (had) picture.focus({ preventScroll: true });
  }
  const watcher = new ResizeObserver((entries) => {
    if (!holder.isConnected) { painters.delete(paint); watcher.disconnect(); return; }
    const width = Math.floor(entries[0].contentRect.width);
    if (width > 0 && width !== state.width) { state.width = width; paint(); }
  });
  watcher.observe(holder);
  painters.add(paint);
  return figure;
}

// What is shown of a line: the points within the range and one on either side, so that it runs to the edges.
function within(line, [first, last]) {
  let from = line.steps.findIndex((step) => step >= first);
  if (from < 0) from = line.steps.length - 1;
  let to = line.steps.length - 1;
  while (to > from && line.steps[to] > last) to -= 1;
  return [Math.max(from - 1, 0), Math.min(to + 2, line.steps.length)];
}

let clips = 0;

function draw(title, lines, bars, options, state, whole) {
  const { width, range: [first, last] } = state;
  const height = options.height || 180, wide = Math.max(width - LEFT - RIGHT, 1);
  const isSmooth = smoothing > 0 && !options.dots;
  const shown = lines.map((line) => {
    const [from, to] = within(line, [first, last]);
    const cut = (values) => values && values.slice(from, to);
    const soft = isSmooth ? smoothed(line.steps, line.values, smoothing) : line.values;
    return { ...line, steps: cut(line.steps), raw: cut(line.values), values: cut(soft), low: cut(line.low), high: cut(line.high) };
  });
  const inside = bars.filter((bar) => bar.step >= first && bar.step <= last);
  const [lowest, highest] = span(shown.flatMap((line) => line.raw.concat(line.low || [], line.high || [])).concat(inside.flatMap((bar) => [bar.low, bar.high])));
  const [low, high] = options.range || padded(lowest, highest);
  const x = (value) => LEFT + (last > first ? (value - first) / (last - first) : 0.5) * wide;
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * (height - TOP - BOTTOM);
  const points = (steps, values) => steps.map((step, n) => `${x(step).toFixed(1)},${y(values[n]).toFixed(1)}`).join(" ");
  state.x = x;
  state.stepAt = (at) => Math.round(first + Math.min(Math.max((at - LEFT) / wide, 0), 1) * (last - first));
  state.shown = lines.map((line, n) => ({ line, soft: isSmooth ? smoothed(line.steps, line.values, smoothing) : line.values, n }));
  state.rule = svg("line", { class: "rule", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
  state.box = svg("rect", { class: "drag", y: TOP, height: height - TOP - BOTTOM, visibility: "hidden" });
  const clip = `clip${(clips += 1)}`;
  const isZoomed = first > whole[0] || last < whole[1];
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, class: options.onpick ? "pick" : "",
    "aria-label": `${title || lines[0].name}, ${options.axis || "step"}s ${first} to ${last}${isZoomed ? `, a part of ${whole[0]} to ${whole[1]}` : ""}, from ${number(lowest)} to ${number(highest)}` },
    svg("clipPath", { id: clip }, svg("rect", { x: LEFT - 4, y: 0, width: wide + 8, height })),
    ticks(low, high).map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "axis", x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, tickText(value, low, high)),
    ]),
    svg("text", { class: "axis", x: 2, y: height - 7 }, options.axis || "step"),
    ticks(first, last, Math.max(2, Math.floor(wide / 50)), true).map((step) => svg("text", { class: "axis", x: x(step), y: height - 7,
      "text-anchor": x(step) > width - RIGHT - 16 ? "end" : "middle" }, step === 0 ? "start" : step.toLocaleString("en"))),
    svg("g", { "clip-path": `url(#${clip})` },
      inside.map((bar) => svg("line", { class: "bar", x1: x(bar.step), x2: x(bar.step), y1: y(bar.low), y2: y(bar.high) })),
      shown.map((line) => line.low && svg("polygon", { class: `band c${line.place % 6}`,
        points: `${points(line.steps, line.high)} ${points([...line.steps].reverse(), [...line.low].reverse())}` })),
      shown.map((line) => [
        isSmooth && svg("polyline", { class: `line raw ${colour(line.place)}`, points: points(line.steps, line.raw) }),
        svg("polyline", { class: `line ${colour(line.place)}`, points: points(line.steps, line.values) }),
        (line.steps.length === 1 || options.dots) && line.steps.map((step, n) => svg("circle", { class: `dot c${line.place % 6}`, cx: x(step), cy: y(line.values[n]), r: 3 })),
      ])),
    state.box, state.rule);
}

// Pointer: read, click a step, drag a range. Keys, while the chart has the focus: ← → read, + − 0 zoom, Enter opens the step.
function listen(picture, state, options, readout, lines, zoom) {
  let start = null;
  const at = (event) => event.clientX - picture.getBoundingClientRect().left;
  function read(step) {
    state.cursor = step;
    const x = state.x(step);
    state.rule.setAttribute("x1", x); state.rule.setAttribute("x2", x); state.rule.setAttribute("visibility", "visible");
    readout.textContent = `${step === 0 ? "start" : `${options.axis || "step"} ${step.toLocaleString("en")}`}: ` + state.shown.map(({ line, soft }) => number(nearest(line, soft, step))).join("  ·  ");
  }
  picture.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    start = at(event);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    read(state.stepAt(at(event)));
    if (start === null || Math.abs(at(event) - start) < DRAG) return;
    const [left, right] = [Math.min(start, at(event)), Math.max(start, at(event))];
    state.box.setAttribute("x", left); state.box.setAttribute("width", right - left); state.box.setAttribute("visibility", "visible");
  });
  picture.addEventListener("pointerup", (event) => {
    const from = start;
    start = null;
    if (from === null) return;
    state.box.setAttribute("visibility", "hidden");
    if (Math.abs(at(event) - from) >= DRAG) zoom([state.stepAt(from), state.stepAt(at(event))].sort((a, b) => a - b));
    else if (options.onpick) options.onpick(state.stepAt(at(event)));
  });
  picture.addEventListener("pointercancel", () => { start = null; state.box.setAttribute("visibility", "hidden"); });
  picture.addEventListener("pointerleave", () => { if (start === null) { state.cursor = null; state.rule.setAttribute("visibility", "hidden"); readout.textContent = ""; } });
  picture.addEventListener("dblclick", () => zoom(null));
  picture.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [first, last] = state.range, middle = state.cursor ?? Math.round((first + last) / 2);
    const scale = (factor) => zoom([Math.floor(middle - (middle - first) * factor), Math.ceil(middle + (last - middle) * factor)]);
    const move = (by) => read(Math.min(Math.max((state.cursor ?? (by > 0 ? first - 1 : last + 1)) + by, first), last));
    const work = { ArrowRight: () => move(1), ArrowLeft: () => move(-1), "+": () => scale(0.5), "=": () => scale(0.5), "-": () => scale(2), 0: () => zoom(null),
      Escape: () => zoom(null), Enter: () => options.onpick && options.onpick(middle) }[event.key];
    if (!work) return;
    event.preventDefault();
    event.stopPropagation();
    work();
  });
}

function tickText(value, low, high) {
  const width = high - low;
  if (Math.abs(value) < width * 1e-9) return "0";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    const scale = unit === "k" ? 1e3 : size;
    if (Math.abs(value) >= size) return `${Number((value / scale).toPrecision(4))}${unit}`;
  }
  if (width < 1e-5) return Number(value.toPrecision(3)).toExponential().replace("e-", "e−");
  const digits = Math.max(0, Math.min(6, 1 - Math.floor(Math.log10(width))));
  return Number(value.toFixed(digits)).toString().replace("-", "−");
}

function nearest(line, values, step) {
  let low = 0, high = line.steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (line.steps[middle] < step) low = middle + 1; else high = middle;
  }
  if (low > 0 && step - line.steps[low - 1] <= line.steps[low] - step) low -= 1;
  return values[low];
}

export function spark(values, label) {
  const known = values.map((value, place) => [place, value]).filter(([, value]) => value !== null);
  if (known.length < 2) return h("span", { class: "spark" });
  const [low, high] = span(known.map(([, value]) => value));
  const points = known.map(([place, value]) =>
    `${((place / (values.length - 1)) * 96 + 2).toFixed(1)},${(high > low ? 20 - ((value - low) / (high - low)) * 16 : 12).toFixed(1)}`);
  return svg("svg", { class: "spark", viewBox: "0 0 100 24", width: 100, height: 24, role: "img", "aria-label": label },
    svg("polyline", { class: "line c0", points: points.join(" ") }));
}

export function histogram(numbers, label) {
  const most = Math.max(...numbers.bins, 1);
  return h("span", { class: "histogram", role: "img", "aria-label": label },
    numbers.bins.map((count) => h("i", { vars: { "--share": `${Math.max((count / most) * 100, count ? 6 : 0)}%` } })));
}
