// The groups of a step, and one group side by side.

import { h, chip, empty, excerpt, more, number, plural, response, signChip, signed } from "/static/dom.js";
import { ask, run, stepName, stepNumber, storedStep, to } from "/static/api.js";
import { agreement } from "/static/pages/agreement.js";
import { content } from "/static/pages/media.js";
import { rewardTree, value } from "/static/pages/reward.js";

const SIGNALS = { mixed: "rewards differ", equal: "all equal", none: "nothing to compare" };

export async function stepPage(context) {
  const key = context.key, asked = context.parameters;
  // `n` is how addresses named a step before: as it is stored, from 0.
  const parameters = { step: asked.get("n") ?? stored(asked), split: asked.get("split"), signal: asked.get("signal"), limit: 30 };
  const list = h("div", { class: "groups" }), foot = h("p", {});
  async function load(after) {
    const found = await ask(run(key, "/groups"), { ...parameters, after }, context.signal);
    list.append(...found.groups.map((group) => groupCard(key, found.number, group)));
    foot.replaceChildren(found.next === null ? "" : more(`More groups (${number(found.total)} in all)`, () => load(found.next)));
    return found;
  }
  const found = await load();
  const split = asked.get("split") || "", signal = asked.get("signal") || "";
  const own = split || "train", isEval = split.startsWith("eval:");
  const at = (step, part = split) => to.step(key, stepNumber(step, part) || "start", part);
  const there = (words) => `${at(found.step)}${new URLSearchParams(Object.entries(words).filter(([, v]) => v)).toString().replace(/^(.)/, "&$1")}`;
  if (found.previous_step !== null) context.keys["["] = () => context.go(at(found.previous_step));
  if (found.next_step !== null) context.keys["]"] = () => context.go(at(found.next_step));
  context.keys.u = () => context.go(to.steps(key));
  const figure = (name, label, digits) => found.metrics[name] === undefined ? null : h("span", {}, h("b", {}, number(found.metrics[name], digits)), ` ${label}`);
  return [
    h("div", { class: "head" },
      h("h1", {}, isEval ? `${split.slice(5).replaceAll("_", " ")}, ${found.number ? `after ${plural(found.number, "step")}` : "before training"}` : `Step ${number(found.number)}`),
      h("p", { class: "pager" }, found.previous_step !== null && h("a", { class: "button", href: at(found.previous_step) }, `← ${stepName(found.previous_step, own).replace("step ", "")}`),
        found.next_step !== null && h("a", { class: "button", href: at(found.next_step) }, `${stepName(found.next_step, own).replace("step ", "")} →`))),
    !isEval && h("p", { class: "figures" }, figure("reward/total", "reward", 3), figure("length/mean", "tokens an answer", 1), figure("policy/entropy", "nats of entropy", 3), figure("policy/clipped_share", "clipped", 3), figure("time/step_s", "seconds", 2)),
    h("p", { class: "choices" },
      !isEval && h("a", { class: "choice", href: there({}), "aria-current": signal === "" ? "true" : null }, "all groups"),
      !isEval && Object.entries(found.signals).filter(([, count]) => count).map(([name, count]) =>
        h("a", { class: "choice", href: there({ signal: name }), "aria-current": signal === name ? "true" : null }, `${SIGNALS[name]} ${count}`)),
      found.splits.length > 1 && found.splits.map((one) => h("a", { class: "choice", href: at(one.step, one.split), "aria-current": own === one.split ? "true" : null }, one.split))),
    found.groups.some((group) => group.role === "pair") && h("p", {}, h("a", { class: "button", href: to.pairs(key, { number: stepNumber(found.step, own) || "start", split: own }) }, "Pairs side by side, wrong ones first")),
    found.groups.length ? list : empty("No group fits."), foot, !isEval && agreement(found.metrics)].filter(Boolean);
}

// The stored step that an address means; `start` is the evaluation before training.
function stored(asked) {
  const text = asked.get("number");
  if (text === null || text === "") return null;
  return text === "start" ? 0 : storedStep(Number(text), asked.get("split") || "train");
}

