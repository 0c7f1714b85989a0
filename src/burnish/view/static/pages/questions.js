// Questions of search self-play: each with its success rate over the steps in which it was played.

import { h, empty, more, number, percent, plural, table } from "/static/dom.js";
import { ask, run, to } from "/static/api.js";

const SORTS = { newest: "newest first", hardest: "hardest first", easiest: "easiest first", most_played: "played most often first" };

export async function questionsPage(context) {
  const key = context.key, sort = context.parameters.get("sort") || "newest";
  const rows = h("tbody", {}), foot = h("p", {});
  async function load(after) {
    const found = await ask(run(key, "/questions"), { sort, after, limit: 50 }, context.signal);
    rows.append(...found.questions.map((line) => questionRow(key, line)));
    foot.replaceChildren(found.next === null ? "" : more(`More questions (${number(found.count)} in all)`, () => load(found.next)));
    return found;
  }
  const found = await load();
  context.keys.u = () => context.go(to.run(key));
  const shown = table(["question", "answer", { text: "success rate by step", class: "right" }], [], { class: "stacked" });
  shown.querySelector("tbody")?.replaceWith(rows);
  return [
    h("h1", {}, "Questions of the game"),
    h("p", { class: "lead" }, `${plural(found.count, "question")} that a solver was given, ${number(found.replayed)} of them in several steps.`),
    h("p", { class: "choices" }, h("span", { class: "quiet" }, "order"),
      Object.entries(SORTS).map(([name, label]) => h("a", { class: "choice", href: to.questions(key, { sort: name }), "aria-current": sort === name ? "true" : null }, label))),
    found.count ? shown : empty("No question was accepted yet. The samples of the role proposer say what each was refused for."), foot];
}

function questionRow(key, line) {
  const play = (one) => h("a", { class: "nowrap", href: to.group(key, one.number, one.group), title: `${one.origin}, ${plural(one.attempts, "attempt")}` },
    `step ${number(one.number)}: ${one.success === null ? "not scored" : percent(one.success)}`);
  return h("tr", { "data-row": true }, h("td", {}, line.question), h("td", { "data-head": "answer" }, line.answer.join(" or ")),
    h("td", { class: "right", "data-head": "success rate by step" }, line.plays.map((one, place) => [place ? " · " : "", play(one)])));
}
