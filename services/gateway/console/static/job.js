/* One job: why it is as it is, its lineage and its seconds. Shared by the views. */

import { SOURCES, degradation, h, percent, plural, put, seconds, source, svg, when } from "./dom.js";
import { ask, imageOf, jobs, on, reached } from "./server.js";
import { again } from "./generate.js";
import { alike } from "./gallery.js";

/* The step axis: skipped steps pale, run steps full. */
export function axis(job) {
  const total = Math.max(job.steps, 1), start = job.source === "exact" ? total : job.start_step;
  const done = job.ended_at ? (job.state === "succeeded" ? total : Math.max(start, job.steps_run + start)) : Math.max(job.step, start);
  const x = (step) => `${(100 * Math.min(step, total)) / total}%`, width = (from, to) => `${(100 * Math.max(Math.min(to, total) - from, 0)) / total}%`;
  const said = job.source === "exact" ? `no step of ${total} run` : `starts after step ${start} of ${total}, ${done - start} run`;
  const anchor = start / total > 0.82 ? "end" : start / total < 0.12 ? "start" : "middle";
  return svg("svg", { class: `axis s-${job.source}`, role: "img", "aria-label": `Step axis: ${said}` },
    svg("rect", { class: "track", x: 0, y: 4, width: "100%", height: 11, rx: 3 }),
    svg("rect", { class: "skipped", x: 0, y: 4, width: width(0, start), height: 11, rx: 3 }),
    svg("rect", { class: "run", x: x(start), y: 4, width: width(start, done), height: 11, rx: 2 }),
    start && start < total ? svg("line", { class: "mark", x1: x(start), x2: x(start), y1: 0, y2: 19 }) : null,
    start && start < total ? svg("text", { x: x(start), y: 31, "text-anchor": anchor }, `start ${start}`) : svg("text", { x: 0, y: 31 }, job.source === "exact" ? "stored image" : "0"),
    start / total > 0.82 ? null : svg("text", { x: "100%", y: 31, "text-anchor": "end" }, `${total} steps`));
}

export function story(job) {
  if (job.state === "failed" || job.state === "cancelled") return `${job.state === "failed" ? "Failed" : "Cancelled"}${job.error ? `: ${job.error}` : ` after ${plural(job.steps_run, "step")}.`}`;
  const done = job.state === "succeeded";
  if (job.source === "exact") return "The same request was answered before, so its stored image was returned. No step was run.";
  if (job.masked) return `${done ? "Kept" : "Keeps"} the given image, and ${done ? "generated" : "generates"} anew where its mask is transparent${job.start_step ? `, after step ${job.start_step} of ${job.steps}` : ", from noise"}.${done ? ` ${plural(job.steps_run, "step")} run.` : ""}`;
  if (job.source === "noise") return `${done ? "Started" : "Starts"} from noise${done ? `: all ${plural(job.steps_run, "step")} ran` : ""}.`;
  const like = job.similarity ? `, similarity ${job.similarity.toFixed(2)}` : "";
  const lost = done && job.start_step && job.steps_run >= job.steps ? " The start was lost, so all steps ran." : "";
  const saved = done && job.steps_saved ? ` ${plural(job.steps_saved, "step")} saved (${percent(job.steps_saved / job.steps)}), ${job.steps_run} run.` : "";
  const skipped = done && job.skipped ? ` ${percent(job.skipped)} of their work took earlier outputs.` : "";
  return `${done ? "Started" : "Starts"} after step ${job.start_step} of ${job.steps} from ${job.source === "stitched" ? "two cached latents" : `a ${SOURCES[job.source]}`}${like}.${saved}${skipped}${lost}`;
}

export function why(job) {
  return h("div", { class: `why s-${job.source}` }, h("p", {}, story(job)),
    job.degraded.map((one) => h("p", { class: "note" }, degradation(one))),
    (job.warnings || []).map((one) => h("p", { class: "note" }, one)));
}

export function picture(job, { thumb = false, later = false, alt = "" } = {}) {
  const frame = h("div", { class: "frame", vars: { "aspect-ratio": `${job.width} / ${job.height}` } });
  const said = (text) => put(frame, h("span", {}, text));
  if (job.state === "succeeded") {
    const image = h("img", { [later ? "data-src" : "src"]: imageOf(job.id, thumb), alt: alt || job.prompt, decoding: "async", onerror: () => said(reached ? "image expired" : "not loaded") });
    frame.append(image);
  } else if (job.preview) {
    frame.classList.add("rough");
    frame.append(h("img", { src: `data:image/png;base64,${job.preview}`, alt: `Preview after step ${job.step}` }));
  } else said(job.state === "queued" ? (job.position ? `${job.position} ahead in the queue` : "queued") : job.state === "running" ? "denoising …" : job.state);
  return frame;
}

