// The shell: addresses, the bar at the top, keys, and the theme.

import { h } from "/static/dom.js";
import { loading, Refused, to } from "/static/api.js";
import { runsPage } from "/static/pages/runs.js";
import { overviewPage, stepsPage, settingsPage } from "/static/pages/run.js";
import { stepPage, groupPage } from "/static/pages/groups.js";
import { samplePage } from "/static/pages/sample.js";
import { samplesPage } from "/static/pages/samples.js";
import { pairsPage } from "/static/pages/pairs.js";
import { questionsPage } from "/static/pages/questions.js";
import { promptPage } from "/static/pages/prompt.js";
import { auditPage } from "/static/pages/audit.js";
import { comparePage } from "/static/pages/compare.js";
import { benchesPage, benchPage } from "/static/pages/benches.js";
import { skillPage } from "/static/pages/skill.js";

const OF_RUN = {
  "": overviewPage, steps: stepsPage, settings: settingsPage, step: stepPage, group: groupPage,
  sample: samplePage, samples: samplesPage, pairs: pairsPage, questions: questionsPage, prompt: promptPage, audit: auditPage,
};
const OTHERS = { "": runsPage, compare: comparePage, benches: benchesPage, bench: benchPage, skill: skillPage };
const TABS = [["", "Overview", to.run], ["steps", "Steps", to.steps], ["samples", "Samples", to.samples],
  ["audit", "Audit", to.audit], ["settings", "Settings", to.settings]];
const TAB_OF = { step: "steps", group: "steps", pairs: "steps", questions: "steps", sample: "samples", prompt: "samples" };

const bar = document.getElementById("bar");
const page = document.getElementById("page");
const help = document.getElementById("help");

// What a page is given: its run, its parameters, and ways to stop, to be told of keys, to go on.
let current = null;

class Context {
  constructor(key, parameters) {
    this.key = key;
    this.parameters = parameters;
    this.keys = {};
    this.stopped = new AbortController();
  }
  get signal() { return this.stopped.signal; }
  // Do something again and again while the page is looked at; never twice at the same time.
  every(seconds, work) {
    let isBusy = false;
    const timer = setInterval(async () => {
      if (document.hidden || isBusy) return;
      isBusy = true;
      try {
        await work();
        document.body.classList.remove("lost");
      } catch (error) {
        if (this.signal.aborted) return;
        if (!(error instanceof Refused)) throw error;
        document.body.classList.toggle("lost", error.status === 0);
      } finally { isBusy = false; }
    }, seconds * 1000);
    this.signal.addEventListener("abort", () => clearInterval(timer));
  }
  go(address, options) { visit(address, options); }
}

function parse(address) {
  const url = new URL(address, location.origin);
  const words = url.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  const parameters = url.searchParams;
  if (words[0] === "run" && words.length >= 2 && words.length <= 3) {
    const name = words[2] || "";
    return { key: words[1], name, draw: OF_RUN[name], parameters };
  }
  return { key: "", name: words[0] || "", draw: words.length <= 1 ? OTHERS[words[0] || ""] : undefined, parameters };
}

async function show({ y = 0, isFirst = false } = {}) {
  if (current) current.stopped.abort();
  const place = parse(location.href);
  const context = new Context(place.key, place.parameters);
  current = context;
  drawBar(place);
  page.setAttribute("aria-busy", "true");
  const sign = showLoading(context, isFirst);
  let content;
  try {
    if (!place.draw) throw new Refused(404, "there is no such page.");
    content = await place.draw(context);
  } catch (error) {
    if (context.signal.aborted) return;
    if (!(error instanceof Refused)) reportError(error);
    content = problem(error);
  }
  if (context.signal.aborted) return;
  sign.remove();
  const field = focused();
  page.replaceChildren(...[content].flat().filter((part) => part instanceof Node));
  page.removeAttribute("aria-busy");
  document.body.classList.remove("lost");
  const title = page.querySelector("h1");
  document.title = title ? `${title.textContent} · burnish` : "burnish";
  window.scrollTo(0, y);
  if (field && page.querySelector(field)) page.querySelector(field).focus({ preventScroll: true });
  else if (!isFirst) page.focus({ preventScroll: true });
}

// A line that says how far the page is, at once on the first one and after a moment on others.
function showLoading(context, isFirst) {
  loading.asked = loading.answered = 0;
  const text = h("span", {}, "Loading…");
  const sign = h("p", { class: "loading", role: "status" }, h("i", {}), text);
  loading.changed = () => {
    if (current !== context) return;
    text.textContent = loading.asked > 1 ? `Loading ${Math.min(loading.answered + 1, loading.asked)} of ${loading.asked}…` : "Loading…";
  };
  if (isFirst) page.replaceChildren(sign, h("div", { class: "skeleton", "aria-hidden": "true" }, [1, 2, 3].map(() => h("i", {}))));
  else setTimeout(() => { if (current === context && page.hasAttribute("aria-busy")) bar.append(sign); }, 300);
  return sign;
}

