// Photographs as tiles: links to their captions, with a way to similar ones.

import { link, make, preview, rounded } from "./dom.js";

/** A tile: the picture, room for scores, the name and a link to similar ones. */
export function tile(photo) {
  const picture = photo.picture
    ? make("img", { src: preview(photo.picture, "small", photo.version), alt: photo.name, loading: "lazy" })
    : make("span", { class: "absent" }, "The picture is not in the folder");
  if (photo.picture) {
    picture.addEventListener("error", () => picture.replaceWith(make("span", { class: "absent" }, "It cannot be shown")));
  }
  const open = photo.picture
    ? make("a", { class: "open", href: link("caption", { picture: photo.picture }) }, picture)
    : make("div", { class: "open", tabIndex: 0 }, picture);
  open.dataset.picture = photo.picture;
  const under = make("div", { class: "under" }, make("span", { class: "name", title: photo.name }, photo.name));
  if (photo.picture) {
    const like = make("a", { class: "like", href: link("search", { similar: photo.picture }) }, "Similar");
    like.setAttribute("aria-label", `Photographs similar to ${photo.name}`);
    under.append(like);
  }
  return make("li", { class: "tile" }, open, make("div", { class: "scores" }), under);
}

/** Shows the scores of words under a tile; a word is darker where it fits better than elsewhere. */
export function showScores(item, photo, words, ranges) {
  const scores = item.querySelector(".scores");
  const parts = (photo.words ?? []).map((score, number) => {
    const [low, high] = ranges[number];
    const word = make("span", { class: "word", title: `log P ${score.toFixed(2)}` }, `${words[number]} ${rounded(score)}`);
    word.style.setProperty("--evidence", high > low ? (score - low) / (high - low) : 0);
    return word;
  });
  if (parts.length) parts.push(make("span", { class: "total", title: "log P of all words" }, rounded(photo.score)));
  scores.replaceChildren(...parts);
}

/** The lowest and the highest score of every word. */
export function scoreRanges(photographs) {
  const count = photographs[0]?.words?.length ?? 0;
  return Array.from({ length: count }, (_, number) => {
    const column = photographs.map((photo) => photo.words[number]);
    return [Math.min(...column), Math.max(...column)];
  });
}

/** Puts tiles into an order; those that were there move to their new places. */
export function arrange(list, items) {
  const isSame = items.length === list.children.length && items.every((item, at) => item === list.children[at]);
  if (isSame) return;
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches || document.hidden;
  const before = new Map([...list.children].map((item) => [item, item.getBoundingClientRect()]));
  list.replaceChildren(...items);
  if (focused?.isConnected) focused.focus({ preventScroll: true });
  if (isCalm) return;
  for (const item of items) {
    const old = before.get(item);
    const now = item.getBoundingClientRect();
    if (!old) {
      item.animate({ opacity: [0, 1] }, { duration: 180 });
    } else if (old.x !== now.x || old.y !== now.y) {
      const from = `translate(${old.x - now.x}px, ${old.y - now.y}px)`;
      item.animate({ transform: [from, "none"] }, { duration: 260, easing: "ease-out" });
    }
  }
}

/** Arrow keys move between tiles; only one of them can be reached by Tab. */
export function moveByArrows(list, leave, similar) {
  const tiles = () => [...list.querySelectorAll(".open")];
  list.addEventListener("keydown", (event) => {
    const all = tiles();
    const at = all.indexOf(event.target.closest(".tile")?.querySelector(".open"));
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const top = all[0].getBoundingClientRect().top;
    const columns = Math.max(1, all.filter((each) => Math.abs(each.getBoundingClientRect().top - top) < 2).length);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const ends = { Home: 0, End: all.length - 1 };
    if (event.key === "Escape" || (event.key === "ArrowUp" && at < columns)) leave();
    else if (event.key in steps) focusTile(all, at + steps[event.key]);
    else if (event.key in ends) focusTile(all, ends[event.key]);
    else if (event.key === "s" && all[at].dataset.picture) similar(all[at].dataset.picture);
    else return;
    event.preventDefault();
  });
  list.addEventListener("focusin", (event) => {
    const open = event.target.closest(".tile")?.querySelector(".open");
    if (open) takeTurn(tiles(), open);
  });
}

function focusTile(all, number) {
  const next = all[Math.min(Math.max(number, 0), all.length - 1)];
  takeTurn(all, next);
  next.focus();
}

function takeTurn(all, chosen) {
  for (const open of all) {
    const isChosen = open === chosen;
    open.tabIndex = isChosen ? 0 : -1;
    const like = open.parentElement.querySelector(".like");
    if (like) like.tabIndex = isChosen ? 0 : -1;
  }
}

export function beginTurns(list) {
  const all = [...list.querySelectorAll(".open")];
  if (all.length && !list.contains(document.activeElement)) takeTurn(all, all[0]);
}

export function focusFirst(list) {
  focusTile([...list.querySelectorAll(".open")], 0);
}
