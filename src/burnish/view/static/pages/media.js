// Images and sounds of messages. The server gives them by their hash; nothing is loaded from elsewhere.

import { h } from "/static/dom.js";
import { ask, run } from "/static/api.js";

// A content is a text, or parts: texts, images and sounds.
export function content(parts, key) {
  if (typeof parts === "string") return h("pre", {}, parts);
  return (parts || []).map((part) => {
    if (part.type === "text") return part.text.trim() === "" ? null : h("pre", {}, part.text);
    const path = run(key, `/blobs/${encodeURIComponent(part.sha256)}`);
    return part.type === "image" ? image(part, path) : sound(part, path);
  });
}

const kind = (part) => String(part.media_type || "").split("/")[1] || part.type;
const named = (part) => `${part.type} ${part.sha256.slice(0, 12)}`;

function broken(part) {
  return h("p", { class: "broken" }, `${named(part)} cannot be shown: it is not in this run, or damaged.`);
}

function image(part, path) {
  const src = `/api/v1${path}`, caption = h("figcaption", {}, `${named(part)} · ${kind(part)}`);
  const picture = h("img", { class: "media", src, alt: named(part), loading: "lazy" });
  const link = h("a", { href: src, target: "_blank", rel: "noopener", title: "The whole image" }, picture);
  picture.addEventListener("load", () => {
    caption.textContent = `${named(part)} · ${kind(part)} · ${picture.naturalWidth} × ${picture.naturalHeight}`;
  });
  picture.addEventListener("error", () => link.replaceWith(broken(part)));
  return h("figure", { class: "medium" }, link, caption);
}

function sound(part, path) {
  const player = h("audio", { class: "media", src: `/api/v1${path}`, title: named(part), "aria-label": named(part), controls: true, preload: "metadata" });
  const canvas = h("canvas", { role: "img", "aria-label": `waveform and spectrogram of ${named(part)}` });
  const caption = h("figcaption", {}, `${named(part)} · ${kind(part)}`);
  const figure = h("figure", { class: "medium" }, canvas, player, caption);
  ask(`${path}/picture`, {}).then((found) => {
    caption.textContent += ` · ${found.seconds.toFixed(found.seconds < 10 ? 2 : 1)} s · ${found.rate.toLocaleString("en")} Hz`
      + `${found.channels > 1 ? ` · ${found.channels} channels` : ""} · up to ${(found.highest_hz / 1000).toFixed(1)} kHz, logarithmic`;
    const draw = () => drawn(canvas, found, player);
    new ResizeObserver(draw).observe(canvas);
    for (const event of ["timeupdate", "seeking", "play", "pause", "ended"]) player.addEventListener(event, draw);
    const turn = () => { draw(); if (!player.paused && canvas.isConnected) requestAnimationFrame(turn); };
    player.addEventListener("play", turn);
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      player.currentTime = ((event.clientX - box.left) / box.width) * found.seconds;
      draw();
    });
  }).catch((error) => canvas.replaceWith(h("p", { class: "broken" }, `${named(part)} is not drawn: ${error.message}`)));
  return figure;
}

// The waveform above, the spectrogram below, a line where the player stands.
function drawn(canvas, found, player) {
  const scale = globalThis.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const wide = Math.max(1, Math.round(box.width * scale)), high = Math.max(1, Math.round(box.height * scale));
  if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
  const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
  const colour = (name) => style.getPropertyValue(name).trim();
  pen.clearRect(0, 0, wide, high);
  const wave = Math.round(high * 0.38), middle = wave / 2, step = wide / found.peaks.length;
  pen.fillStyle = colour("--accent");
  found.peaks.forEach(([low, top], column) => {
    const up = middle - (top / 127) * (middle - 2 * scale), down = middle - (low / 127) * (middle - 2 * scale);
    pen.fillRect(column * step, up, Math.max(step - 0.3, 0.7), Math.max(down - up, scale));
  });
  pen.imageSmoothingEnabled = true;
  pen.drawImage(spectrogram(found), 0, wave, wide, high - wave);
  if (player.currentTime > 0) {
    pen.fillStyle = colour("--bad") || "#d33";
    pen.fillRect((player.currentTime / found.seconds) * wide - scale / 2, 0, 1.5 * scale, high);
  }
}

// Black over violet and orange to white, by loudness; made once for each sound.
const COLOURS = [[8, 8, 20], [59, 15, 112], [140, 41, 129], [222, 73, 104], [254, 159, 109], [252, 253, 191]];

function spectrogram(found) {
  if (found.canvas) return found.canvas;
  const bands = Uint8Array.from(atob(found.bands), (one) => one.charCodeAt(0)), rows = found.band_count;
  const wide = bands.length / rows, canvas = h("canvas", { width: wide, height: rows });
  const pen = canvas.getContext("2d"), pixels = pen.createImageData(wide, rows);
  bands.forEach((loud, place) => {
    const column = Math.floor(place / rows), row = rows - 1 - (place % rows), at = (row * wide + column) * 4;
    const much = (loud / 255) * (COLOURS.length - 1), below = Math.min(Math.floor(much), COLOURS.length - 2), share = much - below;
    for (let rgb = 0; rgb < 3; rgb++) pixels.data[at + rgb] = COLOURS[below][rgb] * (1 - share) + COLOURS[below + 1][rgb] * share;
    pixels.data[at + 3] = 255;
  });
  pen.putImageData(pixels, 0, 0);
  found.canvas = canvas;
  return canvas;
}
