/* The frame: session, navigation, connection. A view is `show(main, argument)` and may return what ends it. */

import { h, put, svg } from "./dom.js";
import { ask, connect, disconnect, jobs, on, session } from "./server.js";
import { openJob, closeJob } from "./job.js";
import * as generate from "./generate.js";
import * as gallery from "./gallery.js";
import * as queue from "./queue.js";
import * as cache from "./cache.js";
import * as fleet from "./fleet.js";

const USER = ["user", "tenant-admin"], OPERATOR = ["operator"];
const VIEWS = {
  generate: { name: "Generate", roles: USER, show: generate.show, icon: "M12 3v4M12 17v4M3 12h4M17 12h4M6 6l2.5 2.5M15.5 15.5 18 18M18 6l-2.5 2.5M8.5 15.5 6 18" },
  gallery: { name: "Gallery", roles: USER, show: gallery.show, icon: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z" },
  jobs: { name: "Jobs", roles: USER, show: queue.show, icon: "M4 6h16M4 12h10M4 18h13" },
  cache: { name: "Cache", roles: OPERATOR, show: cache.show, icon: "M4 6c0-4 16-4 16 0s-16 4-16 0v12c0 4 16 4 16 0V6M4 12c0 4 16 4 16 0" },
  fleet: { name: "Fleet", roles: OPERATOR, show: fleet.show, icon: "M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.5h.01" },
};

const app = document.getElementById("app");
let main, banner, end = null, shown = "";
const allowed = () => Object.keys(VIEWS).filter((name) => VIEWS[name].roles.some((role) => session.data.roles.includes(role)));

function theme(next) {
  if (next) localStorage.setItem("theme", next);
  document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";
}

function frame() {
  const who = session.data.anonymous ? "no key needed here" : `${session.data.subject} of ${session.data.tenant}`;
  const picker = h("select", { "aria-label": "Colours", onchange: () => theme(picker.value) },
    ["auto", "light", "dark"].map((one) => h("option", { value: one, selected: one === document.documentElement.dataset.theme }, `${one} colours`)));
  banner = h("div", { class: "banner", role: "status", hidden: true }, "Connection lost: the page shows the last known state. Trying again …");
  main = h("main", { id: "main", tabIndex: -1 });
  app.className = "signed";
  put(app, h("nav", { "aria-label": "Views" },
    h("div", { class: "brand" }, h("img", { src: "icon.svg", alt: "" }), "Afterimage"),
    h("div", { class: "links" }, allowed().map((name) => h("a", { href: `#${name}`, "data-view": name },
      svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: VIEWS[name].icon })), VIEWS[name].name))),
    h("div", { class: "foot" }, picker, h("span", {}, who), h("span", {}, `version ${session.data.version}`),
      session.data.anonymous ? h("button", { onclick: login }, "Sign in with a key") : h("button", { onclick: logout }, "Sign out"))),
  h("div", {}, h("div", { class: "bannerplace" }, banner), main));
}

function route() {
  const [name, argument] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const view = allowed().includes(name) ? name : allowed()[0];
  if (!view) return put(main, h("p", { class: "error" }, "This key has no role that the console has a view for."));
  if (view !== shown) {
    end?.();
    shown = view;
    document.title = `${VIEWS[view].name} · Afterimage`;
    for (const link of app.querySelectorAll("nav a"))
      link.dataset.view === view ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    put(main, h("div", { class: "head" }, h("h1", {}, VIEWS[view].name)));
    end = VIEWS[view].show(main) || null;
  }
  argument ? openJob(argument, () => { location.hash = view; }) : closeJob();
}

function login() {
  end?.(); end = null; shown = "";
  closeJob();
  const key = h("input", { type: "password", autocomplete: "off", name: "key", required: true, autofocus: true });
  const failed = h("p", { class: "error", role: "alert", hidden: true });
  app.className = "";
  const form = h("form", { class: "panel login stack", onsubmit: async (event) => {
    event.preventDefault();
    try {
      await ask("login", "POST", { key: key.value.trim() });
      key.value = "";
      jobs.forget();
      await start();
    } catch (error) { failed.hidden = false; put(failed, error.message); key.focus(); }
  } }, h("h1", {}, "Sign in to Afterimage"), h("label", {}, "API key", key), failed, h("button", { class: "primary" }, "Sign in"),
  h("p", { class: "muted small" }, "An operator makes keys with ", h("code", {}, "afterimage keys create"), ". The browser does not keep the key."));
  put(app, h("main", { id: "main", tabIndex: -1 }, form));
  key.focus();
}

async function logout() {
  await ask("logout", "POST").catch(() => null);
  jobs.forget();
  await start();
}

async function start() {
  theme();
  disconnect(); // what follows may be another principal's
  try { session.data = await ask("session"); } catch (error) {
    put(app, h("main", { class: "pad" }, h("p", { class: "error", role: "alert" }, error.message)));
    setTimeout(start, 2000);
    return;
  }
  if (!session.data.signed_in) return login();
  frame();
  shown = "";
  connect();
  route();
}

addEventListener("hashchange", () => session.data?.signed_in && route());
on("disconnected", () => { if (banner) banner.hidden = false; });
on("connected", ({ again }) => { if (banner) banner.hidden = true; if (again && allowed().includes("jobs")) jobs.refresh().catch(() => null); });
on("reload", () => setTimeout(() => jobs.refresh().catch(() => null), 1000));
on("ended", () => { if (session.data?.signed_in) { session.data = null; start(); } });
addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && shown === "gallery") { event.preventDefault(); document.getElementById("search")?.focus(); }
});
/* A file that is dropped on the page starts an image; the browser would show it in place of the console. */
const carried = (event) => event.dataTransfer?.types.includes("Files") && ["generate", "gallery"].includes(shown);
addEventListener("dragover", (event) => { if (carried(event)) { event.preventDefault(); main.classList.add("dropping"); } });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) main?.classList.remove("dropping"); });
addEventListener("drop", (event) => {
  if (!carried(event)) return;
  event.preventDefault();
  main.classList.remove("dropping");
  generate.begin(event.dataTransfer.files[0]);
});
start();
