// One run: its curves while it trains, its steps, its settings.

import { h, chip, empty, interval, more, number, plural, table, when } from "/static/dom.js";
import { ask, query, run, stepName, to } from "/static/api.js";
import { lineChart, smoothingControl } from "/static/charts.js";
import { layerCharts } from "/static/pages/layers.js";

const FIRST = ["reward/total", "length/mean", "policy/entropy"];
// What sft, dpo and distil runs show instead of a reward, and every stage.
const LEARNED = ["loss/total", "rewards/margins", "rewards/accuracies", "kl/teacher"];
const FAILED = ["timeout", "parse_error", "reward_error", "infra_error", "refused", "abstain"];

export async function overviewPage(context) {
  const key = context.key;
  const load = () => Promise.all([ask(run(key), {}, context.signal), ask(run(key, "/metrics"), {}, context.signal)]);
  const top = h("div", {}), charts = h("section", { class: "charts" }), layers = h("div", {}), events = h("div", {});
  const finder = curveFinder(context);

  function draw([about, metrics]) {
    const parts = partNames(metrics);
    top.replaceChildren(head(about, key));
    const first = [...FIRST, ...learned(metrics, parts)];
    const onpick = (step) => context.go(to.step(key, step));
    charts.replaceChildren(...mainCurves(metrics, parts, onpick));
    layers.replaceChildren(layerCharts(metrics, onpick));
    finder.update(metrics, metrics.names.filter((name) => has(metrics, name) && !first.includes(name) && !parts.includes(name) && !name.startsWith("groups/") && !name.startsWith("layers/")));
    events.replaceChildren(eventList(about));
  }
  const beat = (pulse) => JSON.stringify([pulse.metrics_step, pulse.last_step, pulse.status, pulse.evaluations, pulse.events]);
  let last = beat(await ask(run(key, "/pulse"), {}, context.signal));
  draw(await load());
  context.every(2, async () => {
    const now = beat(await ask(run(key, "/pulse"), {}, context.signal));
    if (now === last) return;
    draw(await load());
    last = now;
  });
  context.keys["]"] = () => context.go(to.steps(key));
  return [top, smoothingControl(), charts, layers, finder.element, events];
}

const HELD_OUT = { loss: "held-out loss", bits_per_byte: "held-out bits per byte", log_spectral_distance: "held-out log-spectral distance in dB" };

const UNITS = { bits_per_byte: "sequence", log_spectral_distance: "sound" };

function head(about, key) {
  const line = about.line;
  const scores = about.evaluations.filter((one) => one.name === "held_out" && one.score);
  const first = scores[0], last = scores[scores.length - 1];
  return h("section", { class: "head run" },
    h("div", {}, h("h1", {}, line.name),
      h("p", { class: "quiet" }, chip(line.status), line.live && h("span", { class: "live", title: "being written now" }),
        h("span", { class: "count" }, ` ${number(line.steps)}${line.planned ? ` of ${number(line.planned)}` : ""} steps · ${plural(line.samples, "answer")}`),
        [line.recipe, line.model, `started ${when(line.created)} UTC`].filter(Boolean).map((fact) => ` · ${fact}`)),
      line.reason && h("p", { class: "problem" }, `${line.status}: ${line.reason}`)),
    last && h("p", { class: "score" }, h("span", { class: "quiet" }, `${HELD_OUT[last.measure] || "held out"} `), scores.length > 1 && [h("b", {}, number(first.score.value, 3)), " → "], interval(last.score),
      h("span", { class: "quiet" }, ` of ${plural(last.score.prompts, UNITS[last.measure] || "prompt")}`)),
    h("p", { class: "actions" },
      about.last_step !== null && h("a", { class: "button", href: to.step(key, about.last_step + 1) }, "Last step"),
      last && last.measure === "log_spectral_distance" && h("a", { class: "button", href: to.step(key, last.step || "start", "eval:held_out") }, "Reconstructions"),
      about.has_questions && h("a", { class: "button", href: to.questions(key) }, "Questions"),
      about.has_pairs && h("a", { class: "button", href: to.pairs(key) }, "Held-out pairs"),
      h("a", { class: "button", href: to.samples(key, { sort: "reward", order: "asc" }) }, "Lowest rewards"),
      h("a", { class: "button", href: to.samples(key, { sort: "reward" }) }, "Highest rewards"),
      h("a", { class: "button", href: to.samples(key, { status: FAILED }) }, "Without a value"),
      h("a", { class: "button", href: to.audit(key) }, "Audit")));
}

function has(metrics, name) {
  return metrics.curves[name] && metrics.curves[name].steps.length > 0;
}

