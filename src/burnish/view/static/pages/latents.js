// What an answer imagined: each span's latents as a picture, beside the true one and how long the latents are.

import { h, number, plural } from "/static/dom.js";

export function latentsBlock(found) {
  return h("section", { class: "card latents" }, h("h2", {}, "Latents: pictures between the words"),
    h("p", { class: "quiet" }, plural(found.spans.length + found.more, "span"), found.clipped > 0 && ` · ${plural(found.clipped, "latent")} cut to length`),
    h("div", { class: "pictures" }, found.question && picture(found.question, "the question's picture"), found.spans.map(span)),
    found.more > 0 && h("p", { class: "quiet" }, `and ${plural(found.more, "further span")}`));
}

function span(one, place) {
  const ratio = one.ratio === null ? "" : ` · ${number(one.ratio, 2)} times as long as the true one`;
  return h("div", { class: "span" },
    one.picture ? picture(one.picture, `imagined ${place + 1}`) : h("p", { class: "quiet" }, "cannot be decoded"),
    one.target && picture(one.target, "true"),
    h("p", { class: "quiet" }, plural(one.slots, "latent"), ratio, one.note && ` · ${one.note}`));
}

function picture(address, words) {
  return h("figure", {}, h("img", { src: address, alt: words }), h("figcaption", { class: "quiet" }, words));
}
