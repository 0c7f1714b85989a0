// A sound beside its reconstructions, each with player, waveform and spectrogram.

import { h } from "/static/dom.js";
import { content } from "/static/pages/media.js";

export function soundsBlock(found, key) {
  return h("section", { class: "sounds" }, found.map((one) =>
    h("article", { class: "card" }, h("h2", {}, one.label), content([one.part], key))));
}
