// Line charts and small bars, drawn at the size they are shown at.

import { h, svg, number } from "/static/dom.js";

const LEFT = 50, RIGHT = 14, TOP = 10, BOTTOM = 24;

// Six colours; the seventh line has the first one again, and dashes.
export function colour(place) {
  return `c${place % 6}${place >= 6 ? " dashed" : ""}`;
}

export function ticks(low, high, most = 5) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const base = 10 ** Math.floor(Math.log10(span / most));
  const step = [1, 2, 5, 10].map((scale) => base * scale).find((size) => span / size <= most);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step);
  return found;
}

// The first and the last step, and round ones between that stand well apart from them.
function stepTicks(first, last, width) {
  if (first === last) return [first];
  const room = ((last - first) * 48) / width;
  const between = ticks(first, last, Math.max(2, Math.floor(width / 90)))
    .filter((step) => Number.isInteger(step) && step - first >= room && last - step >= 1.6 * room);
  return [first, ...between, last];
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

// lines: [{name, steps, values}], with low and high where a line has a band; options: bars [{step, low, high}], range, dots, height, onpick
export function lineChart(title, lines, options = {}) {
  const drawn = lines.map((line, place) => ({ ...line, place })).filter((line) => line.steps.length > 0);
  const holder = h("div", { class: "canvas" });
  const readout = h("span", { class: "readout", "aria-live": "off" });
  const figure = h("figure", { class: "chart" },
    h("figcaption", {}, h("span", { class: "title" }, title), readout),
    holder,
    drawn.length > 1 && h("p", { class: "legend" }, drawn.map((line) => h("span", { class: `key ${colour(line.place)}` }, line.name))));
  if (!drawn.length) {
    holder.append(h("p", { class: "empty" }, "nothing yet"));
    return figure;
  }
  const bars = options.bars || [];
  const [first, last] = span(drawn.flatMap((line) => [line.steps[0], line.steps[line.steps.length - 1]]));
  const [lowest, highest] = span(drawn.flatMap((line) => line.values.concat(line.low || [], line.high || [])).concat(bars.flatMap((bar) => [bar.low, bar.high])));
  const [low, high] = options.range || padded(lowest, highest);

  function paint(width) {
    const height = options.height || 180;
    const wide = Math.max(width - LEFT - RIGHT, 1);
    const x = (value) => LEFT + (last > first ? (value - first) / (last - first) : 0.5) * wide;
    const y = (value) => TOP + (1 - (value - low) / (high - low)) * (height - TOP - BOTTOM);
    const stepAt = (event) => {
      const share = (event.clientX - picture.getBoundingClientRect().left - LEFT) / wide;
      return Math.round(first + Math.min(Math.max(share, 0), 1) * (last - first));
    };
    const rule = svg("line", { class: "rule", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${title || drawn[0].name}, steps ${first} to ${last}, from ${number(lowest)} to ${number(highest)}` },
      ticks(low, high).map((value) => [
        svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
        svg("text", { class: "axis", x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, tickText(value, low, high)),
      ]),
      stepTicks(first, last, wide).map((step, i, all) => svg("text", { class: "axis", x: x(step), y: height - 7,
        "text-anchor": first === last || (i > 0 && i < all.length - 1) ? "middle" : i === 0 ? "start" : "end" }, i === all.length - 1 ? `step ${step}` : `${step}`)),
      bars.map((bar) => svg("line", { class: "bar", x1: x(bar.step), x2: x(bar.step), y1: y(bar.low), y2: y(bar.high) })),
      drawn.map((line) => line.low && svg("polygon", { class: `band c${line.place % 6}`,
        points: [...line.steps.map((step, n) => [step, line.high[n]]), ...line.steps.map((step, n) => [step, line.low[n]]).reverse()].map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ") })),
      drawn.map((line) => [
        svg("polyline", { class: `line ${colour(line.place)}`, points: line.steps.map((step, n) => `${x(step).toFixed(1)},${y(line.values[n]).toFixed(1)}`).join(" ") }),
        (line.steps.length === 1 || options.dots) && line.steps.map((step, n) => svg("circle", { class: `dot c${line.place % 6}`, cx: x(step), cy: y(line.values[n]), r: 3 })),
      ]),
      rule);
    picture.addEventListener("pointermove", (event) => {
      const at = stepAt(event);
      rule.setAttribute("x1", x(at)); rule.setAttribute("x2", x(at)); rule.setAttribute("visibility", "visible");
      readout.textContent = `step ${at}: ` + drawn.map((line) => number(nearest(line, at))).join("  ·  ");
    });
    picture.addEventListener("pointerleave", () => { rule.setAttribute("visibility", "hidden"); readout.textContent = ""; });
    if (options.onpick) {
      picture.classList.add("pick");
      picture.addEventListener("click", (event) => options.onpick(stepAt(event)));
    }
    holder.replaceChildren(picture);
  }

  let known = 0;
  new ResizeObserver((entries) => {
    const width = Math.floor(entries[0].contentRect.width);
    if (width > 0 && width !== known) { known = width; paint(width); }
  }).observe(holder);
  return figure;
}

function tickText(value, low, high) {
  const width = high - low;
  if (Math.abs(value) < width * 1e-9) return "0";
  if (Math.abs(value) >= 100000) return value.toExponential(0);
  const digits = Math.max(0, Math.min(6, 1 - Math.floor(Math.log10(width))));
  return Number(value.toFixed(digits)).toString();
}

function nearest(line, step) {
  let low = 0, high = line.steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (line.steps[middle] < step) low = middle + 1; else high = middle;
  }
  if (low > 0 && step - line.steps[low - 1] <= line.steps[low] - step) low -= 1;
  return line.values[low];
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
