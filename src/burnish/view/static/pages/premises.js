// The premises of each step beside the evidence: supported, contradicted or unknown, by which fact, at what cost.

import { run } from "/static/api.js";
import { h, chip, number, plural, signChip, table } from "/static/dom.js";

export function premisesBlock(found, key) {
  const cost = found.cost_usd > 0 && ` · $${number(found.cost_usd, 4)}`;
  return h("section", { class: "card claims premises" }, h("h2", {}, "Premises, checked against the evidence"),
    h("p", { class: "quiet" }, `${found.name} · ${found.reason}`, cost),
    table(["step", "premise", "what the evidence says", "score"], found.steps.flatMap(rows), { class: "stacked" }),
    found.pictures.map((picture) => pictureOf(picture, key)),
    found.evidence.length > 0 && h("details", { open: found.evidence.length <= 8 }, h("summary", {}, plural(found.evidence.length, "piece") + " of evidence"),
      h("ol", {}, found.evidence.map((text) => h("li", {}, h("pre", {}, text))))));
}

function rows(step) {
  const premises = step.premises.length ? step.premises : [null];
  return premises.map((premise, place) => h("tr", { class: premise && premise.support === 0 ? "fails" : "" },
    h("td", {}, place === 0 && step.text),
    h("td", {}, premise ? premise.claim : h("span", { class: "quiet" }, "none declared")),
    h("td", {}, premise && [mark(premise), " ", h("span", { class: "quiet" }, reason(premise))]),
    h("td", {}, place === 0 && [signChip(step.value, step.value === null ? "no score" : number(step.value, 2)), " ", h("span", { class: "quiet" }, step.how, step.cost_usd > 0 && ` · $${number(step.cost_usd, 4)}`)])));
}

function word(premise) {
  return premise.support === null ? "unchecked" : premise.support === 1 ? "supported" : premise.support === 0 ? "contradicted" : "unknown";
}

function mark(premise) {
  const tones = { unchecked: "oracle", supported: "ok", contradicted: "bad", unknown: "" };
  return chip(word(premise), tones[word(premise)]);
}

// What the mark does not say yet.
function reason(premise) {
  const said = word(premise);
  return premise.why.startsWith(said) ? premise.why.slice(said.length).replace(/^[:;] */, "") : premise.why;
}

// The picture with a frame around each place that decided. Boxes are pixels of the file, known once it is loaded.
function pictureOf(picture, key) {
  const src = `/api/v1${run(key, `/blobs/${encodeURIComponent(picture.sha256)}`)}`;
  const frames = picture.boxes.map((box) => {
    const tone = box.support === 1 ? "ok" : box.support === 0 ? "bad" : "";
    const told = `${box.claim}: ${box.support === 1 ? "supported" : box.support === 0 ? "contradicted" : "unknown"} by what stands here`;
    return h("span", { class: `frame ${tone}`, title: told, role: "img", "aria-label": told });
  });
  const image = h("img", { src, alt: `picture ${picture.sha256.slice(0, 12)}` });
  const place = () => frames.forEach((frame, n) => {
    const box = picture.boxes[n], [width, height] = [image.naturalWidth, image.naturalHeight];
    frame.style.left = `${(100 * box.left) / width}%`;
    frame.style.top = `${(100 * box.top) / height}%`;
    frame.style.width = `${(100 * (box.right - box.left)) / width}%`;
    frame.style.height = `${(100 * (box.bottom - box.top)) / height}%`;
  });
  image.addEventListener("load", place);
  return h("figure", { class: "framed" }, h("div", {}, image, frames),
    h("figcaption", { class: "quiet" }, `${plural(picture.boxes.length, "place")} of the picture that decided: green supported, red contradicted`));
}
