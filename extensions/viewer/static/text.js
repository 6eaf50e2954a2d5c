// Text of a run is hostile. What cannot be seen, or changes how other text is shown, becomes a visible mark.

const UNSEEN = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;

function codePoint(character) {
  return "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

function markNode(text, className = "mark") {
  const mark = document.createElement("span");
  mark.className = className;
  mark.textContent = text;
  return mark;
}

/** Text for an attribute, an option or a canvas, where no element can stand: "[U+202E]". */
export function plainText(text) {
  return String(text).replace(UNSEEN, (character) => `[${codePoint(character)}]`);
}

/** Nodes for `text`, with a mark for each character that would not be seen. */
export function textNodes(text) {
  const nodes = [];
  let done = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.index > done) {
      nodes.push(document.createTextNode(text.slice(done, match.index)));
    }
    nodes.push(markNode(codePoint(match[0])));
    done = match.index + match[0].length;
  }
  if (done < text.length) {
    nodes.push(document.createTextNode(text.slice(done)));
  }
  return nodes;
}

/** The same for prompts and answers: a newline is shown as ↵ and breaks the line. */
export function sampleNodes(text) {
  const nodes = [];
  text.split("\n").forEach((line, index) => {
    if (index > 0) {
      nodes.push(markNode("↵", "mark line-end"), document.createTextNode("\n"));
    }
    nodes.push(...textNodes(line));
  });
  return nodes;
}
