// A plan of calls: the answer with its calls marked, each call with what was found, what is missing.

import { h, chip, plural } from "/static/dom.js";

export function planBlock(found) {
  const { plan } = found;
  const figures = Object.entries(plan.metrics).filter(([, value]) => value !== null);
  return h("section", { class: "card plan" }, h("h2", {}, "Plan: calls that are there, and what is missing"),
    h("p", { class: "quiet" }, plural(plan.items.length + found.more, "call"), figures.map(([name, value]) => ` · ${name} ${Number(value.toFixed(3))}`),
      plan.unjudged > 0 && ` · ${plan.unjudged} without a verdict`),
    h("p", { class: "planned" }, found.pieces.map((piece) => piece.call ? h("mark", { title: plan.items[piece.call - 1].reason }, `[${piece.call} ${plan.items[piece.call - 1].kind}]`) : piece.text)),
    plan.items.length > 0 && h("table", {}, h("thead", {}, h("tr", {}, ["", "call", "arguments", "verdict", "why"].map((name) => h("th", {}, name)))),
      h("tbody", {}, plan.items.map(row))),
    found.more > 0 && h("p", { class: "quiet" }, `and ${plural(found.more, "further call")}`),
    missed(plan), plan.dropped.length > 0 && h("p", { class: "quiet" }, `named as missing, but there: ${plan.dropped.join("; ")}`),
    plan.warnings.length > 0 && h("p", { class: "quiet" }, plan.warnings.join("; ")));
}

function row(item, place) {
  const [word, tone] = !item.valid ? ["not valid", "bad"] : item.correct === null ? ["no verdict", ""] : item.correct ? ["right", "ok"] : ["wrong", "bad"];
  return h("tr", { class: item.correct === false ? "fails" : "" }, h("td", {}, String(place + 1)), h("td", {}, item.kind), h("td", {}, item.value),
    h("td", {}, chip(word, tone)), h("td", {}, item.reason));
}

function missed(plan) {
  if (plan.missed === null) return h("p", {}, "What is missing is not known: the judge of it failed.");
  if (!plan.missed.length) return h("p", { class: "quiet" }, "Nothing is missing.");
  return h("div", {}, h("h3", {}, `Missing: ${plan.missed.length}`),
    h("ul", {}, plan.missed.map((gap) => h("li", {}, h("strong", {}, gap.where), ` ${gap.intent}`, gap.kind && ` (${gap.kind})`, gap.reason && ` · ${gap.reason}`))));
}