// Metrics of the first training step stand at 1 of the axis; what was measured before training at 0.
function counted(curve) {
  return { ...curve, steps: curve.steps.map((step) => step + 1) };
}

function partNames(metrics) {
  return metrics.names.filter((name) => name.startsWith("reward/") && name.endsWith("/mean") && has(metrics, name));
}

// The curves of stages, and those of a main training that has no rewards.
function learned(metrics, parts) {
  const stages = metrics.names.filter((name) => name.startsWith("stage/") && LEARNED.includes(name.split("/").slice(2).join("/")));
  const rewarded = parts.length > 0 || has(metrics, "reward/total");
  return [...stages, ...(rewarded ? [] : LEARNED)].filter((name) => has(metrics, name));
}

function learnedTitle(metrics, name) {
  const known = metrics.about[name];
  const title = name.endsWith("loss/total") ? "Loss" : known ? known.title : name;
  return name.startsWith("stage/") ? `Stage ${name.split("/")[1]}: ${title}` : title;
}

function mainCurves(metrics, parts, onpick) {
  const line = (name, label) => ({ name: label, ...counted(metrics.curves[name]) });
  const rewards = [...(has(metrics, "reward/total") && parts.length !== 1 ? [line("reward/total", "total")] : []),
    ...parts.slice(0, 5).map((name) => line(name, name.slice(7, -5)))];
  const others = learned(metrics, parts);
  const shown = others.map((name) => lineChart(learnedTitle(metrics, name), [line(name, name.split("/").pop())], name.startsWith("stage/") ? {} : { onpick }));
  // A run that has stored nothing yet shows an empty chart of what most runs have.
  if (rewards.length || !shown.length) {
    shown.push(lineChart(parts.length === 1 ? `Reward: ${parts[0].slice(7, -5)}` : "Reward", rewards, { onpick }));
  }
  if (metrics.held_out.length) {
    const measure = { loss: "loss", bits_per_byte: "bits per byte", log_spectral_distance: "log-spectral distance in dB" }[metrics.held_out_measure] || "score";
    shown.push(lineChart(`Held-out ${measure}, 95 % interval`, [{ name: "score", steps: metrics.held_out.map((s) => s.step), values: metrics.held_out.map((s) => s.value) }],
      { bars: metrics.held_out.filter((s) => s.low < s.high), dots: true }));
  }
  if (has(metrics, "length/mean")) shown.push(lineChart("Mean length in tokens", [line("length/mean", "length")], { onpick }));
  const all = metrics.curves["groups/total"], useful = metrics.curves["groups/useful"];
  if (all && useful && all.steps.length === useful.steps.length && all.steps.length) {
    const share = useful.values.map((value, i) => (all.values[i] ? value / all.values[i] : 0));
    shown.push(lineChart("Useful groups, share", [{ name: "useful", steps: counted(useful).steps, values: share }], { onpick, range: [-0.02, 1.06] }));
  }
  if (has(metrics, "policy/entropy")) shown.push(lineChart("Entropy in nats a token", [line("policy/entropy", "entropy")], { onpick }));
  return shown;
}

// The name of a metric with its meaning and unit, where the catalogue has it.
function titled(metrics, name) {
  const known = metrics.about[name];
  return known ? `${name}: ${known.meaning}${known.unit ? ` (${known.unit})` : ""}` : name;
}

// A field that finds any other curve by its name; the word is kept in the address.
function curveFinder(context) {
  const others = h("div", { class: "charts" });
  const field = h("input", { type: "search", value: context.parameters.get("curve") || "", "aria-label": "Find a curve" });
  const element = h("section", { hidden: true }, h("h2", {}, "More curves"), h("p", { class: "finder" }, field), others);
  let metrics = null, names = [];
  function show() {
    const found = field.value ? names.filter((name) => name.includes(field.value)).slice(0, 12) : [];
    others.replaceChildren(...found.map((name) => lineChart(titled(metrics, name), [{ name, ...counted(metrics.curves[name]) }], { onpick: (step) => context.go(to.step(context.key, step)) })));
  }
  field.addEventListener("input", () => {
    history.replaceState(history.state, "", `${location.pathname}${query({ curve: field.value })}`);
    show();
  });
  return { element, update(found, rest) {
    metrics = found;
    names = rest;
    element.hidden = rest.length === 0;
    field.placeholder = `${plural(rest.length, "more curve")}: ${rest.slice(0, 2).join(", ")}, …`;
    show();
  } };
}

