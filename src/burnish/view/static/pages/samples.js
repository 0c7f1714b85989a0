// Answers by text and filters; the filters are the address, so any view can be shared.

import { h, chip, empty, excerpt, more, number, plural, signChip, signed } from "/static/dom.js";
import { ask, isSampleName, query, run, to } from "/static/api.js";
import { histogram } from "/static/charts.js";

const RANGES = [["reward", "reward"], ["length", "tokens"], ["advantage", "advantage"], ["step", "step"]];
const SIGNALS = { mixed: "rewards differ", equal: "all equal", none: "nothing to compare" };

export async function samplesPage(context) {
  const key = context.key;
  const asked = context.parameters;
  const filters = {};
  for (const name of new Set(asked.keys())) filters[name] = asked.getAll(name).length > 1 ? asked.getAll(name) : asked.get(name);
  const facets = await ask(run(key, "/facets"), {}, context.signal);
  const isRanged = Object.keys(filters).some((name) => name.endsWith("_min") || name.endsWith("_max")) || Boolean(filters.part);
  const list = h("div", { class: "results" }), foot = h("p", {}), count = h("p", { class: "quiet", role: "status" });

  function change(words, replace = false) {
    const next = { ...filters, ...words };
    delete next.after;
    context.go(`/run/${encodeURIComponent(key)}/samples${query(next)}`, { replace });
  }
  // A name opens its answer; anything else is looked for in the texts.
  async function find(text) {
    if (!isSampleName(text)) return change({ q: text });
    try {
      await ask(run(key, "/sample"), { id: text }, context.signal);
      return context.go(to.sample(key, text));
    } catch { return change({ q: text }); }
  }
  async function load(after) {
    const found = await ask(run(key, "/samples"), { ...filters, after, limit: 50 }, context.signal);
    list.append(...found.samples.map((sample) => resultRow(key, sample)));
    foot.replaceChildren(found.next === null ? "" : more("More", () => load(found.next)));
    count.textContent = `${plural(found.count, "answer")}${found.searched.line ? ` · ${found.searched.line}` : ""}`;
    return found;
  }
  const found = await load();
  if (!found.samples.length) list.append(empty("No answer fits. Loosen a filter."));
  return [
    h("h1", {}, "Samples"),
    h("form", { class: "filters", role: "search", onsubmit: (event) => { event.preventDefault(); find(event.target.q.value.trim()); } },
      h("input", { type: "search", name: "q", value: filters.q || "", placeholder: "Search prompts and answers, or type a name such as train-3-2-4", "aria-label": "Search prompts and answers" }),
      select("in", { all: "everywhere", prompt: "in prompts", response: "in answers" }, filters.in || "all", (value) => change({ in: value === "all" ? "" : value })),
      select("split", { "": "all splits", ...labelled(facets.splits) }, filters.split || "", (value) => change({ split: value })),
      select("status", { "": "any status", ...labelled(facets.statuses) }, Array.isArray(filters.status) ? "" : filters.status || "", (value) => change({ status: value })),
      select("signal", { "": "any group", ...labelled(facets.signals, SIGNALS) }, filters.signal || "", (value) => change({ signal: value })),
      Object.keys(facets.parts).length > 1 && select("part", { "": "any component", ...Object.fromEntries(Object.keys(facets.parts).map((name) => [name, name])) }, filters.part || "", (value) => change({ part: value, part_min: "", part_max: "" })),
      select("sort", { step: "by step", reward: "by reward", length: "by length", advantage: "by advantage" }, filters.sort || "step", (value) => change({ sort: value === "step" ? "" : value })),
      h("button", { type: "button", class: "choice", "aria-label": "Turn the order", onclick: () => change({ order: filters.order === "asc" ? "" : "asc" }) }, turned(filters)),
      h("button", { type: "button", class: "choice", hidden: Object.keys(filters).length === 0, onclick: () => context.go(to.samples(key)) }, "clear")),
    h("details", { class: "ranges", open: isRanged || matchMedia("(min-width: 40rem)").matches }, h("summary", {}, "Ranges"), h("div", { class: "row" },
      RANGES.map(([name, label]) => rangeBox(name, label, facets[name], filters, change)),
      filters.part && facets.parts[filters.part] && rangeBox("part", filters.part, facets.parts[filters.part], filters, change))),
    count, list, foot];
}

function turned(filters) {
  const isUp = filters.order === "asc";
  if (!filters.sort) return isUp ? "↑ oldest first" : "↓ newest first";
  return isUp ? "↑ lowest first" : "↓ highest first";
}

function labelled(counts, names = {}) {
  return Object.fromEntries(Object.entries(counts).filter(([, count]) => count).map(([name, count]) => [name, `${names[name] || name} (${number(count)})`]));
}

function select(name, options, chosen, change) {
  return h("select", { name, "aria-label": `Filter by ${name}`, onchange: (event) => change(event.target.value) },
    Object.entries(options).map(([value, label]) => h("option", { value, selected: value === chosen }, label)));
}

function rangeBox(name, label, numbers, filters, change) {
  if (!numbers || numbers.low === null || numbers.low === numbers.high) return null;
  const low = h("input", { type: "number", step: "any", inputmode: "decimal", value: filters[`${name}_min`] || "", placeholder: number(numbers.low), "aria-label": `least ${label}` });
  const high = h("input", { type: "number", step: "any", inputmode: "decimal", value: filters[`${name}_max`] || "", placeholder: number(numbers.high), "aria-label": `most ${label}` });
  const send = () => change({ [`${name}_min`]: low.value, [`${name}_max`]: high.value });
  low.addEventListener("change", send);
  high.addEventListener("change", send);
  return h("fieldset", { class: "range" }, h("legend", {}, label), histogram(numbers, `${label} from ${number(numbers.low)} to ${number(numbers.high)}`), h("p", {}, low, " to ", high));
}

export function resultRow(key, sample) {
  return h("a", { class: `result ${sample.keep || sample.split !== "train" ? "" : "left-out"}`, href: to.sample(key, sample.name), "data-row": true },
    h("span", { class: "mark" }, sample.reward === null ? chip(sample.status) : signChip(sample.reward)),
    h("span", { class: "texts" }, h("span", { class: "prompt" }, excerpt(sample.prompt)), h("span", { class: "answer" }, excerpt(sample.response)),
      Object.keys(sample.parts).length > 1 && h("span", { class: "quiet parts-line" }, Object.entries(sample.parts).map(([name, value]) => `${name} ${number(value, 2)}`).join(" · "))),
    h("span", { class: "quiet facts" }, h("span", { class: "name" }, sample.name), h("span", {}, plural(sample.length, "token")),
      sample.advantage !== null && h("span", {}, `advantage ${signed(sample.advantage, 2)}`)));
}
