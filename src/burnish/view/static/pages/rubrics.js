// A judge's rubric, what the leak guard and the proxy made of it, and what it was paid.

import { h, chip, number, signChip, signed } from "/static/dom.js";

export function rubricBlock(found) {
  const fact = (name, ...content) => [h("dt", {}, name), h("dd", {}, content)];
  return h("section", { class: "card rubric" }, h("h2", {}, "The rubric and the proxy"),
    found.rubric ? h("pre", { class: "response" }, marked(found.rubric, found.leaks)) : h("p", { class: "quiet" }, "The answer has no rubric."),
    h("dl", {},
      fact("leak guard", found.leaks.length > 0 && [chip("leak", "bad"), " "], found.guard),
      fact("judge's verdict", found.choice === null ? "none" : `response ${found.choice}`, " ", found.accuracy !== null && chip(found.accuracy > 0 ? "right" : "wrong", found.accuracy > 0 ? "ok" : "bad")),
      fact("proxy", found.value === null ? chip(found.status) : chip(found.value > 0 ? "right" : "wrong", found.value > 0 ? "ok" : "bad"), " ", found.saw,
        found.said && h("details", {}, h("summary", {}, `what ${found.proxy} said`), h("pre", { class: "response" }, found.said))),
      fact("reward", sum(found))));
}

// `1 × accuracy 1 + 1 × proxy −1 + 0.5 × format 1 = 0.5`; a variant of the method has no such sum.
function sum(found) {
  const total = found.total === null ? chip(found.status) : signChip(found.total);
  if (!found.parts.length) return [`${found.reward} `, total];
  return [found.parts.map((part, place) => [place > 0 && " · ", `${part.name} `, part.value === null ? chip(part.status) : signed(part.value, 1), h("span", { class: "quiet" }, ` × ${number(part.weight)}`)]), " → ", total];
}

// The text with these sentences marked; each is looked for behind the one before.
function marked(text, sentences) {
  const parts = [];
  let at = 0;
  for (const sentence of sentences) {
    const found = text.indexOf(sentence, at);
    if (found < 0) continue;
    parts.push(text.slice(at, found), h("mark", {}, sentence));
    at = found + sentence.length;
  }
  return [...parts, text.slice(at)];
}
