// One answer: its tokens coloured by author, log-prob, entropy or advantage, and why it got its reward.

import { h, chip, number, plural, response, signChip, signed } from "/static/dom.js";
import { ask, query, run, stepName, stepNumber, to } from "/static/api.js";
import { claimsBlock } from "/static/pages/claims.js";
import { messages } from "/static/pages/groups.js";
import { pairBlock } from "/static/pages/pairs.js";
import { planBlock } from "/static/pages/plans.js";
import { latentsBlock } from "/static/pages/latents.js";
import { premisesBlock } from "/static/pages/premises.js";
import { rewardTree, value } from "/static/pages/reward.js";
import { rubricBlock } from "/static/pages/rubrics.js";
import { soundsBlock } from "/static/pages/sounds.js";

const MODES = [["author", "author"], ["logprob", "log-prob"], ["entropy", "entropy"], ["advantage", "advantage"], ["unmasked", "step"]];

export async function samplePage(context) {
  const key = context.key, id = context.parameters.get("id");
  const found = await ask(run(key, "/sample"), { id, tokens_from: context.parameters.get("from") }, context.signal);
  if (found.previous) context.keys["["] = () => context.go(to.sample(key, found.previous));
  if (found.next) context.keys["]"] = () => context.go(to.sample(key, found.next));
  const number_ = stepNumber(found.step, found.split) || "start";
  const split = found.split === "train" ? "" : found.split;
  context.keys.u = () => context.go(to.group(key, number_, found.group.key, found.split));
  const oracle = found.counted.oracle;
  // A generator of speech is scored by its loss; what it says is only to be heard.
  const isSpoken = found.sounds && found.role === "speech";
  return [
    h("div", { class: "head" }, h("h1", {}, found.pair ? "Pair " : found.sounds ? "Sound " : "Answer ", h("code", { title: `stored as ${found.id}` }, found.name)),
      h("p", { class: "pager" }, found.previous && h("a", { class: "button", href: to.sample(key, found.previous) }, "← before"), found.next && h("a", { class: "button", href: to.sample(key, found.next) }, "after →"))),
    h("p", { class: "quiet" }, h("a", { href: to.step(key, number_, split) }, stepName(found.step, found.split)), " · ", h("a", { href: to.group(key, number_, found.group.key, found.split) }, `group of ${found.group.size}`),
      ` · ${found.split} · ${found.role} · `, h("a", { href: to.prompt(key, found.task.id) }, `this prompt at ${plural(found.seen_at, "step")}`),
      !found.pair && ` · weights after ${plural(found.weight_version, "update")}`, found.finish === "length" && [" · ", chip("cut", "bad")]),
    found.pair && pairBlock(found.pair),
    h("div", { class: "columns" },
      h("div", {}, found.sounds ? soundsBlock(found.sounds, key) : messages(found.task, key), found.rubric && rubricBlock(found.rubric), found.claims && claimsBlock(found.claims), found.premises && premisesBlock(found.premises, key), found.plan && planBlock(found.plan), found.latents && latentsBlock(found.latents), !found.sounds && tokenView(found, context, key)),
      h("aside", {},
        h("section", { class: "card" },
          h("p", { class: "line big" }, h("span", {}, found.pair ? "margin" : isSpoken ? "loss of its latents" : found.sounds ? "distance in dB" : "reward"), h("span", { class: "dots" }), value(found.reward)),
          !found.sounds && h("p", { class: "line" }, h("span", {}, "advantage"), h("span", { class: "dots" }), found.advantage === null ? "–" : signChip(found.advantage, signed(found.advantage))),
          h("p", { class: "reason" }, found.why),
          oracle > 0 && h("p", {}, chip("oracle", "oracle"), ` ${plural(oracle, "piece")} of evidence ${oracle === 1 ? "holds" : "hold"} the label`),
          found.counted.cost_usd > 0 && h("p", { class: "quiet" }, `judges cost $${found.counted.cost_usd.toFixed(4)}`)),
        h("section", { class: "card" }, h("h2", {}, isSpoken ? "How well it is predicted" : found.sounds ? "How far it is from the sound" : "Why this reward"), rewardTree(found.reward)),
        h("section", { class: "card" }, h("h2", {}, "Its group"), h("ol", { class: "peers" }, found.group.members.map((peer) =>
          h("li", { "data-row": true, class: peer.id === found.id ? "here" : "" }, h("a", { href: to.sample(key, peer.name) }, peer.name), h("span", { class: "dots" }),
            peer.reward === null ? chip(peer.status) : signChip(peer.reward), h("span", { class: "quiet right" }, peer.advantage === null ? "" : signed(peer.advantage, 2)))))),
        Object.keys(found.info).length > 0 && h("details", { class: "card" }, h("summary", {}, "Info"), h("pre", {}, JSON.stringify(found.info, null, 2)))))].filter(Boolean);
}

