// Two runs: what differs in their settings, their curves, and the same held-out prompts.

import { h, empty, more, number, signed, signChip, table } from "/static/dom.js";
import { ask, to } from "/static/api.js";
import { lineChart } from "/static/charts.js";

export async function comparePage(context) {
  const asked = Object.fromEntries(context.parameters);
  const found = await ask("/compare", { ...asked, limit: 20 }, context.signal);
  const pairs = h("div", { class: "pairs" }), foot = h("p", {});
  const a = found.a.name, b = found.b.name;
  function add(page) {
    pairs.append(...page.pairs.map((pair) => pairCard(pair, a, b)));
    foot.replaceChildren(page.next === null ? "" : more(`More prompts (${number(page.pairs_total)} in all)`, async () => add(await ask("/compare", { ...asked, after: page.next, limit: 20 }, context.signal))));
  }
  add(found);
  return [
    h("h1", {}, "Two runs"),
    h("p", { class: "legend" }, h("span", { class: "key c0" }, h("a", { href: to.run(found.a.key) }, a)), h("span", { class: "key c1" }, h("a", { href: to.run(found.b.key) }, b))),
    h("section", { class: "card" }, h("p", { class: "lead" }, found.verdict || found.problem),
      found.test && table(["", a, b, "b minus a", "p"], [h("tr", {}, h("td", {}, `held out, ${found.test.method}`), cell(found.test.mean_a), cell(found.test.mean_b), cell(found.test.difference, true), h("td", { class: "right" }, number(found.test.p_value)))]),
      found.test && found.test.fourfold && h("p", { class: "quiet" }, `both right ${found.test.fourfold.both} · only ${a} ${found.test.fourfold.only_a} · only ${b} ${found.test.fourfold.only_b} · neither ${found.test.fourfold.neither}`)),
    h("section", { class: "charts" }, Object.entries(found.curves).map(([name, two]) => lineChart(name, [{ name: a, ...two.a }, { name: b, ...two.b }]))),
    h("h2", {}, "Settings that differ"),
    found.differs.length ? table(["key", a, b], found.differs.map((one) => h("tr", {}, h("td", {}, h("code", {}, one.key)), h("td", {}, setting(one.a, one.in_a)), h("td", {}, setting(one.b, one.in_b))))) : empty("None."),
    h("h2", {}, "The same prompts, largest change first"), found.pairs_total ? pairs : empty(found.problem || "No prompt was answered by both."), foot].filter(Boolean);
}

function cell(found, isChange = false) {
  return h("td", { class: "right nowrap" }, isChange ? signed(found.value) : number(found.value), h("span", { class: "quiet" }, ` [${number(found.low)}, ${number(found.high)}]`));
}

function setting(value, isThere) {
  return isThere ? h("code", {}, typeof value === "string" ? value : JSON.stringify(value)) : h("span", { class: "quiet" }, "not there");
}

function pairCard(pair, a, b) {
  return h("article", { class: "card", "data-row": true }, h("h2", {}, pair.prompt, h("span", { class: "dots" }), signChip(pair.change, signed(pair.change))),
    h("div", { class: "beside two" },
      h("div", {}, h("p", { class: "key c0" }, `${a}: ${number(pair.mark_a)}`), h("pre", { class: "response" }, pair.answer_a)),
      h("div", {}, h("p", { class: "key c1" }, `${b}: ${number(pair.mark_b)}`), h("pre", { class: "response" }, pair.answer_b))));
}
