// Elements, numbers and texts. Everything that came from a run goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, set] of Object.entries(value)) node.style.setProperty(key, set);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// A whole number as it is, others with three digits; with `digits` always so many, for columns that line up.
export function number(value, digits = undefined) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value), places = digits ?? 3;
  if (Number.isInteger(value) && (digits === undefined || size >= 1000)) return value.toLocaleString("en");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 10 ** -places) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 1 : places);
}

export function plural(count, one, several = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : several}`;
}

export function signed(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return (value > 0 ? "+" : value < 0 ? "−" : "") + number(Math.abs(value), digits);
}

// A mean with its 95 % interval where that says something, and what speaks against it.
export function interval(found, show = number) {
  const range = found.low !== null && found.low < found.high && found.prompts !== 1 ? ` [${show(found.low, 3)}, ${show(found.high, 3)}]` : "";
  return [h("b", {}, show(found.value, 3)), h("span", { class: "quiet interval" }, range), found.doubt && h("span", { class: "doubt" }, ` ${found.doubt}`)];
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`;
}

export function when(text) {
  return text ? text.slice(0, 16).replace("T", " ") : "";
}

export function chip(text, kind = "") {
  return h("span", { class: `chip ${kind || text}` }, text.replaceAll("_", " "));
}

export function signChip(value, text = number(value, 3)) {
  const kind = value === null || value === undefined ? "none" : value > 0 ? "good" : value < 0 ? "bad" : "even";
  return h("span", { class: `figure ${kind}` }, text);
}

// The excerpt of a text, with what was searched for marked.
export function excerpt(part) {
  const dots = (shown) => (shown ? "…" : "");
  const rest = part.start + part.text.length < part.of;
  if (!part.match) return [dots(part.start > 0), part.text, dots(rest)];
  const [from, to] = part.match;
  return [dots(part.start > 0), part.text.slice(0, from), h("mark", {}, part.text.slice(from, to)), part.text.slice(to), dots(rest)];
}

export function response(text) {
  return h("pre", { class: "response" }, text.trim() ? text : h("span", { class: "quiet" }, text ? "(only blanks)" : "(empty)"));
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}

export function table(heads, rows, options = {}) {
  return h("div", { class: "scroll" },
    h("table", { class: options.class || "" },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: head.class }, head.text ?? head)))),
      h("tbody", {}, rows)));
}

export function more(label, load) {
  const button = h("button", { type: "button", class: "more", onclick: async () => {
    button.disabled = true;
    try { await load(button); } finally { button.disabled = false; }
  } }, label);
  return button;
}
