/* Generate: a form, and a card per job with its preview, the time left, and why it is as it is. */

import { empty, h, put, seconds } from "./dom.js";
import { ask, jobs, on, session } from "./server.js";
import { axis, compare, left, origin, picture, why } from "./job.js";

const asked = []; // ids of this tab's jobs, newest first
let draft = {};

/* Show the form with a file of an image to start from. */
export function begin(file) {
  draft = { file };
  location.hash = "generate";
  dispatchEvent(new Event("draft"));
}

/* Fill the form from a job, and show it. */
export function again(job, more) {
  draft = { prompt: job.prompt, model: job.kind === "video" ? "clip" : job.model, width: job.width, height: job.height, negative_prompt: job.negative_prompt, ...more };
  if (!more.from_job && !more.n) draft.seed = job.seed;
  location.hash = "generate";
  dispatchEvent(new Event("draft"));
}

/* Without a key the images of one browser are one user's, so that an edited prompt starts from the image before it. */
function userOf() {
  if (!session.data.anonymous) return undefined;
  try { return (localStorage.user ||= `console-${Math.random().toString(36).slice(2, 10)}`); } catch { return "console"; } // no storage here
}

export function show(main) {
  const { models, max_images, max_steps } = session.data;
  const images = models.filter((one) => one.kind === "image"), clip = models.find((one) => one.kind === "video");
  const option = (value, text) => h("option", { value }, text);
  const input = {
    prompt: h("textarea", { name: "prompt", required: true, rows: 4, placeholder: "What the image shows" }),
    negative_prompt: h("input", { name: "negative_prompt" }),
    model: h("select", { name: "model" }, option("auto", "auto"), images.map((one) => option(one.id, one.role && one.role !== one.id ? `${one.id} (${one.role})` : one.id)), clip ? option("clip", `clip: ${clip.id}`) : null),
    n: h("input", { name: "n", type: "number", min: 1, max: max_images, value: 1 }),
    width: h("input", { name: "width", type: "number", step: 8, min: 8, placeholder: images[0]?.width }),
    height: h("input", { name: "height", type: "number", step: 8, min: 8, placeholder: images[0]?.height }),
    steps: h("input", { name: "num_inference_steps", type: "number", min: 1, max: max_steps, placeholder: "auto" }),
    seed: h("input", { name: "seed", inputMode: "numeric", pattern: "[0-9]*", placeholder: "random" }),
    guidance: h("input", { name: "guidance_scale", type: "number", step: "any", min: 0, placeholder: images[0]?.guidance }),
    cache: h("select", { name: "cache" }, ["auto", "read", "write", "off"].map((one) => option(one, one))),
    variation: h("select", { name: "variation" }, ["auto", "same", "new"].map((one) => option(one, one))),
    scope: h("select", { name: "scope" }, option("", "tenant"), option("private", "private"), option("public", "public")),
    savings: h("input", { name: "savings", type: "range", min: 0, max: 1, step: 0.05, value: 0.5 }),
    deadline: h("input", { name: "deadline_s", type: "number", step: "any", min: 0, placeholder: "none" }),
    priority: h("input", { name: "priority", type: "number", min: -100, max: 100, placeholder: "0" }),
    from: h("input", { name: "from_job", readOnly: true }),
    strength: h("input", { name: "strength", type: "number", min: 0.05, max: 1, step: 0.05, value: 0.8 }),
  };
  const label = (text, control) => h("label", {}, text, control);
  const file = h("input", { type: "file", accept: "image/png,image/jpeg,image/webp", onchange: () => take(file.files[0]) });
  const seen = h("img", { alt: "The image to start from" }), given = h("div", { class: "given", hidden: true }, seen, h("span", { class: "small grow" }));
  const job = label("start from job", input.from);
  const start = h("div", { class: "fields", hidden: true }, job, label("strength", input.strength), h("button", { type: "button", onclick: () => { input.from.value = ""; take(null); } }, "Leave out"));
  let picture = null, varied = false; // varied: the number of images is that of Variations, for one request
  /* Start from this file; null: from none. */
  function take(one) {
    picture = one || null;
    URL.revokeObjectURL(seen.src);
    if (picture) { input.from.value = ""; seen.src = URL.createObjectURL(picture); put(given.lastChild, picture.name); } else file.value = "";
    given.hidden = !picture; job.hidden = !input.from.value; start.hidden = !picture && !input.from.value;
  }
  const failed = h("p", { class: "error", role: "alert", hidden: true }), submit = h("button", { class: "primary" }, "Generate");
  const results = h("div", { class: "results" });

  function fields() {
    const number = (control) => (control.value === "" ? undefined : Number(control.value));
    const common = {
      prompt: input.prompt.value, negative_prompt: input.negative_prompt.value || undefined, num_inference_steps: number(input.steps), guidance_scale: number(input.guidance),
      cache: input.cache.value, variation: input.variation.value, scope: input.scope.value || undefined, savings: input.savings.value === "0.5" ? undefined : number(input.savings),
      deadline_s: number(input.deadline), priority: number(input.priority), user: userOf(),
    };
    const width = number(input.width), height = number(input.height);
    if (input.model.value === "clip") return { ...common, size: width && height ? `${width}x${height}` : undefined };
    return { ...common, width, height, model: input.model.value, n: number(input.n) || 1, from_job: input.from.value || undefined, strength: input.from.value || picture ? number(input.strength) : undefined };
  }
  function form_of() {
    const made = new FormData(), seed = input.seed.value.trim();
    for (const [name, value] of Object.entries({ ...fields(), seed: seed || undefined })) if (value !== undefined) made.append(name, value);
    made.append("image", picture);
    return made;
  }
  /* Seeds go up to 2^64 − 1, which JSON.stringify cannot write as a number. */
  const body = () => { const made = JSON.stringify(fields()), seed = input.seed.value.trim(); return seed ? `${made.slice(0, -1)},"seed":${seed}}` : made; };

  async function send(event) {
    event.preventDefault();
    submit.disabled = true;
    failed.hidden = true;
    try {
      const clip = input.model.value === "clip";
      if (clip && picture) throw new Error("A clip cannot start from a file here: leave it out, or send it to /v1/videos as input_reference.");
      const answer = await (picture ? ask("edits", "POST", form_of()) : ask(clip ? "clips" : "jobs", "POST", body()));
      for (const job of answer.jobs) { jobs.merge(job); asked.unshift(job.id); }
      asked.length = Math.min(asked.length, 40);
      if (varied) input.n.value = 1;
      varied = false;
      redraw();
    } catch (error) { failed.hidden = false; put(failed, error.message); input[error.param]?.focus(); }
    submit.disabled = false;
  }

  const form = h("form", { class: "panel stack", onsubmit: send }, label("prompt", input.prompt), label("start from a file (or drop it anywhere)", file), given, start,
    h("div", { class: "fields" }, label("model", input.model), label("images", input.n), label("width", input.width), label("height", input.height), label("steps", input.steps), label("seed", input.seed)),
    h("details", {}, h("summary", {}, "More options"), h("div", { class: "stack" }, label("not in the image", input.negative_prompt),
      h("div", { class: "fields" }, label("guidance", input.guidance), label("cache", input.cache), label("variation", input.variation), label("who may reuse", input.scope), label("deadline, s", input.deadline), label("priority", input.priority)),
      label("quality … savings", input.savings))),
    failed, submit);
  input.prompt.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(); });

  const cards = new Map();
  function redraw() {
    if (!asked.length) return put(results, empty(h("p", {}, "Nothing generated in this tab yet."), h("p", { class: "small" }, "Write a prompt, then press Generate or Ctrl+Enter. Earlier images are in the Gallery.")));
    put(results, asked.map((id) => { if (!cards.has(id)) cards.set(id, card(id)); return cards.get(id).node; }));
  }
  function fill() {
    for (const [name, value] of Object.entries({ from_job: draft.prompt ? "" : input.from.value, ...draft })) {
      const control = { num_inference_steps: input.steps, from_job: input.from }[name] || input[name];
      if (control) control.value = value;
    }
    if (draft.n && !draft.seed) input.seed.value = "";
    varied = Boolean(draft.n);
    if (draft.file || draft.prompt) take(draft.file);
    draft = {};
    input.prompt.focus();
  }
  main.append(h("div", { class: "generate" }, form, results));
  redraw();
  fill();
  addEventListener("draft", fill);
  const off = on("job", (job) => cards.get(job.id)?.draw());
  const clock = setInterval(() => cards.forEach((one) => one.tick()), 500);
  return () => { off(); clearInterval(clock); removeEventListener("draft", fill); };
}

