// Which view is shown: the address says it, and what the view shows.

import * as caption from "./caption.js";
import { byId, link } from "./dom.js";
import * as inside from "./inside.js";
import * as photographs from "./photographs.js";
import * as search from "./search.js";
import { look, onState } from "./state.js";

const VIEWS = { caption, search, photographs, inside };
const TITLES = { caption: "Caption", search: "Search", photographs: "Your photographs", inside: "Inside" };
let shown = null;

function show() {
  const [name, query] = location.hash.slice(1).split(/\?(.*)/s);
  const view = Object.hasOwn(VIEWS, name) ? name : "caption";
  for (const id of Object.keys(VIEWS)) byId(id).hidden = id !== view;
  for (const entry of document.querySelectorAll("nav a")) {
    if (entry.hash === `#${view}`) entry.setAttribute("aria-current", "page");
    else entry.removeAttribute("aria-current");
  }
  document.title = `${TITLES[view]} \u2013 mrnn`;
  const isNew = shown !== null && shown !== view;
  shown = view;
  VIEWS[view].show(Object.fromEntries(new URLSearchParams(query ?? "")));
  if (isNew && document.activeElement === document.body) byId("view").focus({ preventScroll: true });
}

addEventListener("hashchange", show);
onState((_, isBack) => isBack && show());

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("view").focus();
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, textarea");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    if (shown !== "search") {
      history.pushState(null, "", link("search"));
      show();
    }
    byId("query").focus();
  }
});

// Colours: those of the system, until somebody chooses others.
const theme = byId("theme");
const isDark = () =>
  (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function nameTheme() {
  theme.setAttribute("aria-pressed", String(isDark()));
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", "Dark colours");
}

theme.addEventListener("click", () => {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem("theme", chosen);
  } catch {
    // It lasts until the page is closed.
  }
  nameTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
nameTheme();

for (const view of Object.values(VIEWS)) view.begin();
show();
look();
