/* Jobs: what waits and runs, with predicted finish and slack; then what ended last. */

import { empty, h, put, seconds, source, when } from "./dom.js";
import { ask, jobs, on } from "./server.js";
import { left } from "./job.js";

const SHOWN = 60;

export function show(main) {
  const place = h("div", { class: "stack" }), failed = h("p", { class: "error", role: "alert", hidden: true });
  main.append(failed, place);
  const head = (names) => h("thead", {}, h("tr", {}, names.map(([name, number]) => h("th", { scope: "col", class: number ? "n" : "" }, name))));
  const open = (job) => h("td", { class: "p" }, h("button", { class: "link", title: job.prompt, onclick: () => { location.hash = `jobs/${job.id}`; } }, job.prompt));
  const table = (name, names, rows) => h("section", { class: "panel" }, h("h2", {}, name), h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": name }, h("table", {}, head(names), h("tbody", {}, rows))));

  function active(job) {
    const remaining = left(job), now = Date.now() / 1000;
    const slack = job.deadline_s && remaining !== null ? job.created_at + job.deadline_s - now - remaining : null;
    const done = job.state === "running" ? job.step / Math.max(job.steps, 1) : 0;
    return h("tr", {}, open(job), h("td", {}, h("span", { class: `state ${job.state}` }, job.state)), h("td", {}, job.model),
      h("td", { class: "meter" }, h("div", { class: `bar s-${job.source}` }, h("i", { vars: { transform: `scaleX(${done})` } })), h("span", { class: "small muted" }, job.state === "running" ? `${job.step} of ${job.steps}` : job.position ? `${job.position} ahead` : "next in turn")),
      h("td", { class: "n" }, remaining === null ? "unknown" : when(now + remaining)), h("td", { class: "n" }, slack === null ? "no deadline" : h("span", { class: slack < 0 ? "note" : "" }, `${slack < 0 ? "−" : ""}${seconds(Math.abs(slack))}`)),
      h("td", { class: "n" }, h("button", { "aria-label": `Cancel ${job.prompt.slice(0, 60)}`, onclick: () => ask(`jobs/${job.id}`, "DELETE").then((one) => { jobs.merge(one); draw(); }, (error) => { failed.hidden = false; put(failed, error.message); }) }, "Cancel")));
  }
  const ended = (job) => h("tr", {}, open(job), h("td", {}, h("span", { class: `state ${job.state}` }, job.state)), h("td", {}, job.model), h("td", {}, source(job.source)),
    h("td", { class: "n" }, job.state === "succeeded" ? `${job.steps_run} of ${job.steps}` : "–"), h("td", { class: "n" }, seconds(job.seconds)),
    h("td", { class: "n" }, job.deadline_s ? h("span", { class: job.deadline_met ? "" : "note" }, job.deadline_met ? "met" : job.deadline_met === false ? "missed" : "–") : "–"), h("td", { class: "n" }, when(job.ended_at)));

  function draw() {
    const all = jobs.all(), busy = [], over = [];
    for (const job of all) { (job.ended_at ? over : busy).push(job); if (over.length >= SHOWN) break; }
    if (!all.length && jobs.complete) return put(place, empty("No jobs yet."));
    const focus = document.activeElement?.title;
    put(place, table(`Queue: ${busy.length}`, [["prompt"], ["state"], ["model"], ["progress"], ["predicted finish", 1], ["slack", 1], ["", 1]], busy.length ? busy.slice(0, SHOWN).map(active) : h("tr", {}, h("td", { colSpan: 7, class: "muted" }, "Nothing waits or runs."))),
      table("Ended last", [["prompt"], ["state"], ["model"], ["start"], ["steps run", 1], ["took", 1], ["deadline", 1], ["ended", 1]], over.map(ended)));
    if (focus) [...place.querySelectorAll("button.link")].find((one) => one.title === focus)?.focus();
  }
  let later = 0, busy = true;
  const soon = () => { later ||= setTimeout(() => { later = 0; draw(); }, 300); };
  const offs = [on("job", soon), on("list", draw)];
  const load = () => jobs.refresh().then(() => { failed.hidden = true; }, (error) => { failed.hidden = false; put(failed, error.message); });
  load();
  const clock = setInterval(() => { busy = jobs.all().some((job) => !job.ended_at); if (busy) soon(); }, 1000);
  const places = setInterval(() => { if (busy && !document.hidden) load(); }, 5000); // places in the queue change without events
  return () => { offs.forEach((off) => off()); clearInterval(clock); clearInterval(places); clearTimeout(later); };
}
