// A distilled skill: each edit beside the trajectories that speak for it, then the whole diff.

import { h, chip, empty, number, plural, table } from "/static/dom.js";
import { ask } from "/static/api.js";

export async function skillPage(context) {
  const key = context.parameters.get("key") || "";
  const found = await ask(`/skills/${encodeURIComponent(key)}`, {}, context.signal);
  context.keys.u = () => context.go("/");
  const made = found.status === "changed" ? found.edits : [];
  return [
    h("div", { class: "head" }, h("h1", {}, found.skill || key), chip(found.status, found.status === "changed" ? "finished" : "stopped")),
    h("p", { class: "lead" }, `${plural(found.passed, "trajectory", "trajectories")} passed, ${number(found.failed)} failed, `
      + `${plural(found.counts.patches || 0, "patch", "patches")}, ${plural(made.length, "edit")} made, ${number(found.dropped.length)} left out`
      + (found.model ? `; by ${found.model}` : "")),
    found.problems.map((line) => h("p", { class: "problem" }, line)),
    found.warnings.map((line) => h("p", { class: "doubt" }, line)),
    h("h2", {}, "Edits, and the trajectories that speak for them"),
    made.length ? made.map((edit) => article(edit, found)) : empty(`No edit was made: ${found.status}.`),
    found.diff && [h("h2", {}, "The whole diff"), diff(found.diff.trimEnd().split("\n"))],
    found.dropped.length > 0 && [h("h2", {}, "Left out"), table(["edit", { text: "tasks", class: "right" }, "why"],
      found.dropped.map((edit) => h("tr", {}, h("td", {}, h("p", {}, place(edit)), diff(lines(edit))),
        h("td", { class: "right", "data-head": "tasks" }, number(edit.tasks ?? edit.support)), h("td", { "data-head": "why" }, edit.reason))), { class: "stacked" })],
    found.refused.length > 0 && [h("h2", {}, "No patch from"), table(["trajectory", "why"],
      found.refused.map((one) => h("tr", {}, h("td", {}, h("code", {}, one.ids)), h("td", { "data-head": "why" }, one.reason))), { class: "stacked" })],
  ].flat(2);
}

function article(edit, found) {
  const tasks = edit.tasks === null ? "" : ` of ${plural(edit.tasks, "task")}`;
  return h("article", { class: "edit" },
    h("section", {}, h("h3", {}, place(edit)), diff(lines(edit))),
    h("section", {}, h("h3", {}, `${plural(edit.source_ids.length, "trajectory", "trajectories")}${tasks}`),
      edit.source_ids.map((id) => trace(id, found))));
}

function trace(id, found) {
  const log = found.logs[id], words = found.trajectories[id] || "";
  const head = [h("code", {}, id), " ", log && chip(log.passed ? "passed" : "failed", log.passed ? "finished" : "stopped"), " ", words];
  return log && log.log ? h("details", { class: "trace" }, h("summary", {}, head), h("pre", { class: "response" }, log.log)) : h("p", {}, head);
}

function place(edit) {
  return [edit.op.replaceAll("_", " "), edit.file, edit.target_section || edit.after_section].filter(Boolean).join(" · ");
}

function lines(edit) {
  const part = (sign, text) => (text ? text.trimEnd().split("\n").map((line) => sign + line) : []);
  return [...part("-", edit.old_text), ...part("+", edit.content)];
}

function diff(all) {
  const kind = (line) => ({ "+": "add", "-": "cut", "@": "at" })[line[0]] || "same";
  return h("pre", { class: "diff" }, all.map((line) => h("span", { class: kind(line) }, line || " ")));
}