/* The image that a job started from, or the reason why it is not shown. */
export function origin(job) {
  const ids = job.from_job ? [job.from_job] : job.sources;
  if (!ids.length) return ["noise", "upload"].includes(job.source) ? null : h("figure", {}, h("div", { class: "frame" }, h("span", {}, "another caller’s entry")), h("figcaption", {}, "source"));
  return ids.slice(0, 2).map((id) => {
    const frame = h("button", { class: "frame", "aria-label": "Open the source", onclick: () => { location.hash = `${location.hash.slice(1).split("/")[0] || "gallery"}/${id}`; } });
    frame.append(h("img", { src: imageOf(id), alt: "The image that this one started from", onerror: () => { frame.disabled = true; put(frame, h("span", {}, "the source’s job has expired")); } }));
    return h("figure", {}, frame, h("figcaption", {}, source(job.source)));
  });
}

export function left(job) {
  if (job.state === "running" && job.at && job.step > job.first) {
    const per = (job.at - job.began) / 1000 / (job.step - job.first);
    return per * (job.steps - job.step) - (performance.now() - job.at) / 1000;
  }
  return job.predicted_s ? Math.max(job.predicted_s - (Date.now() / 1000 - job.created_at), 0) : null;
}

export function waterfall(timings) {
  const names = { extract_s: "extract", embed_s: "embed", predict_s: "predict", plan_s: "plan", accept_s: "accept", queue_s: "queue", fetch_s: "fetch", encode_s: "encode", denoise_s: "denoise", decode_s: "decode", store_s: "store" };
  const stages = Object.entries(names).map(([key, name]) => [name, timings[key] || 0]).filter(([, value]) => value > 0);
  const total = Math.max(stages.reduce((sum, [, value]) => sum + value, 0), 1e-9);
  let at = 0;
  if (!stages.length) return h("p", { class: "muted" }, "No stage has been measured yet.");
  return h("div", { class: "falls", role: "list", "aria-label": "Seconds by stage" }, stages.map(([name, value]) => {
    const begin = at; at += value;
    return [h("span", { role: "listitem" }, name), h("div", { class: "bar", "aria-hidden": "true" }, h("i", { vars: { width: `${(100 * value) / total}%`, "margin-left": `${(100 * begin) / total}%` } })), h("span", {}, seconds(value))];
  }));
}

/* ---- the dialog ---- */

let dialog = null, stop = null;
export function closeJob() { stop?.(); stop = null; dialog?.close(); }

