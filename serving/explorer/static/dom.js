// Elements, made without HTML text: whatever a file or a server is called, it stays a text.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; a child that is a string is a text. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Says a sentence to screen readers. */
export function say(sentence) {
  byId("spoken").textContent = sentence;
}

const RAISED = { "-": "\u207b", 0: "\u2070", 1: "\u00b9", 2: "\u00b2", 3: "\u00b3", 4: "\u2074", 5: "\u2075", 6: "\u2076", 7: "\u2077", 8: "\u2078", 9: "\u2079" };

/** A probability for people: 59 %, 0.34 %, 1.5 x 10^-6. */
export function chance(probability) {
  if (probability >= 0.0001) return `${Number((100 * probability).toPrecision(2))} %`;
  const [digits, power] = probability.toExponential(1).split("e");
  return `${digits} \u00d7 10${[...power].map((sign) => RAISED[sign] ?? "").join("")}`;
}

export const rounded = (value) => value.toFixed(1).replace("-", "\u2212");

/**
 * The address of a preview. Browsers show an image again without asking where its address is the
 * same: a photograph has its version in it, or the time where the version is not known.
 */
export function preview(picture, size = "small", version = picture.startsWith("sent:") ? "" : Date.now()) {
  return `/api/preview?${new URLSearchParams({ picture, size, version })}`;
}

/** The address of a view, which shows the same again. */
export function link(view, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value);
  return `#${view}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}