function card(id) {
  const node = h("article", { class: "panel card" });
  let state = "", view, bar, told;
  const tick = () => {
    const job = jobs.get(id);
    if (!job || job.ended_at || !told) return;
    const s = left(job);
    const where = job.state === "running" ? `step ${job.step} of ${job.steps}` : job.position ? `${job.position} ahead in the queue` : "queued";
    put(told, where, s === null ? "" : s < 1 ? ", about to finish" : `, about ${seconds(s)} left`);
  };
  const draw = () => {
    const job = jobs.get(id);
    if (job.state === state && !job.ended_at) { // only the preview and the axis move
      const picked = picture(job);
      view.replaceWith(picked); view = picked;
      const moved = axis(job); bar.replaceWith(moved); bar = moved;
      return tick();
    }
    state = job.state;
    view = picture(job); bar = axis(job);
    told = h("span", { class: "muted small grow", role: "status" });
    const from = origin(job), done = job.state === "succeeded";
    put(node, h("p", { class: "prompt" }, job.prompt),
      from ? h("div", { class: "pair" }, h("figure", {}, view, h("figcaption", {}, done ? "result" : job.state)), h("div", { class: "stack" }, from)) : view,
      bar, why(job),
      job.ended_at ? h("div", { class: "row" }, h("span", { class: "muted small told" }, `${job.model}, ${seconds(job.seconds)}`),
        done && job.kind === "image" ? h("button", { onclick: () => again(job, { n: 4 }) }, "Variations") : null,
        done && job.kind === "image" ? h("button", { onclick: () => again(job, { from_job: job.id }) }, "Start from this") : null,
        done && job.sources[0] ? h("button", { onclick: (event) => ask(`jobs/${job.sources[0]}`).then((one) => compare(one, job), () => { event.target.disabled = true; }) }, "Compare") : null,
        h("a", { class: "button", href: `#generate/${job.id}` }, "Details"))
        : h("div", { class: "row" }, told, h("button", { onclick: (event) => { event.target.disabled = true; ask(`jobs/${id}`, "DELETE").then((one) => { jobs.merge(one); draw(); }, () => { event.target.disabled = false; }); } }, "Cancel")));
    tick();
  };
  draw();
  return { node, draw, tick };
}
