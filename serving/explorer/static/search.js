// Search while typing, similar photographs, and all photographs where nothing is asked for.

import { get } from "./api.js";
import { byId, link, make, preview, say } from "./dom.js";
import { Latest } from "./latest.js";
import { onFolder, onState, state } from "./state.js";
import { arrange, beginTurns, focusFirst, moveByArrows, scoreRanges, showScores, tile } from "./tiles.js";

let asked = {};
let tiles = new Map(); // by picture or name, and version
let isShown = false;

const ask = ({ q, similar, first }) => {
  if (similar) return get("similar", { picture: similar });
  return q.trim() ? get("search", { query: q }) : get("photos", { first });
};

const latest = new Latest(ask, (answer, question) => draw(answer, question), fail);

export function begin() {
  const query = byId("query");
  query.addEventListener("input", () => {
    asked = { q: query.value, first: 0 };
    history.replaceState(null, "", link("search", { q: query.value }));
    latest.want(asked);
  });
  query.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && tiles.size) {
      event.preventDefault();
      focusFirst(byId("results"));
    }
  });
  const similar = (picture) => (location.hash = link("search", { similar: picture }));
  moveByArrows(byId("results"), leave, similar);
  byId("more").addEventListener("click", () => {
    asked = { ...asked, first: tiles.size };
    latest.want(asked);
  });
  onFolder(() => {
    tiles = new Map();
    byId("results").replaceChildren();
    if (isShown && !byId("search").hidden) latest.want((asked = { ...asked, first: 0 }));
  });
  onState(() => isShown && !byId("search").hidden && empty());
}

export function show({ q = "", similar = "" }) {
  isShown = true;
  asked = { q, similar, first: 0 };
  byId("query-box").hidden = Boolean(similar);
  byId("like").hidden = !similar;
  if (similar) {
    byId("like").querySelector("img").src = preview(similar);
    byId("view").focus({ preventScroll: true });
  } else {
    if (byId("query").value !== q) byId("query").value = q;
    if (matchMedia("(hover: hover)").matches) byId("query").focus();
  }
  byId("results").classList.toggle("loading", tiles.size > 0);
  latest.want(asked);
}

function leave() {
  if (asked.similar) history.back();
  else byId("query").focus();
}

function draw(answer, question) {
  const { photographs } = answer;
  const list = byId("results");
  const ranges = scoreRanges(photographs);
  const kept = question.first ? tiles : new Map();
  for (const photo of photographs) {
    const key = `${photo.picture || photo.name} ${photo.version}`;
    const item = tiles.get(key) ?? tile(photo);
    showScores(item, photo, answer.words ?? [], ranges);
    kept.set(key, item);
  }
  tiles = kept;
  list.classList.remove("loading");
  arrange(list, [...tiles.values()]);
  beginTurns(list);
  byId("more").hidden = !(answer.total > tiles.size);
  byId("search-note").textContent = note(answer, question);
  byId("search-note").classList.remove("error");
  empty();
  if (question.similar && tiles.size && document.activeElement === byId("view")) focusFirst(list);
  if (question.q?.trim()) say(`${photographs.length} photographs. The best is ${photographs[0]?.name ?? "none"}.`);
}

function note({ photographs, unknown = [], pending, total, words }, { q, similar }) {
  const parts = [];
  if (unknown.length) parts.push(`The model does not know: ${unknown.join(", ")}.`);
  if (q?.trim() && !photographs.length && !unknown.length && !pending) parts.push("Nothing was found.");
  if (q?.trim() && !photographs.length && pending) parts.push(`The model does not know \u201c${pending}\u201d yet: go on typing.`);
  if (q?.trim() && photographs.length && words.length) parts.push("Best first. Under each photograph: log P of every word.");
  if (similar) parts.push(photographs.length ? "The most similar first." : "There are no others.");
  if (!q?.trim() && !similar && total) parts.push(`${total.toLocaleString("en")} photographs.`);
  return parts.join(" ");
}

/** What is said where there is nothing to search. */
function empty() {
  const box = byId("search-empty");
  const now = state.now;
  box.hidden = !now || !state.isWell || now.can_search && (now.has_index || tiles.size > 0 || Boolean(asked.q) || now.photographs.photographs > 0);
  if (box.hidden) return;
  const isIndexing = now.photographs?.is_running;
  const lead = isIndexing ? "Your photographs are being indexed" : "There are no photographs yet";
  const hint = now.can_index
    ? make("a", { class: "button primary", href: "#photographs" }, isIndexing ? "See how far it is" : "Choose a folder")
    : make("p", { class: "muted" }, now.server.is_here ? "Start the page with --photos." : "The server has no index. Make one with python -m export.index.");
  box.replaceChildren(make("p", { class: "lead" }, lead), hint);
}

function fail(failure) {
  byId("results").classList.remove("loading");
  if (state.now && !state.now.can_search) {
    tiles = new Map();
    byId("results").replaceChildren();
    byId("search-note").textContent = "";
    empty();
    return;
  }
  byId("search-note").textContent = failure.message;
  byId("search-note").classList.add("error");
}
