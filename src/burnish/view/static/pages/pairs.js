// Pairs of a reward model: two answers side by side with their scores and attributes, wrong ones first.

import { h, chip, empty, interval, more, number, percent, plural, response, signChip, signed, table } from "/static/dom.js";
import { ask, run, stepNumber, storedStep, to } from "/static/api.js";

const SORTS = { wrong: "most wrong first", close: "closest scores first", right: "most right first" };
const OUTCOMES = { wrong: "wrong", right: "right", equal: "equal scores", tie: "tie by its label" };
const KINDS = { wrong: "bad", right: "ok", equal: "note", tie: "equal" };
const NAMES = { tokens: "tokens", characters: "characters", markdown: "markdown marks", agreement: "begins by agreeing" };
const nameOf = (name) => NAMES[name] || name;

export async function pairsPage(context) {
  const key = context.key, asked = context.parameters;
  const split = asked.get("split") || "eval:held_out", isEval = split.startsWith("eval:");
  const chosen = { number: asked.get("number"), split: asked.get("split"), sort: asked.get("sort"), outcome: asked.get("outcome") };
  const step = chosen.number === null ? null : chosen.number === "start" ? 0 : storedStep(Number(chosen.number), split);
  const list = h("div", {}), foot = h("p", {});
  async function load(after) {
    const found = await ask(run(key, "/pairs"), { step, split: chosen.split, sort: chosen.sort, outcome: chosen.outcome, after, limit: 20 }, context.signal);
    list.append(...found.pairs.map((line) => pairCard(key, line)));
    foot.replaceChildren(found.next === null ? "" : more(`More pairs (${number(found.count)} in all)`, () => load(found.next)));
    return found;
  }
  const found = await load();
  const total = Object.values(found.outcomes).reduce((sum, count) => sum + count, 0);
  const labelled = total - found.outcomes.tie;
  const right = found.outcomes.right + found.outcomes.equal / 2;
  const choice = (words, label, isCurrent) => h("a", { class: "choice", href: to.pairs(key, { ...chosen, ...words }), "aria-current": isCurrent ? "true" : null }, label);
  const there = (one) => stepNumber(one, split) || "start";
  context.keys.u = () => context.go(to.run(key));
  return [
    h("h1", {}, isEval ? `Held-out pairs, ${found.number ? `after ${plural(found.number, "step")}` : "before training"}` : `Pairs of step ${number(found.number)}`),
    h("p", { class: "lead" }, labelled > 0 && [found.score ? interval(found.score) : h("b", {}, number(right / labelled, 3)), ` of ${plural(labelled, "pair")} right: the answer that the label prefers got the higher score.`]),
    isEval && found.steps.length > 1 && h("p", { class: "choices" }, h("span", { class: "quiet" }, "after"),
      found.steps.map((one) => choice({ number: there(one) }, one ? plural(one, "step") : "start", one === found.step))),
    found.attributes.length > 0 && attributeTable(found.attributes),
    h("p", { class: "choices" }, choice({ outcome: null }, `all ${number(total)}`, !chosen.outcome),
      Object.entries(OUTCOMES).filter(([name]) => found.outcomes[name]).map(([name, label]) => choice({ outcome: name }, `${label} ${number(found.outcomes[name])}`, chosen.outcome === name))),
    h("p", { class: "choices" }, h("span", { class: "quiet" }, "order"),
      Object.entries(SORTS).map(([name, label]) => choice({ sort: name }, label, (chosen.sort || "wrong") === name))),
    found.pairs.length ? list : empty("No pair fits."), foot].filter(Boolean);
}

function attributeTable(lines) {
  const right = (text) => ({ text, class: "right" });
  const share = (head, value) => h("td", { class: "right", "data-head": head }, percent(value));
  return h("section", { class: "card" }, h("h2", {}, "What the scores go with"),
    h("p", { class: "quiet" }, "Pairs in which one answer has more of it. A model that judges by an attribute scores that answer higher more often than the label prefers it, and is right less often where the label prefers the other one."),
    table(["attribute", right("pairs that differ"), right("label prefers more"), right("higher score has more"), right("right where more is preferred"), right("right where less is")],
      lines.map((line) => h("tr", {}, h("td", {}, nameOf(line.name)), h("td", { class: "right", "data-head": "pairs that differ" }, number(line.pairs)),
        share("label prefers more", line.label_more), share("higher score has more", line.score_more), share("right where more is preferred", line.right_more), share("right where less is", line.right_less))), { class: "stacked" }));
}

function pairCard(key, line) {
  return h("article", { class: "card pair", "data-row": true },
    h("div", { class: "head" }, h("h2", {}, h("a", { href: to.sample(key, line.name) }, line.prompt || line.task)), outcomeChip(line.pair)),
    sides(line.pair));
}

const outcomeChip = (pair) => h("span", { class: "nowrap" }, chip(OUTCOMES[pair.outcome], KINDS[pair.outcome]), " margin ", signChip(pair.margin, signed(pair.margin)));

function sides(pair) {
  const isPreferred = (name) => pair.target !== 0.5 && (name === "chosen") === (pair.target > 0.5);
  const isHigher = (name) => pair.margin !== 0 && (name === "chosen") === (pair.margin > 0);
  const side = (name, one) => h("div", { class: "pair-side" },
    h("p", { class: "line" }, h("span", { class: "strong" }, name), isPreferred(name) && chip("label", "ok"), isHigher(name) && chip("higher score", "note"),
      h("span", { class: "dots" }), h("span", { class: "figure" }, signed(one.score))),
    response(one.text + (one.text.length < one.of ? "…" : "")),
    h("p", { class: "quiet" }, pair.attributes.map((found) => counted(found.name, found[name])).filter(Boolean).join(" · ")));
  return h("div", { class: "beside two" }, side("chosen", pair.chosen), side("rejected", pair.rejected));
}

// `12 tokens`; what an answer does or does not do is said where it does.
function counted(name, value) {
  if (name === "agreement") return value ? nameOf(name) : "";
  return `${number(value)} ${value === 1 ? nameOf(name).replace(/s$/, "") : nameOf(name)}`;
}

// The whole pair, above an answer's own page.
export function pairBlock(pair) {
  const label = pair.target === 0.5 ? "a tie by its label" : `${number(pair.target)} by its label`;
  return h("section", { class: "card pair" },
    h("div", { class: "head" }, h("h2", {}, "The pair"), outcomeChip(pair)),
    sides(pair),
    h("p", { class: "reason" }, `By the scores the chosen answer is better with probability ${number(pair.probability, 3)}; ${label}.`),
    table(["attribute", { text: "chosen", class: "right" }, { text: "rejected", class: "right" }], pair.attributes.map((one) => h("tr", {}, h("td", {}, nameOf(one.name)), cell(one.chosen, one.rejected), cell(one.rejected, one.chosen))), { class: "matrix" }));
}

// The larger of the two stands out.
function cell(value, other) {
  return h("td", { class: "right" }, value > other ? h("b", {}, number(value)) : number(value));
}
