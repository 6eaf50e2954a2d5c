// What a process does has one of three greys, so that only weight versions have colours.

import { sheetColour } from "./colours.js";

const WAITING = new Set(["wait", "wait_rows", "idle"]);
const SENDING = new Set(["publish", "open", "gather", "send", "confirm", "quiesce", "renew", "sleep", "onload", "offload"]);

export function processColour(name) {
  if (WAITING.has(name)) {
    return sheetColour("--waiting");
  }
  return sheetColour(SENDING.has(name) ? "--sending" : "--working");
}

export function processLegend() {
  return [
    ["var(--working)", "a process works"],
    ["var(--sending)", "publishes weights, or takes turns"],
    ["var(--waiting)", "waits"],
  ];
}
