/* Gallery: the caller's jobs in a window of as many cells as the screen shows, however many there are. */

import { SOURCES, empty, h, percent, plural, put, source } from "./dom.js";
import { ask, jobs, on } from "./server.js";
import { compare, picture } from "./job.js";

const CELL = 152, TEXT = 48, SPARE = 2; // least width and added height in pixels; rows beyond the edge
const REST = 60; // milliseconds without a scroll until images are asked for: not those that fly by

let wish = ""; // text to search by similarity, as another view asked
export function alike(prompt) {
  wish = prompt;
  location.hash = "gallery";
  dispatchEvent(new Event("wish"));
}

export function show(main) {
  const picked = [];
  let near = new Map(), about = "", sought = "", typing = 0, resting = 0; // id → similarity to `about`, the nearest first; last text sent
  let found = [], columns = 1, size = CELL, focused = 0, wanted = 0;
  const select = (name, all, options) => h("select", { "aria-label": name, onchange: filter }, h("option", { value: "" }, all), options.map(([value, text]) => h("option", { value }, text)));
  const search = h("input", { id: "search", type: "search", placeholder: "Search prompts ( / )", "aria-label": "Search prompts", oninput: filter });
  const how = h("select", { "aria-label": "Search by", onchange: filter }, h("option", { value: "" }, "by words"), h("option", { value: "alike" }, "by similarity"));
  const state = select("State", "any state", ["succeeded", "running", "queued", "failed", "cancelled"].map((one) => [one, one]));
  const from = select("Start", "any start", Object.entries(SOURCES));
  const kind = select("Kind", "images and clips", [["image", "images"], ["video", "clips"]]);
  const both = h("button", { disabled: true, onclick: () => compare(jobs.get(picked[0]), jobs.get(picked[1])) }, "Compare two");
  const told = h("span", { class: "muted small", role: "status" });
  const failed = h("p", { class: "error", role: "alert", hidden: true });
  const spacer = h("div"), cells = h("div", { role: "group", "aria-label": "Images" });
  const view = h("div", { class: "window", onscroll: schedule, onkeydown: keys, onfocusin: (event) => { focused = Number(event.target.dataset.at ?? focused); } }, spacer, cells);
  const nothing = h("div");
  main.querySelector(".head").append(told);
  main.append(h("div", { class: "filters" }, search, how, state, from, kind, both), failed, nothing, view);
  const resized = new ResizeObserver(schedule);
  resized.observe(view);

  function matches(job, words) {
    return (!state.value || job.state === state.value) && (!from.value || job.source === from.value) && (!kind.value || job.kind === kind.value)
      && words.every((word) => job.found.includes(word));
  }
  function filter() {
    const text = search.value.trim();
    if (how.value && text) {
      if (text !== sought) { sought = text; clearTimeout(typing); typing = setTimeout(() => nearest(text), 300); }
      found = [...near.keys()].map(jobs.get).filter((job) => job && matches(job, []));
    } else {
      about = sought = ""; near = new Map();
      found = jobs.all().filter((job) => matches(job, text.toLowerCase().split(/\s+/)));
    }
    const steps = found.reduce((sum, job) => sum + (job.state === "succeeded" ? job.steps : 0), 0), saved = found.reduce((sum, job) => sum + job.steps_saved, 0);
    put(told, `${plural(found.length, "job")}${about ? " in the cache, the most similar first" : jobs.complete ? "" : " so far"}${steps ? `, ${percent(saved / steps)} of their steps saved` : ""}`);
    const none = (jobs.complete || about) && !found.length;
    view.hidden = none;
    put(nothing, none ? empty(jobs.all().length ? "No job fits these filters." : "No jobs yet. Images that you generate appear here.") : null);
    schedule();
  }
  async function nearest(text) {
    try {
      const answer = await ask("similar", "POST", { prompt: text });
      if (text !== sought) return;
      about = text;
      near = new Map(answer.jobs.map((job) => [jobs.merge(job).id, job.alike]));
      failed.hidden = true; view.scrollTop = 0;
      filter();
    } catch (error) { failed.hidden = false; put(failed, error.message); }
  }
  function wished() {
    if (!wish) return;
    search.value = wish; how.value = "alike"; wish = "";
    filter();
  }
  function schedule() { wanted ||= requestAnimationFrame(() => { wanted = 0; layout(); }); }

  const drawn = new Map();
  function layout() {
    const width = view.clientWidth, height = view.clientHeight, scrolled = view.scrollTop; // read before anything is written: one layout
    if (!width) return;
    columns = Math.max(Math.floor(width / CELL), 2);
    size = Math.floor(width / columns);
    const high = size + TEXT, rows = Math.ceil(found.length / columns);
    spacer.style.height = `${rows * high}px`;
    const first = Math.max(Math.floor(scrolled / high) - SPARE, 0) * columns;
    const last = Math.min((Math.ceil((scrolled + height) / high) + SPARE) * columns, found.length);
    focused = Math.min(focused, Math.max(found.length - 1, 0));
    const keys = found.slice(first, last).map((job) => `${job.id} ${job.state} ${near.get(job.id) ?? ""}`), keep = new Set(keys);
    for (const [key, cell] of drawn) if (!keep.has(key)) { cell.remove(); drawn.delete(key); }
    let next = cells.firstChild; // cells stay in reading order, and those that stay are not moved: moving loses focus
    for (let at = first; at < last; at += 1) {
      const key = keys[at - first];
      let cell = drawn.get(key);
      if (!cell) { cell = make(found[at]); drawn.set(key, cell); }
      if (cell === next) next = next.nextSibling; else cells.insertBefore(cell, next);
      cell.style.width = `${size}px`; cell.style.height = `${high}px`;
      cell.style.transform = `translate(${(at % columns) * size}px, ${Math.floor(at / columns) * high}px)`;
      cell.dataset.at = at;
      cell.tabIndex = at === focused || (at === first && (focused < first || focused >= last)) ? 0 : -1;
    }
    clearTimeout(resting);
    resting = setTimeout(load, REST);
    if (!jobs.complete && !sought && (last >= found.length - 4 * columns || search.value)) more();
  }
  function load() {
    for (const image of cells.querySelectorAll("img[data-src]")) { image.src = image.dataset.src; image.removeAttribute("data-src"); }
  }
  function make(job) {
    const cell = h("button", { class: "cell", "aria-pressed": picked.includes(job.id) ? "true" : "false", title: job.prompt,
      onclick: (event) => { focused = Number(cell.dataset.at); event.shiftKey || event.ctrlKey || event.metaKey ? pick(job.id) : (location.hash = `gallery/${job.id}`); } },
      picture(job, { thumb: true, later: true }), h("b", {}, job.prompt), near.has(job.id) ? h("span", { class: `source s-${job.source}` }, `similarity ${near.get(job.id).toFixed(3)}`) : job.steps_saved ? h("span", { class: `source s-${job.source}` }, `${job.source}: ${job.steps_saved} of ${job.steps} saved`) : source(job.source));
    cell.dataset.id = job.id;
    cell.querySelector(".frame").style.aspectRatio = "1";
    return cell;
  }
  function pick(id) {
    if (jobs.get(id)?.state !== "succeeded") return;
    picked.includes(id) ? picked.splice(picked.indexOf(id), 1) : picked.push(id);
    if (picked.length > 2) picked.shift();
    both.disabled = picked.length < 2;
    for (const cell of cells.children) cell.setAttribute("aria-pressed", picked.includes(cell.dataset.id));
  }
  function keys(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity }[event.key];
    if (move !== undefined) {
      event.preventDefault();
      focused = Math.min(Math.max(focused + move, 0), found.length - 1);
      const top = Math.floor(focused / columns) * (size + TEXT);
      if (top < view.scrollTop) view.scrollTop = top;
      if (top + size + TEXT > view.scrollTop + view.clientHeight) view.scrollTop = top + size + TEXT - view.clientHeight;
      layout();
      cells.querySelector(`[data-at="${focused}"]`)?.focus();
    } else if (event.key === "c" || event.key === " ") {
      const id = event.target.dataset?.id;
      if (id) { event.preventDefault(); pick(id); }
    }
  }
  async function more() {
    try { await jobs.more(); failed.hidden = true; } catch (error) { failed.hidden = false; put(failed, error.message); }
  }
  const offs = [on("list", filter), on("job", () => { clearTimeout(later); later = setTimeout(filter, 200); })];
  let later = 0;
  addEventListener("wish", wished);
  filter();
  wished();
  more();
  view.setAttribute("aria-description", "Arrow keys move, Enter opens, c picks an image to compare");
  return () => { offs.forEach((off) => off()); resized.disconnect(); clearTimeout(later); clearTimeout(typing); clearTimeout(resting); removeEventListener("wish", wished); };
}