function tokenView(found, context, key) {
  const tokens = found.tokens;
  if (!tokens.texts) {
    return h("section", {}, h("h2", {}, "Response"), response(found.response), h("p", { class: "quiet" }, `No tokens to show: ${tokens.tokenizer}.`));
  }
  const authors = [];
  for (const span of tokens.spans) for (let i = span.start; i < span.end; i += 1) authors[i] = span.author;
  const author = (i) => authors[i + tokens.start] || "template";
  const scales = { logprob: tokens.logprobs, entropy: tokens.entropies, advantage: tokens.advantages, unmasked: tokens.unmasked };
  // Only a diffusion model writes its tokens in an order of its own.
  const modes = MODES.filter(([mode]) => mode !== "unmasked" || tokens.unmasked);
  const readout = h("p", { class: "readout", role: "status" }, "Point at a token, or walk with ← and →.");
  const legend = h("p", { class: "keys quiet" });
  const fate = fateOf(found);
  const isOwn = (i) => (fate.isTrained ? tokens.mask[i] : author(i) === "model");
  const marks = tokens.texts.map((text, i) =>
    h("span", { class: `token ${author(i)} ${!isOwn(i) ? "masked" : fate.isTrained ? "trained" : "untrained"}`, "data-i": i }, visible(text)));
  const box = h("div", { class: "tokens", "data-mode": "author" }, marks);

  let chosen = -1;
  function choose(i) {
    if (chosen >= 0) marks[chosen].classList.remove("at");
    chosen = Math.min(Math.max(i, 0), marks.length - 1);
    marks[chosen].classList.add("at");
    readout.textContent = [`${JSON.stringify(tokens.texts[chosen])} (${tokens.ids[chosen]})`, author(chosen), !isOwn(chosen) ? (fate.isTrained ? "masked: not trained" : "not the model's own") : fate.isTrained ? "trained" : fate.word,
      known(tokens.logprobs, chosen) && `log-prob ${number(tokens.logprobs[chosen], 3)} (p ${number(Math.exp(tokens.logprobs[chosen]), 3)})`,
      known(tokens.entropies, chosen) && `entropy ${number(tokens.entropies[chosen], 3)}`,
      known(tokens.unmasked, chosen) && `written at step ${tokens.unmasked[chosen]}`,
      known(tokens.advantages, chosen) && `advantage ${signed(tokens.advantages[chosen])}`].filter(Boolean).join(" · ");
  }
  box.addEventListener("pointerover", (event) => {
    const mark = event.target.closest(".token");
    if (mark) choose(Number(mark.dataset.i));
  });
  const walk = (by) => { choose(chosen < 0 ? marks.findIndex((_, i) => isOwn(i)) : chosen + by); marks[chosen].scrollIntoView({ block: "nearest" }); };
  if (marks.length) { context.keys.ArrowRight = () => walk(1); context.keys.ArrowLeft = () => walk(-1); }

  const has = (mode) => mode === "author" || (scales[mode] || []).some((value) => value !== null);
  const buttons = modes.map(([mode, label], place) => h("button", { type: "button", class: "choice", title: has(mode) ? `key ${place + 1}` : `no ${label} was stored for this answer`,
    disabled: !has(mode), onclick: () => recolour(mode) }, label));
  function paint(mode) {
    box.dataset.mode = mode;
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(modes[place][0] === mode)));
    const values = scales[mode];
    const most = (values || []).reduce((found, value) => Math.max(found, Math.abs(value || 0)), 0);
    const largest = Math.max(most, 1e-9);
    legend.replaceChildren(...legendOf(mode, new Set(tokens.texts.map((_, i) => author(i))), tokens, fate), ...scaleOf(mode, most));
    marks.forEach((mark, i) => {
      mark.classList.remove("plus", "minus", "even");
      if (!known(values, i)) { mark.style.removeProperty("--heat"); return; }
      mark.style.setProperty("--heat", `${Math.round((Math.abs(values[i]) / largest) * 40)}%`);
      mark.classList.add(mode !== "advantage" ? "even" : values[i] >= 0 ? "plus" : "minus");
    });
  }
  function recolour(mode) {
    const from = context.parameters.get("from") || "";
    history.replaceState(history.state, "", `${location.pathname}${query({ id: found.name, from, by: mode === "author" ? "" : mode })}`);
    paint(mode);
  }
  modes.forEach(([mode], place) => { context.keys[String(place + 1)] = () => { if (has(mode)) recolour(mode); }; });
  const asked = context.parameters.get("by");
  paint(modes.some(([mode]) => mode === asked) && has(asked) ? asked : "author");
  const end = tokens.start + tokens.ids.length;
  const part = (from) => `/run/${encodeURIComponent(key)}/sample${query({ id: found.name, from: from || "" })}`;
  return h("section", { class: "tokenview" },
    h("div", { class: "head" }, h("h2", {}, "Tokens"), h("p", { class: "choices" }, h("span", { class: "quiet" }, "coloured by"), buttons)),
    legend, readout, box,
    (tokens.start > 0 || end < tokens.total) && h("p", { class: "choices" }, h("span", { class: "quiet" }, `tokens ${number(tokens.start)} to ${number(end)} of ${number(tokens.total)}`),
      tokens.start > 0 && h("a", { class: "button", href: part(0) }, "from the start"), end < tokens.total && h("a", { class: "button", href: part(end) }, "go on")));
}

