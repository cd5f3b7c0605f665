/* Cache: what it holds, by K, model and codec; what the last jobs started from; checks of its quality. */

import { SOURCES, bars, bytes, empty, h, percent, plural, put, source, stat } from "./dom.js";
import { ask } from "./server.js";

const RELATIONS = { reroll: "reroll: same prompt", edit: "edit of own prompt", topic: "own, other prompt", other: "of another user", repeat: "exact repeat", unknown: "unknown" };
const by = (name) => (one) => `var(--${one in SOURCES ? one : name})`;

export function show(main) {
  const failed = h("p", { class: "error", role: "alert", hidden: true }), place = h("div", {}, h("p", { class: "muted" }, "Loading …"));
  main.append(failed, place);
  const panel = (title, ...body) => h("section", { class: "panel" }, h("h2", {}, title), ...body);

  function draw({ stats, entries, starts, quality }) {
    const states = Number(stats.states), pictures = Number(stats.pictures), hits = starts.jobs - (starts.by_source.noise || 0) - (starts.by_source.upload || 0);
    if (!Number(stats.entries) && !starts.jobs) return put(place, empty("The cache is empty. It fills as images are generated."));
    const share = Number(stats.max_bytes) ? percent(stats.bytes / stats.max_bytes) : "no limit";
    const steps = Object.keys(stats.states_by_step).sort((a, b) => a - b), most = Math.max(...steps.map((k) => Number(stats.states_by_step[k])), 1), used = Math.max(...steps.map((k) => Number(stats.uses_by_step[k] || 0)), 1);
    put(place, h("div", { class: "stats" },
      stat("entries", stats.entries), stat("latents", states, `${bytes(stats.bytes)}, ${share}`), stat("images", pictures, bytes(stats.picture_bytes)),
      stat("hits", starts.jobs ? percent(hits / starts.jobs) : "–", `of the last ${plural(starts.jobs, "job")}`), stat("steps saved", starts.steps ? percent(starts.steps_saved / starts.steps) : "–", `${starts.steps_saved} of ${starts.steps}`),
      stat("evicted", stats.evicted, `${stats.holes} left holes; policy ${stats.policy}`)),
    h("div", { class: "masonry" },
      panel("Latents by K: stored and used", steps.length ? h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Latents by K" }, h("table", {}, h("thead", {}, h("tr", {}, ["K", "latents", "", "uses", "", "bytes"].map((one) => h("th", { scope: "col" }, one || h("span", { "aria-hidden": "true" }))))),
        h("tbody", {}, steps.map((k) => h("tr", {}, h("td", {}, k), h("td", {}, stats.states_by_step[k]), h("td", { class: "meter" }, h("div", { class: "bar", vars: { "--c": "var(--latent)" } }, h("i", { vars: { transform: `scaleX(${stats.states_by_step[k] / most})` } }))),
          h("td", {}, stats.uses_by_step[k] || 0), h("td", { class: "meter" }, h("div", { class: "bar", vars: { "--c": "var(--exact)" } }, h("i", { vars: { transform: `scaleX(${(stats.uses_by_step[k] || 0) / used})` } }))), h("td", {}, bytes(entries.bytes.step[k] || 0))))))) : h("p", { class: "muted" }, "No latent is stored.")),
      panel(`Starts of the last ${plural(starts.jobs, "job")}`, bars(starts.by_source, (name) => source(name), String, by("noise"))),
      panel("Hits by relation", bars(starts.by_relation, (name) => RELATIONS[name] || name, String, by("accent"))),
      panel("Bytes by model", bars(entries.bytes.model, (name) => name, bytes, by("accent"))),
      panel("Bytes by codec", bars(entries.bytes.codec, (name) => name, bytes, by("accent"))),
      panel("Quality checks", quality.cells.some((one) => Number(one.checks)) ? h("table", {}, h("thead", {}, h("tr", {}, ["model", "hits", "checks", "failed", "reuse"].map((one) => h("th", { scope: "col" }, one)))), h("tbody", {}, quality.cells.filter((one) => Number(one.checks)).slice(0, 20).map((one) => h("tr", {}, h("td", {}, one.model), h("td", {}, one.relation ? `${one.relation}, ${one.source}, K ${one.start_step} of ${one.steps}` : "all"), h("td", {}, one.checks), h("td", {}, one.fails), h("td", {}, one.stopped_at ? h("span", { class: "note" }, "stopped") : "in force"))))) : h("p", { class: "muted" }, quality.check_share ? `${percent(quality.check_share)} of hits are checked while nothing waits; none has been yet.` : "Live checks are off (setting check_share)."))),
    entries.more ? h("p", { class: "muted small" }, `Bytes by model and codec count the newest ${entries.counted} entries.`) : null);
  }
  const load = () => ask("cache").then((answer) => { failed.hidden = true; draw(answer); }, (error) => { failed.hidden = false; put(failed, error.message); });
  load();
  const clock = setInterval(() => { if (!document.hidden && !place.contains(document.activeElement)) load(); }, 5000);
  return () => clearInterval(clock);
}
