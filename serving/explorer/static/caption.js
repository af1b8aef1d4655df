// A picture and what the model says of it.

import { get, send } from "./api.js";
import { byId, chance, link, make, preview, say } from "./dom.js";
import { Latest } from "./latest.js";
import { onFolder, onState, state } from "./state.js";
import { tile } from "./tiles.js";
import { menu, sentence } from "./words.js";

let shown = { picture: "", text: "", order: "before" };
let sent = null; // the file of the picture, which the explorer may have forgotten
let answer = null;
let hasSuggested = false;
let hasSurrounded = false;
let isReading = false; // a picture that was sent

const captions = new Latest(askCaptions, (result) => drawCaptions(result), failed);
const similar = new Latest((picture) => get("similar", { picture }), drawSimilar, () => (byId("near").hidden = true));
const sentences = new Latest((picture) => get("sentences", { picture }), drawSentences, () => (byId("sentences").hidden = true));
const upload = new Latest((file) => send("pictures", file), uploaded, (failure) => {
  isReading = false;
  failed(failure);
});

export function begin() {
  menu.begin();
  for (const [button, input] of [["choose", "file"], ["photograph", "camera"]]) {
    byId(button).addEventListener("click", () => byId(input).click());
    byId(input).addEventListener("change", () => {
      if (byId(input).files[0]) take(byId(input).files[0]);
      byId(input).value = "";
    });
  }
  byId("another").addEventListener("click", () => byId("file").click());
  byId("beginning").addEventListener("input", () => begun(byId("beginning").value));
  for (const radio of document.getElementsByName("order")) {
    radio.addEventListener("change", () => {
      shown.order = radio.value;
      remember();
      drawCaptions(answer);
    });
  }
  byId("picture").addEventListener("error", () => byId("picture").removeAttribute("src"));
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  for (const name of ["dragleave", "drop"]) {
    document.addEventListener(name, () => document.body.classList.remove("dragging"));
  }
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find(({ type }) => type.startsWith("image/"));
    if (file) take(file);
  });
  onFolder(() => {
    hasSuggested = hasSurrounded = false;
    if (shown.picture.startsWith("photo:")) byId("picture").removeAttribute("src"); // another file may have its name
    if (shown.picture && !byId("caption").hidden) show(shown);
  });
  onState((_, isBack) => (shown.picture ? surround(isBack) : suggest()));
}

export function show({ picture = "", text = "", order = "before" }) {
  menu.close();
  if (!picture && isReading) return;
  const isNew = picture !== shown.picture;
  shown = { picture, text, order };
  byId("drop").hidden = Boolean(picture);
  byId("pictured").hidden = !picture;
  if (!picture) return suggest();
  if (isNew || !byId("picture").hasAttribute("src")) {
    byId("picture").src = preview(picture, "large");
    byId("picture").alt = "The picture";
    byId("picture-name").textContent = nameOf(picture);
    byId("near").hidden = byId("sentences").hidden = true;
    clear();
  }
  if (byId("beginning").value.trim() !== text.trim()) byId("beginning").value = text;
  captions.want(picture, text);
  surround(isNew);
}

/** Asks for similar pictures and for sentences, once, as soon as it is known who can tell. */
function surround(isNew) {
  if (isNew) hasSurrounded = false;
  if (hasSurrounded || !shown.picture || !state.now) return;
  hasSurrounded = true;
  if (state.now.can_search) similar.want(shown.picture);
  if (state.now.has_index) sentences.want(shown.picture);
}

function nameOf(picture) {
  if (picture.startsWith("sent:")) return sent?.name ?? "";
  try {
    return decodeURIComponent(picture.replace(/^photo:/, ""));
  } catch {
    return picture.replace(/^photo:/, "");
  }
}

/** Takes a picture that was dropped, pasted, chosen or photographed. */
function take(file) {
  sent = file;
  isReading = true;
  shown = { picture: "", text: "", order: "before" };
  location.hash = "caption";
  byId("drop").hidden = true;
  byId("pictured").hidden = false;
  byId("picture").removeAttribute("src");
  byId("picture").alt = "The picture is being read";
  byId("picture-name").textContent = file.name;
  byId("near").hidden = byId("sentences").hidden = true;
  byId("beginning").value = "";
  clear();
  upload.want(file);
}

function uploaded({ picture }) {
  isReading = false;
  const address = link("caption", { picture });
  if (location.hash === address) show({ picture });
  else location.hash = address;
}

async function askCaptions(picture, prefix) {
  try {
    return await get("captions", { picture, prefix });
  } catch (failure) {
    if (failure.status !== 410 || !sent) throw failure;
    const again = await send("pictures", sent); // the explorer was started anew
    if (again.picture !== picture) throw failure;
    byId("picture").src = preview(picture, "large");
    surround(true);
    return get("captions", { picture, prefix });
  }
}

