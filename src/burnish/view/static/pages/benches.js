// Judges measured: accuracy with intervals, confusion, and where they disagree with the label.

import { h, chip, empty, more, number, percent, plural, response, table } from "/static/dom.js";
import { ask, query, to } from "/static/api.js";
import { rewardTree } from "/static/pages/reward.js";

const KINDS = { disagree: "wrong", tie: "ties", failed: "no verdict", agree: "right", unlabelled: "no label" };
const WORDS = { 1: "first", 2: "second", 3: "third", 4: "fourth" };

export async function benchesPage(context) {
  const found = await ask("/benches", {}, context.signal);
  return [h("h1", {}, "Judges"),
    h("p", { class: "quiet" }, found.folder ? ["Result files in ", h("code", {}, found.folder), ": those of burnish bench, and of burnish judge with ", h("code", {}, "--out results/NAME.jsonl"),
      ". Without it burnish judge keeps no verdicts, and burnish judge probe never does: their calls are in the file that ", h("code", {}, "--record"), " names."] : ""),
    found.benches.length ? table(["file", "benchmark", "judge", { text: "accuracy, 95 % interval", class: "right" }, { text: "items", class: "right" }], found.benches.map((one) => h("tr", { "data-row": true },
      h("td", {}, one.calls ? [h("span", { class: "strong" }, one.key), h("p", { class: "quiet" }, "a record of calls: burnish judge FILE --replay answers from it, with --out it becomes a result")]
        : one.problem ? [h("span", { class: "strong" }, one.key), h("p", { class: "problem" }, one.problem)] : h("a", { class: "strong", href: to.bench(one.key) }, one.key)),
      h("td", {}, one.benches.join(", ")), h("td", {}, one.judges.map((name) => h("p", {}, name))),
      h("td", { class: "right nowrap" }, one.accuracy.map((share) => h("p", {}, share ? shareText(share) : h("span", { class: "quiet" }, "no labels")))), h("td", { class: "right" }, one.calls ? plural(one.calls, "call") : number(one.items)))), { class: "benches" })
      : empty("No results here yet. Make some: burnish bench llmbar --data FILE --with direct --model smollm2")];
}

export async function benchPage(context) {
  const key = context.parameters.get("key");
  const there = `/benches/${encodeURIComponent(key)}`;
  const found = await ask(there, {}, context.signal);
  const list = h("div", {}), foot = h("p", {});
  // A file without labels, or of a judge that rates single answers, has nothing wrong: begin with what it has.
  const first = Object.keys(KINDS).find((kind) => found.judges.some((one) => one.kinds[kind])) || "disagree";
  const isRating = found.judges.every((one) => one.is_rating);
  const kindWord = (kind) => (isRating && kind === "unlabelled" ? "rated" : KINDS[kind]);
  const chosen = { kind: context.parameters.get("kind") || first, judge: context.parameters.get("judge") || "", subset: context.parameters.get("subset") || "" };
  const address = (words) => `/bench${query({ key, ...chosen, ...words })}`;
  const count = (kind) => found.judges.filter((one) => !chosen.judge || one.judge === chosen.judge).reduce((sum, one) => sum + (one.kinds[kind] || 0), 0);
  const choice = (words, label, isCurrent) => h("a", { class: "choice", href: address(words), "aria-current": isCurrent ? "true" : null }, label);
  async function load(after) {
    const page = await ask(`${there}/items`, { ...chosen, after, limit: 20 }, context.signal);
    list.append(...page.items.map(itemCard));
    foot.replaceChildren(page.next === null ? "" : more(`More (${number(page.count)} in all)`, () => load(page.next)));
    if (!page.count) list.append(empty("None."));
  }
  await load();
  return [h("h1", {}, key),
    found.judges.map((one) => judgeBlock(one, (subset) => address({ judge: one.judge, subset }))),
    h("h2", {}, "Items"),
    h("p", { class: "choices" }, Object.entries(KINDS).filter(([name]) => count(name) || name === chosen.kind).map(([name]) => choice({ kind: name }, `${kindWord(name)} ${number(count(name))}`, chosen.kind === name))),
    found.judges.length > 1 && h("p", { class: "choices" }, choice({ judge: "" }, "all judges", !chosen.judge), found.judges.map((one) => choice({ judge: one.judge }, one.judge, chosen.judge === one.judge))),
    chosen.subset && h("p", { class: "choices" }, h("span", { class: "quiet" }, "only the subset"), h("a", { class: "choice", href: address({ subset: "" }), "aria-current": "true" }, `${chosen.subset} ×`)),
    list, foot].flat();
}

