// What the explorer is at: asked again and again, so that the page notices when somebody goes or comes.

import { get } from "./api.js";
import { byId } from "./dom.js";

const SOON = 1000;
const LATER = 4000;

export const state = { now: null, isWell: true };
const listeners = [];
const folderListeners = [];
let timer = null;

/** Calls a function with the state, and whether everything is well again after a failure. */
export function onState(listener) {
  listeners.push(listener);
}

/** Calls a function when the photographs are those of another folder. */
export function onFolder(listener) {
  folderListeners.push(listener);
}

export async function look() {
  clearTimeout(timer);
  const wasWell = state.isWell;
  const before = state.now;
  let sentence = "";
  try {
    state.now = await get("state");
    sentence = state.now.server.error;
  } catch (failure) {
    sentence = failure.message;
  }
  state.isWell = !sentence;
  const banner = byId("banner");
  banner.hidden = state.isWell;
  const text = sentence && `${sentence} Trying again \u2026`;
  if (banner.textContent !== text) banner.textContent = text;
  const isMoved = before && before.photographs?.folder !== state.now.photographs?.folder;
  if (isMoved) for (const listener of folderListeners) listener();
  if (state.now) for (const listener of listeners) listener(state.now, state.isWell && !wasWell);
  const isBusy = !state.isWell || state.now?.photographs?.is_running;
  timer = setTimeout(look, isBusy ? SOON : LATER);
}

document.addEventListener("visibilitychange", () => document.hidden || look());
