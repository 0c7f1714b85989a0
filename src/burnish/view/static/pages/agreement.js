// How far the rewards of a step agree: correlation and conflict of every two, as a small matrix.

import { h, number } from "/static/dom.js";

// `values`: metrics of one step by name. Nothing where there are fewer than two rewards.
export function agreement(values) {
  const names = Object.keys(values).filter((name) => /^reward\/.+\/mean$/.test(name)).map((name) => name.slice(7, -5));
  const pair = (kind, a, b) => values[`reward/${kind}/${a}~${b}`] ?? values[`reward/${kind}/${b}~${a}`];
  const known = names.filter((a) => names.some((b) => a !== b && (pair("corr", a, b) !== undefined || pair("conflict", a, b) !== undefined)));
  if (known.length < 2) return null;
  return h("section", { class: "agreement" }, h("h2", {}, "Do the rewards agree?"),
    h("p", { class: "quiet" }, "Correlation over answers to the same prompts; below it the share of pairs of answers that two rewards put in opposite order."),
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}), known.map((name) => h("th", { class: "right", scope: "col" }, name)))),
      h("tbody", {}, known.map((row) => h("tr", {}, h("th", { scope: "row" }, row), known.map((column) => cell(row, column, pair))))))));
}

function cell(row, column, pair) {
  if (row === column) return h("td", { class: "right quiet" }, "·");
  const corr = pair("corr", row, column), conflict = pair("conflict", row, column);
  const said = `${row} and ${column}: correlation ${corr === undefined ? "unknown" : number(corr, 2)}, conflict ${conflict === undefined ? "unknown" : `${number(100 * conflict, 0)} %`}`;
  return h("td", { class: "right", title: said },
    h("b", {}, corr === undefined ? "–" : number(corr, 2)),
    h("br", {}), h("span", { class: "quiet" }, conflict === undefined ? "–" : `${number(100 * conflict, 0)} %`));
}