// The field that has the focus, to find it again in the page that comes: a changed filter keeps its place.
function focused() {
  const field = document.activeElement;
  const label = field && page.contains(field) && field.matches("input, select, button") && field.getAttribute("aria-label");
  return label ? `[aria-label="${CSS.escape(label)}"]` : "";
}

function problem(error) {
  const line = error instanceof Refused ? error.message : `a bug in the viewer: ${error.message}`;
  return h("section", { class: "problem", role: "alert" }, h("h1", {}, "Not here"), h("p", {}, line),
    h("p", {}, h("a", { href: "/" }, "All runs")));
}

function visit(address, { replace = false } = {}) {
  const same = new URL(address, location.origin).href === location.href;
  keepPlace();
  if (!same) history[replace ? "replaceState" : "pushState"](null, "", address);
  return show({ y: replace ? window.scrollY : 0 });
}

// Pages are drawn after the browser would have scrolled back, so their place is kept with the address.
function keepPlace() {
  history.replaceState({ y: window.scrollY }, "");
}

function drawBar(place) {
  const tab = TAB_OF[place.name] || place.name;
  bar.replaceChildren(
    h("a", { class: "brand", href: "/", "aria-label": "burnish, all runs" }, h("img", { src: "/static/icon.svg", alt: "", width: 22, height: 22 }), "burnish"),
    h("nav", { class: "crumbs", "aria-label": "Run" },
      place.key && [h("a", { class: "run", href: to.run(place.key) }, place.key),
        h("span", { class: "tabs" }, TABS.map(([name, label, address]) =>
          h("a", { href: address(place.key), "aria-current": tab === name ? "page" : null }, label)))]),
    h("nav", { class: "side", "aria-label": "Viewer" },
      h("a", { href: to.runs(), "aria-current": !place.key && place.name === "" ? "page" : null }, "Runs"),
      h("a", { href: to.benches(), "aria-current": place.name.startsWith("bench") ? "page" : null }, "Judges"),
      h("button", { type: "button", title: "Light or dark (t)", "aria-label": "Light or dark", onclick: turnTheme }, "◐"),
      h("button", { type: "button", title: "Keys (?)", "aria-label": "Keys", onclick: showHelp }, "?")));
}

// --- theme

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
}

function turnTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = dark ? "light" : "dark";
  localStorage.setItem("theme", name);
  setTheme(name);
}

// --- keys

const KEYS = [
  ["j, k or ↓, ↑", "next, previous row"], ["Enter", "open the row"], ["[ and ]", "the step, group or answer before, after"],
  ["u", "up: from an answer to its group, step, run"], ["/", "search the answers of this run"],
  ["1 to 4", "colour tokens by author, log-prob, entropy, advantage"], ["←, →", "the token before, after"], ["t", "light or dark"], ["?", "this list"], ["+, −, 0 on a chart", "zoom in, out, back; ← and → read it"], ["Esc", "close, leave a field"],
];

function showHelp() {
  help.replaceChildren(h("h2", {}, "Keys"),
    h("dl", {}, KEYS.map(([keys, what]) => [h("dt", {}, keys), h("dd", {}, what)])),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  help.showModal();
}

function rows() {
  return [...page.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null);
}

function moveRow(by) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.classList.contains("chosen"));
  const next = now < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(now + by, 0), all.length - 1);
  if (now >= 0) all[now].classList.remove("chosen");
  all[next].classList.add("chosen");
  const target = all[next].querySelector("a") || all[next];
  target.focus({ preventScroll: true });
  all[next].scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const field = event.target.closest("input, select, textarea");
  if (field) { if (event.key === "Escape") field.blur(); return; }
  if (help.open) return;
  const own = current && current.keys[event.key];
  if (own) { event.preventDefault(); own(); return; }
  const common = {
    j: () => moveRow(1), ArrowDown: () => moveRow(1), k: () => moveRow(-1), ArrowUp: () => moveRow(-1),
    t: turnTheme, "?": showHelp,
    "/": () => {
      const search = [...page.querySelectorAll("input[type=search]")].find((field) => field.offsetParent !== null);
      if (search) search.focus(); else if (current.key) visit(to.samples(current.key));
    },
    u: () => { if (current.key) visit(to.run(current.key)); else visit("/"); },
  }[event.key];
  if (!common || (event.key.startsWith("Arrow") && !rows().length)) return;
  event.preventDefault();
  common();
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const address = link.getAttribute("href");
  if (!address.startsWith("/") || address.startsWith("//") || link.hasAttribute("download")) return;
  event.preventDefault();
  visit(address);
});

history.scrollRestoration = "manual";
window.addEventListener("popstate", (event) => show({ y: event.state ? event.state.y : 0 }));
window.addEventListener("pagehide", keepPlace);
setTheme(localStorage.getItem("theme"));
show({ y: history.state ? history.state.y : 0, isFirst: true });
