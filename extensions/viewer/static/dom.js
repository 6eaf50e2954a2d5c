// The one place that makes elements. Text goes in as text; links lead to this page or to its own data only.

import { plainText, textNodes } from "./text.js";

const OWN_LINK = /^(#|api\/)/;
const SVG = "http://www.w3.org/2000/svg";

function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) {
    return;
  }
  if (name.startsWith("on") || name === "style") {
    throw new Error(`no attribute ${name} here`);
  }
  if (name === "href" && !OWN_LINK.test(value)) {
    throw new Error("a link that leads out of these pages");
  }
  element.setAttribute(name, value === true ? "" : plainText(value));
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child instanceof Node) {
      element.append(child);
    } else if (child !== null && child !== undefined && child !== false) {
      element.append(...textNodes(String(child)));
    }
  }
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "listen") {
      Object.entries(value).forEach(([event, listener]) => element.addEventListener(event, listener));
    } else if (name === "data") {
      Object.entries(value).forEach(([key, datum]) => setAttribute(element, `data-${key}`, datum));
    } else {
      setAttribute(element, name, value);
    }
  }
  append(element, children);
  return element;
}

/** An element, as el("a", {href: "#/", data: {row: 3}, listen: {click: open}}, "text", node, [more]). */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

export function button(text, press, properties = {}) {
  return el("button", { type: "button", listen: { click: press }, ...properties }, text);
}

export function alertBox(text) {
  return el("p", { role: "alert", class: "alert" }, text);
}

export function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), ...children);
}

/** Pairs of a name and a value; those without a value are left out. */
export function facts(pairs) {
  const there = pairs.filter(([, value]) => value !== null && value !== undefined);
  return el(
    "dl",
    { class: "facts" },
    there.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}
