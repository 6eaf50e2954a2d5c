// Keys that lead to the previous and the next rollout or group.

import { replacePage } from "./router.js";

const BACKWARD = new Set(["k", "ArrowLeft"]);
const FORWARD = new Set(["j", "ArrowRight"]);

/** k and left lead to `previous`, j and right to `next`; either may be null. Back then leads to the list. */
export function movesBetween(page, previous, next) {
  const move = (event) => {
    const isTyping = event.target.closest("input, select, textarea") !== null;
    if (event.defaultPrevented || isTyping || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const fragment = BACKWARD.has(event.key) ? previous : FORWARD.has(event.key) ? next : null;
    if (fragment !== null) {
      event.preventDefault();
      replacePage(fragment);
    }
  };
  document.addEventListener("keydown", move, { signal: page.signal });
}
