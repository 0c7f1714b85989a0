// Why a reward was given: the tree of its parts, verdicts on criteria, and evidence with raw replies.

import { h, chip, number, signChip } from "/static/dom.js";

export function value(reward) {
  return reward.value === null || reward.value === undefined ? chip(reward.status || "ok") : signChip(reward.value);
}

export function rewardTree(reward) {
  const parts = reward.parts || [], verdicts = reward.verdicts || [], evidence = reward.evidence || [];
  const weight = reward.weight === undefined || reward.weight === 1 ? "" : `× ${number(reward.weight)}`;
  return h("div", { class: "node" },
    h("p", { class: "line" }, h("span", { class: "name" }, reward.name), h("span", { class: "quiet" }, weight), h("span", { class: "dots" }), value(reward)),
    reward.reason && h("p", { class: "reason" }, reward.reason),
    verdicts.length > 0 && h("ul", { class: "verdicts" }, verdicts.map(verdictLine)),
    evidence.map((one, place) => evidenceBlock(one, place)),
    parts.length > 0 && h("div", { class: "parts" }, parts.map((part) => rewardTree(part))));
}

function verdictLine(verdict) {
  return h("li", {}, signChip(verdict.value, verdict.value === null || verdict.value === undefined ? "no verdict" : number(verdict.value, 2)), " ",
    h("span", { class: "criterion" }, verdict.criterion), verdict.reason && h("span", { class: "quiet" }, ` ${verdict.reason}`));
}

function evidenceBlock(one, place) {
  const isLong = one.observation.length > 160 || one.observation.includes("\n");
  const start = one.observation.slice(0, 120).replaceAll("\n", " ");
  const sight = one.visibility && one.visibility !== "visible" ? chip(one.visibility, "oracle") : null;
  const title = [h("span", { class: "quiet" }, `${place + 1}. ${one.source} `), sight, one.error && [" ", chip("error", "bad")]];
  const inside = [h("pre", {}, one.observation), one.error && h("p", { class: "problem" }, one.error)];
  if (!isLong) return h("div", { class: "evidence" }, h("p", {}, title, " ", one.observation), one.error && h("p", { class: "problem" }, one.error));
  return h("details", { class: "evidence" }, h("summary", {}, title, h("span", { class: "start" }, ` ${start}${one.observation.length > 120 ? "…" : ""}`)), inside);
}
