// All runs: where each stands, how its reward moved, its held-out scores.

import { h, chip, empty, number, table, when } from "/static/dom.js";
import { ask, to } from "/static/api.js";
import { spark } from "/static/charts.js";

export async function runsPage(context) {
  const holder = h("div", {});
  const chosen = new Set();
  const compare = h("a", { class: "button quiet", hidden: true }, "Compare the two");

  function mark(key, on) {
    if (on) chosen.add(key); else chosen.delete(key);
    const [a, b] = [...chosen];
    compare.hidden = chosen.size !== 2;
    if (chosen.size === 2) compare.setAttribute("href", to.compare(a, b));
  }

  function draw(found) {
    const list = [...found.runs].reverse();
    holder.replaceChildren(
      list.length
        ? table(["", "run", "status", { text: "steps", class: "right" }, "reward", { text: "held out", class: "right" }, "recipe", "started"],
            list.map((line) => row(line, chosen.has(line.key), mark)), { class: "runs" })
        : empty("No runs here yet. Start one: burnish train"),
      found.skipped_total > 0 && h("details", {}, h("summary", {}, `${found.skipped_total} folders are no runs`),
        h("ul", {}, found.skipped.map((one) => h("li", {}, `${one.name}: ${one.line}`)))) || "");
  }

  draw(await ask("/runs", {}, context.signal));
  context.every(3, async () => {
    const found = await ask("/runs", {}, context.signal).catch(() => null);
    if (found && !holder.contains(document.activeElement)) draw(found);
  });
  return [h("div", { class: "head" }, h("h1", {}, "Runs"), compare), holder];
}

function row(line, isChosen, mark) {
  const scores = [line.held_out_first, line.held_out_last].filter(Boolean).map((score) => number(score.value));
  return h("tr", { "data-row": true },
    h("td", {}, h("input", { type: "checkbox", "aria-label": `choose ${line.name} to compare`, checked: isChosen,
      onchange: (event) => mark(line.key, event.target.checked) })),
    h("td", {}, h("a", { class: "strong", href: to.run(line.key) }, line.name), line.problem && h("p", { class: "problem" }, line.problem)),
    h("td", {}, chip(line.status), line.live && h("span", { class: "live", title: "being written now" })),
    h("td", { class: "right" }, number(line.steps), line.planned ? ` / ${number(line.planned)}` : ""),
    h("td", { class: "nowrap" }, line.reward && [spark(line.reward.spark, `reward from ${number(line.reward.first)} to ${number(line.reward.last)}`),
      h("span", { class: "figure" }, number(line.reward.last))]),
    h("td", { class: "right nowrap" }, scores.join(" → ") || "–"),
    h("td", {}, line.recipe),
    h("td", { class: "nowrap quiet" }, when(line.created)));
}
