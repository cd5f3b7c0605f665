/* Fleet: which worker runs which model, batches, demand against capacity, from the global monitor. */

import { bars, empty, h, percent, plural, put, stat, when } from "./dom.js";
import { fleet, on } from "./server.js";

const COLOURS = ["--latent", "--stitched", "--image", "--exact", "--accent", "--noise"];
const MEMORY_S = 600; // seconds of the strip of each worker

const seen = new Map(); // worker → [{ at, model }], as this tab saw it

export function show(main) {
  const place = h("div", {}, h("p", { class: "muted" }, "Waiting for the global monitor …"));
  main.append(place);
  const panel = (title, ...body) => h("section", { class: "panel" }, h("h2", {}, title), ...body);

  function draw(answer) {
    if (!answer) return;
    if (answer.away) return put(place, h("p", { class: "error", role: "status" }, `No figures: ${answer.away}`));
    const workers = answer.assignments;
    const models = [...new Set([...workers.map((one) => one.running || one.model), ...[...seen.values()].flat().map((one) => one.model)])].sort();
    const colour = (model) => `var(${COLOURS[models.indexOf(model) % COLOURS.length]})`;
    const capacity = workers.reduce((sum, one) => sum + one.rate * one.credit, 0) * 60, demand = 60 * (answer.miss_work + answer.hit_work + answer.small_work);
    const rows = workers.reduce((sum, one) => sum + one.rows, 0), most = workers.reduce((sum, one) => sum + one.max_rows, 0);
    if (!workers.length) return put(place, empty("No worker has reported yet."));
    put(place, h("div", { class: "stats" },
      stat("mode", answer.mode, answer.mode === answer.set_mode ? "" : `set: ${answer.set_mode}`), stat("demand", (60 * answer.requests_per_s).toFixed(1), "requests/min"), stat("work asked", demand.toFixed(1), capacity ? `of ${capacity.toFixed(1)} generations/min` : "generations/min"),
      stat("hit rate", percent(answer.hit_rate)), stat("rows in batches", rows, `of ${most}`), stat("deadlines met", answer.deadlines ? percent(answer.deadlines_met / answer.deadlines) : "–", answer.deadlines ? `${answer.deadlines_met} of ${answer.deadlines}` : "none asked")),
    h("div", { class: "cols" },
      panel("Demand against capacity, generations/min", bars({ "for large": 60 * answer.miss_work, "for hits": 60 * answer.hit_work, ...(answer.small_work ? { "for small": 60 * answer.small_work } : {}), capacity }, (name) => name, (value) => value.toFixed(1), (name) => (name === "capacity" ? "var(--exact)" : "var(--latent)")), h("p", { class: "small muted" }, answer.why), answer.kept ? h("p", { class: "small note" }, `Not switched: ${answer.kept}`) : null),
      panel("Requests by start step K, as if each had 50 steps", bars(Object.fromEntries(Object.entries(answer.share_by_step).sort(([a], [b]) => a - b)), (k) => (k === "0" ? "miss" : `K ${k}`), percent))),
    h("div", { class: "stack" }, h("div"),
      panel(`${plural(workers.length, "worker")}: model over the last ten minutes of this tab`, h("div", { class: "lanes" }, workers.map((one) => h("div", { class: "lane" }, h("span", { class: "mono", title: one.worker }, one.worker.slice(-18)), strip(one.worker, colour)))), h("div", { class: "row small muted" }, models.map((model) => h("span", { class: "source", vars: { "--c": colour(model) } }, model)))),
      panel("Workers now", h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Workers" }, h("table", {}, h("thead", {}, h("tr", {}, ["worker", "device", "model", "batch", "", "generations/min", "report"].map((one) => h("th", { scope: "col" }, one || h("span", { "aria-hidden": "true" }))))),
        h("tbody", {}, workers.map((one) => h("tr", {}, h("td", { class: "mono" }, one.worker), h("td", {}, one.kind), h("td", {}, one.running && one.running !== one.model ? `${one.running} → ${one.model}` : one.model), h("td", {}, `${one.rows} of ${one.max_rows}`), h("td", { class: "meter" }, h("div", { class: "bar" }, h("i", { vars: { transform: `scaleX(${one.max_rows ? one.rows / one.max_rows : 0})` } }))), h("td", {}, one.rate ? (60 * one.rate).toFixed(1) : "unknown"), h("td", {}, one.credit === 1 ? "trusted" : h("span", { class: "note" }, `×${one.credit.toFixed(2)}`)))))))),
      panel("Lanes", h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Lanes" }, h("table", {}, h("thead", {}, h("tr", {}, ["lane", "kind", "requests/min", "work/min", "waiting"].map((one) => h("th", { scope: "col" }, one)))), h("tbody", {}, answer.lanes.length ? answer.lanes.map((one) => h("tr", {}, h("td", {}, one.lane), h("td", {}, one.modality), h("td", {}, (60 * one.requests_per_s).toFixed(1)), h("td", {}, (60 * one.work_per_s).toFixed(2)), h("td", {}, one.waiting.toFixed(1)))) : h("tr", {}, h("td", { colSpan: 5, class: "muted" }, "No demand lately."))))), h("p", { class: "small muted" }, "Requests for images. Clips are not counted: each worker that has their model runs it beside the others.")),
      answer.history.length ? panel("Last decisions", h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Last decisions" }, h("table", {}, h("tbody", {}, answer.history.slice(-8).reverse().map((one) => h("tr", {}, h("td", {}, when(one.at)), h("td", {}, Object.entries(one.workers_by_model).map(([model, count]) => `${count} ${model}`).join(", ")), h("td", { class: "wrap" }, one.why))))))) : null));
  }
  function strip(worker, colour) {
    const now = Date.now() / 1000, spans = seen.get(worker) || [];
    return h("div", { class: "strip", role: "img", "aria-label": spans.map((one) => `${one.model} since ${when(one.at)}`).join(", ") }, spans.map((one, i) => h("i", { title: one.model, vars: { width: `${(100 * Math.max((spans[i + 1]?.at ?? now) - Math.max(one.at, now - MEMORY_S), 0.5)) / MEMORY_S}%`, background: colour(one.model) } })));
  }
  function note(answer) {
    const now = Date.now() / 1000;
    for (const one of answer?.assignments || []) {
      const spans = seen.get(one.worker) || [], model = one.running || one.model;
      if (spans.at(-1)?.model !== model) spans.push({ at: now, model });
      while (spans.length > 1 && spans[1].at < now - MEMORY_S) spans.shift();
      seen.set(one.worker, spans);
    }
    draw(answer);
  }
  const off = on("fleet", note);
  note(fleet);
  return off;
}