// What became of the tokens that the model wrote: only those of kept training answers move the weights.
function fateOf(found) {
  if (found.pair) return { isTrained: false, word: "the chosen answer, as the data has it" };
  if (found.split.startsWith("eval:")) return { isTrained: false, word: "sampled" };
  if (found.split === "dropped") return { isTrained: false, word: "sampled, then put aside" };
  if (!found.keep) return { isTrained: false, word: "sampled, left out of the loss" };
  return found.tokens.mask.includes(1) ? { isTrained: true, word: "sampled and trained" } : { isTrained: false, word: "sampled, not trained" };
}

function legendOf(mode, authors, tokens, fate) {
  const key = (name, label) => h("span", { class: `token ${name}` }, label);
  if (mode === "author") {
    return [key(fate.isTrained ? "model trained" : "model untrained", fate.word), authors.has("prompt") && key("prompt masked", "prompt"), authors.has("template") && key("template masked", "template"),
      authors.has("tool") && key("tool masked", "tool"), h("span", {}, fate.isTrained ? "grey: masked, not trained" : "grey: not the model's own")].filter(Boolean);
  }
  if (mode === "logprob") return [h("span", {}, "The stronger the colour, the less likely the token was.")];
  if (mode === "entropy") return [h("span", {}, "The stronger the colour, the less sure the model was of what comes here.")];
  if (mode === "unmasked") return [h("span", {}, "The stronger the colour, the later the token was written.")];
  return [h("span", { class: "sign plus" }, "encouraged"), h("span", { class: "sign minus" }, "discouraged"),
    h("span", {}, tokens.advantage_kind === "rollout" ? "one advantage for the whole answer" : "an advantage for each token")];
}

// What the colours span: from none at 0 to the strongest at the largest value among these tokens.
function scaleOf(mode, most) {
  if (mode === "author") return [];
  const ends = { logprob: ["0", `${signed(-most)} nats`], entropy: ["0", `${number(most, 3)} nats`], advantage: [signed(-most), signed(most)], unmasked: ["step 1", `step ${most}`] }[mode];
  return [h("span", { class: "scale" }, ends[0], h("span", { class: `ramp ${mode === "advantage" ? "both" : "even"}`, "aria-hidden": "true" }), ends[1])];
}

function known(values, i) {
  return values && values[i] !== null && values[i] !== undefined;
}

function visible(text) {
  const written = (found) => `\\x${found.charCodeAt(0).toString(16).padStart(2, "0")}`;
  return text.replaceAll("\n", "↵\n").replace(/[\x00-\x08\x0b-\x1f\x7f]/g, written);
}
