// Judges measured: accuracy with intervals, confusion, and where they disagree with the label.

import { h, chip, empty, more, number, percent, table } from "/static/dom.js";
import { ask, to } from "/static/api.js";
import { rewardTree } from "/static/pages/reward.js";

const KINDS = { disagree: "wrong", tie: "ties", failed: "no verdict", agree: "right", unlabelled: "no label" };

export async function benchesPage(context) {
  const found = await ask("/benches", {}, context.signal);
  return [h("h1", {}, "Judges"),
    h("p", { class: "quiet" }, found.folder ? `Result files of burnish judge and burnish bench in ${found.folder}` : ""),
    found.benches.length ? table(["file", "benchmark", "judges", { text: "items", class: "right" }], found.benches.map((one) => h("tr", { "data-row": true },
      h("td", {}, h("a", { class: "strong", href: to.bench(one.key) }, one.key), one.problem && h("p", { class: "problem" }, one.problem)),
      h("td", {}, one.benches.join(", ")), h("td", {}, one.judges.join(", ")), h("td", { class: "right" }, number(one.items)))))
      : empty("No results here yet. Make some: burnish bench llmbar --data FILE --with direct --model smollm2 --out results.jsonl")];
}

export async function benchPage(context) {
  const key = context.parameters.get("key");
  const there = `/benches/${encodeURIComponent(key)}`;
  const found = await ask(there, {}, context.signal);
  const list = h("div", {}), foot = h("p", {});
  const chosen = { kind: context.parameters.get("kind") || "disagree", judge: context.parameters.get("judge") || "", subset: context.parameters.get("subset") || "" };
  const address = (words) => `/bench?${new URLSearchParams(Object.entries({ key, ...chosen, ...words }).filter(([, value]) => value))}`;
  async function load(after) {
    const page = await ask(`${there}/items`, { ...chosen, after, limit: 20 }, context.signal);
    list.append(...page.items.map(itemCard));
    foot.replaceChildren(page.next === null ? "" : more(`More (${number(page.count)} in all)`, () => load(page.next)));
    if (!page.count) list.append(empty("None."));
  }
  await load();
  return [h("h1", {}, key),
    found.judges.map(judgeBlock),
    h("h2", {}, "Items"),
    h("p", { class: "choices" }, Object.entries(KINDS).map(([name, label]) => h("a", { class: "choice", href: address({ kind: name }), "aria-current": chosen.kind === name ? "true" : null }, label)),
      found.judges.length > 1 && [h("span", { class: "quiet" }, " of "), h("a", { class: "choice", href: address({ judge: "" }), "aria-current": chosen.judge ? null : "true" }, "all judges"),
        found.judges.map((one) => h("a", { class: "choice", href: address({ judge: one.judge }), "aria-current": chosen.judge === one.judge ? "true" : null }, one.judge))]),
    list, foot].flat();
}

function judgeBlock(one) {
  const share = (found) => (found ? `${percent(found.value)} [${percent(found.low)}, ${percent(found.high)}]` : "–");
  const labels = [...new Set(one.confusion.map((cell) => cell.label))].sort(), choices = [...new Set(one.confusion.map((cell) => cell.choice))].sort();
  const count = (label, choice) => (one.confusion.find((cell) => cell.label === label && cell.choice === choice) || { count: 0 }).count;
  const subsets = Object.entries(one.subsets);
  return h("section", { class: "card" }, h("h2", {}, one.judge, h("span", { class: "quiet" }, ` ${one.bench}`)),
    h("p", { class: "figures" }, h("span", {}, h("b", {}, share(one.shares.all)), " of all"), h("span", {}, h("b", {}, share(one.shares.decided)), " of decided"), h("span", {}, h("b", {}, share(one.shares.valid)), " of valid"),
      h("span", {}, h("b", {}, number(one.shares.ties)), " ties"), h("span", {}, h("b", {}, number(one.shares.failed)), " without a verdict")),
    h("div", { class: "beside two" },
      h("div", {}, h("h3", {}, "Label (rows) and choice"), table(["", ...choices.map((text) => ({ text, class: "right" }))], labels.map((label) => h("tr", {}, h("th", { scope: "row" }, label), choices.map((choice) => h("td", { class: `right ${label === choice ? "good" : ""}` }, number(count(label, choice)))))), { class: "matrix" })),
      subsets.length > 1 && h("div", {}, h("h3", {}, "Subsets"), table(["", { text: "right of all", class: "right" }, { text: "items", class: "right" }], subsets.map(([name, shares]) => h("tr", {}, h("td", {}, name), h("td", { class: "right" }, share(shares.all)), h("td", { class: "right" }, number(shares.items))))))));
}

function itemCard(item) {
  return h("article", { class: "card", "data-row": true },
    h("p", { class: "line" }, h("code", {}, item.id), h("span", { class: "quiet" }, ` ${item.judge} · ${item.subset}`), h("span", { class: "dots" }),
      h("span", {}, `said ${item.choice}, label ${item.label}`), item.status !== "ok" && chip(item.status)),
    item.reason && h("p", { class: "reason" }, item.reason),
    h("details", {}, h("summary", {}, "what the judge said"), (item.rewards || []).map((reward) => rewardTree(reward))));
}
