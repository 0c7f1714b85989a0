// Any number of runs: groups over seeds, their curves with bands, and the settings that differ.

import { h, chip, empty, number, plural, signed, table } from "/static/dom.js";
import { ask, query, to } from "/static/api.js";
import { colour, lineChart, smoothingControl } from "/static/charts.js";

export async function manyPage(context) {
  const asked = { run: context.parameters.getAll("run"), name: context.parameters.getAll("name") };
  for (const name of ["sweep", "baseline", "step", "each"]) asked[name] = context.parameters.get(name);
  const found = await ask("/compare/runs", asked, context.signal);
  const count = found.groups.reduce((sum, group) => sum + group.runs.length, 0);
  const at = (changes) => `/compare${query({ ...asked, ...changes })}`;
  const hasCost = found.groups.some((group) => group.usd !== null);
  return [
    h("h1", {}, found.sweep || plural(count, "run")),
    h("p", { class: "quiet" }, `${plural(count, "run")} in ${plural(found.groups.length, "group")}; the runs of a group differ only in their seed. Means over seeds with 95 % t intervals; differences are paired by seed.`),
    ...found.notes.map((note) => h("p", { class: "note" }, note)),
    h("section", { class: "card" },
      h("h2", {}, `Held-out ${found.measure}${found.measure === "loss" ? ", lower is better" : ""}`),
      found.steps.length > 1 && h("p", { class: "choices" }, h("span", { class: "quiet" }, "after"),
        found.steps.map((step) => h("a", { class: "choice", href: at({ step }), "aria-current": found.step === step ? "true" : null }, step ? plural(step, "step") : "start")),
        h("a", { class: "choice", href: at({ step: null }), "aria-current": found.step === null ? "true" : null }, "last")),
      table(["group", right("runs"), right("before"), right("after"), right("to baseline"), right("time"), right("tokens"), ...(hasCost ? [right("cost")] : [])],
        found.groups.map((group, i) => groupRow(group, i, found, at, hasCost, asked.each)), { class: "stacked" })),
    smoothingControl(),
    count > found.groups.length && h("p", { class: "choices" }, h("span", { class: "quiet" }, "a line for"),
      h("a", { class: "choice", href: at({ each: null }), "aria-current": asked.each ? null : "true" }, "each group"),
      h("a", { class: "choice", href: at({ each: 1 }), "aria-current": asked.each ? "true" : null }, "each run")),
    h("section", { class: "charts" }, Object.keys(found.curves).map((name) =>
      lineChart(found.titles[name] || name, asked.each ? runLines(found, name) : groupLines(found, name), { dots: name === "held out" }))),
    !asked.each && h("p", { class: "quiet" }, "A line is the mean over a group's runs; its band reaches from the lowest to the highest of them."),
    h("h2", {}, "Settings that differ"),
    found.differs.length ? table(["key", ...found.groups.map((group) => group.label)], found.differs.map((one) => h("tr", {}, h("td", {}, h("code", {}, one.key)),
      one.values.map((value, i) => h("td", { "data-head": found.groups[i].label }, setting(value, one.there[i]))))), { class: "stacked" }) : empty("None: the runs differ only in their seed."),
    h("h2", {}, "Runs"),
    table(["run", "group", right("seed"), "status", right("steps"), right("held out")], runRows(found, asked.each), { class: "stacked" })].filter(Boolean);
}

// Held-out scores stand where they were measured, after so many steps; metrics of the first step at 1.
const shift = (name) => (name === "held out" ? 0 : 1);

function groupLines(found, name) {
  return found.curves[name].map((band, i) => ({ name: found.groups[i].label, ...band, steps: band.steps.map((step) => step + shift(name)), low: band.runs > 1 ? band.low : null }));
}

function runLines(found, name) {
  const names = found.groups.flatMap((group) => group.runs.map((run) => runLabel(run, group)));
  return found.run_curves[name].map((curve, i) => ({ ...curve, name: names[i], steps: curve.steps.map((step) => step + shift(name)) }));
}

// What its legend calls a run: its group's settings, and its seed where the group has several.
const runLabel = (run, group) => (group.runs.length > 1 ? `${group.label} seed ${run.seed ?? run.name}` : group.label);

const right = (text) => ({ text, class: "right" });

// The colours of a table are those of the lines in the charts: of groups, or of runs.
function groupRow(group, place, found, at, hasCost, isEach) {
  const isBase = place === found.baseline;
  const cell = (head, content) => h("td", { class: "right", "data-head": head }, content);
  const first = group.runs[0].name;
  return h("tr", { "data-row": true, class: isBase ? "changed" : null },
    h("td", {}, h("span", { class: isEach ? "" : `key ${colour(place)}` }, h("span", { class: "strong" }, group.label))),
    cell("runs", number(group.runs.length)),
    cell("before", number(group.before && group.before.value, 3)),
    cell("after", mean(group.after, number)),
    cell(isBase ? null : "to baseline", isBase ? h("span", { class: "quiet" }, "baseline")
      : [group.difference ? mean(group.difference, signed) : h("span", { class: "quiet", title: group.problem }, "–"), " ", h("a", { class: "quiet", href: at({ baseline: first }) }, "make baseline")]),
    cell("time", group.seconds ? seconds(group.seconds.value) : "–"),
    cell("tokens", group.tokens ? number(Math.round(group.tokens.value)) : "–"),
    hasCost && cell("cost", group.usd ? `$${group.usd.value.toFixed(2)}` : "–"));
}

function mean(one, show) {
  if (!one) return h("span", { class: "quiet" }, "no score");
  const interval = one.low === null ? (one.runs > 1 ? " (all equal)" : " (one run)") : ` [${show(one.low, 3)}, ${show(one.high, 3)}]`;
  return h("span", { class: "nowrap" }, h("b", {}, show(one.value, 3)), h("span", { class: "quiet" }, interval));
}

function seconds(value) {
  if (value < 90) return `${number(value, 1)} s`;
  return value < 5400 ? `${Math.round(value / 60)} min` : `${number(value / 3600, 1)} h`;
}

function setting(value, isThere) {
  return isThere ? h("code", {}, typeof value === "string" ? value : JSON.stringify(value)) : h("span", { class: "quiet" }, "not there");
}

function runRows(found, isEach) {
  const all = found.groups.flatMap((group, place) => group.runs.map((run) => ({ run, group, place })));
  return all.map(({ run, group, place }, i) => runRow(run, group, isEach ? { run: colour(i) } : { group: colour(place) }));
}

function runRow(run, group, colours) {
  const key = (name, content) => h("span", { class: name ? `key ${name}` : "" }, content);
  const scores = [run.before, run.after].filter((score) => score !== null).map((score) => number(score, 3));
  return h("tr", {},
    h("td", {}, key(colours.run, h("a", { href: to.run(run.key) }, run.name)), run.problem && h("p", { class: "problem" }, run.problem)),
    h("td", {}, key(colours.group, group.label)),
    h("td", { class: "right", "data-head": "seed" }, run.seed === null ? "–" : String(run.seed)),
    h("td", {}, chip(run.status)),
    h("td", { class: "right", "data-head": "steps" }, number(run.steps)),
    h("td", { class: "right nowrap", "data-head": "held out" }, scores.join(" → ") || "–"));
}