function shareText(found) {
  return `${percent(found.value)} [${percent(found.low)}, ${percent(found.high)}]${found.doubt ? ` ${found.doubt}` : ""}`;
}

function judgeBlock(one, toSubset) {
  const share = (found) => (found ? shareText(found) : "–");
  const labels = [...new Set(one.confusion.map((cell) => cell.label))].sort();
  const choices = [...new Set([...labels, ...one.confusion.map((cell) => cell.choice)])].sort();
  const count = (label, choice) => (one.confusion.find((cell) => cell.label === label && cell.choice === choice) || { count: 0 }).count;
  const cell = (label, choice) => h("td", { class: `right ${!count(label, choice) ? "zero" : label === choice ? "good" : "bad"}`, vars: { "--heat": "20%" } }, number(count(label, choice)));
  const subsets = Object.entries(one.subsets);
  return h("section", { class: "card" }, h("h2", {}, one.judge, h("span", { class: "quiet" }, ` ${one.bench}`)),
    h("p", { class: "figures" }, one.is_rating ? h("span", {}, h("b", {}, one.mean === null ? "–" : number(one.mean, 2)), ` mean value of ${plural(one.kinds.unlabelled + one.kinds.agree, "answer")}`)
      : [h("span", {}, h("b", {}, share(one.shares.all)), " right of all"), h("span", {}, h("b", {}, share(one.shares.decided)), " of decided"), h("span", {}, h("b", {}, share(one.shares.valid)), " of valid"),
        h("span", {}, h("b", {}, number(one.shares.ties)), one.shares.ties === 1 ? " tie" : " ties")], h("span", {}, h("b", {}, number(one.shares.failed)), " without a verdict"),
      one.cost_usd > 0 && h("span", {}, h("b", {}, `$${one.cost_usd.toFixed(2)}`))),
    h("div", { class: "blocks" },
      labels.length > 0 && h("div", {}, h("h3", {}, "Label (rows) and what the judge chose"), table(["", ...choices.map((text) => ({ text: WORDS[text] || text, class: "right" }))],
        labels.map((label) => h("tr", {}, h("th", { scope: "row" }, WORDS[label] || label), choices.map((choice) => cell(label, choice)))), { class: "matrix" })),
      subsets.length > 1 && h("div", {}, h("h3", {}, "Subsets"), table(["subset", { text: "right of all", class: "right" }, { text: "items", class: "right" }],
        subsets.map(([name, shares]) => h("tr", {}, h("td", {}, h("a", { href: toSubset(name) }, name || "none")), h("td", { class: "right nowrap" }, share(shares.all)), h("td", { class: "right" }, number(shares.items)))), { class: "matrix" }))));
}

function itemCard(item) {
  const rated = item.values.length === 1;
  const said = item.choice === "none" ? "no verdict" : rated ? `rated ${number(item.values[0], 2)}` : `said ${WORDS[item.choice] || item.choice}`;
  return h("article", { class: "card", "data-row": true },
    h("p", { class: "line" }, h("code", {}, item.id), h("span", { class: "quiet" }, [item.judge, item.subset].filter(Boolean).join(" · ")), h("span", { class: "dots" }),
      h("span", {}, item.label === "none" ? said : `${said}, label ${WORDS[item.label] || item.label}`), item.status !== "ok" && chip(item.status)),
    item.prompt && h("div", { class: "message user" }, h("p", { class: "role" }, "question"), h("pre", {}, item.prompt)),
    item.responses.length > 0 && h("div", { class: "beside" }, item.responses.map((text, place) => answerCard(item, text, place))),
    item.reason && h("p", { class: "reason" }, item.reason),
    (item.rewards || []).length > 0 && h("details", {}, h("summary", {}, `what the judge said (${plural(item.rewards.length, "reward")})`), item.rewards.map((reward) => rewardTree(reward))));
}

// One response with what was said of it: the judge's value and choice, and the label.
function answerCard(item, text, place) {
  const isRated = item.values.length === 1;
  const name = isRated ? "answer" : WORDS[place + 1] || `response ${place + 1}`;
  return h("div", {}, h("p", { class: "line" }, h("span", { class: "strong" }, name), !isRated && item.chosen.includes(place) && chip("judge chose this", "note"), item.best.includes(place) && chip("label", "ok"),
    h("span", { class: "dots" }), h("span", { class: "figure" }, number(item.values[place], 2))), response(text));
}
