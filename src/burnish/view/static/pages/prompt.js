// The same prompt across steps: what the model made of it as it trained.

import { h, chip, excerpt, more, plural, signChip } from "/static/dom.js";
import { ask, run, stepName, stepNumber, to } from "/static/api.js";
import { lineChart } from "/static/charts.js";
import { messages } from "/static/pages/groups.js";

export async function promptPage(context) {
  const key = context.key, task = context.parameters.get("task");
  const list = h("div", { class: "groups" }), foot = h("p", {}), chart = h("div", {});
  const seen = [];
  async function load(before) {
    const found = await ask(run(key, "/prompt"), { task, before, limit: 40 }, context.signal);
    seen.push(...found.steps);
    list.append(...found.steps.map((step) => stepBlock(key, step)));
    foot.replaceChildren(found.next === null ? "" : more("Earlier steps", () => load(found.next)));
    const points = seen.filter((step) => step.mean !== null && !step.split.startsWith("eval:")).reverse();
    if (points.length > 1) chart.replaceChildren(lineChart("Mean reward of this prompt", [{ name: "mean", steps: points.map((p) => stepNumber(p.step, p.split)), values: points.map((p) => p.mean) }], { dots: true, height: 140 }));
    return found;
  }
  const found = await load();
  return [h("h1", {}, "One prompt across steps"),
    h("p", { class: "quiet" }, h("code", {}, found.task), ` · ${plural(found.total, "answer")} at ${found.next === null ? "" : "more than "}${plural(found.steps.length, "step")}`),
    messages({ messages: found.messages, fields: found.fields }, key), chart, list, foot];
}

function stepBlock(key, step) {
  return h("article", { class: "card", "data-row": true },
    h("h2", {}, h("a", { href: to.group(key, stepNumber(step.step, step.split) || "start", step.samples[0].group, step.split) }, stepName(step.step, step.split)), step.split !== "train" && h("span", { class: "quiet" }, ` ${step.split}`), h("span", { class: "dots" }), signChip(step.mean)),
    h("ol", { class: "answers" }, step.samples.map((sample) => h("li", {}, h("a", { href: to.sample(key, sample.name), title: sample.name },
      h("span", { class: "mark" }, sample.reward === null ? chip(sample.status) : signChip(sample.reward)), h("span", { class: "text" }, excerpt(sample.response)))))));
}
