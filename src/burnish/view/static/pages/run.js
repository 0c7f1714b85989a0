// One run: its curves while it trains, its steps, its settings.

import { h, chip, empty, more, number, table, when } from "/static/dom.js";
import { ask, run, to } from "/static/api.js";
import { lineChart } from "/static/charts.js";

const FIRST = ["reward/total", "length/mean", "policy/entropy"];

export async function overviewPage(context) {
  const key = context.key;
  const [about, metrics] = await Promise.all([ask(run(key), {}, context.signal), ask(run(key, "/metrics"), {}, context.signal)]);
  const state = { about, metrics };
  const top = h("div", {}), charts = h("div", {}), events = h("div", {});

  function draw() {
    top.replaceChildren(head(state.about, key));
    charts.replaceChildren(curves(state.metrics, key, context));
    events.replaceChildren(eventList(state.about));
  }
  draw();
  let last = "";
  context.every(2, async () => {
    const pulse = await ask(run(key, "/pulse"), {}, context.signal).catch(() => null);
    if (!pulse) return;
    const now = JSON.stringify([pulse.metrics_step, pulse.status, pulse.evaluations, pulse.events]);
    if (last && now !== last) {
      const asked = [ask(run(key), {}, context.signal), ask(run(key, "/metrics"), {}, context.signal)];
      [state.about, state.metrics] = await Promise.all(asked);
      draw();
    }
    last = now;
  });
  context.keys["]"] = () => context.go(to.steps(key));
  return [top, charts, events];
}

function head(about, key) {
  const line = about.line;
  const scores = about.evaluations.filter((one) => one.name === "held_out" && one.score);
  const first = scores[0], last = scores[scores.length - 1];
  return h("section", { class: "head run" },
    h("div", {}, h("h1", {}, line.name),
      h("p", { class: "quiet" }, chip(line.status), line.live && h("span", { class: "live", title: "being written now" }),
        ` ${number(line.steps)}${line.planned ? ` of ${number(line.planned)}` : ""} steps · ${number(line.samples)} answers · ${line.recipe} · ${line.model} · started ${when(line.created)} UTC`)),
    last && h("p", { class: "score" }, "held out ", h("b", {}, number(first.score.value)), " → ", h("b", {}, number(last.score.value)),
      h("span", { class: "quiet" }, ` [${number(last.score.low)}, ${number(last.score.high)}] of ${last.score.prompts} prompts`)),
    h("p", { class: "actions" },
      h("a", { class: "button", href: to.step(key, about.last_step ?? 0) }, "Last step"),
      h("a", { class: "button", href: to.samples(key, { sort: "reward", order: "asc" }) }, "Lowest rewards"),
      h("a", { class: "button", href: to.samples(key, { sort: "reward" }) }, "Highest rewards"),
      h("a", { class: "button", href: to.samples(key, { status: ["timeout", "parse_error", "infra_error", "refused", "abstain"] }) }, "Without a value"),
      h("a", { class: "button", href: to.audit(key) }, "Audit")));
}

