// All runs: where each stands, how its reward moved, its held-out scores.

import { h, chip, empty, number, plural, table, when } from "/static/dom.js";
import { ask, to } from "/static/api.js";
import { spark } from "/static/charts.js";

export async function runsPage(context) {
  const holder = h("div", {});
  const chosen = new Set();
  const compare = h("a", { class: "button", hidden: true }, "Compare them");
  const hint = h("span", { class: "quiet", hidden: true }, "Tick two or more runs to see them side by side.");

  function mark(key, on) {
    if (on) chosen.add(key); else chosen.delete(key);
    compare.hidden = chosen.size < 2;
    if (chosen.size > 1) compare.setAttribute("href", to.compare([...chosen]));
    hint.hidden = chosen.size > 1;
  }

  function draw(found) {
    const list = [...found.runs].reverse();
    if (list.length < 2) hint.hidden = true;
    holder.replaceChildren(
      list.length
        ? table(["", "run", "status", { text: "steps", class: "right" }, "reward", { text: "held out", class: "right" }, "recipe", "started"],
            list.map((line) => row(line, chosen.has(line.key), mark)), { class: "runs" })
        : empty("No runs here yet. Start one: burnish train"),
      found.skipped_total > 0 ? h("details", { class: "skipped" }, h("summary", {}, `${plural(found.skipped_total, "folder")} beside them ${found.skipped_total === 1 ? "is no run" : "are no runs"}`),
        h("ul", {}, found.skipped.map((one) => h("li", {}, h("code", {}, one.name), ` ${one.line}`)))) : "");
  }

  const found = await ask("/runs", {}, context.signal);
  const { sweeps } = await ask("/sweeps", {}, context.signal);
  const { skills } = await ask("/skills", {}, context.signal);
  mark("", false);
  draw(found);
  let known = JSON.stringify(found);
  context.every(3, async () => {
    const now = await ask("/runs", {}, context.signal);
    if (JSON.stringify(now) === known || holder.contains(document.activeElement)) return;
    known = JSON.stringify(now);
    draw(now);
  });
  return [h("div", { class: "head" }, h("h1", {}, "Runs"), hint, compare), sweeps.length > 0 && h("p", { class: "choices" }, h("span", { class: "quiet" }, "Sweeps"), sweeps.map(sweepLink)),
    skills.length > 0 && h("p", { class: "choices" }, h("span", { class: "quiet" }, "Skills"), skills.map(skillLink)), holder];
}

function sweepLink(one) {
  if (one.problem) return h("span", { class: "problem" }, one.problem);
  const failed = one.failed ? `, ${number(one.failed)} failed` : "";
  const text = `${one.name} (${number(one.runs)} of ${plural(one.planned, "run")}${failed})`;
  return one.runs > 1 ? h("a", { class: "choice", href: to.sweep(one.name), title: one.varied.join(", ") }, text) : h("span", { class: "quiet" }, text);
}

function skillLink(one) {
  if (one.problem) return h("span", { class: "problem" }, one.problem);
  return h("a", { class: "choice", href: to.skill(one.key) }, `${one.name || one.key} (${one.status}, ${plural(one.edits, "edit")})`);
}

function row(line, isChosen, mark) {
  const held = [line.held_out_first, line.held_out_last].filter(Boolean);
  const scores = held.map((score) => number(score.value, 3)), doubt = held.length > 0 && held[held.length - 1].doubt;
  return h("tr", { "data-row": true },
    h("td", {}, h("label", { class: "tick" }, h("input", { type: "checkbox", "aria-label": `choose ${line.name} to compare`, checked: isChosen,
      onchange: (event) => mark(line.key, event.target.checked) }))),
    h("td", {}, h("a", { class: "strong", href: to.run(line.key) }, line.name), (line.problem || line.reason) && h("p", { class: "problem" }, line.problem || line.reason)),
    h("td", { class: "nowrap" }, chip(line.status), line.live && h("span", { class: "live", title: "being written now" })),
    h("td", { class: "right nowrap" }, number(line.steps), h("span", { class: "quiet" }, line.planned ? ` / ${number(line.planned)}` : "")),
    h("td", { class: "nowrap" }, line.reward && [spark(line.reward.spark, `reward from ${number(line.reward.first)} to ${number(line.reward.last)}`),
      rewardCell(line.reward)]),
    h("td", { class: "right nowrap" }, scores.join(" → ") || h("span", { class: "quiet" }, "–"), doubt && h("p", { class: "doubt" }, doubt)),
    h("td", {}, line.recipe),
    h("td", { class: "nowrap quiet" }, when(line.created)));
}

// The total; the rewards that it is made of are one click away.
function rewardCell(reward) {
  const total = h("span", { class: "figure" }, number(reward.last, 3));
  const parts = Object.entries(reward.parts);
  if (!parts.length) return total;
  return h("details", { class: "reward" }, h("summary", { title: "the rewards that it is made of" }, total),
    h("ul", {}, parts.map(([name, value]) => h("li", {}, `${name} `, h("span", { class: "figure" }, number(value, 3))))));
}