function groupCard(key, number_, group) {
  const address = to.group(key, number_ || "start", group.key, group.samples[0].split);
  return h("article", { class: "card", "data-row": true },
    h("h2", {}, h("a", { href: address }, excerpt(group.prompt))),
    h("p", { class: "quiet" }, group.size > 1 && [chip(SIGNALS[group.signal], group.signal), ` mean ${number(group.mean, 3)} · `], `${plural(group.size, "answer")} · `, h("a", { href: to.prompt(key, group.task) }, "across steps")),
    h("ol", { class: "answers" }, group.samples.slice(0, 8).map((sample) =>
      h("li", { class: sample.keep || sample.split !== "train" ? "" : "left-out" }, h("a", { href: to.sample(key, sample.name), title: sample.name },
        h("span", { class: "mark" }, sample.reward === null ? chip(sample.status) : signChip(sample.reward)),
        h("span", { class: "text" }, excerpt(sample.response)),
        h("span", { class: "quiet right" }, sample.advantage === null ? "" : signed(sample.advantage, 2)))))),
    group.size > 8 && h("p", { class: "quiet" }, h("a", { href: address }, `all ${group.size}`)));
}

export async function groupPage(context) {
  const key = context.key, asked = context.parameters;
  const step = asked.get("step") ?? stored(asked), split = asked.get("split") || "train";
  const found = await ask(run(key, "/group"), { step, key: asked.get("key"), split }, context.signal);
  const shown = stepNumber(found.step, found.split) || "start";
  const there = (group) => to.group(key, shown, group, found.split);
  if (found.previous) context.keys["["] = () => context.go(there(found.previous));
  if (found.next) context.keys["]"] = () => context.go(there(found.next));
  context.keys.u = () => context.go(to.step(key, shown, found.split === "train" ? "" : found.split));
  return [
    h("div", { class: "head" }, h("h1", {}, `${shown === "start" ? "Before training" : `Step ${shown}`}, prompt ${found.number}`),
      h("p", { class: "pager" }, found.previous && h("a", { class: "button", href: there(found.previous) }, "← before"), found.next && h("a", { class: "button", href: there(found.next) }, "after →"))),
    h("p", { class: "quiet" }, h("a", { href: to.step(key, shown, found.split === "train" ? "" : found.split) }, stepName(found.step, found.split)), ` · ${found.split} · `, chip(SIGNALS[found.signal], found.signal), ` mean ${number(found.mean, 3)} · `, h("a", { href: to.prompt(key, found.task.id) }, "this prompt across steps")),
    messages(found.task, key),
    h("div", { class: "beside" }, found.members.map((member) =>
      h("article", { class: `card member ${member.keep || found.split !== "train" ? "" : "left-out"}`, "data-row": true },
        h("p", { class: "line" }, h("a", { class: "strong", href: to.sample(key, member.name) }, member.name), h("span", { class: "dots" }), value(member.reward)),
        h("p", { class: "quiet" }, `advantage ${signed(member.advantage, 2)} · ${member.length} tokens${member.finish === "length" ? " · cut" : ""}${member.keep ? "" : " · left out of the loss"}`),
        response(member.response),
        h("details", {}, h("summary", {}, "why"), rewardTree(member.reward))))),
    found.size > found.members.length && h("p", { class: "quiet" }, `${found.members.length} of ${found.size} answers are shown.`)].filter(Boolean);
}

export function messages(task, key) {
  const fields = Object.entries(task.fields || {});
  return h("section", { class: "messages" }, (task.messages || []).map((message) =>
    h("div", { class: `message ${message.role}${typeof message.content === "string" ? "" : " parts"}` }, h("p", { class: "role" }, message.role), content(message.content, key))),
    fields.length > 0 && h("details", {}, h("summary", {}, `${plural(fields.length, "field")} of the task`),
      h("dl", { class: "fields" }, fields.map(([name, content]) => [h("dt", {}, name), h("dd", {}, h("pre", {}, typeof content === "string" ? content : JSON.stringify(content)))]))));
}