function curves(metrics, key, context) {
  const has = (name) => metrics.curves[name] && metrics.curves[name].steps.length;
  const parts = metrics.names.filter((name) => name.startsWith("reward/") && name.endsWith("/mean") && has(name));
  const line = (name, label) => ({ name: label || name, steps: metrics.curves[name].steps, values: metrics.curves[name].values });
  const pick = (step) => context.go(to.step(key, step));
  const shown = [];
  const rewards = [...(has("reward/total") && parts.length !== 1 ? [line("reward/total", "total")] : []),
    ...parts.slice(0, 5).map((name) => line(name, name.slice(7, -5)))];
  shown.push(lineChart(parts.length === 1 ? `Reward: ${parts[0].slice(7, -5)}` : "Reward", rewards, { onpick: pick }));
  if (metrics.held_out.length) {
    shown.push(lineChart("Held-out score, 95 % interval", [{ name: "score", steps: metrics.held_out.map((s) => s.step), values: metrics.held_out.map((s) => s.value) }],
      { bars: metrics.held_out, dots: true }));
  }
  if (has("length/mean")) shown.push(lineChart("Mean length in tokens", [line("length/mean")], { onpick: pick }));
  if (has("groups/useful") && has("groups/total")) {
    const all = metrics.curves["groups/total"], useful = metrics.curves["groups/useful"];
    if (all.steps.length === useful.steps.length) {
      shown.push(lineChart("Useful groups, share", [{ name: "useful", steps: useful.steps, values: useful.values.map((v, i) => (all.values[i] ? v / all.values[i] : 0)) }], { onpick: pick }));
    }
  }
  if (has("policy/entropy")) shown.push(lineChart("Entropy in nats a token", [line("policy/entropy")], { onpick: pick }));
  const rest = metrics.names.filter((name) => has(name) && !FIRST.includes(name) && !parts.includes(name) && !name.startsWith("groups/"));
  const others = h("div", { class: "charts" });
  const filter = h("input", { type: "search", placeholder: `${rest.length} more curves: time, loss, …`, "aria-label": "Find a curve",
    oninput: () => others.replaceChildren(...rest.filter((name) => filter.value && name.includes(filter.value)).slice(0, 12).map((name) => lineChart(name, [line(name)], { onpick: pick }))) });
  return [h("section", { class: "charts" }, shown), rest.length > 0 && h("section", {}, h("p", { class: "finder" }, filter), others)].filter(Boolean)
    .reduce((box, part) => (box.append(part), box), h("div", {}));
}

function eventList(about) {
  const said = about.events.filter((event) => event.kind !== "forecast");
  if (!said.length) return h("div", {});
  return h("section", {}, h("h2", {}, "Events"), h("ul", { class: "events" }, said.reverse().map((event) =>
    h("li", {}, h("span", { class: "quiet" }, `${when(event.time)}  ${event.step === null ? "" : `step ${event.step}`}  `), chip(event.kind, "note"), " ", event.message))));
}

export async function stepsPage(context) {
  const key = context.key;
  const body = h("tbody", {});
  const row = (line) => h("tr", { "data-row": true },
    h("td", { class: "right" }, h("a", { class: "strong", href: to.step(key, line.step) }, number(line.step))),
    h("td", { class: "right" }, number(line.reward)),
    h("td", { class: "right" }, line.groups === null ? "–" : `${number(line.useful)} / ${number(line.groups)}`),
    h("td", { class: "right" }, number(line.length, 1)),
    h("td", { class: "right" }, number(line.entropy)),
    h("td", { class: "right" }, number(line.samples)),
    h("td", {}, line.evaluations.map((name) => [h("a", { href: to.step(key, line.step, `eval:${name}`) }, name), " "])),
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
    found.total ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, right("step"), right("reward"), right("useful groups"), right("length"), right("entropy"), right("answers"), h("th", {}, "evaluations"), h("th", {}, "time"))), body))
      : empty("No step is stored yet."), foot];
}

export async function settingsPage(context) {
  const about = await ask(run(context.key), {}, context.signal);
  const rows = about.config.map((one) => h("tr", { class: one.origin.startsWith("command line") ? "changed" : "" },
    h("td", {}, h("code", {}, one.key)), h("td", {}, h("code", {}, typeof one.value === "string" ? one.value : JSON.stringify(one.value))), h("td", { class: "quiet" }, one.origin)));
  const facts = [["folder", about.folder], ["configuration", about.config_hash], ["data", about.data_hash], ["platform", about.platform], ...Object.entries(about.versions)];
  const forecast = about.events.find((event) => event.kind === "forecast");
  return [h("h1", {}, "Settings"), table(["key", "value", "from"], rows),
    forecast && h("section", {}, h("h2", {}, "Forecast"), h("p", {}, forecast.message)),
    h("h2", {}, "Versions"), table(["", ""], facts.filter(([, value]) => value).map(([name, value]) => h("tr", {}, h("td", { class: "quiet" }, name), h("td", {}, h("code", {}, value))))),
    h("h2", {}, "Sessions"), table(["started", "ended", "status"], about.sessions.map((one) => h("tr", {}, h("td", {}, when(one.started)), h("td", {}, when(one.ended)), h("td", {}, one.status ? chip(one.status) : "–")))),
    about.checkpoints.length > 0 && [h("h2", {}, "Checkpoints"), h("p", {}, about.checkpoints.map((name) => [h("code", {}, name), " "]))]].flat().filter(Boolean);
}

