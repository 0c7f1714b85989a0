// Questions to the server, and addresses inside the viewer.

export class Refused extends Error {
  constructor(status, line) { super(line); this.status = status; }
}

// How many questions the page that is being drawn has asked, and how many are answered.
export const loading = { asked: 0, answered: 0, changed: () => {} };

export async function ask(path, parameters = {}, signal = undefined) {
  loading.asked += 1;
  loading.changed();
  try {
    return await answer(path, parameters, signal);
  } finally {
    loading.answered += 1;
    loading.changed();
  }
}

async function answer(path, parameters, signal) {
  try {
    const response = await fetch(`/api/v1${path}${query(parameters)}`, { signal });
    const body = await response.json();
    if (!response.ok) throw new Refused(response.status, body.error || response.statusText);
    return body;
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
    throw new Refused(0, "the server does not answer. Is `burnish view` still running?");
  }
}

export function query(parameters) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") words.append(name, one);
    }
  }
  const text = words.toString();
  return text ? `?${text}` : "";
}

export const run = (key, rest = "") => `/runs/${encodeURIComponent(key)}${rest}`;

// A stored step as people count: training begins with step 1, an evaluation before it is the start.
export const stepNumber = (step, split = "train") => (split.startsWith("eval:") ? step : step + 1);
export const stepName = (step, split = "train") => (stepNumber(step, split) === 0 ? "start" : `step ${stepNumber(step, split).toLocaleString("en")}`);
export const storedStep = (number, split = "train") => (split.startsWith("eval:") ? number : number - 1);
// A name such as train-3-2-4, or the key of the store, such as 2/train/11.
export const isSampleName = (text) => /^(\S+-)?(start|\d+)-\d+-\d+$|^\d+\/\S+\/\d+$/.test(text);

// Addresses of pages; they can be shared. Steps in them count from 1.
export const to = {
  runs: () => "/",
  run: (key) => `/run/${encodeURIComponent(key)}`,
  steps: (key) => `/run/${encodeURIComponent(key)}/steps`,
  step: (key, number, split) => `/run/${encodeURIComponent(key)}/step${query({ number, split })}`,
  group: (key, number, group, split) => `/run/${encodeURIComponent(key)}/group${query({ number, key: group, split })}`,
  sample: (key, id) => `/run/${encodeURIComponent(key)}/sample${query({ id })}`,
  samples: (key, filters = {}) => `/run/${encodeURIComponent(key)}/samples${query(filters)}`,
  pairs: (key, words = {}) => `/run/${encodeURIComponent(key)}/pairs${query(words)}`,
  questions: (key, words = {}) => `/run/${encodeURIComponent(key)}/questions${query(words)}`,
  prompt: (key, task) => `/run/${encodeURIComponent(key)}/prompt${query({ task })}`,
  audit: (key) => `/run/${encodeURIComponent(key)}/audit`,
  settings: (key) => `/run/${encodeURIComponent(key)}/settings`,
  compare: (keys) => `/compare${query(keys.length === 2 ? { a: keys[0], b: keys[1] } : { run: keys })}`,
  sweep: (name) => `/compare${query({ sweep: name })}`,
  skill: (key) => `/skill${query({ key })}`,
  benches: () => "/benches",
  bench: (key) => `/bench${query({ key })}`,
};
