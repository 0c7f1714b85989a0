// The claims of an answer beside its documents: what it states, what each blind checker found, the vote.

import { h, chip, plural, signed, table } from "/static/dom.js";

export function claimsBlock(found) {
  const whose = found.role === "checker" ? `this is checker ${found.sample + 1}` : "this is the answer itself";
  return h("section", { class: "card claims" }, h("h2", {}, "Claims, checked without the answer"),
    h("p", { class: "quiet" }, `${whose} · ${plural(found.claims.length, "claim")}`, found.left_out > 0 && `, ${found.left_out} left out`, ` · reward ${signed(found.reward)}`),
    found.claims.length > 0 && table(["question", "the answer says", "checkers found", "vote"], found.claims.map(row), { class: "stacked" }),
    h("details", { open: found.documents.length > 0 && found.documents.length <= 8 }, h("summary", {}, plural(found.documents.length, "document")),
      h("ol", {}, found.documents.map((text) => h("li", {}, marked(text, found.claims))))));
}

function row(claim) {
  const said = claim.checks.map((one, place) => [place > 0 && " · ", one === null ? h("span", { class: "quiet" }, "no answer") : one]);
  return h("tr", { class: claim.holds ? "" : "fails" }, h("td", {}, claim.question), h("td", {}, claim.answer), h("td", {}, said),
    h("td", {}, chip(`${claim.holds ? "holds" : "fails"} ${signed(claim.vote, 0)}`, claim.holds ? "ok" : "bad"), claim.by_heart && [" ", chip("by heart", "bad")]));
}

// The document with the answers of claims marked, as whole words.
function marked(text, claims) {
  const words = [...new Set(claims.map((claim) => claim.answer).filter(Boolean))];
  if (!words.length) return text;
  const escaped = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return text.split(new RegExp(`(?<![\\w.])(${escaped.join("|")})(?![\\w])`)).map((part, place) => (place % 2 ? h("mark", {}, part) : part));
}
