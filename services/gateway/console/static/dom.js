/* Elements and words. Text of users becomes text nodes; nothing here parses HTML. */

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.setAttribute("class", value);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name in node && !(node instanceof SVGElement) && !name.includes("-")) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export function put(node, ...children) {
  node.replaceChildren(...children.flat(9).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

export const seconds = (value) =>
  value >= 3600 ? `${(value / 3600).toFixed(1)} h` : value >= 100 ? `${Math.round(value / 60)} min`
    : value >= 10 ? `${Math.round(value)} s` : value >= 0.1 ? `${value.toFixed(1)} s` : `${Math.round(value * 1000)} ms`;

export function bytes(value) {
  const n = Number(value) || 0, units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = n < 1024 ? 0 : Math.min(Math.floor(Math.log2(n) / 10), 4);
  return `${power ? (n / 1024 ** power).toFixed(1) : n} ${units[power]}`;
}

export const percent = (share) => `${(100 * (share || 0)).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
export const plural = (count, noun) => `${count} ${count === 1 ? noun : noun.endsWith("y") ? `${noun.slice(0, -1)}ies` : `${noun}s`}`;

export function when(time) {
  const date = new Date(1000 * time), today = new Date().toDateString() === date.toDateString();
  return date.toLocaleString([], today ? { hour: "2-digit", minute: "2-digit", second: "2-digit" } : { dateStyle: "short", timeStyle: "short" });
}

export const SOURCES = {
  noise: "from noise", latent: "cached latent", image: "cached image", stitched: "two latents", exact: "exact repeat", upload: "given image",
};
export const source = (name, more) => h("span", { class: `source s-${name}` }, SOURCES[name] || name, more);

/* Degradations as sentences: the plan has `service: reason`. */
const SERVICES = {
  embedder: "The prompt could not be embedded", retriever: "The cache could not be searched", match_predictor: "No hit was predicted in advance",
  text_extractor: "The prompt was not split into object and background", blobs: "A stored image or latent could not be read",
};
export function degradation(text) {
  const at = text.indexOf(": "), said = at > 0 && SERVICES[text.slice(0, at)];
  return said ? `${said}: ${text.slice(at + 2)}.` : text;
}

export function bars(values, label, format, colour) {
  const entries = Object.entries(values), most = Math.max(...entries.map(([, value]) => Number(value)), 1);
  if (!entries.length) return h("p", { class: "muted" }, "Nothing yet.");
  return h("div", { class: "hbar" }, entries.map(([name, value]) => [
    h("span", {}, label(name)),
    h("div", { class: "bar", vars: colour ? { "--c": colour(name) } : {} }, h("i", { vars: { transform: `scaleX(${Number(value) / most})` } })),
    h("span", { class: "n" }, format(value)),
  ]));
}

export const stat = (name, value, more) => h("div", {}, h("div", { class: "k" }, name), h("div", { class: "v" }, value, more ? h("small", {}, ` ${more}`) : null));
export const empty = (...said) => h("div", { class: "empty" }, ...said);
