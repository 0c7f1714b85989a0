// Questions to the server, and addresses inside the viewer.

export class Refused extends Error {
  constructor(status, line) { super(line); this.status = status; }
}

export async function ask(path, parameters = {}, signal = undefined) {
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

// Addresses of pages; they can be shared.
export const to = {
  runs: () => "/",
  run: (key) => `/run/${encodeURIComponent(key)}`,
  steps: (key) => `/run/${encodeURIComponent(key)}/steps`,
  step: (key, step, split) => `/run/${encodeURIComponent(key)}/step${query({ n: step, split })}`,
  group: (key, step, group, split) => `/run/${encodeURIComponent(key)}/group${query({ step, key: group, split })}`,
  sample: (key, id) => `/run/${encodeURIComponent(key)}/sample${query({ id })}`,
  samples: (key, filters = {}) => `/run/${encodeURIComponent(key)}/samples${query(filters)}`,
  prompt: (key, task) => `/run/${encodeURIComponent(key)}/prompt${query({ task })}`,
  audit: (key) => `/run/${encodeURIComponent(key)}/audit`,
  settings: (key) => `/run/${encodeURIComponent(key)}/settings`,
  compare: (keys) => `/compare${query(keys.length === 2 ? { a: keys[0], b: keys[1] } : { run: keys })}`,
  sweep: (name) => `/compare${query({ sweep: name })}`,
  benches: () => "/benches",
  bench: (key) => `/bench${query({ key })}`,
};
