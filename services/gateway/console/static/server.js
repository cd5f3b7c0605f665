/* Requests to the gateway, the one stream of events, and the jobs known so far. */

const BASE = "/console/api/";
export const session = { data: null };
export class Refused extends Error {
  constructor(status, body) {
    super(body?.error?.message || `the server answered ${status}`);
    this.status = status;
    this.param = body?.error?.param || "";
  }
}

export async function ask(path, method = "GET", body = undefined) {
  const headers = {};
  if (method !== "GET" && session.data?.csrf) headers["X-CSRF-Token"] = session.data.csrf;
  const form = body instanceof FormData; // the browser names its type
  if (body !== undefined && !form) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(BASE + path, { method, headers, body: typeof body === "object" && !form ? JSON.stringify(body) : body });
  } catch {
    throw new Refused(0, { error: { message: "The server cannot be reached. Try again in a moment." } });
  }
  const said = await answer.json().catch(() => null);
  if (!answer.ok) {
    if (answer.status === 401 && path !== "login") dispatch("ended", {});
    throw new Refused(answer.status, said);
  }
  return said;
}

export const imageOf = (id, thumb) => `${BASE}jobs/${encodeURIComponent(id)}/image${thumb ? "?size=thumb" : ""}`;

/* ---- events ---- */

const listeners = new Map();
export function on(kind, listener) {
  if (!listeners.has(kind)) listeners.set(kind, new Set());
  listeners.get(kind).add(listener);
  return () => listeners.get(kind).delete(listener);
}
function dispatch(kind, data) {
  for (const listener of [...(listeners.get(kind) || [])]) listener(data);
}

let stream = null, retry = 0;
export let fleet = null, reached = true; // whether the server answered last
export function disconnect() { clearTimeout(retry); stream?.close(); }
export function connect() {
  disconnect();
  stream = new EventSource(`${BASE}events`);
  let down = false;
  const heard = (kind, take) => stream.addEventListener(kind, (event) => take(JSON.parse(event.data)));
  heard("hello", () => { reached = true; dispatch("connected", { again: down }); down = false; });
  heard("job", (job) => { jobs.merge(job); dispatch("job", jobs.get(job.id)); });
  heard("progress", (step) => { const job = jobs.progress(step); if (job) dispatch("job", job); });
  heard("reload", () => dispatch("reload", {}));
  heard("fleet", (answer) => { fleet = answer; dispatch("fleet", answer); });
  stream.onerror = ({ data }) => {
    if (data) { stream.close(); return dispatch("ended", {}); } // the server's last word: the session has ended
    reached = false;
    if (!down) dispatch("disconnected", {});
    down = true;
    if (stream.readyState === EventSource.CLOSED) retry = setTimeout(connect, 2000);
  };
}

/* ---- jobs: newest first, read page by page ---- */

const known = new Map();
let order = [], next = "", started = false, loading = null, back = ""; // back: oldest id of the pages that were read
export const jobs = {
  get: (id) => known.get(id),
  all: () => order,
  get complete() { return started && !next; },
  merge(job) {
    const before = known.get(job.id);
    const merged = before ? Object.assign(before, job) : { ...job, found: job.prompt.toLowerCase() };
    merged.found = merged.prompt.toLowerCase();
    if (merged.ended_at) { delete merged.preview; delete merged.position; }
    if (!before) {
      known.set(job.id, merged);
      let at = order.length; // ids grow with time
      if (!at || order[0].id < job.id) at = 0;
      else while (at > 0 && order[at - 1].id < job.id) at -= 1;
      order.splice(at, 0, merged);
    }
    return merged;
  },
  progress({ id, step, steps, preview }) {
    const job = known.get(id);
    if (!job || job.ended_at) return null;
    if (job.state !== "running") Object.assign(job, { state: "running", began: performance.now(), first: step });
    Object.assign(job, { step, steps, at: performance.now() });
    delete job.position;
    if (preview) job.preview = preview;
    return job;
  },
  async refresh() {
    const page = await ask("jobs?limit=100");
    page.jobs.forEach(jobs.merge);
    if (!started) { next = page.next; started = true; back = page.jobs.at(-1)?.id ?? ""; }
    dispatch("list", {});
  },
  /* Read the next page; one at a time. */
  async more() {
    if (jobs.complete) return;
    loading ??= (async () => {
      try {
        const page = await ask(`jobs?limit=200&after=${encodeURIComponent(next)}`);
        page.jobs.forEach(jobs.merge);
        next = page.next; started = true; back = page.jobs.at(-1)?.id ?? back;
        dispatch("list", {});
      } finally { loading = null; }
    })();
    await loading;
  },
  /* Read pages until the list reaches back to this id: all its descendants are newer. */
  async until(id) {
    while (!jobs.complete && (!back || back > id)) await jobs.more();
  },
  forget() { known.clear(); order = []; next = ""; started = false; back = ""; },
};