function sheet(title, onclose, ...body) {
  closeJob();
  dialog?.remove();
  dialog = h("dialog", { "aria-label": title, onclose: (event) => { if (event.target === dialog) { stop?.(); stop = null; onclose?.(); } } },
    h("header", {}, h("h1", { class: "grow prompt" }, title), h("button", { onclick: () => dialog.close() }, "Close")), ...body);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function compare(first, second) {
  const range = h("input", { type: "range", min: 0, max: 100, value: 50, "aria-label": "Share of the first image", oninput: () => both.style.setProperty("--at", `${range.value}%`) });
  const both = h("div", { class: "compare", onpointermove: (event) => {
    if (event.pointerType === "mouse" && !event.buttons) return;
    const box = both.getBoundingClientRect();
    range.value = (100 * (event.clientX - box.left)) / box.width;
    both.style.setProperty("--at", `${range.value}%`);
  } }, h("img", { src: imageOf(first.id), alt: `First: ${first.prompt}`, draggable: false }), h("img", { src: imageOf(second.id), alt: `Second: ${second.prompt}`, draggable: false }), h("i"));
  const side = (name, job) => h("div", { class: "stack" }, h("h2", {}, name), h("p", { class: "prompt" }, job.prompt), axis(job), why(job));
  sheet("Compare two images", null, h("div", { class: "body one" }, both, range, h("div", { class: "cols" }, side("Left", first), side("Right", second))));
}

export async function openJob(id, onclose) {
  const body = h("div", { class: "body" }, h("p", { class: "muted" }, "Loading …"));
  const known = jobs.get(id);
  const own = sheet(known ? known.prompt : "Job", onclose, body);
  const draw = async () => {
    try {
      const job = await ask(`jobs/${encodeURIComponent(id)}`);
      jobs.merge(job);
      if (dialog !== own) return; // another job was opened meanwhile
      put(own.querySelector("h1"), job.prompt);
      render(body, job);
    } catch (error) { put(body, h("p", { class: "error", role: "alert" }, error.message)); }
  };
  stop = on("job", (job) => { if (job.id === id) draw(); });
  await draw();
}

function render(body, job) {
  const fact = (name, value) => value === null || value === undefined || value === "" ? null : [h("dt", {}, name), h("dd", {}, value)];
  const done = job.state === "succeeded", from = origin(job);
  const go = (fields) => { closeJob(); again(job, fields); };
  const slack = job.deadline_s ? job.deadline_s - (job.ended_at ? job.ended_at - job.created_at : job.predicted_s) : null;
  const kin = h("div", { class: "tree" }, h("span", { class: "muted" }, "Reading your jobs …"));
  put(body,
    h("div", { class: "stack" },
      from ? h("div", { class: "pair" }, h("figure", {}, picture(job), h("figcaption", {}, "result")), h("div", { class: "stack" }, from)) : picture(job),
      h("div", { class: "row" },
        done ? h("a", { class: "button", href: imageOf(job.id), download: `${job.id}.png` }, "Download") : null,
        done && job.kind === "image" ? h("button", { onclick: () => go({ n: 4, variation: "auto" }) }, "Four variations") : null,
        done && job.kind === "image" ? h("button", { onclick: () => go({ from_job: job.id }) }, "Start from this") : null,
        h("button", { onclick: () => { closeJob(); alike(job.prompt); } }, "Similar ones"),
        h("button", { onclick: () => go({}) }, "Same options"),
        job.ended_at ? null : h("button", { onclick: () => ask(`jobs/${job.id}`, "DELETE").then(jobs.merge) }, "Cancel"))),
    h("div", { class: "stack" },
      h("section", { class: "panel" }, h("h2", {}, "Why"), axis(job), why(job), job.reason ? h("p", { class: "muted small" }, job.reason) : null),
      h("section", { class: "panel" }, h("h2", {}, "Lineage"), kin),
      h("section", { class: "panel" }, h("h2", {}, "Seconds by stage"), waterfall(job.timings)),
      job.candidates.length ? h("section", { class: "panel" }, h("h2", {}, "Entries considered"), candidates(job)) : null,
      h("section", { class: "panel" }, h("h2", {}, "Request"), h("dl", { class: "facts" },
        fact("state", job.state), fact("id", h("span", { class: "mono" }, job.id)), fact("model", job.model), fact("size", `${job.width}×${job.height}${job.frames > 1 ? `, ${job.frames} frames` : ""}`),
        fact("steps", job.steps), fact("seed", h("span", { class: "mono" }, job.seed)), fact("guidance", job.guidance), fact("not", job.negative_prompt), fact("cache", job.cache), fact("variation", job.variation), fact("scope", job.scope),
        fact("asked", when(job.created_at)), fact("took", job.ended_at ? seconds(job.seconds) : null), fact("predicted", job.predicted_s ? seconds(job.predicted_s) : null),
        fact("deadline", job.deadline_s ? `${seconds(job.deadline_s)}${job.deadline_met === null ? "" : job.deadline_met ? ", met" : ", missed"}` : null), fact("slack", slack === null ? null : `${slack < 0 ? "−" : ""}${seconds(Math.abs(slack))}`), fact("attempt", job.attempt > 1 ? job.attempt : null)))));
  lineage(job, kin);
}

const candidates = (job) => h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Entries considered" }, h("table", {},
  h("thead", {}, h("tr", {}, ["", "prompt", "similarity", "K", "why not"].map((one) => h("th", { scope: "col" }, one || h("span", { "aria-label": "chosen" }))))),
  h("tbody", {}, job.candidates.slice(0, 12).map((one) => h("tr", {}, h("td", {}, one.chosen ? "✓" : ""), h("td", { class: "p", title: one.prompt }, one.prompt || "another caller’s"), h("td", {}, one.similarity.toFixed(3)), h("td", {}, `${one.start_step} of ${one.steps || job.steps}`), h("td", { class: "wrap" }, one.chosen ? "" : one.reason))))));

const parents = (job) => (job.from_job ? [job.from_job] : job.sources);

async function lineage(job, place) {
  const up = [];
  let at = job;
  for (let depth = 0; at && depth < 12; depth += 1) { // chains of hits are short; entries that expired end them
    const [id] = parents(at);
    if (!id) break;
    at = jobs.get(id) || (await ask(`jobs/${encodeURIComponent(id)}`).then(jobs.merge, () => null));
    if (!at) { up.unshift(null); break; }
    up.unshift(at);
  }
  await jobs.until(job.id).catch(() => null);
  const down = jobs.all().filter((one) => parents(one).includes(job.id));
  const node = (one, here) => one ? h("button", { class: "kin", "aria-current": here ? "true" : null, title: one.prompt, onclick: () => { location.hash = `${location.hash.slice(1).split("/")[0]}/${one.id}`; } },
    picture(one, { thumb: true }), one.start_step ? h("span", { class: `source s-${one.source}` }, `${one.start_step} of ${one.steps}`) : source(one.source)) : h("span", { class: "muted small" }, "expired, or another caller’s");
  if (!up.length && !down.length) return put(place, h("span", { class: "muted" }, "A root: it started from noise, and nothing of yours has started from it."));
  const arrow = () => h("span", { class: "arrow", "aria-hidden": "true" }, "→");
  put(place, up.map((one) => [node(one), arrow()]), node(job, true), down.length ? [arrow(), h("div", { class: "kids" }, down.slice(0, 24).map((one) => node(one)))] : null, down.length > 24 ? h("span", { class: "muted small" }, `and ${down.length - 24} more`) : null);
}
