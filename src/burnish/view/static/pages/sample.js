// One answer: its tokens coloured by author, log-prob, entropy or advantage, and why it got its reward.

import { h, chip, number, signChip, signed } from "/static/dom.js";
import { ask, run, to } from "/static/api.js";
import { messages } from "/static/pages/groups.js";
import { rewardTree, value } from "/static/pages/reward.js";

const MODES = [["author", "author"], ["logprob", "log-prob"], ["entropy", "entropy"], ["advantage", "advantage"]];

export async function samplePage(context) {
  const key = context.key, id = context.parameters.get("id");
  const found = await ask(run(key, "/sample"), { id }, context.signal);
  if (found.previous) context.keys["["] = () => context.go(to.sample(key, found.previous));
  if (found.next) context.keys["]"] = () => context.go(to.sample(key, found.next));
  context.keys.u = () => context.go(to.group(key, found.step, found.group.key, found.split));
  const oracle = found.counted.oracle;
  return [
    h("div", { class: "head" }, h("h1", {}, "Answer ", h("code", {}, found.id)),
      h("p", { class: "pager" }, found.previous && h("a", { class: "button", href: to.sample(key, found.previous) }, "← before"), found.next && h("a", { class: "button", href: to.sample(key, found.next) }, "after →"))),
    h("p", { class: "quiet" }, h("a", { href: to.step(key, found.step) }, `step ${found.step}`), " · ", h("a", { href: to.group(key, found.step, found.group.key, found.split) }, `group of ${found.group.size}`),
      ` · ${found.split} · ${found.role} · `, h("a", { href: to.prompt(key, found.task.id) }, `this prompt at ${found.seen_at} step${found.seen_at === 1 ? "" : "s"}`),
      ` · weights after ${found.weight_version} updates`, found.finish === "length" && [" · ", chip("cut", "bad")]),
    h("div", { class: "columns" },
      h("div", {}, messages(found.task), tokenView(found, context, key)),
      h("aside", {},
        h("section", { class: "card" },
          h("p", { class: "line big" }, h("span", {}, "reward"), h("span", { class: "dots" }), value(found.reward)),
          h("p", { class: "line" }, h("span", {}, "advantage"), h("span", { class: "dots" }), found.advantage === null ? "–" : signChip(found.advantage, signed(found.advantage))),
          h("p", { class: "reason" }, found.why),
          oracle > 0 && h("p", {}, chip("oracle", "oracle"), ` ${oracle} piece${oracle === 1 ? "" : "s"} of evidence hold${oracle === 1 ? "s" : ""} the label`),
          found.counted.cost_usd > 0 && h("p", { class: "quiet" }, `judges cost $${found.counted.cost_usd.toFixed(4)}`)),
        h("section", { class: "card" }, h("h2", {}, "Why this reward"), rewardTree(found.reward)),
        h("section", { class: "card" }, h("h2", {}, "Its group"), h("ol", { class: "peers" }, found.group.members.map((peer) =>
          h("li", { "data-row": true, class: peer.id === found.id ? "here" : "" }, h("a", { href: to.sample(key, peer.id) }, peer.id), h("span", { class: "dots" }),
            peer.reward === null ? chip(peer.status) : signChip(peer.reward), h("span", { class: "quiet right" }, peer.advantage === null ? "" : signed(peer.advantage, 2)))))),
        Object.keys(found.info).length > 0 && h("details", { class: "card" }, h("summary", {}, "Info"), h("pre", {}, JSON.stringify(found.info, null, 2)))))];
}

function tokenView(found, context, key) {
  const tokens = found.tokens;
  if (!tokens.texts) {
    return h("section", {}, h("h2", {}, "Response"), h("pre", { class: "response" }, found.response), h("p", { class: "quiet" }, `No tokens: ${tokens.tokenizer}`));
  }
  const stretch = [];
  for (const span of tokens.spans) for (let i = span.start; i < span.end; i += 1) stretch[i] = span;
  const scales = {
    logprob: tokens.logprobs, entropy: tokens.entropies, advantage: tokens.advantages,
  };
  const readout = h("p", { class: "readout", "aria-live": "off" }, "Point at a token.");
  const box = h("div", { class: "tokens", "data-mode": "author" });
  const marks = tokens.texts.map((text, i) => {
    const at = i + tokens.start;
    const span = stretch[at] || { author: "template", trained: false };
    const mark = h("span", { class: `token ${span.author} ${tokens.mask[i] ? "trained" : "masked"}`, "data-i": i }, visible(text));
    return mark;
  });
  box.append(...marks);
  box.addEventListener("pointerover", (event) => {
    const mark = event.target.closest(".token");
    if (!mark) return;
    const i = Number(mark.dataset.i);
    const span = stretch[i + tokens.start];
    readout.textContent = [`${JSON.stringify(tokens.texts[i])} (${tokens.ids[i]})`, span ? span.author : "", tokens.mask[i] ? "trained" : "not trained",
      known(tokens.logprobs, i) && `log-prob ${number(tokens.logprobs[i])} (p ${number(Math.exp(tokens.logprobs[i]))})`,
      known(tokens.entropies, i) && `entropy ${number(tokens.entropies[i])}`, known(tokens.advantages, i) && `advantage ${signed(tokens.advantages[i])}`].filter(Boolean).join(" · ");
  });
  const buttons = MODES.map(([mode, label], place) => h("button", { type: "button", class: "choice", title: `key ${place + 1}`, "aria-pressed": mode === "author" ? "true" : "false",
    disabled: mode !== "author" && !(scales[mode] || []).some((value) => value !== null), onclick: () => paint(mode) }, label));
  function paint(mode) {
    box.dataset.mode = mode;
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(MODES[place][0] === mode)));
    const values = scales[mode];
    const largest = values ? Math.max(...values.filter((v) => v !== null).map(Math.abs), 1e-9) : 1;
    marks.forEach((mark, i) => {
      mark.classList.remove("plus", "minus");
      if (!values || values[i] === null || values[i] === undefined) { mark.style.removeProperty("--heat"); return; }
      mark.style.setProperty("--heat", `${Math.round((Math.abs(values[i]) / largest) * 100)}%`);
      if (mode === "advantage") mark.classList.add(values[i] >= 0 ? "plus" : "minus"); else mark.classList.add("minus");
    });
  }
  MODES.forEach(([mode], place) => { context.keys[String(place + 1)] = () => { if (!buttons[place].disabled) paint(mode); }; });
  const end = tokens.start + tokens.ids.length;
  return h("section", { class: "tokenview" },
    h("div", { class: "head" }, h("h2", {}, "Tokens"), h("p", { class: "choices" }, "coloured by ", buttons)),
    h("p", { class: "keys quiet" }, h("span", { class: "token model trained" }, "sampled and trained"), h("span", { class: "token prompt masked" }, "prompt"), h("span", { class: "token template masked" }, "template"), h("span", { class: "token tool masked" }, "tool")),
    readout, box,
    (tokens.start > 0 || end < tokens.total) && h("p", { class: "quiet" }, `tokens ${tokens.start} to ${end} of ${tokens.total}`));
}

function known(values, i) {
  return values && values[i] !== null && values[i] !== undefined;
}

function visible(text) {
  return text.replaceAll("\n", "↵\n");
}
