// Two runs: what differs in their settings, their curves, and the same held-out prompts.

import { h, empty, interval, more, number, plural, response, signed, signChip, table } from "/static/dom.js";
import { ask, query, to } from "/static/api.js";
import { lineChart, smoothingControl } from "/static/charts.js";
import { manyPage } from "/static/pages/many.js";

export async function comparePage(context) {
  if (context.parameters.has("run") || context.parameters.has("sweep")) return manyPage(context);
  const asked = Object.fromEntries(context.parameters);
  const found = await ask("/compare", { ...asked, limit: 20 }, context.signal);
  const pairs = h("div", { class: "pairs" }), foot = h("p", {});
  function add(page) {
    pairs.append(...page.pairs.map((pair) => pairCard(pair, found)));
    foot.replaceChildren(page.next === null ? "" : more(`More prompts (${number(page.pairs_total)} in all)`, async () => add(await ask("/compare", { ...asked, after: page.next, limit: 20 }, context.signal))));
  }
  add(found);
  const a = `A ${found.a.name}`, b = `B ${found.b.name}`;
  const at = (step) => `/compare${query({ ...asked, step })}`;
  return [
    h("h1", {}, "Two runs"),
    h("p", { class: "legend" }, h("span", { class: "key c0" }, side("A"), h("a", { href: to.run(found.a.key) }, found.a.name)), h("span", { class: "key c1" }, side("B"), h("a", { href: to.run(found.b.key) }, found.b.name))),
    h("section", { class: "card verdict" }, h("p", { class: "lead" }, found.verdict || found.problem),
      found.test && testLine(found.test),
      found.steps.length > 1 && h("p", { class: "choices" }, h("span", { class: "quiet" }, "held-out answers after"),
        found.steps.map((step) => h("a", { class: "choice", href: at(step), "aria-current": found.step_a === step && found.step_b === step ? "true" : null }, step ? plural(step, "step") : "start")))),
    smoothingControl(),
    h("section", { class: "charts" }, Object.entries(found.curves).map(([name, two]) => lineChart(found.titles[name] || name, [{ name: a, ...counted(two.a) }, { name: b, ...counted(two.b) }]))),
    h("h2", {}, "Settings that differ"),
    found.differs.length ? table(["key", a, b], found.differs.map((one) => h("tr", {}, h("td", {}, h("code", {}, one.key)), h("td", {}, setting(one.a, one.in_a)), h("td", {}, setting(one.b, one.in_b)))), { class: "stacked" }) : empty("None."),
    h("h2", {}, "The same prompts, largest change first"), found.pairs_total ? pairs : empty(found.problem || "No prompt was answered by both."), foot];
}

const counted = (curve) => ({ ...curve, steps: curve.steps.map((step) => step + 1) });

const side = (letter) => [h("span", { class: `side-mark ${letter === "A" ? "c0" : "c1"}` }, letter), " "];

function testLine(test) {
  const figure = (label, estimate, show) => h("span", {}, label, " ", interval({ ...estimate, prompts: estimate.size }, show));
  return [h("p", { class: "figures" }, figure(side("A"), test.mean_a, number), figure(side("B"), test.mean_b, number), figure("B − A", test.difference, signed),
      h("span", {}, "p ", h("b", {}, number(test.p_value, 3)), ` (${test.method.replaceAll("_", " ")})`)),
    test.fourfold && h("p", { class: "quiet" }, `both right ${test.fourfold.both} · only A ${test.fourfold.only_a} · only B ${test.fourfold.only_b} · neither ${test.fourfold.neither}`)];
}

function setting(value, isThere) {
  return isThere ? h("code", {}, typeof value === "string" ? value : JSON.stringify(value)) : h("span", { class: "quiet" }, "not there");
}

function pairCard(pair, found) {
  const answer = (letter, line, mark, text) => h("div", {},
    h("p", {}, side(letter), h("a", { href: to.prompt(line.key, pair.task) }, line.name), ` ${number(mark, 3)}`), response(text));
  return h("article", { class: "card", "data-row": true }, h("div", { class: "head" }, h("h2", {}, pair.prompt), signChip(pair.change, signed(pair.change))),
    h("div", { class: "beside two" }, answer("A", found.a, pair.mark_a, pair.answer_a), answer("B", found.b, pair.mark_b, pair.answer_b)));
}
