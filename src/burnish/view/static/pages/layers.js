// Figures of every layer of the model: over depth at a few steps, and over steps for a few layers.

import { h, number } from "/static/dom.js";
import { lineChart } from "/static/charts.js";

const LINES = 5;

export function layerCharts(metrics, onpick) {
  const figures = grouped(metrics);
  if (!figures.size) return h("div", {});
  const charts = [...figures].flatMap(([figure, layers]) => {
    const title = metrics.about[`layers/${figure}/${layers[0].layer - 1}`]?.title || figure;
    return [
      lineChart(`${title} over depth`, steps(layers).map((step) => atStep(layers, step)), { axis: "layer", dots: true }),
      lineChart(`${title} over steps`, spread(layers).map(({ layer, curve }) => ({ name: `layer ${layer}`, values: curve.values, steps: curve.steps.map((step) => step + 1) })), { onpick }),
    ];
  });
  return h("section", {}, h("h2", {}, "Layers"), h("div", { class: "charts pairs" }, charts));
}

// By figure, its layers in their order; layers and steps count from 1.
function grouped(metrics) {
  const found = new Map();
  for (const name of metrics.names) {
    const [, figure, layer] = /^layers\/(\w+)\/(\d+)$/.exec(name) || [];
    const curve = metrics.curves[name];
    if (!figure || !curve?.steps.length) continue;
    if (!found.has(figure)) found.set(figure, []);
    found.get(figure).push({ layer: Number(layer) + 1, curve });
  }
  for (const layers of found.values()) layers.sort((a, b) => a.layer - b.layer);
  return found;
}

function atStep(layers, step) {
  const known = layers.map(({ layer, curve }) => ({ layer, place: curve.steps.findLastIndex((one) => one <= step), curve })).filter(({ place }) => place >= 0);
  return { name: `step ${number(step + 1)}`, steps: known.map(({ layer }) => layer), values: known.map(({ curve, place }) => curve.values[place]) };
}

function steps(layers) {
  return spread(layers[0].curve.steps);
}

// At most LINES of them, evenly, the first and the last included.
function spread(all) {
  const count = Math.min(LINES, all.length);
  const places = Array.from({ length: count }, (_, n) => (count > 1 ? Math.round((n * (all.length - 1)) / (count - 1)) : 0));
  return places.map((place) => all[place]);
}
