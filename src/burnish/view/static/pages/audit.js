// The audit: what moved in the run and was paid, each finding with the answers that moved it.

import { h, empty, number, plural } from "/static/dom.js";
import { ask, run, to } from "/static/api.js";
import { lineChart } from "/static/charts.js";

export async function auditPage(context) {
  const key = context.key;
  const found = await ask(run(key, "/audit"), {}, context.signal);
  if (!found.available) return [h("h1", {}, "Audit"), empty(found.line)];
  const audit = found.audit;
  const names = Object.keys(audit.conflicts);
  return [
    h("h1", {}, "Audit"),
    h("p", { class: "lead" }, "Is it learning, or pleasing the reward? What moved in this run and was paid, the strongest first. An audit, not an alarm: learning moves things too."),
    h("p", { class: "quiet" }, `${plural(audit.answers, "answer")} of ${plural(audit.steps, "step")} ${audit.answers === 1 ? "was" : "were"} read.`),
    audit.note ? empty(audit.note) : !audit.findings.length && empty("Nothing stands out."),
    audit.gold && goldCard(key, audit.gold),
    h("div", { class: "findings" }, audit.findings.map((finding, place) => findingCard(key, finding, place + 1))),
    names.length > 1 && h("section", { class: "card" }, h("h2", {}, "Rewards against each other, within groups"),
      h("p", { class: "quiet" }, "Correlation, from −1 (what pleases one displeases the other) to 1; a dash where one of the two never varies."), matrix(audit.conflicts, names))];
}

function findingCard(key, finding, rank) {
  return h("article", { class: "card finding", "data-row": true },
    h("div", { class: "head" }, h("h2", {}, h("span", { class: "quiet" }, `${rank}. `), h("span", { class: "name" }, finding.title)), meter(finding.strength)),
    h("p", {}, finding.text),
    finding.curve && finding.curve.length > 1 && lineChart("", [{ name: finding.title, steps: finding.curve.map((p) => p[0] + 1), values: finding.curve.map((p) => p[1]) }], { height: 140 }),
    links(key, finding.samples));
}

function goldCard(key, gold) {
  const line = (name, points) => ({ name, steps: points.map((p) => p[0] + 1), values: points.map((p) => p[1]) });
  return h("article", { class: "card finding" }, h("h2", {}, "Reward and gold score"), h("p", {}, gold.text),
    lineChart("Trained on, and only watched", [line("reward", gold.reward), line("gold", gold.gold)], { height: 160 }), links(key, gold.samples));
}

function links(key, samples) {
  return samples && samples.length > 0 && h("p", { class: "links" }, h("span", { class: "quiet" }, "Answers that moved it: "), samples.map((id) => [h("a", { href: to.sample(key, id) }, id), " "]));
}

function meter(strength) {
  return h("span", { class: "meter", title: "for the order of the list; no probability" }, "strength",
    h("span", { class: "track" }, h("i", { vars: { "--share": `${Math.round(strength * 100)}%` } })), number(strength, 2));
}

function matrix(conflicts, names) {
  return h("div", { class: "scroll" }, h("table", { class: "matrix" },
    h("thead", {}, h("tr", {}, h("td", {}), names.map((name) => h("th", { scope: "col", class: "right" }, name)))),
    h("tbody", {}, names.map((first) => h("tr", {}, h("th", { scope: "row" }, first), names.map((second) => {
      const value = conflicts[first][second];
      const kind = value === null || first === second ? "" : value < -0.05 ? "bad" : value > 0.05 ? "good" : "";
      return h("td", { class: `right ${kind}`, vars: { "--heat": `${Math.round(Math.abs(value || 0) * 45)}%` } }, value === null ? "–" : number(value, 2));
    }))))));
}
