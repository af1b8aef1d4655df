// The folder of photographs: which one, how far its indexing is, what was left out.

import { get, send } from "./api.js";
import { byId, make } from "./dom.js";
import { look, onState, state } from "./state.js";

const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
let leftOut = ""; // of which folder, and how many
let refusal = ""; // of what was wished last

export function begin() {
  byId("folder-form").addEventListener("submit", (event) => {
    event.preventDefault();
    tell({ folder: byId("folder").value });
  });
  byId("indexing-stop").addEventListener("click", () => {
    tell({ action: state.now.photographs.is_stopped ? "go on" : "stop" });
  });
  onState(() => byId("photographs").hidden || draw());
}

export function show() {
  draw();
  look();
}

async function tell(wish) {
  const button = byId("folder-form").querySelector("button");
  refusal = "";
  drawError();
  button.disabled = true;
  try {
    await send("photographs", JSON.stringify(wish));
  } catch (failure) {
    refusal = failure.message;
  } finally {
    button.disabled = false;
  }
  drawError();
  look();
}

function drawError() {
  const error = byId("folder-error");
  const sentence = refusal || state.now?.photographs?.error || "";
  error.hidden = !sentence;
  if (error.textContent !== sentence) error.textContent = sentence;
}

function draw() {
  const now = state.now;
  if (!now) return;
  const photographs = now.photographs;
  byId("folder-form").hidden = !photographs;
  byId("folder-note").replaceChildren(...intro(now));
  byId("indexing").hidden = byId("indexed").hidden = byId("left-out").hidden = true;
  if (!photographs) return;
  const field = byId("folder");
  if (!field.value && document.activeElement !== field) field.value = photographs.folder ?? "";
  field.placeholder = photographs.root;
  const { done, total, is_running: isRunning, is_stopped: isStopped } = photographs;
  byId("indexing").hidden = !(isRunning || isStopped);
  byId("indexing-bar").value = total ? done / total : 0;
  byId("indexing-text").textContent = isRunning
    ? `${done.toLocaleString("en")} of ${count(total, "new photograph")}`
    : `Stopped${total ? ` at ${done.toLocaleString("en")} of ${count(total, "new photograph")}` : ""}. What is done stays.`;
  byId("indexing-left").textContent = isRunning ? timeLeft(photographs.seconds_left) : "";
  byId("indexing-stop").textContent = isStopped ? "Go on" : "Stop";
  if (photographs.folder !== null) {
    byId("indexed").hidden = false;
    byId("indexed").textContent = `${count(photographs.photographs, "photograph")} can be found. ${noticed(photographs.changes)}`;
  }
  drawError();
  drawLeftOut(photographs.folder, photographs.changes.unreadable);
}

function intro({ photographs, has_index: hasIndex, server }) {
  if (!photographs) {
    const missing = server.is_here ? "--photos" : "--model";
    const text = hasIndex
      ? `The page searches the index of ${server.address}. For a folder of your own, start it with ${missing}.`
      : `${server.address} has no index. For a folder of your own, start the page with ${missing}.`;
    return [make("p", {}, text)];
  }
  return [make("p", {}, "Point it at a folder: its photographs are indexed in the background, and new and deleted ones are noticed. Nothing is written to the folder.")];
}

function timeLeft(seconds) {
  if (seconds === null) return "How long it takes is not known yet.";
  if (seconds < 60) return `About ${Math.ceil(seconds)} s left.`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `About ${minutes} min left.` : `About ${(minutes / 60).toFixed(1)} h left.`;
}

function noticed(changes) {
  const names = { added: "new", changed: "changed", moved: "moved", removed: "deleted" };
  const parts = Object.entries(names).filter(([key]) => changes[key]).map(([key, name]) => `${changes[key].toLocaleString("en")} ${name}`);
  return parts.length ? `Last change: ${parts.join(", ")}.` : "";
}

async function drawLeftOut(folder, unreadable) {
  byId("left-out").hidden = !unreadable;
  const key = `${unreadable} ${folder}`;
  if (!unreadable || key === leftOut) return;
  leftOut = key;
  byId("left-out").querySelector("summary").textContent = `${count(unreadable, "file")} could not be read`;
  try {
    const { reasons } = await get("unreadable");
    byId("left-out").querySelector("ul").replaceChildren(...reasons.slice(0, 50).map((reason) => make("li", {}, reason)));
  } catch {
    leftOut = "";
  }
}
