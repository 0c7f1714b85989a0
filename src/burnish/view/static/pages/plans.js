// A plan of calls: the answer with its calls marked, each call with what was found, what is missing.

import { h, chip, plural, table } from "/static/dom.js";

export function planBlock(found) {
  const { plan } = found;
  const figures = Object.entries(plan.metrics).filter(([, value]) => value !== null);
  const noun = plan.items.length && plan.items.every((item) => item.kind === "citation") ? "citation" : "call";
  return h("section", { class: "card plan" }, h("h2", {}, `Plan: ${noun}s that are there, and what is missing`),
    h("p", { class: "quiet" }, plural(plan.items.length + found.more, noun), figures.map(([name, value]) => ` · ${name} ${Number(value.toFixed(3))}`),
      plan.unjudged > 0 && ` · ${plan.unjudged} without a verdict`),
    h("p", { class: "planned" }, found.pieces.map((piece) => piece.call ? call(plan.items[piece.call - 1], piece.call) : piece.text)),
    plan.items.length > 0 && table(["", noun, "arguments", "verdict", "why"], plan.items.map(row), { class: "stacked" }),
    found.more > 0 && h("p", { class: "quiet" }, `and ${plural(found.more, `further ${noun}`)}`),
    missed(plan), plan.dropped.length > 0 && h("p", { class: "quiet" }, `named as missing, but there: ${plan.dropped.join("; ")}`),
    plan.warnings.length > 0 && h("p", { class: "quiet" }, plan.warnings.join("; ")));
}

function verdict(item) {
  return !item.valid ? ["not valid", "bad"] : item.correct === null ? ["no verdict", ""] : item.correct ? ["right", "ok"] : ["wrong", "bad"];
}

// A call in its place, in the colour of its verdict.
function call(item, place) {
  const [word, tone] = verdict(item);
  return h("mark", { class: tone, title: [word, item.reason].filter(Boolean).join(": ") }, `[${place} ${item.kind}]`);
}

function row(item, place) {
  const [word, tone] = verdict(item);
  return h("tr", { class: item.correct === false ? "fails" : "" }, h("td", {}, String(place + 1)), h("td", {}, item.kind), h("td", { class: "code" }, item.value),
    h("td", {}, chip(word, tone)), h("td", {}, item.reason));
}

function missed(plan) {
  if (plan.missed === null) return h("p", {}, "What is missing is not known: the judge of it failed.");
  if (!plan.missed.length) return h("p", { class: "quiet" }, "Nothing is missing.");
  return h("div", {}, h("h3", {}, `Missing: ${plan.missed.length}`),
    h("ul", {}, plan.missed.map((gap) => h("li", {}, h("strong", {}, gap.where), ` ${gap.intent}`, gap.kind && ` (${gap.kind})`, gap.reason && ` · ${gap.reason}`))));
}
