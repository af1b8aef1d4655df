// A sentence as words: shaded by evidence, each with what else the model could say there.

import { get } from "./api.js";
import { byId, chance, make } from "./dom.js";
import { Latest } from "./latest.js";

const END = "</s>";
const FULL = 4; // nats of evidence that are as dark as it gets
const HOVER_MS = 180;

/**
 * The words of a caption. `typed` is its beginning; `choose` is called with the words up to one that
 * replaces another.
 */
export function sentence(caption, typed, picture, choose) {
  const before = typed.trim().split(/\s+/).filter(Boolean);
  const words = [
    ...before.map((text) => ({ text, isTyped: true })),
    ...caption.words.filter((word) => word.text !== END),
  ];
  const line = make("div", { class: "sentence", role: "group" });
  line.setAttribute("aria-label", caption.text);
  words.forEach((word, number) => {
    const beginning = words.slice(0, number).map((each) => each.text);
    line.append(button(word, beginning, picture, choose));
  });
  oneStop(line);
  return line;
}

function button(word, beginning, picture, choose) {
  const element = make("button", { type: "button", class: word.isTyped ? "word typed" : "word", "aria-expanded": "false", "aria-haspopup": "menu" }, word.text);
  if (!word.isTyped) {
    element.style.setProperty("--evidence", Math.min(Math.max(word.evidence / FULL, 0), 1).toFixed(3));
    const sign = word.evidence < 0 ? "\u2212" : "+";
    element.title = `${chance(Math.exp(word.log_prob))}, evidence ${sign}${Math.abs(word.evidence).toFixed(1)} nats`;
  }
  const open = (isAsked) => menu.open(element, beginning, picture, choose, isAsked);
  element.addEventListener("click", () => open(true));
  element.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && menu.soon(() => open(false)));
  element.addEventListener("pointerleave", () => menu.closeSoon());
  return element;
}

/** Arrow keys move between the words; Tab leaves the sentence. */
function oneStop(line) {
  const words = [...line.children];
  words.forEach((word, number) => (word.tabIndex = number ? -1 : 0));
  line.addEventListener("keydown", (event) => {
    const at = words.indexOf(event.target);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: words.length - 1 }[event.key];
    if (event.key === "ArrowDown" && at >= 0) event.target.click();
    else if (next === undefined || !words[next]) return;
    else {
      words.forEach((word) => (word.tabIndex = -1));
      words[next].tabIndex = 0;
      words[next].focus();
    }
    event.preventDefault();
  });
}

/** What else could be said in the place of a word; there is one menu, and it moves. */
class Menu {
  #timer = null;
  #word = null;
  #latest = new Latest(
    (question) => get("next", { picture: question.picture, prefix: question.beginning.join(" ") }),
    (answer, question) => this.#fill(answer.words, question),
    (failure) => this.#box.replaceChildren(make("p", { class: "small error" }, failure.message)),
  );

  get #box() {
    return byId("alternatives");
  }

  begin() {
    const box = this.#box;
    box.addEventListener("pointerenter", () => clearTimeout(this.#timer));
    box.addEventListener("pointerleave", () => this.closeSoon());
    box.addEventListener("keydown", (event) => this.#move(event));
    document.addEventListener("pointerdown", (event) => {
      if (!box.contains(event.target) && event.target !== this.#word) this.close();
    });
    addEventListener("resize", () => this.close());
  }

  soon(action) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(action, HOVER_MS);
  }

  closeSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#box.contains(document.activeElement) || this.close(), 2 * HOVER_MS);
  }

  open(word, beginning, picture, choose, takesFocus) {
    clearTimeout(this.#timer);
    if (this.#word === word && !takesFocus) return;
    this.#word?.setAttribute("aria-expanded", "false");
    this.#word = word;
    word.setAttribute("aria-expanded", "true");
    const box = this.#box;
    box.hidden = false;
    box.setAttribute("aria-label", `Instead of ${word.textContent}`);
    box.replaceChildren(make("p", { class: "small muted loading" }, "\u2026"));
    this.#place(word);
    this.#latest.want({ beginning, picture, choose, word, takesFocus });
  }

  close() {
    clearTimeout(this.#timer);
    this.#latest.drop();
    if (this.#box.hidden) return;
    const hadFocus = this.#box.contains(document.activeElement);
    this.#box.hidden = true;
    this.#word?.setAttribute("aria-expanded", "false");
    if (hadFocus) this.#word?.focus();
    this.#word = null;
  }

  #fill(words, { beginning, choose, word, takesFocus }) {
    if (this.#word !== word) return;
    const items = words.map(({ text, probability }) => {
      const isEnd = text === END;
      const item = make(
        "button",
        { type: "button", role: "menuitem", tabIndex: -1 },
        make("span", {}, isEnd ? "end of the sentence" : text),
        make("span", { class: "chance" }, chance(probability)),
      );
      if (isEnd) item.setAttribute("aria-disabled", "true");
      else item.addEventListener("click", () => (this.close(), choose([...beginning, text].join(" "))));
      return item;
    });
    this.#box.replaceChildren(...items);
    this.#place(word);
    if (takesFocus) items[0]?.focus();
  }

  #place(word) {
    const box = this.#box;
    const at = word.getBoundingClientRect();
    const width = box.offsetWidth;
    const left = Math.min(at.left, document.body.clientWidth - width - 8);
    box.style.left = `${Math.max(8, left) + scrollX}px`;
    box.style.top = `${at.bottom + scrollY + 4}px`;
  }

  #move(event) {
    const items = [...this.#box.querySelectorAll("[role=menuitem]")];
    const at = items.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (event.key === "Escape" || event.key === "Tab") this.close();
    else if (next === undefined) return;
    else items[(next + items.length) % items.length]?.focus();
    event.preventDefault();
  }
}

export const menu = new Menu();