function clear() {
  answer = null;
  byId("captions").replaceChildren(make("p", { class: "muted loading" }, "The model looks at the picture \u2026"));
  byId("captions").setAttribute("aria-busy", "true");
  byId("likelier").textContent = "";
  byId("order").hidden = true;
}

function begun(text) {
  menu.close();
  shown.text = text;
  remember();
  captions.want(shown.picture, text);
}

function remember() {
  const { picture, text, order } = shown;
  history.replaceState(null, "", link("caption", { picture, text: text.trim(), order: order === "after" ? order : "" }));
}

/** Goes on from words that were chosen. */
function choose(beginning) {
  byId("beginning").value = `${beginning} `;
  begun(beginning);
  byId("beginning").focus();
  say(`The model goes on from: ${beginning}`);
}

function drawCaptions(result) {
  answer = result;
  const hasOrder = Boolean(result.reranked?.length);
  const isAfter = hasOrder && shown.order === "after";
  byId("order").hidden = !hasOrder;
  for (const radio of document.getElementsByName("order")) radio.checked = radio.value === (isAfter ? "after" : "before");
  const byText = new Map(result.captions.map((caption, rank) => [caption.text, { ...caption, rank }]));
  const listed = isAfter
    ? result.reranked.map((caption) => ({ words: plain(caption.text), rank: null, ...byText.get(caption.text), ...caption }))
    : result.captions;
  const items = listed.map((caption, rank) => {
    const figures = make("span", { class: "figures", title: `log P ${caption.log_prob.toFixed(2)}` });
    figures.append(isAfter ? `consensus ${caption.consensus.toFixed(2)} ` : `P ${chance(Math.exp(caption.log_prob))}`);
    if (isAfter && caption.rank !== rank) {
      figures.append(make("span", { class: "moved" }, caption.rank === null ? "new" : `was ${caption.rank + 1}.`));
    }
    return make("li", {}, sentence(caption, shown.text, shown.picture, choose), figures);
  });
  byId("captions").replaceChildren(make("ol", { class: "captions" }, ...items));
  byId("captions").setAttribute("aria-busy", "false");
  byId("picture").alt = `The picture. The model says: ${listed[0].text}`;
  byId("likelier").textContent = likelier(listed[0]);
  say(`The model says: ${listed[0].text}`);
}

const plain = (text) => text.split(" ").map((word) => ({ text: word, evidence: 0, log_prob: 0 }));

function likelier({ words }) {
  const evidence = words.reduce((sum, word) => sum + word.evidence, 0);
  if (evidence < 1) return "";
  const times = Math.exp(evidence);
  const count = times < 1e6 ? Number(times.toPrecision(2)).toLocaleString("en") : chance(times).replace(" %", "");
  return `The picture makes the first sentence ${times < 1e6 ? count : "more than a million"} times likelier.`;
}

function failed(failure) {
  const isGone = failure.status === 410;
  const retry = make("button", { type: "button", onclick: () => (isGone ? byId("file").click() : show(shown)) }, isGone ? "Choose it again" : "Try again");
  const other = make("button", { type: "button", onclick: () => byId("file").click() }, "Choose another picture");
  const isBad = failure.status === 400 || failure.status === 413;
  const button = isBad ? other : retry;
  byId("captions").replaceChildren(make("div", { role: "alert" }, make("p", { class: "error" }, failure.message), button));
  byId("captions").setAttribute("aria-busy", "false");
  byId("likelier").textContent = "";
}

function drawSimilar({ photographs }, picture) {
  if (picture !== shown.picture) return;
  byId("near").hidden = !photographs.length;
  byId("near").querySelector("ul").replaceChildren(...photographs.slice(0, 12).map(tile));
}

function drawSentences(found, picture) {
  if (picture !== shown.picture) return;
  byId("sentences").hidden = !found.sentences.length;
  const items = found.sentences.map((each) => {
    const source = each.picture
      ? make("a", { href: link("caption", { picture: each.picture }) }, each.name)
      : make("span", { class: "muted" }, each.name);
    source.classList.add("small");
    return make("li", {}, make("span", {}, each.text), source);
  });
  byId("sentences").querySelector("ol").replaceChildren(...items);
}

/** Shows a few photographs of the folder to begin with. */
async function suggest() {
  if (hasSuggested || !state.now?.photographs?.photographs) return;
  hasSuggested = true;
  try {
    const { photographs } = await get("photos", { first: 0 });
    byId("suggested").querySelector("ul").replaceChildren(...photographs.slice(0, 6).map(tile));
    byId("suggested").hidden = !photographs.length;
  } catch {
    hasSuggested = false; // the banner says why
  }
}