function eventList(about) {
  const said = about.events.filter((event) => event.kind !== "forecast");
  if (!said.length) return h("div", {});
  return h("section", {}, h("h2", {}, "Events"), h("ul", { class: "events" }, said.reverse().map((event) =>
    h("li", {}, h("span", { class: "quiet" }, `${when(event.time)} ${event.step === null ? "" : `· ${stepName(event.step)} `}`), chip(event.kind, "note"), " ", event.message))));
}

export async function stepsPage(context) {
  const key = context.key;
  const body = h("tbody", {});
  const row = (line) => h("tr", { "data-row": true },
    h("td", { class: "right" }, line.step === null ? "start" : line.samples ? h("a", { class: "strong", href: to.step(key, line.number) }, number(line.number)) : number(line.number)),
    h("td", { class: "right" }, number(line.reward, 3)),
    h("td", { class: "right" }, line.groups === null ? "–" : `${number(line.useful)} / ${number(line.groups)}`),
    h("td", { class: "right" }, number(line.length, 1)),
    h("td", { class: "right" }, number(line.entropy, 3)),
    h("td", { class: "right" }, number(line.samples)),
    h("td", {}, line.evaluations.map((one) => evaluation(key, one))),
    h("td", { class: "quiet nowrap" }, when(line.time)));
  const foot = h("p", {});
  async function load(before) {
    const found = await ask(run(key, "/steps"), { before, limit: 100 }, context.signal);
    body.append(...found.steps.map(row));
    foot.replaceChildren(found.next === null ? "" : more(`Older steps (${number(found.total)} in all)`, () => load(found.next)));
    return found;
  }
  const found = await load();
  const right = (text) => h("th", { scope: "col", class: "right" }, text);
  return [h("h1", {}, "Steps"),
    found.steps.length ? h("div", { class: "scroll" }, h("table", { class: "steps" }, h("thead", {}, h("tr", {}, right("step"), right("reward"), right("useful groups"), right("length"), right("entropy"), right("answers"), h("th", {}, "evaluations"), h("th", {}, "time"))), body))
      : empty("No step is stored yet."), foot];
}

// An evaluation with its score; a loss or a preference is measured on given answers, so that none are stored.
function evaluation(key, one) {
  const name = one.name.replaceAll("_", " ");
  return h("p", { class: "evaluation" }, one.samples ? h("a", { href: to.step(key, one.step || "start", `eval:${one.name}`) }, name) : name, " ", one.score && interval(one.score));
}

export async function settingsPage(context) {
  const about = await ask(run(context.key), {}, context.signal);
  const isAll = context.parameters.get("show") === "all";
  const set = about.config.filter((one) => one.origin && one.origin !== "default");
  const rows = (isAll || !set.length ? about.config : set).map((one) => h("tr", { class: one.origin.startsWith("command line") ? "changed" : "" },
    h("td", {}, h("code", {}, one.key)), h("td", {}, h("code", {}, typeof one.value === "string" ? one.value : JSON.stringify(one.value))),
    h("td", { class: "quiet", title: one.origin }, one.origin.split(/[\\/]/).pop())));
  const facts = [["folder", about.folder], ["configuration", about.config_hash], ["data", about.data_hash], ["platform", about.platform], ...Object.entries(about.versions)];
  const forecast = about.events.find((event) => event.kind === "forecast");
  const there = `/run/${encodeURIComponent(context.key)}/settings`;
  return [h("div", { class: "head" }, h("h1", {}, "Settings"),
      set.length > 0 && set.length < about.config.length && h("p", { class: "choices" },
        h("a", { class: "choice", href: there, "aria-current": isAll ? null : "true" }, `${number(set.length)} that were set`),
        h("a", { class: "choice", href: `${there}?show=all`, "aria-current": isAll ? "true" : null }, `all ${number(about.config.length)}`))),
    table(["key", "value", "from"], rows, { class: "stacked" }),
    forecast && h("section", {}, h("h2", {}, "Forecast"), h("p", {}, forecast.message)),
    h("h2", {}, "Versions"), table(["what", "value"], facts.filter(([, value]) => value).map(([name, value]) => h("tr", {}, h("td", { class: "quiet" }, name), h("td", {}, h("code", {}, value)))), { class: "stacked" }),
    h("h2", {}, "Sessions"), table(["started", "ended", "status"], about.sessions.map((one) => h("tr", {}, h("td", {}, when(one.started)), h("td", {}, when(one.ended) || "–"), h("td", {}, one.status ? chip(one.status) : "–")))),
    about.checkpoints.length > 0 && [h("h2", {}, "Checkpoints"), h("p", {}, about.checkpoints.map((name) => [h("code", {}, name), " "]))]].flat().filter(Boolean);
}
