// The inside of the model: health, card, nearest words, what it says without a picture.

import { get } from "./api.js";
import { byId, chance, link, make } from "./dom.js";
import { Latest } from "./latest.js";
import { onState, state } from "./state.js";

const nearest = new Latest((word) => get("nearest", { word }), drawNearest, (failure) => {
  byId("nearest").replaceChildren();
  byId("word-error").textContent = failure.message;
});
const card = new Latest(() => get("card"), drawCard, failed);
const blank = new Latest(() => get("blank"), drawBlank, () => (byId("blank").hidden = true));

export function begin() {
  byId("word").addEventListener("input", () => {
    const word = byId("word").value;
    history.replaceState(null, "", link("inside", { word }));
    ask(word);
  });
  onState(() => byId("inside").hidden || drawHealth());
}

export function show({ word = "dog" }) {
  byId("word").value = word;
  drawHealth();
  card.want();
}

function ask(word) {
  if (word.trim()) nearest.want(word);
  else byId("nearest").replaceChildren();
}

function drawHealth() {
  if (!state.now) return;
  const { server } = state.now;
  const rows = { Answers: server.address };
  for (const [model, versions] of Object.entries(server.versions)) {
    const states = Object.entries(versions).map(([version, name]) => `${version === "0" ? "" : `version ${version}, `}${name.toLowerCase()}`);
    rows[model] = states.join("; ") || "not served";
  }
  const line = make("p", { class: server.error ? "bad" : "ok" }, server.error || "Everything answers.");
  byId("health").replaceChildren(make("h2", {}, "Health"), line, definitions(rows));
}

function drawCard({ sections, has_words: hasWords }) {
  const parts = Object.entries(sections)
    .filter(([, rows]) => Object.keys(rows).length)
    .map(([title, rows]) => make("section", { class: "card" }, make("h2", {}, title), definitions(rows)));
  byId("card").replaceChildren(...parts);
  byId("words").hidden = byId("blank").hidden = !hasWords;
  if (!hasWords) return;
  ask(byId("word").value);
  blank.want();
}

function definitions(rows) {
  const parts = Object.entries(rows).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]);
  return make("dl", {}, ...parts);
}

function drawNearest({ words }) {
  byId("word-error").textContent = "";
  const items = words.map(({ text, distance }) => {
    const item = make("li", {}, make("span", {}, text), make("span", { class: "muted" }, distance.toFixed(1)));
    item.style.setProperty("--share", words[0].distance / distance);
    return item;
  });
  byId("nearest").replaceChildren(...items);
}

function drawBlank({ captions }) {
  const items = captions.map(({ text, log_prob: logProb }) =>
    make("li", {}, `${text} `, make("span", { class: "muted small" }, `P ${chance(Math.exp(logProb))}`)));
  byId("blank").querySelector("ol").replaceChildren(...items);
}

function failed(failure) {
  byId("card").replaceChildren(make("p", { class: "card error" }, failure.message));
}
